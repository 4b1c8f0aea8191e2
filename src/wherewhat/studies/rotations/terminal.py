"""A plan of rotations in the terminal: planes per layer, what each tolerance needs, and what is lost."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .plan import RotationPlan, needed

TOLERANCES = (1.0, 0.1, 0.01)  # nats that all dropped rotations together may cost, by the sum of their effects
MEASURES = {"kl": "KL", "loss": "loss", "copy_loss": "copy loss", "binding_probability": "binding"}


def show_plan(plan: RotationPlan, console: Console) -> None:
    """Planes kept by layer, and the comparison with other criteria if it was evaluated."""
    about, kept = plan.about, plan.tensors["kept"]
    spread = "spread over the whole model" if about["budget"] == "model" else "in every key head"
    console.print(
        Text.assemble((plan.name, "bold"))
        + Text(f": {about['keep']} of {about['planes']} rotations per key head, {spread}; {int(kept.sum()):,} in all.")
    )
    table = _table("layer", "kept per key head", *(f"needed for {tolerance:g}" for tolerance in TOLERANCES))
    numbers = [needed(plan.tensors["effect"], tolerance) for tolerance in TOLERANCES]
    for number, layer in enumerate(about["layers"]):
        heads = (~plan.tensors["effect"][number].isnan()).any(-1).sum().clamp(min=1)
        table.add_row(
            str(layer), f"{kept[number].sum() / heads:.1f}", *(f"{each[number].sum() / heads:.1f}" for each in numbers)
        )
    console.print(Padding(table, (1, 2)))
    console.print(
        "Needed for T: the fewest rotations per key head, a mean, such that the effects of all others, summed over "
        "all layers, are at most T nats of attention per query."
    )
    if plan.losses is not None:
        _show_losses(plan, console)


def _show_losses(plan: RotationPlan, console: Console) -> None:
    losses: Any = plan.losses
    means = dict(losses.groupby(["criterion", "length", "measure"], sort=False)["value"].mean().items())
    columns = list(dict.fromkeys((length, measure) for _, length, measure in means if measure in MEASURES))
    table = _table("kept by", *(_column(length, measure) for length, measure in columns))
    for criterion in dict.fromkeys(losses["criterion"]):
        shown = "unmodified" if criterion == "none" else criterion
        table.add_row(shown, *(f"{means[criterion, length, measure]:.3f}" for length, measure in columns))
    console.print(Padding(table, (1, 2)))
    console.print(
        "KL to the unmodified model and loss in nats per token; binding: probability of the right answer; "
        "random: mean over draws."
    )


def _column(length: int, measure: str) -> str:
    return f"{MEASURES[measure]} at {length}" if length else MEASURES[measure]


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if column in ("kept by",) else "right")
    return table
