"""A diagnosis as a person reads it in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..studies.doctor import NOT_MEASURED, NOT_STATED, RIGHT, WRONG, Diagnosis
from ..studies.layers import name_layers

SIGN = {RIGHT: ("yes", "green"), WRONG: ("NO", "bold red"), NOT_STATED: ("", ""), NOT_MEASURED: ("", "")}


def show_diagnosis(name: str, diagnosis: Diagnosis, console: Console) -> None:
    """What was promised and measured, layers of which the same was found together; then the verdict."""
    console.print(
        Text.assemble((name, "bold"), f": {diagnosis.family} in {diagnosis.dtype}, context {diagnosis.context:,}\n")
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("layers", "what", "promised", "measured", "agree"):
        table.add_column(column, overflow="fold")
    for found in diagnosis.findings:
        sign, style = SIGN[found.verdict]
        sign += f" ({found.deviation:.0e})" if sign and found.deviation else ""
        faint = "" if found.verdict in (RIGHT, WRONG) else "dim"
        layers = name_layers(found.layers).split(" ", 1)[1]
        cells = map(Text, (layers, found.subject, found.promised, found.measured))  # names are no markup
        table.add_row(*cells, Text(sign, style), style=faint)
    console.print(table)
    console.print()
    for line in diagnosis.reach:
        console.print(Text(f"{_capital(line)}."))
    checks = ", ".join(f"{what} {value:.0e}" for what, value in diagnosis.self_check.items())
    console.print(Text(f"Self-check against the model's own attention: {checks}."))
    console.print()
    if diagnosis.healthy:
        console.print(Text(f"{_capital(diagnosis.verdict)}.", style="bold green"))
        return
    console.print(Text("Not healthy:", style="bold red"))
    for found in diagnosis.wrong:
        console.print(Text(f"- {name_layers(found.layers)}: {found.advice}."))


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
