"""Numbers of the page on positional encodings that are about dropout and larger sizes (see docs_numbers.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from docs_encodings import CLEAN, SHOWN, name_of
from docs_tables import ROOT, results, span, table, thousands
from wherewhat.results import load_prefixed
from wherewhat.studies.encodings.published import published
from wherewhat.studies.encodings.settings import FEW_SEQUENCES, LARGE_MODEL, LONG_TASK, medium_settings, variant_label
from wherewhat.studies.encodings.signals import SEQUENCES
from wherewhat.studies.encodings.tables import Encodings
from wherewhat.studies.stats import mean_interval

DROPOUT = 0.1
SETTINGS = {  # from the smallest to the published one: size and dropout
    "small, no dropout": ("small", 0.0),
    "small": ("small", DROPOUT),
    "published task": (LONG_TASK, DROPOUT),
    "published model": (LARGE_MODEL, DROPOUT),
    "both": (FEW_SEQUENCES, DROPOUT),
}
LARGER = (LONG_TASK, LARGE_MODEL, FEW_SEQUENCES)
STARTS = {  # sizes of the untrained models
    "small": "3 x 8 heads, 30 tokens",
    LARGE_MODEL: "6 x 16 heads, 30 tokens",
    FEW_SEQUENCES: "6 x 16 heads, 120 tokens",
}
SMALLEST_SHARE = 0.02  # of position in the stream; below it, the direction is that of noise
DEPOSIT = 0.05  # the smallest loss of accuracy without a head that is called a deposit
SEEDED = ("rope", "rope, 1 head", "mla", "alibi", "t5")  # encodings with rotation or bias
TRAINED = {"small": STARTS["small"], LONG_TASK: "3 x 8 heads, 120 tokens", **STARTS}


def runs_of(name: str, size: str, dropout: float = DROPOUT, task: str = "distance") -> pd.DataFrame:
    """Rows of the clean runs of one size and dropout."""
    found = results(name)
    return found[found["variant"] == CLEAN].query("size == @size and dropout == @dropout and task == @task")


def known(values: pd.Series, form: str, times: float = 1) -> str:
    """The span of what is not NaN: heads that cost nothing have no effective number, and no rank."""
    return span(values.dropna(), form, times=times) if values.notna().any() else "none"


def side_by_side(task: str, column: str, form: str, times: float = 1) -> str:
    """A column of every encoding that was trained on more than the small task, from seed to seed, by setting."""
    found = {words: runs_of("encodings", *setting, task=task) for words, setting in SETTINGS.items()}
    found = {words: runs for words, runs in found.items() if len(runs)}
    larger = {name for size in LARGER for name in runs_of("encodings", size, task=task)["encoding"]}
    rows = []
    for name in (one for one in SHOWN if one in larger):
        mine = [runs[runs["encoding"] == name][column] for runs in found.values()]
        paper = [published(name, task).removesuffix(" %")] if column == "accuracy" else []
        rows.append([name_of(name), *paper, *(known(one, form, times) if len(one) else "" for one in mine)])
    words = {"accuracy": "accuracy, %", "largest": "largest drop"}[column]
    paper = " | published" if column == "accuracy" else ""
    return table(f"{task}, {words}{paper} | {' | '.join(found)}", rows)


def with_dropout(size: str, task: str) -> str:
    """Runs with dropout: accuracy on new sequences, at the end of training with dropout on, and the largest drop."""
    keys = ["encoding", "seed"]
    runs, curves = (runs_of(name, size, task=task) for name in ("encodings", "encodings-training"))
    ends = curves.groupby(keys)["step"].transform("max")
    late = curves[curves["step"] > ends - 100].groupby(keys)["accuracy"].mean()
    last = ends.groupby([curves[key] for key in keys]).first()
    rows = []
    for name in (one for one in SHOWN if one in set(runs["encoding"])):
        mine = runs[runs["encoding"] == name]
        at = [(name, seed) for seed in mine["seed"]]
        cells = [span(mine["accuracy"]), span(late[at]), span(mine["largest"]), span(mine["largest"] - mine["gap"])]
        cells.append(known(mine["effective"].where(mine["largest"] >= DEPOSIT), ".1f"))
        rows.append([name_of(name), len(mine), *([] if size == "small" else [span(last[at], ",.0f")]), *cells])
    header = "accuracy | while training | largest drop | next head | effective heads"
    return table(f"{task} | seeds | {'' if size == 'small' else 'steps | '}{header}", rows)


def with_flaws() -> str:
    """RoPE in the published model on the small task: as it should be, and with the flaws of the published code."""
    found = results("encodings").query("size == @LARGE_MODEL and task == 'distance' and encoding == 'rope'")
    rows = (
        [variant_label(str(variant)), len(runs), span(runs["accuracy"]), span(runs["largest"]),
         span(runs["largest"] - runs["gap"])]
        for variant, runs in found.groupby("variant")
    )  # fmt: skip
    return table("RoPE | seeds | accuracy | largest drop | next head", rows)


def over_training() -> str:
    """The largest drop of RoPE at several steps (tools/encoding_deposit.py), over seeds."""
    rows = [
        [TRAINED[str(size)], thousands(step), len(runs), span(runs["accuracy"]), span(runs["largest"]),
         span(runs["next"]), " or ".join(dict.fromkeys(str(one) for one in sorted(runs["layer"])))]
        for (size, step), runs in results("deposit-training").groupby(["size", "step"], sort=False)
    ]  # fmt: skip
    return table("model, task | step | seeds | accuracy | largest drop | next head | layer", rows)


def counted() -> str:
    """How many runs of the plan are finished, of how many."""
    wanted = medium_settings()
    found = load_prefixed(Encodings, ROOT / "results/encodings")
    return f"{len(wanted) - len(found.missing(wanted))} of {len(wanted)}"


def larger_dropout() -> str:
    """Larger runs, tested without dropout and with it, as far as their models were kept."""
    found = results("dropout-places")
    found = found[found["size"] != "small"].pivot_table(
        index=["size", "task", "encoding"], columns="dropout_at", values=["accuracy", "below", "above"], aggfunc=list
    )
    rows = [
        [TRAINED[size], task, name_of(encoding), len(row["accuracy", "nowhere"]),
         *(span(row[column, "nowhere"], ".0f", times=100) for column in ("accuracy", "below", "above")),
         span(row["accuracy", "everywhere"], ".0f", times=100)]
        for (size, task, encoding), row in found.iterrows()
    ]  # fmt: skip
    return table(
        "model, sequences | task | encoding | seeds | right, % | too low | too high | right, with dropout in the test",
        rows,
    )


def dropout_at(place: str, encoding: str = "alibi", column: str = "accuracy", task: str = "distance") -> str:
    """Over the seeds of the small runs trained with dropout, in percent, tested with dropout there
    (tools/encoding_dropout.py)."""
    found = results("dropout-places").query(
        "size == 'small' and task == @task and encoding == @encoding and dropout_at == @place"
    )
    return span(found[column], ".0f", times=100)


def counting_with_dropout() -> str:
    """Small runs of count trained with dropout, tested without it and with it."""
    rows = (
        [
            name_of(name), published(name, "count").removesuffix(" %"),
            *(dropout_at("nowhere", name, column, "count") for column in ("accuracy", "one_above", "below")),
            dropout_at("everywhere", name, task="count"),
        ]
        for name in SHOWN
    )  # fmt: skip
    return table("count, % | published | right | one too many | too few | right, with dropout in the test", rows)


def gain_by_dropout() -> str:
    """The largest gain in accuracy on distance by dropout at one place or everywhere, of all encodings but ALiBi, in
    points, rounded up."""
    found = results("dropout-places").query("size == 'small' and task == 'distance' and encoding != 'alibi'")
    wide = found.pivot(index=["encoding", "seed"], columns="dropout_at", values="accuracy")
    return f"{np.ceil(100 * wide.sub(wide['nowhere'], axis=0).to_numpy().max()):.0f}"


def at_start() -> str:
    """Seeds of positional heads before training, as tools/encoding_seeds.py measured them."""

    def cell(values: pd.Series, digits: int) -> str:
        mean, _, high = mean_interval(values)
        return f"{mean:.{digits}f} ± {high - mean:.{digits}f}"

    def factor(values: pd.Series) -> str:  # geometric mean
        mean, low, high = np.exp(mean_interval(np.log(values)))
        return f"{mean:.2f} ({low:.2f} to {high:.2f})"

    rows = (
        [STARTS[size], name_of(name), cell(found["largest seed"], 4), cell(found["agreement"], 2),
         factor(found["margin growth per layer"]), cell(found["layers with growth"], 2)]
        for (size, name), found in results("initial-encodings").groupby(["size", "encoding"], sort=False)
    )  # fmt: skip
    return table("model, task | encoding | largest seed | agreement | margin growth | layers with growth", rows)


def agreement_at_start(size: str, encoding: str) -> str:
    return f"{results('initial-encodings').query('size == @size and encoding == @encoding')['agreement'].mean():.2f}"


def in_training() -> str:
    """Seeds and margins of the trained models, by size and encoding, from seed to seed."""
    rows = []
    for size, words in TRAINED.items():
        runs, heads, layers = (runs_of(f"encodings{name}", size) for name in ("", "-heads", "-layers"))
        for name in (one for one in SEEDED if one in set(runs["encoding"])):
            mine, of_heads, of_layers = (one[one["encoding"] == name] for one in (runs, heads, layers))
            agreement = of_heads.groupby("seed")[["seed_agreement", "seed_agreement_trained"]].mean()
            margin = of_layers.pivot(index="seed", columns="layer", values="margin_trained")
            largest = sorted({int(layer) for layer in margin.idxmax(axis=1)})
            rows.append([
                words, name_of(name), span(mine["seed_growth"], ".1f"),
                *(f"{agreement[column].mean():.2f}" for column in agreement),
                " or ".join(str(layer) for layer in largest),
                known(mine["seed_head_rank"].where(mine["largest"] >= DEPOSIT), ".0f"),
                of_heads.groupby("seed").size().max(),
            ])  # fmt: skip
    header = "growth of the largest seed | agreement, start | end | layer of the largest margin, end"
    return table(f"model, task | encoding | {header} | rank of the deposit's head | heads", rows)


def hybrid() -> str:
    """How far the direction of position in the stream is still that of the sinusoids, with and without RoPE."""
    rows = []
    for size, words in TRAINED.items():
        for name in ("sinusoidal", "rope + sinusoidal"):
            layers = runs_of("encodings-layers", size).query("encoding == @name")
            for when, ending in (("before training", ""), ("trained", "_trained")):
                share = layers[f"position_share{ending}"]
                kept = layers.assign(share=share, cosine=layers[f"position_cosine{ending}"] / noise(share))
                kept["cosine"] = kept["cosine"].where(share >= SMALLEST_SHARE)
                for what in ("cosine", "share") if ending else ("cosine",):
                    by_layer = kept.dropna(subset=[what]).groupby("layer")[what]
                    cells = [span(by_layer.get_group(one)) if one in by_layer.groups else "" for one in range(6)]
                    if any(cells):
                        rows.append([words, name_of(name), when, what, *cells])
    return table(f"model, task | encoding | | before layer | {' | '.join(map(str, range(6)))}", rows)


def noise(share: pd.Series) -> pd.Series:
    """The factor by which averaging over SEQUENCES sequences lowers a cosine with the mean by position: what position
    does not explain is left in that mean, divided by the number of sequences."""
    share = share.clip(lower=0)
    return np.sqrt(share / (share + (1 - share) / SEQUENCES))


ENCODING_SIZES: dict[str, Callable[[], str]] = {
    "seeds at the start": at_start,
    **{
        f"agreement of {shown}, {where}": partial(agreement_at_start, size, encoding)
        for shown, encoding in (("RoPE", "rope"), ("ALiBi", "alibi"))
        for where, size in zip(("small", "large model", "published task"), STARTS, strict=True)
    },
    **{
        f"side by side, {task}, {words}": partial(side_by_side, task, column, form, times)
        for task, words, column, form, times in (
            ("distance", "accuracy", "accuracy", ".0f", 100),
            ("distance", "drop", "largest", ".2f", 1),
            ("count", "accuracy", "accuracy", ".0f", 100),
        )
    },
    "seeds in training": in_training,
    "hybrid": hybrid,
    "encodings with dropout": partial(with_dropout, "small", "distance"),
    "published task with dropout": partial(with_dropout, LONG_TASK, "distance"),
    "published count with dropout": partial(with_dropout, LONG_TASK, "count"),
    "published model with dropout": partial(with_dropout, LARGE_MODEL, "distance"),
    "published size with dropout": partial(with_dropout, FEW_SEQUENCES, "distance"),
    "published model with flaws": with_flaws,
    "deposit over training": over_training,
    "finished runs": counted,
    "larger runs with dropout in the test": larger_dropout,
    **{f"ALiBi, dropout {place}": partial(dropout_at, place) for place in ("nowhere", "everywhere")},
    "ALiBi, too short": partial(dropout_at, "nowhere", column="below"),
    "ALiBi, too long": partial(dropout_at, "nowhere", column="above"),
    "count with dropout": counting_with_dropout,
    "ALiBi, dropout of embeddings": partial(dropout_at, "embeddings"),
    "largest gain by dropout": gain_by_dropout,
}  # fmt: skip
