"""Write the reference: every public function and every command, with its docstring and its options."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import typer

import wherewhat as ww
from wherewhat.cli import app

FUNCTIONS = """# Functions

Every public name of the package that is a function; `import wherewhat as ww`. Letters in shapes: B prompts, L attention
layers, H query heads, N key positions, F frequencies, D dimensions of a head, M blocks. Examples are run by the tests
unless they need a model that is not part of the package.
"""
RESULTS = """# Results and other classes

What the functions return. Every result has `.save(folder)` and `.load(folder)`; tables are pandas data frames.
"""
COMMANDS = """# Commands

`wherewhat COMMAND --help` prints the same. Every command is a [function](functions.md) of the same name, parameters and
defaults; `-o/--output` is its parameter `folder` (`path` for report and plot).
"""


def write_reference(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in ww.__all__ if not name.startswith("_")]
    classes = [name for name in names if inspect.isclass(getattr(ww, name))]
    functions = [name for name in names if name not in classes]
    (folder / "functions.md").write_text(FUNCTIONS + "".join(map(entry, sorted(functions))), encoding="utf-8")
    (folder / "results.md").write_text(RESULTS + "".join(map(entry, sorted(classes))), encoding="utf-8")
    commands: dict[str, Any] = vars(typer.main.get_command(app))["commands"]
    (folder / "commands.md").write_text(COMMANDS + "".join(map(command, commands.values())), encoding="utf-8")


def entry(name: str) -> str:
    """The place of a name where mkdocstrings puts its documentation."""
    found = getattr(ww, name)
    return f"\n::: {found.__module__}.{found.__qualname__}\n"


def command(given: Any) -> str:
    """A command as a section: its help, and a table of its options."""
    context = given.make_context(given.name, [], resilient_parsing=True)
    rows = [row(one) for one in given.params if not getattr(one, "hidden", False) and one.name != "help"]
    usage = f"wherewhat {given.name} " + " ".join(given.collect_usage_pieces(context))
    text, _, examples = inspect.cleandoc(given.help or "").replace("\b\n", "").partition("[bold]Examples:[/bold]")
    examples = f"\n```sh\n{examples.strip()}\n```\n" if examples else ""
    text = re.sub(r"(?m)^(\{.*\})$", r"`\1`", text)  # a line of JSON
    table = "\n".join(["| parameter | default | meaning |", "|---|---|---|", *rows])
    return f"\n## {given.name}\n\n```\n{usage}\n```\n\n{text}\n{examples}\n{table}\n"


def row(one: Any) -> str:
    names = ", ".join(f"`{name}`" for name in one.opts) if one.param_type_name == "option" else f"`{one.name.upper()}`"
    hidden = one.required or any(one.default is value for value in (None, False)) or one.default == ""
    default = "" if hidden else f"`{one.default}`"
    help = " ".join((getattr(one, "help", None) or "").split()).replace("|", "\\|")
    return f"| {names} | {default} | {help} |"
