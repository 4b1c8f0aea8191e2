"""Numbers of the pages on length, training, encodings, frequencies and rotations, from the stored tables.

Used by tools/docs_numbers.py; each entry of FINDINGS is named in a page of docs/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import pandas as pd
from scipy import stats

from docs_tables import ROOT, bench, results, short, table, thousands

ADDED = (40, 50, 100, 200, 300, 500, 800, 1000)
TANH = "tanh GELU, embedding dropout .1"
FINDINGS_SHOWN = {  # of dynamics-comparison, as shown
    "pure positional, gamma 0.1": "pure positional heads, gamma 0.1",
    "positional heads in the order in which they became pure, gamma 0.2": "order in which they became pure, gamma 0.2",
    "pure symbolic, gamma 0.1": "pure symbolic heads, gamma 0.1",
    "symbolic heads in the order in which they became pure, gamma 0.2": "order in which they became pure, gamma 0.2",
    "step at which 1, 2, 3, 4 hops first reach 99 %": "step at which 1, 2, 3, 4 hops first reach 99 %",
    "mean frequency ID by layer, as in table 1": "mean frequency ID by layer, as in table 1",
}


def span(values: Iterable[float], form: str = ".2f", word: str = " to ", times: float = 1) -> str:
    """The smallest and the largest of some values, as one number if they are written alike."""
    found = sorted(values)
    return word.join(dict.fromkeys(f"{times * value:{form}}" for value in (found[0], found[-1])))


def short_span(values: Iterable[float]) -> str:
    found = sorted(values)
    return " to ".join(dict.fromkeys(short(value) for value in (found[0], found[-1])))


def added_tokens() -> str:
    """Figure 5B: accuracy by the number of tokens added to the 17 of training."""
    from wherewhat.studies.lengths.paper import published_lengths

    known, found = published_lengths().set_index("added_tokens"), results("lengths-added").query("hops == 0")

    def ours(task: str) -> list[str]:
        mine = found[found["task"] == task].set_index("length")["accuracy"]
        return [short(mine[17 + added]) for added in ADDED]

    rows = []
    for task in ("letter", "number"):
        rows.append([f"{task}, published", *(short(known.loc[added, task]) for added in ADDED)])
        rows.append([task, *ours(task)])
    return table(" | ".join(["added tokens", *map(thousands, ADDED)]), rows)


def accuracy(name: str, task: str, length: int, hops: int) -> str:
    found = results(name).query("task == @task and length == @length and hops == @hops")
    return f"{found['accuracy'].item():.2f}"


def of_seed(task: str, seed: int, length: int) -> str:
    found = results("dynamics-lengths").query("task == @task and seed == @seed and length == @length and hops == 0")
    return f"{found['accuracy'].item():.2f}"


def geometry() -> str:
    """Number, seed 0, by layer; layers 6 to 11 as one column."""
    from wherewhat.studies.multihop.published import mean_frequencies

    found = results("dynamics-geometry").query("task == 'number' and seed == 0 and moment == 'last'")
    found = found.set_index("layer").sort_index().assign(published=mean_frequencies("number"))
    first, rest = found.loc[:5], found.loc[6:]

    def plane(row: pd.Series) -> str:
        return f"{row['frequency']:.0f} ({'1.0' if row['angle'] == 1 else short(row['angle'])})"

    def alike(value: float) -> str:
        return f"{value:.3f}".removeprefix("0") if value > 0.9 else short(value)

    ids, keys = "softmax_mean_frequency", "concentration"
    published = [*map(str, first["published"]), span(rest["published"], ".0f", "-")]
    rows = [
        ["mean frequency ID as in table 1, published", *published],
        ["the same, found", *(f"{one:.1f}" for one in first[ids]), span(rest[ids], ".0f", "-")],
        ["plane used most (angle)", *(plane(row) for _, row in first.iterrows()), span(rest["frequency"], ".0f")],
        ["alignment of the keys (1: all aligned)", *map(alike, first[keys]), short_span(rest[keys])],
        ["slope of the queries", *map(short, first["slope"]), "none"],
        ["how closely they follow it (1: all)", *map(short, first["fan"]), short_span(rest["fan"])],
    ]
    return table("number, layer | 0 | 1 | 2 | 3 | 4 | 5 | 6-11", rows)


def letter_geometry(column: str) -> str:
    found = results("dynamics-geometry").query("task == 'letter' and seed == 0 and moment == 'last'")
    return short_span(found[column])


def loss_lengths() -> str:
    """Number: the length at which the attention of each layer's head on its token is halved."""
    found = results("lengths-loss").query("task == 'number'").set_index("layer")
    rows = [
        [name, *(thousands(found.loc[layer, name]) for layer in range(7)), _many(found.loc[7:, name])]
        for name in ("measured", "predicted")
    ]
    return table("number, layer | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7-11", rows)


