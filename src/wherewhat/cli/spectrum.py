"""The command that takes the logits of heads apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .shared import (
    AsJson,
    Device,
    DeviceMap,
    Dtype,
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
def spectrum(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="Hub id, local folder, .gguf file or folder of a run; or number, letter."),
    ],
    output: Annotated[
        Path | None, folder_option("-o", "--output", help="Folder for tables and figure.", show_default="spectra/MODEL")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="binding | repeats | a .jsonl file of prompts | a .txt file.", show_default="binding"),
    ] = None,
    pairs: Annotated[
        int | None, typer.Option(help="binding: statements a prompt.", show_default="64, or as many as fit")
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="How many prompts.", show_default="4 | 32")] = None,
    base: Annotated[
        list[float] | None, typer.Option(help="Bases to turn with instead.", show_default="100 1e3 1e4 1e5 1e6")
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="How many heads of each kind to list.")] = 5,
    revision: Revision = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    device_map: DeviceMap = None,
    trust_remote_code: TrustRemoteCode = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Tell which heads look at distance alone, which couple contents with positions, and what rotation does to them.

    The logits of all queries and keys of a prompt are taken apart, and their singular values compared with those of
    the same queries and keys not turned at all, or turned with other bases. The model runs once a prompt; stopped and
    started again, it goes on where it was.

    [bold]Example:[/bold] wherewhat spectrum models/SmolLM2.Q4_1.gguf --samples 4

    [bold]Example:[/bold] wherewhat spectrum number
    """
    quiet_libraries()
    from rich.console import Console
    from rich.text import Text

    from ..errors import BadInput
    from ..lab.checkpoint import is_run
    from ..prompts.task import Task, make_prompts
    from ..report.figures import save_drawn
    from ..report.spectrum import show_spectra
    from ..report.spectrum_figures import spectra_figure
    from ..report.terminal import progress_bar
    from ..studies.spectra import BASES, spectra
    from ..tasks import TASKS

    folder = output or Path("spectra") / model_name(model)
    screen = Console(stderr=True, quiet=as_json, highlight=False, soft_wrap=True, markup=False)
    small = is_run(model) or (model in TASKS and not Path(model).exists())
    if small and (task or pairs):
        raise BadInput(f"{model} reads sequences of its own task: --task and --pairs do not apply")
    if not (small or samples or (task or "").endswith(".jsonl")):  # a file of prompts has as many as it has
        samples = 4
    asked = None if small else Task(task or "binding", pairs=pairs, samples=samples)
    with stoppable(f"what was measured is kept in {folder}; the same command goes on"):
        with screen.status(Text(f"loading {model}")):
            if asked is None:
                from ..studies.demo import multihop
                from ..studies.lengths import model_and_task

                loaded, name = model_and_task(model)
                prompts = multihop(name, samples or 32, seed)
            else:
                from ..capture.check import stated_context
                from ..capture.load import load, load_tokenizer

                source = {"revision": revision, "trust_remote_code": trust_remote_code}
                tokenizer = load_tokenizer(model, **source)
                loaded = load(model, dtype=dtype, device=device, device_map=device_map, **source)
                prompts, _ = make_prompts(asked, tokenizer, stated_context(loaded) or 2048, seed)
        with progress_bar(screen) as progress:
            found = spectra(loaded, prompts, folder, bases=base or BASES, progress=progress)
        found.save(folder)
        save_drawn(folder / "spectrum.pdf", lambda: spectra_figure(found, model_name(model)))
    if as_json:
        heads = found.heads.astype(object).where(found.heads.notna(), None).replace({float("inf"): None})
        print(json.dumps({"model": model, "folder": f"{folder}"} | found.about | {"heads": heads.to_dict("records")}))
    else:
        show_spectra(found, model_name(model), top, Console(highlight=False, markup=False))
        screen.print(f"Saved in {folder}")
