"""What a profile, a series or a comparison says, in sentences written from the data."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from ..studies.atlas import Atlas
from ..studies.compare import Comparison
from ..studies.dynamics import Dynamics
from ..studies.lengths import Lengths
from ..studies.profile_file import Profile
from .terminal import count

HOLDS = 0.9  # of the answers
EXCLUDES = -0.5  # the axes exclude each other if they correlate with this or less


def profile_sentences(profile: Profile) -> list[str]:
    """How many heads look at what, whether the axes exclude each other, and what depth changes."""
    return [kinds_sentence(profile), *exclusion_sentence(profile), *depth_sentence(profile)]


def kinds_sentence(profile: Profile) -> str:
    """The heads of each kind.

    >>> kinds_sentence(profile)                                       # doctest: +SKIP
    '154 of 270 heads look at where, 21 at what, 1 is unfocused, 94 are mixed.'
    """
    found = Counter(profile.heads["kind"])
    where, what = found["where"], found["what"]
    said = f"{where} of {count(len(profile.heads), 'head')} look{'s' if where == 1 else ''} at where, {what} at what"
    for name in ("unfocused", "mixed"):
        said += f", {found[name]} {'is' if found[name] == 1 else 'are'} {name}" if found[name] else ""
    unmeasured = found["unmeasured"]
    return said + (f"; {count(unmeasured, 'head')} could not be measured." if unmeasured else ".")


def exclusion_sentence(profile: Profile) -> list[str]:
    found = profile.about["correlation"]
    r = found["r"]
    if r is None:
        return []
    low, high = found["r_low"], found["r_high"]
    reach = f"r = {_signed(r)}" + (f", {_signed(low)} to {_signed(high)}" if low is not None else "")
    if r <= EXCLUDES:
        return [f"The two exclude each other ({reach})."]
    return [f"The two {'tend to exclude each other' if r <= -0.2 else 'do not exclude each other here'} ({reach})."]


def depth_sentence(profile: Profile) -> list[str]:
    """Whether early and late layers look at different things, by the medians of the two halves."""
    medians = profile.about["medians"]
    halves = [one["median"] for axis in ("positional", "symbolic") for one in medians[axis]]
    if None in halves or len(set(profile.heads["layer"])) < 2:
        return []
    early, late = halves[0] - halves[2], halves[1] - halves[3]
    names = ["where" if gap > 0.2 else "what" if gap < -0.2 else "both" for gap in (early, late)]
    if names[0] != names[1]:
        return [f"Early layers look at {names[0]}, late ones at {names[1]}."]
    if names[0] == "both":
        return ["Early and late layers look at both alike."]
    change = abs(late) - abs(early)
    more = "" if abs(change) < 0.02 else f", late ones {'more' if change > 0 else 'less'} purely"
    return [f"Early and late layers alike mostly look at {names[0]}{more}."]


def series_sentences(watched: Dynamics, gamma: float) -> list[str]:
    """Which heads became pure and when, and how well the model answers at the end."""
    last = watched.heads[watched.heads["query"] == 0]
    steps = np.unique(last["step"])
    heads = int((last["step"] == steps[0]).sum())
    said = [f"{count(heads, 'head')} over {count(len(steps), 'checkpoint')}, to step {steps[-1]:,}."]
    for kind in ("where", "what"):
        pure = watched.purity.query("gamma == @gamma and kind == @kind").sort_values("step").to_dict("records")
        if not pure:
            said.append(f"No head became pure at {kind}.")
            continue
        named = ", ".join(f"{one['layer']}.{one['head']} at step {one['step']:,}" for one in pure[:3])
        rest = f" and {len(pure) - 3} more" if len(pure) > 3 else ""
        said.append(f"{count(len(pure), 'head')} came to look purely at {kind}: {named}{rest}.")
    final = watched.accuracy.query(f"step == {steps[-1]}").sort_values("hops")["accuracy"].tolist()
    if final and not any(map(math.isnan, final)):
        shares = list(dict.fromkeys(f"{share:.0%}" for share in final))
        each = shares[0] if len(shares) == 1 else ", ".join(f"{share:.0%}" for share in final)
        hops = f"1 to {len(final)} hops" if len(final) > 1 else "the question"
        said.append(f"At the end it answers {hops} right in {each} of prompts.")
    return said


def length_sentences(found: Lengths) -> list[str]:
    """Up to which length nine answers of ten are right, by hops, and how many heads lose their token.

    >>> length_sentences(found)                                       # doctest: +SKIP
    ['Nine answers of ten are right up to 50 tokens; at 1,000 tokens 2 % are.', ...]
    """
    table = found.accuracy.sort_values("length")
    longest = table["length"].max().item()
    reach = {}
    for hops in sorted(set(table["hops"])):
        rows = table.query("hops == @hops")
        held = (rows["accuracy"] >= HOLDS).cummin()
        reach[hops] = max(rows.loc[held, "length"].tolist(), default=0)
    end = table.query("hops == 0 and length == @longest")["accuracy"].item()
    up_to = f"up to {reach[0]:,} tokens" if reach[0] else "at no length"
    said = ["All logits are multiplied by log n / log 17 at n tokens."] * bool(found.about.get("sharpened"))
    said += [f"Nine answers of ten are right {up_to}; at {longest:,} tokens {100 * end:.0f} % are."]
    most = max(reach)
    if most > 1 and {1, most} <= reach.keys():
        said.append(f"With one hop they are up to {reach[1]:,}, with {most} hops up to {reach[most]:,}.")
    lost = found.loss[np.isfinite(found.loss["measured"])]
    first = f", the first at {lost['measured'].min():,.0f}" if len(lost) else ""
    return [
        *said,
        f"{len(lost)} of {count(len(found.loss), 'head')} lose half of their attention on the next token of the path "
        f"within {longest:,} tokens{first}.",
    ]


def comparison_sentences(found: Comparison, names: tuple[str, str]) -> list[str]:
    """How the heads of a second profile differ from those of a first."""
    about = found.about
    said = [f"Mind that {warning}." for warning in about["warnings"]]
    if found.heads is None:
        return [*said, f"{about['not_matched'][0].upper()}{about['not_matched'][1:]}."]
    clear = max(agreement["clear"] for agreement in about["agreement"].values())
    correlated = [agreement["r"] for agreement in about["agreement"].values()]
    if None not in correlated:
        both = " and ".join(f"{_signed(r)} ({axis})" for axis, r in zip(about["agreement"], correlated, strict=True))
        said.append(f"Their heads agree with r = {both}.")
    moved = ", ".join(f"{row['layer']}.{row['head']}" for row in found.heads.head(3).to_dict("records"))
    said.append(
        f"{count(about['changed_kind'], 'head')} changed kind, {clear} moved on an axis by more than the prompts "
        f"explain; from {names[0]} to {names[1]} most moved {moved}."
    )
    return said


def film_sentences(profile: Profile, watched: Dynamics, names: tuple[str, str]) -> list[str]:
    """How many heads are, at the last step of a film, of the kind that a profile found them to be.

    >>> film_sentences(profile, watched, ("number", "number, learning"))              # doctest: +SKIP
    ['The heads of number were measured once, those of number, learning at 136 steps.',
     'At the last step 12 of 12 heads are of the same kind.']
    """
    ends = watched.heads.query("query == 0 and step == step.max()")
    found, then = ({(row["layer"], row["head"]): row["kind"] for row in table.to_dict("records")}
                   for table in (profile.heads, ends))  # fmt: skip
    steps = count(len(np.unique(watched.heads["step"])), "step")
    once = f"The heads of {names[0]} were measured once, those of {names[1]} at {steps}."
    if found.keys() != then.keys():
        return [once, "They do not have the same heads, so none is compared with another."]
    same = sum(found[place] == then[place] for place in found)
    return [once, f"At the last step {same} of {count(len(found), 'head')} are of the same kind."]


def atlas_sentences(atlas: Atlas) -> list[str]:
    """How many heads of all models look at what, in how many models the axes exclude each other, and what is missing.

    >>> atlas_sentences(Atlas.load("atlas"))                          # doctest: +SKIP
    ['346 heads of 3 models in 2 families: 62 % look at where, 8 % at what, 3 % are unfocused, 27 % are mixed.',
     'The two exclude each other in 3 of 3 models (r from -0.99 to -0.71).']
    """
    models, kinds = atlas.models, Counter(atlas.heads["kind"])
    shares = {name: f"{100 * number / len(atlas.heads):.0f} %" for name, number in kinds.items()}
    families = len(set(models["family"]))
    told = f"{len(atlas.heads):,} heads of {count(len(models), 'model')}"
    told += f" in {families} families" if families > 1 else ""
    told += f": {shares.get('where', '0 %')} look at where, {shares.get('what', '0 %')} at what"
    told += "".join(f", {shares[name]} are {name}" for name in ("unfocused", "mixed", "unmeasured") if name in shares)
    said = [f"{told}."]
    r = sorted(models["r"].dropna())
    if r:
        reach = f"r from {_signed(r[0])} to {_signed(r[-1])}" if len(r) > 1 else f"r = {_signed(r[0])}"
        excluding = sum(value <= EXCLUDES for value in r)
        said.append(f"The two exclude each other in {excluding} of {count(len(r), 'model')} ({reach}).")
    if atlas.failed:
        said.append(f"{count(len(atlas.failed), 'model')} could not be measured.")
    return said


def _signed(value: float) -> str:
    """Two digits with a real minus sign."""
    return f"{value:.2f}".replace("-", "\N{MINUS SIGN}")