def _many(values: pd.Series) -> str:
    return f"{thousands(values.min())}-{thousands(values.max())}"


def loss_factor(task: str, layers: list[int]) -> str:
    """By which factors prediction and measurement differ, whichever is larger."""
    found = results("lengths-loss").query("task == @task and layer in @layers")
    ratio = found["predicted"] / found["measured"]
    return span(np.maximum(ratio, 1 / ratio))


def loss_length(layer: int, column: str) -> str:
    found = results("lengths-loss").query("task == 'letter' and layer == @layer")
    return thousands(found[column].item())


def training(task: str) -> str:
    """Published findings beside both seeds."""
    found = results("dynamics-comparison").query("task == @task").set_index("finding")
    runs = [f"{TANH}, seed {seed}" for seed in (0, 1)]
    rows = [[words, *_row(found.loc[name, ["published", *runs]])] for name, words in FINDINGS_SHOWN.items()]
    if task == "letter":  # no positional heads
        rows = [row for at, row in enumerate(rows) if at != 1]
        flips = [f"positional first, flips at {flip(seed)}" for seed in (0, 1)]
        rows.insert(-1, ["the head of layer 11", "positional first, flips at ~2,500", *flips])
    shares = [tested(task, seed) for seed in (0, 1)]
    rows.append(["accuracy on the 45,600 test sequences, by hops", "at least 0.995", *shares])
    return table(f"{task} | published | seed 0 | seed 1", rows)


def _row(cells: pd.Series) -> list[str]:
    """Steps with a comma between thousands."""
    return [" ".join(f"{int(word):,}" if word.isdigit() else word for word in str(cell).split()) for cell in cells]


def flip(seed: int) -> str:
    """The first checkpoint after which the head of layer 11 of letter stays more symbolic than positional."""
    head = results("dynamics-heads").query("task == 'letter' and layer == 11 and seed == @seed").sort_values("step")
    positional = head[head["positional"] > head["symbolic"]]["step"].max()
    return thousands(head[head["step"] > positional]["step"].min())


def tested(task: str, seed: int) -> str:
    found = results("dynamics-test").query("task == @task and seed == @seed").sort_values("hops")["accuracy"]
    return ", ".join(f"{one:.4f}".rstrip("0").rstrip(".") for one in found)


def all_hops_right(task: str) -> str:
    """The first step at which 99.5 % of all answers are right, of both seeds."""
    found = results("dynamics-accuracy").query("task == @task and hops > 0")
    mean = found.groupby(["seed", "step"])["accuracy"].mean().reset_index()
    first = mean[mean["accuracy"] >= 0.995].groupby("seed")["step"].min()
    return " and ".join(map(thousands, first))


def last_pure(task: str) -> str:
    found = results("dynamics-purity").query("task == @task and gamma == 0.1")
    return " and ".join(map(thousands, found.groupby("seed")["step"].max()))


def step(column: str, form: str = ".3f", times: float = 1) -> str:
    return f"{times * bench('training')[0][column]:{form}}"


