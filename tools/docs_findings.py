"""Numbers of the pages on length and frequencies, from the stored tables.

Used by tools/docs_numbers.py; each entry of FINDINGS is named in a page of docs/.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
from scipy import stats

from docs_tables import ROOT, results, span, table, thousands


def accuracy(name: str, task: str, length: int, hops: int) -> str:
    found = results(name).query("task == @task and length == @length and hops == @hops")
    return f"{found['accuracy'].item():.2f}"


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


def by_frequency(setting: str) -> pd.Series:
    return results("decoupling").query("setting == @setting").groupby("frequency")["accuracy"].mean()


def extreme(setting: str, slowest: float, fastest: float, largest: bool) -> str:
    """The largest or smallest accuracy over angles in a range, in percent, with its frequency ID."""
    angles = results("decoupling").query("setting == 'index'").groupby("frequency")["angle"].first()
    found = by_frequency(setting)[(angles >= slowest) & (angles <= fastest)]
    at = found.idxmax() if largest else found.idxmin()
    return f"{100 * found[at]:.1f} % at ID {at}"


def percent_at(setting: str, first: int, last: int) -> str:
    """The smallest and largest mean accuracy over some frequency IDs, in percent."""
    return span(by_frequency(setting).loc[first:last], ".1f", times=100)


def best_angle(setting: str) -> str:
    """The largest mean accuracy, its standard error over seeds, and where it is."""
    at = by_frequency(setting).idxmax()
    found = 100 * results("decoupling").query("setting == @setting and frequency == @at")["accuracy"]
    return f"{found.mean():.1f} % ± {stats.sem(found):.1f} (standard error) at ID {at}"


def other_fast_angles() -> str:
    """The accuracy of Index at fast angles, without the worst of them."""
    angles = results("decoupling").query("setting == 'index'").groupby("frequency")["angle"].first()
    found = by_frequency("index")[angles >= 0.17]
    return span(found.drop(found.idxmin()), ".1f", times=100)


def from_std(task: str, symbols: int, stds: tuple[float, ...], slowest: float = 0, fastest: float = 1) -> str:
    """Means over seeds from other initial standard deviations: of the best angle, or of all angles in a range."""
    found = results("initial-angles").query("task == @task and symbols == @symbols and init_std in @stds")
    means = found.groupby(["init_std", "frequency"]).agg({"accuracy": "mean", "angle": "first"})
    if task == "induction":
        return span(means.groupby("init_std")["accuracy"].max(), ".1f", times=100)
    return span(means[(means["angle"] >= slowest) & (means["angle"] <= fastest)]["accuracy"], ".1f", times=100)


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
    **{
        f"{name}number, {hops} hop at {length}": partial(accuracy, table, "number", length, hops)
        for name, table in (("", "lengths-accuracy"), ("sharpened ", "lengths-sharpened"))
        for length, hops in ((200, 3), (300, 2), (500, 1), (1000, 1))
    },
    "sharpened number, 0 hop at 1000": partial(accuracy, "lengths-sharpened", "number", 1000, 0),
    "loss lengths of number": loss_lengths,
    "loss factor, number 1-3": partial(loss_factor, "number", [1, 2, 3]),
    "loss factor, letter": partial(loss_factor, "letter", [0, 5, 10]),
    **{f"letter {layer}, measured": partial(loss_length, layer, "measured") for layer in (0, 1, 5, 10)},
    **{f"letter {layer}, predicted": partial(loss_length, layer, "predicted") for layer in (0, 1, 2, 3, 4, 5, 10)},
    "Index, fast angles": partial(extreme, "index", 0.17, 1, False),
    "Index, slow angles": partial(extreme, "index", 0, 0.03, True),
    "Index, other fast angles": other_fast_angles,
    "Retrieval, slow angles": partial(extreme, "retrieval", 0, 0.03, False),
    "two angles, IDs 11 to 15": partial(percent_at, "induction, angles (0, theta)", 11, 15),
    **{f"two angles, ID {one}": partial(percent_at, "induction, angles (0, theta)", one, one) for one in (10, 16)},
    "8 symbols, best angle": partial(best_angle, "induction, 8 symbols"),
    **{f"8 symbols, best angle from {std}": partial(from_std, "induction", 8, (std,)) for std in (0.1, 0.3, 0.5, 1.0)},
    "16 symbols, best angle from any": partial(from_std, "induction", 16, (0.1, 0.3, 0.5, 1.0)),
    **{
        f"{name} from {words}, {angles}": partial(from_std, name.lower(), 16, stds, *limits)
        for words, stds in (("1.0", (1.0,)), ("less", (0.1, 0.5)))
        for name, angles, limits in (
            ("Index", "fast angles", (0.17, 1)),
            ("Retrieval", "slow angles", (0, 0.03)),
        )
    },
    "Retrieval, fast angles": partial(extreme, "retrieval", 0.17, 1, True),
    "induction, best angle": partial(extreme, "induction", 0, 1, True),
    "U of Index": partial(curvature, "index", 13, 2),
    "inverse U of Retrieval": partial(curvature, "retrieval", 7, 3),
    **{f"accuracy and scores, {name}": partial(behaviour, name.lower()) for name in ("Index", "Retrieval")},
    "types verified": lambda: str(len(verified_types())),
    "types, largest difference": worst_types,
}
