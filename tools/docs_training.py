"""Numbers of the page on training and of that on length, from the stored tables (see docs_numbers.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pandas as pd

from docs_tables import bench, results, short, short_span, span, table, thousands
from wherewhat.studies.lengths.paper import PUBLISHED_MODELS, TRAINED_TOKENS, published_lengths
from wherewhat.studies.multihop.published import mean_frequencies, published
from wherewhat.studies.multihop.runs import AUTHORS, EARLIER
from wherewhat.words import count

RECIPES = {"authors": AUTHORS, "earlier": EARLIER}
TASKS = ("number", "letter")
ADDED = (40, 50, 100, 200, 300, 500, 800, 1000, 2000, 3000, 5000)
RECIPE_LENGTHS = (100, 300, 1000)  # added tokens
LANGUAGE_MODELS = {  # of the table one-hop, as shown
    "SmolLM2-135M-Instruct": "SmolLM2-135M-Instruct.Q4_1",
    "Qwen2.5-Coder-0.5B": "qwen2.5-coder-0.5b",
}
FINDINGS_SHOWN = {  # of dynamics-comparison, as shown
    "pure positional, gamma 0.1": "pure positional heads, gamma 0.1",
    "positional heads in the order in which they became pure, gamma 0.2": "order in which they became pure, gamma 0.2",
    "pure symbolic, gamma 0.1": "pure symbolic heads, gamma 0.1",
    "symbolic heads in the order in which they became pure, gamma 0.2": "order in which they became pure, gamma 0.2",
    "step at which 1, 2, 3, 4 hops first reach 99 %": "step at which 1, 2, 3, 4 hops first reach 99 %",
    "mean frequency ID by layer, as in table 1": "mean frequency ID by layer, as in table 1",
}


def of(name: str, task: str, recipe: str, **values: object) -> pd.DataFrame:
    """The rows of one task and recipe of a table of runs, with these values."""
    found = results(f"dynamics-{name}")
    for column, value in ({"task": task, "recipe": RECIPES[recipe]} | values).items():
        found = found[found[column] == value]
    return found


def seeds(task: str, recipe: str) -> list[int]:
    """Of the runs that were measured."""
    return sorted(of("heads", task, recipe)["seed"].unique())


def each(task: str, recipe: str, one: Callable[[int], str]) -> str:
    """A number per seed: 1, 2 and 3."""
    *some, last = map(one, seeds(task, recipe))
    return f"{', '.join(some)} and {last}" if some else last


def training(task: str) -> str:
    """Published findings beside every seed of both recipes."""
    found = results("dynamics-comparison").query("task == @task").set_index("finding")
    runs = [(recipe, seed) for recipe in RECIPES for seed in seeds(task, recipe)]
    columns = [f"{RECIPES[recipe]}, seed {seed}" for recipe, seed in runs]
    rows = [[words, *_row(found.loc[name, ["published", *columns]])] for name, words in FINDINGS_SHOWN.items()]
    if task == "letter":  # no positional heads
        rows = [row for at, row in enumerate(rows) if at != 1]
        rows.insert(-1, ["the head of layer 11 stays symbolic from", "~2,500", *(flip(*run) for run in runs)])
    rows.append(
        ["accuracy on the 45,600 test sequences, by hops", "at least 0.995", *(tested(task, *run) for run in runs)]
    )
    shown = {"authors": "authors' recipe", "earlier": "earlier recipe"}
    return table(" | ".join([task, "published", *(f"{shown[recipe]}, seed {seed}" for recipe, seed in runs)]), rows)


def _row(cells: pd.Series) -> list[str]:
    """Steps with a comma between thousands."""
    return [" ".join(f"{int(word):,}" if word.isdigit() else word for word in str(cell).split()) for cell in cells]


def flip(recipe: str, seed: int) -> str:
    """The first checkpoint after which the head of layer 11 of letter stays more symbolic than positional."""
    head = of("heads", "letter", recipe, layer=11, seed=seed, query=0).sort_values("step")
    positional = head[head["positional"] > head["symbolic"]]["step"].max()
    return thousands(head[head["step"] > positional]["step"].min())


def tested(task: str, recipe: str, seed: int) -> str:
    found = of("test", task, recipe, seed=seed)
    found = found[found["moment"] == found["moment"].max()].sort_values("hops")["accuracy"]  # of the last checkpoint
    return ", ".join(f"{one:.4f}".rstrip("0").rstrip(".") for one in found)


def all_hops_right(task: str, recipe: str) -> str:
    """The first step at which 99.5 % of all answers are right."""
    mean = of("accuracy", task, recipe).groupby(["seed", "step"])["accuracy"].mean().reset_index()
    first = mean[mean["accuracy"] >= 0.995].groupby("seed")["step"].min()
    return each(task, recipe, lambda seed: thousands(first[seed]))


def last_pure(task: str, recipe: str) -> str:
    last = of("purity", task, recipe, gamma=0.1).groupby("seed")["step"].max()
    return each(task, recipe, lambda seed: thousands(last[seed]))


def ends(task: str, recipe: str, layer: int) -> str:
    """Both scores of a layer's head at the last checkpoint."""
    found = of("heads", task, recipe, layer=layer, query=0)
    last = found[found["step"] == found["step"].max()].set_index("seed")
    return each(task, recipe, lambda seed: f"{last.positional[seed]:.2f} / {last.symbolic[seed]:.2f}")