def free_ratio() -> str:
    """How much faster training could be if everything but matrix products cost nothing."""
    (one,) = bench("training")
    return f"{one['eager GPT-J s'] / (one['wherewhat s'] * one['matrix products, share of ours']):.1f}"


def run_minutes() -> str:
    return f"{6750 * bench('training')[0]['wherewhat s'] / 60:.0f}"


def encoding(column: str, name: str, form: str = ".2f", task: str = "distance", times: float = 1) -> str:
    """Smallest and largest value over the seeds of an encoding."""
    runs = results("encodings").query("size == 'small' and dropout == 0 and variant == 'clean'")
    return span(runs.query("encoding == @name and task == @task")[column], form, times=times)


def early_share(name: str | None) -> str:
    """Rank correlation of early share and later loss over the heads of a run: of one encoding, or of all others."""
    heads = results("encodings-heads").query("size == 'small' and dropout == 0 and variant == 'clean'")
    heads = heads[(heads["task"] == "distance") & ((heads["encoding"] == "rope") == (name == "rope"))]
    found = [stats.spearmanr(run["early_share"], run["zero"])[0] for _, run in heads.groupby(["encoding", "seed"])]
    return span(found)


def by_frequency(setting: str) -> pd.Series:
    return results("decoupling").query("setting == @setting").groupby("frequency")["accuracy"].mean()


def extreme(setting: str, slowest: float, fastest: float, largest: bool) -> str:
    """The largest or smallest accuracy over angles in a range, in percent, with its frequency ID."""
    angles = results("decoupling").query("setting == 'index'").groupby("frequency")["angle"].first()
    found = by_frequency(setting)[(angles >= slowest) & (angles <= fastest)]
    at = found.idxmax() if largest else found.idxmin()
    return f"{100 * found[at]:.1f} % at ID {at}"


def curvature(setting: str, frequency: int, digits: int) -> str:
    """The quadratic term over all 16 positions, its standard error over seeds, and p."""
    found = results("decoupling-positions").query("setting == @setting and frequency == @frequency")
    scaled = np.linspace(-1, 1, 16)
    terms = [
        np.polyfit(scaled, one.sort_values("place")["accuracy"].to_numpy(), 2)[0] for _, one in found.groupby("seed")
    ]
    error, p = stats.sem(terms), stats.ttest_1samp(terms, 0).pvalue
    mantissa, exponent = f"{p:.0e}".split("e")
    return f"{np.mean(terms):+.2f} ± {error:.{digits}f}, p = {mantissa}e{int(exponent)}"


def behaviour(setting: str) -> str:
    found = results("decoupling").query("setting == @setting")
    return f"{stats.spearmanr((found['positional'] - found['symbolic']).abs(), found['accuracy'])[0]:.2f}"


def rotations(measure: str) -> str:
    """A table of tools/rotations.py."""
    from rotations import markdown
    from wherewhat.studies.rotations.experiment import summarise

    parts = markdown(summarise(results("rotations"))).split("\n\n")
    (found,) = (part for part in parts if part.startswith(f"| {measure}: model, documents"))
    return f"\n\n{found}\n\n"


def planning() -> str:
    rows = (
        (one["model"], thousands(one["tokens"]), f"{one['plain s']:.2g} s", f"**{one['planning ratio']:.2f}**")
        for one in bench("rotations")
    )
    return table("model | tokens | plain pass | planning, relative to it", rows)


def with_dropout() -> str:
    """The finished small runs with dropout: accuracy on new sequences, and at the end of training with dropout on."""
    keys = ["encoding", "seed"]
    runs = results("encodings").query("size == 'small' and dropout == 0.1 and task == 'distance'")
    curves = results("encodings-training").query("size == 'small' and dropout == 0.1 and task == 'distance'")
    late = curves[curves["step"] > 900].groupby(keys)["accuracy"].mean()
    rows = []
    for name, mine in runs.groupby("encoding", sort=False):
        ends = late[[(name, seed) for seed in mine["seed"]]]
        cells = (span(mine["accuracy"]), span(ends), span(mine["largest"]), span(mine["effective"], ".1f"))
        rows.append([name, len(mine), *cells])
    header = "encoding | seeds | accuracy | while training | largest drop without one head | effective heads"
    return table(header, rows)


