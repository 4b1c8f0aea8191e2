"""Summaries of results and comparisons, written from the data."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np

from ..studies.dynamics.dynamics import Dynamics
from ..studies.lengths.lengths import Lengths
from ..studies.profile.compare import Comparison
from ..studies.profile.result import Profile
from ..studies.stats import EXCLUDES
from ..words import count, signed

HOLDS = 0.9  # the share of right answers up to which a model is said to hold


def profile_sentences(profile: Profile) -> list[str]:
    """How many heads of each kind there are, whether the scores exclude each other, and what changes with depth."""
    depth = [*depth_sentence(profile), *task_sentences(profile)]
    return [kinds_sentence(profile), *exclusion_sentence(profile), *depth]


def kinds_sentence(profile: Profile) -> str:
    """The number of heads of each kind.

    >>> kinds_sentence(profile)                                       # doctest: +SKIP
    '154 of 270 heads look at where (positional), 21 at what (symbolic), 1 is unfocused, 94 are mixed.'
    """
    found = Counter(profile.heads["kind"])
    where, what = found["where"], found["what"]
    looks = f"look{'s' if where == 1 else ''} at where (positional), {what} at what (symbolic)"
    text = f"{where} of {count(len(profile.heads), 'head')} {looks}"
    for name in ("unfocused", "mixed"):
        text += f", {found[name]} {'is' if found[name] == 1 else 'are'} {name}" if found[name] else ""
    unmeasured = found["unmeasured"]
    text += f"; {count(unmeasured, 'head')} could not be measured" if unmeasured else ""
    little = profile.about.get("little", {"heads": 0})
    if not little["heads"]:
        return f"{text}."
    rests = "rests" if little["heads"] == 1 else "rest"
    share = f"{100 * little['threshold']:g} %"
    return f"{text}. {little['heads']} of them {rests} on little attention: less than {share} of it is on the blocks."


def exclusion_sentence(profile: Profile) -> list[str]:
    found = profile.about["correlation"]
    r = found["r"]
    if r is None:
        return []
    low, high = found["r_low"], found["r_high"]
    interval = f", 95 % interval {signed(low)} to {signed(high)}" if low is not None else ""
    how = "exclude" if r <= EXCLUDES else "tend to exclude" if r <= -0.2 else "do not exclude"
    return [f"The two scores {how} each other (r = {signed(r)}{interval})."]


def depth_sentence(profile: Profile) -> list[str]:
    """Whether early and late layers differ, by the medians of the two halves."""
    medians = profile.about["medians"]
    halves = [one["median"] for axis in ("positional", "symbolic") for one in medians[axis]]
    if None in halves or len(set(profile.heads["layer"])) < 2:
        return []
    early, late = halves[0] - halves[2], halves[1] - halves[3]
    names = ["where" if gap > 0.2 else "what" if gap < -0.2 else "both" for gap in (early, late)]
    if names[0] != names[1]:
        return [f"Early layers look at {names[0]}, late layers at {names[1]}."]
    if names[0] == "both":
        return ["Early and late layers look at both."]
    change = abs(late) - abs(early)
    more = "" if abs(change) < 0.02 else f", late layers {'more' if change > 0 else 'less'} purely"
    return [f"Early and late layers mostly look at {names[0]}{more}."]


def task_sentences(profile: Profile) -> list[str]:
    """How many heads keep their kind on each of the other tasks."""
    kept = ((Path(task["settings"]["task"]).name, task["kept"]["all"]) for task in profile.about.get("tasks", []))
    return [f"On {name}, {found['same']} of {count(found['of'], 'head')} keep their kind." for name, found in kept]


def series_sentences(watched: Dynamics, gamma: float) -> list[str]:
    """Which heads became pure and when, and the share of right answers at the last step."""
    last = watched.heads[watched.heads["query"] == 0]
    steps = np.unique(last["step"])
    heads = int((last["step"] == steps[0]).sum())
    sentences = [f"{count(heads, 'head')} at {count(len(steps), 'checkpoint')}, up to step {steps[-1]:,}."]
    for kind, score in (("where", "positional"), ("what", "symbolic")):
        pure = watched.purity.query("gamma == @gamma and kind == @kind").sort_values("step").to_dict("records")
        if not pure:
            sentences.append(f"No head became purely {score} ({kind}).")
            continue
        named = ", ".join(f"{one['layer']}.{one['head']} at step {one['step']:,}" for one in pure[:3])
        rest = f" and {len(pure) - 3} more" if len(pure) > 3 else ""
        sentences.append(f"{count(len(pure), 'head')} became purely {score} ({kind}): {named}{rest}.")
    final = watched.accuracy.query(f"step == {steps[-1]}").sort_values("hops")["accuracy"].tolist()
    if final and not any(map(math.isnan, final)):
        shares = list(dict.fromkeys(f"{share:.0%}" for share in final))
        each = shares[0] if len(shares) == 1 else ", ".join(f"{share:.0%}" for share in final)
        hops = f" (1 to {len(final)} hops)" if len(final) > 1 else ""
        sentences.append(f"Right answers at the last step: {each}{hops}.")
    return sentences


def length_sentences(found: Lengths) -> list[str]:
    """Up to which length 90 % of answers are right, by hops, and how many heads lose their token.

    >>> length_sentences(found)                                       # doctest: +SKIP
    ['At least 90 % of answers are right up to 50 tokens; at 1,000 tokens, 2 % are.', ...]
    """
    table = found.accuracy.sort_values("length")
    longest = table["length"].max().item()
    reach = {}
    for hops in sorted(set(table["hops"])):
        rows = table.query("hops == @hops")
        held = (rows["accuracy"] >= HOLDS).cummin()
        reach[hops] = max(rows.loc[held, "length"].tolist(), default=0)
    end = table.query("hops == 0 and length == @longest")["accuracy"].item()
    up_to = {hops: f"up to {length:,} tokens" if length else "at no length" for hops, length in reach.items()}
    sharpened = "All attention logits are multiplied by log n / log 17 for a sequence of n tokens."
    sentences = [sharpened] * bool(found.about.get("sharpened"))
    sentences.append(f"At least 90 % of answers are right {up_to[0]}; at {longest:,} tokens, {100 * end:.0f} % are.")
    most = max(reach)
    if most > 1 and {1, most} <= reach.keys():
        sentences.append(f"With one hop this holds {up_to[1]}, with {most} hops {up_to[most]}.")
    lost = found.loss[np.isfinite(found.loss["measured"])]
    first = f", the first at {lost['measured'].min():,.0f}" if len(lost) else ""
    return [
        *sentences,
        f"{len(lost)} of {count(len(found.loss), 'head')} lose half of their attention on the next token of the path "
        f"within {longest:,} tokens{first}.",
    ]


def comparison_sentences(found: Comparison, names: tuple[str, str]) -> list[str]:
    """How the heads of the second profile differ from those of the first."""
    about = found.about
    sentences = [f"Note: {warning}." for warning in about["warnings"]]
    if found.heads is None:
        return [*sentences, f"{about['not_matched'][0].upper()}{about['not_matched'][1:]}."]
    clear = max(agreement["clear"] for agreement in about["agreement"].values())
    correlated = [agreement["r"] for agreement in about["agreement"].values()]
    if None not in correlated:
        both = " and ".join(f"{signed(r)} ({axis})" for axis, r in zip(about["agreement"], correlated, strict=True))
        sentences.append(f"Over the heads, the scores of the two correlate with r = {both}.")
    moved = ", ".join(f"{row['layer']}.{row['head']}" for row in found.heads.head(3).to_dict("records"))
    sentences.append(
        f"From {names[0]} to {names[1]}, {count(about['changed_kind'], 'head')} changed kind and {clear} moved on one "
        f"axis by more than the choice of prompts explains. Moved most: {moved}."
    )
    return sentences


def same_heads(profile: Profile, watched: Dynamics) -> bool:
    """Whether a profile and a series have the same layers and heads."""
    one, other = (set(zip(table["layer"], table["head"], strict=True)) for table in (profile.heads, watched.heads))
    return one == other


def series_comparison(profile: Profile, watched: Dynamics, names: tuple[str, str]) -> list[str]:
    """How many heads have the same kind in a profile and at the last step of a series.

    >>> series_comparison(profile, watched, ("number", "number, learning"))              # doctest: +SKIP
    ['The heads of number were measured once, those of number, learning at 136 steps.',
     'At the last step, 12 of 12 heads are of the same kind.']
    """
    ends = watched.heads.query("query == 0 and step == step.max()")
    found, then = ({(row["layer"], row["head"]): row["kind"] for row in table.to_dict("records")}
                   for table in (profile.heads, ends))  # fmt: skip
    steps = count(len(np.unique(watched.heads["step"])), "step")
    once = f"The heads of {names[0]} were measured once, those of {names[1]} at {steps}."
    if not same_heads(profile, watched):
        return [once, "The two do not have the same heads, so heads are not compared."]
    same = sum(found[place] == then[place] for place in found)
    return [once, f"At the last step, {same} of {count(len(found), 'head')} are of the same kind."]