def attention(task: str, layers: range, where: str) -> str:
    """The attention of the last token on a place along its path, over layers and seeds of the earlier recipe, in
    percent."""
    found = of("roles", task, "earlier")
    return span(found[found["layer"].isin(layers)][where], ".0f", times=100)


def worst_loss(task: str, recipe: str, hops: int = 4) -> str:
    """The largest share of answers lost without any one head, set to zero or to its mean, in percent."""
    found = of("roles", task, recipe)
    return f"{100 * found[[f'lost_zero_{hops}', f'lost_mean_{hops}']].to_numpy().max():.1f}"


def added_tokens() -> str:
    """Figure 5B: accuracy by the number of tokens added to the 17 of training, published and of all seeds."""
    known = published_lengths().set_index("added_tokens")
    embedded = results("lengths-added").query("hops == 0").set_index(["task", "length"])["accuracy"]
    lengths = [TRAINED_TOKENS + added for added in ADDED]
    rows = []
    for task in ("letter", "number"):
        rows.append([f"{task}, published", *(short(known.loc[added, task]) for added in ADDED)])
        ours = (embedded.get((task, length)) for length in lengths)
        rows.append([f"{task} of the package, earlier recipe", *("-" if one is None else short(one) for one in ours)])
        for moment in ("best", "last"):
            found = dict(iter(of("lengths", task, "authors", hops=0, moment=moment).groupby("length")["accuracy"]))
            if found:
                number = len(seeds(task, "authors"))
                name = f"{task}, authors' recipe, {moment} checkpoint, {count(number, 'seed')}"
                rows.append([name, *(short_span(found[length]) for length in lengths)])
    return table(" | ".join(["added tokens", *map(thousands, ADDED)]), rows)


def recipes() -> str:
    """Letter by recipe: the head of layer 0 at the end; the logits of layers 1 to 3 and accuracy by length, at the best
    and the last checkpoint.

    The logits are figure 8 summed over frequencies, the most that a logit can reach; the mean of three layers.
    """
    known = published_lengths().set_index("added_tokens")["letter"]
    scores, use = (published(name).query("task == 'letter'") for name in ("dynamics-scores", "frequency-use"))
    rows = [["published", _layer_0(scores), f"{_reach(use, 'use'):.0f}", *(short(known[at]) for at in RECIPE_LENGTHS)]]
    tables = [results(f"dynamics-{name}").query("task == 'letter'") for name in ("heads", "use", "lengths")]
    for recipe, seed in tables[2].query("moment == 'best'")[["recipe", "seed"]].drop_duplicates().to_numpy():
        heads, use, lengths = (one[(one["recipe"] == recipe) & (one["seed"] == seed)] for one in tables)
        reach = [f"{_reach(some, 'pairs'):.0f}" for _, some in use.groupby("moment")]  # best, last
        at = [
            lengths.query("hops == 0 and length == @TRAINED_TOKENS + @added")["accuracy"].map(short)
            for added in RECIPE_LENGTHS
        ]
        rows.append([f"{recipe}, seed {seed}", _layer_0(heads), *map(" / ".join, (reach, *at))])
    header = ["letter", "layer 0 at the last checkpoint, positional / symbolic", "logits of layers 1 to 3"]
    return table(" | ".join([*header, *(f"{thousands(added)} added tokens" for added in RECIPE_LENGTHS)]), rows)