def verified_types() -> dict[str, float]:
    """The model types that are measured from one pass, and how far their scores are from brute force."""
    lines = (ROOT / "docs" / "architectures.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in lines if "| verified |" in line]
    return {cell[1]: float(cell[9]) for cell in cells}


def worst_types() -> str:
    found = verified_types()
    first, second, *_ = sorted(found, key=lambda name: -found[name])
    most = sum(value <= 2e-6 for value in found.values())
    return f"{found[first]:.0e} ({first}), then {found[second]:.0e} ({second}); {most} of them at most 2e-6"


FINDINGS: dict[str, Callable[[], str]] = {
    "added tokens": added_tokens,
    **{
        f"{name}number, {hops} hop at {length}": partial(accuracy, table, "number", length, hops)
        for name, table in (("", "lengths-accuracy"), ("sharpened ", "lengths-sharpened"))
        for length, hops in ((200, 3), (300, 2), (500, 1), (1000, 0), (1000, 1))
    },
    **{f"{task}, seed 1 at 300": partial(of_seed, task, 1, 300) for task in ("number", "letter")},
    "geometry of number": geometry,
    "keys of letter": partial(letter_geometry, "concentration"),
    "queries of letter": partial(letter_geometry, "fan"),
    "loss lengths of number": loss_lengths,
    "loss factor, number 1-3": partial(loss_factor, "number", [1, 2, 3]),
    "loss factor, letter": partial(loss_factor, "letter", [0, 5, 10]),
    **{
        f"letter {layer}, {column}": partial(loss_length, layer, column)
        for layer in (0, 1, 2, 3, 4, 5, 10)
        for column in ("measured", "predicted")
    },
    **{f"training of {task}": partial(training, task) for task in ("number", "letter")},
    **{f"all hops right, {task}": partial(all_hops_right, task) for task in ("number", "letter")},
    **{f"last pure head, {task}": partial(last_pure, task) for task in ("number", "letter")},
    "step of GPT-J": partial(step, "eager GPT-J s"),
    "step of ours": partial(step, "wherewhat s"),
    "step, matrix products": partial(step, "matrix products, share of ours", ".0f", 100),
    "step, if all else were free": free_ratio,
    "minutes of a run": run_minutes,
    "hours for the published job": lambda: f"{bench('series')[0]['hours for the published job']:.2f}",
    **{f"largest drop, {name}": partial(encoding, "largest", name) for name in ("rope", "alibi", "sinusoidal")},
    "share of the largest drop, rope": partial(encoding, "share", "rope", ".0f", times=100),
    **{f"effective heads, {name}": partial(encoding, "effective", name, ".1f") for name in ("rope", "mla")},
    "early share, rope": partial(early_share, "rope"),
    "early share, others": partial(early_share, None),
    "Index, fast angles": partial(extreme, "index", 0.17, 1, False),
    "Index, slow angles": partial(extreme, "index", 0, 0.03, True),
    "Retrieval, fast angles": partial(extreme, "retrieval", 0.17, 1, True),
    "induction, best angle": partial(extreme, "induction", 0, 1, True),
    "U of Index": partial(curvature, "index", 13, 2),
    "inverse U of Retrieval": partial(curvature, "retrieval", 7, 3),
    **{f"accuracy and scores, {name}": partial(behaviour, name.lower()) for name in ("Index", "Retrieval")},
    "rotations, KL": partial(rotations, "KL"),
    "rotations, loss": partial(rotations, "loss"),
    "planning": planning,
    "encodings with dropout": with_dropout,
    "runs with dropout": lambda: str(len(results("encodings").query("size == 'small' and dropout == 0.1"))),
    "types verified": lambda: str(len(verified_types())),
    "types, largest difference": worst_types,
}
