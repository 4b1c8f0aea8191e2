"""A diagnosis in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...words import name_layers
from .diagnosis import NOT_MEASURED, NOT_STATED, RIGHT, WRONG, Diagnosis

SIGN = {RIGHT: ("yes", "green"), WRONG: ("NO", "bold red"), NOT_STATED: ("", ""), NOT_MEASURED: ("", "")}


def show_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """What was declared and measured, layers with equal findings together; then the verdict."""
    facts = ": {family} in {dtype}, context {context:,}\n".format_map(diagnosis.about)
    console.print(Text.assemble((diagnosis.name, "bold"), facts))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("layers", "property", "declared", "measured", "agree"):
        table.add_column(column, overflow="fold")
    for finding in diagnosis.findings:
        sign, style = SIGN[finding.verdict]
        sign += f" ({finding.deviation:.0e})" if sign and finding.deviation else ""
        faint = "" if finding.verdict in (RIGHT, WRONG) else "dim"
        layers = name_layers(finding.layers).split(" ", 1)[1]
        cells = map(
            Text, (layers, finding.subject, finding.declared, finding.measured)
        )  # text from a model is never read as markup
        table.add_row(*cells, Text(sign, style), style=faint)
    console.print(table)
    console.print()
    for line in diagnosis.about["reach"]:
        console.print(Text(f"{_capital(line)}."))
    checks = ", ".join(f"{what} {value:.0e}" for what, value in diagnosis.about["self_check"].items())
    console.print(Text(f"Self-check against the model's own attention: {checks}."))
    console.print()
    if diagnosis.healthy:
        console.print(Text(f"{_capital(diagnosis.verdict)}.", style="bold green"))
        return
    console.print(Text("Not healthy:", style="bold red"))
    for finding in diagnosis.wrong:
        console.print(Text(f"- {name_layers(finding.layers)}: {finding.advice}."))


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
