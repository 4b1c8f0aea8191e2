"""Commands that take positional encodings apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..errors import BadInput
from .shared import (
    AsJson,
    DeviceMap,
    Dtype,
    Model,
    Revision,
    Seed,
    TrustRemoteCode,
    folder_option,
    in_cells,
    model_name,
    quiet_libraries,
    stoppable,
)

app = typer.Typer()


@app.command()
@in_cells
def deposit(
    model: Model,
    output: Annotated[
        Path | None, folder_option("-o", "--output", help="Folder for what is found.", show_default="deposit/MODEL")
    ] = None,
    pairs: Annotated[int, typer.Option(min=2, help="Statements a binding prompt.")] = 8,
    samples: Annotated[int, typer.Option(min=2, help="Prompts of each kind.")] = 16,
    ablation: Annotated[str, typer.Option(help="A head's output becomes: zero | mean, over text.")] = "zero",
    revision: Revision = None,
    dtype: Dtype = "float32",
    device_map: DeviceMap = None,
    trust_remote_code: TrustRemoteCode = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Turn every head of a model off by itself and say how unevenly what is lost is spread over them.

    Measured on binding, induction, copying and text. What was measured before is not measured again.

    [bold]Example:[/bold] wherewhat deposit models/stories15M --samples 8
    """
    quiet_libraries()
    from rich.console import Console
    from rich.text import Text

    from ..capture.load import load, load_tokenizer
    from ..report.deposit import show_deposits
    from ..report.terminal import progress_bar
    from ..studies.behaviour import of_language_model
    from ..studies.model_deposit import deposit_of_model

    screen = Console(stderr=True, quiet=as_json, highlight=False, soft_wrap=True, markup=False)
    folder = output or Path("deposit") / model_name(model)
    with stoppable(), progress_bar(screen) as progress:
        source = {"revision": revision, "trust_remote_code": trust_remote_code}
        with screen.status(Text(f"loading {model}")):
            loaded = load(model, dtype=dtype, device_map=device_map, **source)
        tokenizer = load_tokenizer(model, **source)
        behaviour = of_language_model(loaded, tokenizer, pairs=pairs, samples=samples, seed=seed)
        made = deposit_of_model(loaded, behaviour, ablation=ablation, seed=seed, folder=folder, progress=progress)
    if as_json:
        rows = made.measures.astype(object).where(made.measures.notna(), None)
        print(json.dumps({"ablation": ablation, "measures": rows.to_dict("records")}))
    else:
        show_deposits(made, Console(highlight=False, markup=False))
        screen.print(f"Saved in {folder}")


def encodings(output: Path, seeds: int, quick: bool, size: str, device: str, as_json: bool) -> None:
    """`reproduce encodings`: every encoding on both tasks, tables and figures saved, claims beside findings."""
    from rich.console import Console

    from ..capture.load import check_devices
    from ..report.encoding_figures import FIGURES
    from ..report.encodings import show_encodings
    from ..report.figures import save_drawn
    from ..report.terminal import progress_bar
    from ..studies.encoding_findings import findings
    from ..studies.encoding_tables import reproduce_encodings
    from ..studies.encodings import SIZES

    check_devices(device, None)
    if size not in SIZES:
        raise BadInput(f"no size {size!r}: {', '.join(SIZES)}")
    screen = Console(stderr=True, quiet=as_json, markup=False)
    with stoppable(f"what was done in {output} is kept; the same command goes on"), progress_bar(screen) as progress:
        made = reproduce_encodings(
            output / "encodings", range(seeds), quick=quick, size=SIZES[size], device=device, progress=progress
        )
    name = "encodings" if size == "small" else f"encodings-{size}"
    made.save(output / "results" / name)
    for figure, draw in FIGURES.items():
        save_drawn(output / "results" / f"{name}-{figure}.png", lambda draw=draw: draw(made))
    if as_json:
        tables = {"summary": made.summary(), "findings": findings(made)}
        plain = {name: table.astype(object).where(table.notna(), None) for name, table in tables.items()}
        print(json.dumps({name: table.to_dict("records") for name, table in plain.items()}))
    else:
        show_encodings(made, Console(highlight=False, markup=False))
        screen.print(f"Tables and figures saved in {output / 'results'}")
