"""A plan of rotations in the terminal: planes per layer, what each tolerance needs, and what is lost."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .evaluate import MEASURES
from .plan import RotationPlan, needed_by_effect

EFFECTS = (1.0, 0.1, 0.01)  # nats that all dropped rotations together may cost, by the sum of their effects
DIVERGENCES = (0.1, 0.01)  # KL per token, where it was measured


def show_plan(plan: RotationPlan, console: Console) -> None:
    """Planes kept by layer, and the comparison with other criteria if it was evaluated."""
    about, kept = plan.about, plan.tensors["kept"]
    spread = " per key head, spread over the whole model" if about["budget"] == "model" else " in each key head"
    console.print(
        Text.assemble((plan.name, "bold"))
        + Text(f": {about['keep']} of {about['planes']} rotations{spread}; {int(kept.sum()):,} in all.")
    )
    lengths = " and ".join(f"{length:,}" for length in about["lengths"])
    console.print(f"Calibrated on documents of {lengths} tokens; for text of another length use --length.")
    if plan.losses is None:
        effect, budget = plan.tensors["effect"], about["budget"]
        columns = {f"for {tolerance:g}": needed_by_effect(effect, tolerance, budget) for tolerance in EFFECTS}
        meaning = (
            "for T: the fewest rotations such that the effects of all others, summed over all layers, are at most T "
            f"nats of attention per query. Those that the plan drops have {float(effect[~kept].nansum()):.2g}. "
            "This does not tell the KL of next tokens: measure it with --evaluate."
        )
    else:
        columns = {f"for KL {tolerance:g}": plan.needed(tolerance) for tolerance in DIVERGENCES}
        everywhere = " at every length" if len(plan.tested) > 1 else ""
        meaning = (
            f"for KL T: the fewest rotations, of the numbers tried, whose KL is at most T nats per token{everywhere}."
        )
    table = _table("layer", "kept per key head", *columns)
    present = (~plan.tensors["effect"].isnan()).any(-1).sum(-1).clamp(min=1)
    for number, layer in enumerate(about["layers"]):
        numbers = [None if each is None else each[number].sum() / present[number] for each in (kept, *columns.values())]
        table.add_row(str(layer), *("-" if each is None else f"{each:.1f}" for each in numbers))
    console.print(Padding(table, (1, 2)))
    console.print(f"Rotations per key head, a mean over the layer; {meaning}")
    if plan.losses is not None:
        _show_losses(plan, console)


def _show_losses(plan: RotationPlan, console: Console) -> None:
    losses: Any = plan.losses[plan.losses["keep"] == plan.about["keep"]]  # pyright: ignore[reportOptionalSubscript]
    means = dict(losses.groupby(["criterion", "measure", "length"], sort=False)["value"].mean().items())
    for length in plan.tested:
        columns = [measure for measure in MEASURES if ("plan", measure, length) in means]
        table = _table(f"{length} tokens, kept by", *(MEASURES[measure] for measure in columns))
        for criterion in dict.fromkeys(losses["criterion"]):
            shown = "unmodified" if criterion == "none" else criterion
            table.add_row(shown, *(f"{means[criterion, measure, length]:.3f}" for measure in columns))
        console.print(Padding(table, (1, 2, 0, 2)))
    console.print(
        "\nKL to the unmodified model and losses in nats per token; copy loss: on the second copy of random tokens; "
        "binding: probability of the right answer, and its loss. Norm, highest, lowest, uniform and random (mean over "
        "draws) keep the same number in each key head, all others follow --budget. Shuffled heads: the plan's scores "
        "given to other heads; shuffled text: calibrated on tokens in random order. Copying and binding say nothing "
        "about a model that cannot do them unmodified."
    )
    curve = "  ".join(f"{keep}: {kl:.3f}" for keep, kl in plan.curve().items())
    worst = " at the worst length" if len(plan.tested) > 1 else ""
    console.print(f"KL of the plan{worst} by planes kept per key head:  {curve}")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if column.endswith("kept by") else "right")
    return table