def one_hop() -> str:
    """Share of right answers of language models, both ways to ask, and the published ones; number / letter."""
    found = results("one-hop").set_index(["model", "style", "task", "window"])["accuracy"]
    windows = sorted(found.index.unique("window"))
    rows = [
        [
            f"{words}, {style}",
            *(
                f"{short(found[name, style, 'number', at])} / {short(found[name, style, 'letter', at])}"
                for at in windows
            ),
        ]
        for words, name in LANGUAGE_MODELS.items()
        for style in ("one message", "chat turns")
    ]
    for words, known in PUBLISHED_MODELS.items():
        rows.append(
            [f"{words}, published", *(" / ".join(map(short, known[at])) if at in known else "-" for at in windows)]
        )
    return table(" | ".join(["window", *map(str, windows)]), rows)


def _layer_0(scores: pd.DataFrame) -> str:
    last = scores[scores["layer"] == 0].sort_values("step").iloc[-1]
    return f"{last['positional']:.2f} / {last['symbolic']:.2f}"


def _reach(use: pd.DataFrame, column: str) -> float:
    return use[use["layer"].between(1, 3)][column].sum() / 3


def of_seed(task: str, seed: int, length: int) -> str:
    found = of("lengths", task, "earlier", seed=seed, length=length, hops=0)
    return f"{found['accuracy'].item():.2f}"


def geometry() -> str:
    """Number, seed 0, by layer; layers 6 to 11 as one column."""

    found = of("geometry", "number", "earlier", seed=0, moment="last")
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
    found = of("geometry", "letter", "earlier", seed=0, moment="last")
    return short_span(found[column])


def step(column: str, form: str = ".3f", times: float = 1) -> str:
    return f"{times * bench('training')[0][column]:{form}}"


def free_ratio() -> str:
    """How much faster training could be if everything but matrix products cost nothing."""
    (one,) = bench("training")
    return f"{one['eager GPT-J s'] / (one['wherewhat s'] * one['matrix products, share of ours']):.1f}"


def run_minutes() -> str:
    return f"{6750 * bench('training')[0]['wherewhat s'] / 60:.0f}"


TRAINING: dict[str, Callable[[], str]] = {
    "added tokens": added_tokens,
    "recipes of letter": recipes,
    "one hop as text": one_hop,
    **{f"training of {task}": partial(training, task) for task in TASKS},
    **{
        f"{name}, {task}, {recipe}": partial(function, task, recipe)
        for name, function in (("all hops right", all_hops_right), ("last pure head", last_pure))
        for task in TASKS
        for recipe in RECIPES
    },
    **{
        f"layer {layer} of {task}, {recipe}": partial(ends, task, recipe, layer)
        for task, recipe, layers in (
            ("number", "authors", (0, 2, 3, 4, 5)),
            ("number", "earlier", (0, 4)),
            ("letter", "authors", (0,)),
            ("letter", "earlier", (0,)),
        )
        for layer in layers
    },
    **{f"lost without one head, {task}": partial(worst_loss, task, "earlier") for task in TASKS},
    "attention of number on the next token": partial(attention, "number", range(1, 5), "last_next"),
    **{
        f"attention of letter, layer {layer}, on the next token": partial(
            attention, "letter", range(layer, layer + 1), "last_next"
        )
        for layer in (0, 1)
    },
    "attention of letter on later tokens": partial(attention, "letter", range(2, 6), "last_later"),
    **{f"{task}, seed 1 at 300": partial(of_seed, task, 1, 300) for task in TASKS},
    "geometry of number": geometry,
    "keys of letter": partial(letter_geometry, "concentration"),
    "queries of letter": partial(letter_geometry, "fan"),
    "step of GPT-J": partial(step, "eager GPT-J s"),
    "step of ours": partial(step, "wherewhat s"),
    "step, matrix products": partial(step, "matrix products, share of ours", ".0f", 100),
    "step, if all else were free": free_ratio,
    "minutes of a run": run_minutes,
    "hours for the published job": lambda: f"{bench('series')[0]['hours for the published job']:.2f}",
}
