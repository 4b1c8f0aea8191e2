"""Reproduce a paper: run its experiments, save tables and figures, and compare with what was published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from ..display.style import save_drawn
from ..errors import BadInput
from ..lab.train import processor_threads
from ..results import Progress, Say, ignore_progress, ignore_sentence, load_prefixed, records, save_prefixed
from ..studies.encodings import figures as encoding_figures
from ..studies.encodings.claims import findings
from ..studies.encodings.settings import PLANS
from ..studies.encodings.tables import Encodings, reproduce_encodings
from ..studies.encodings.terminal import show_encodings
from ..studies.multihop.figures import draw_multihop
from ..studies.multihop.paper import MultihopResults, reproduce_multihop
from ..studies.multihop.terminal import show_multihop
from ..studies.profile.profile import profile
from ..studies.profile.result import Profile
from ..studies.sweep import figures as sweep_figures
from ..studies.sweep.paper import TRANSFORMER_SEEDS, Decoupling, reproduce_decoupling, train_transformers
from ..studies.sweep.sweep import Sweep
from ..studies.sweep.terminal import show_decoupling
from ..tracing.load import AnyModel, check_devices
from ..words import model_name
from .plots import plot
from .sentences import profile_sentences

Reproduction = MultihopResults | Decoupling | Encodings
PAPERS = ("dynamics", "decoupling", "encodings")
# The parameters that belong to one paper, with their defaults.
ONLY = {
    "model": ("decoupling", None),
    "longest": ("dynamics", 5017),
    "recipe": ("dynamics", None),
    "finished_only": ("dynamics", False),
    "quick": ("encodings", False),
    "size": ("encodings", "small"),
    "device": ("encodings", "cpu"),
}
# What the decoupling paper shows of language models: all heads, single ones by frequency and before and after a swap,
# and scores over depth.
OF_REAL_MODELS = ("heatmaps", "plane", "head", "swap", "path", "layers", "heads")


def reproduce(
    paper: str,
    *,
    folder: str | Path = "runs",
    seeds: int | None = None,
    model: AnyModel | Profile | None = None,
    longest: int = 5017,
    recipe: Sequence[str] | None = None,
    finished_only: bool = False,
    quick: bool = False,
    size: str = "small",
    device: str = "cpu",
    threads: int | None = None,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
) -> Reproduction:
    """The experiments of a paper, rerun: "dynamics", "decoupling" or "encodings", with tables and figures.

    "dynamics" trains models on both multi-hop tasks with `seeds` (3) seeds, measures every checkpoint, and tests
    sequences of up to `longest` tokens (17 and up to 5,000 added ones). `recipe` lists recipes: "64" (the authors'
    scripts, the default), "192", "half", "init" and "order", which change one thing each, and "tanh". With
    `finished_only` nothing is trained, and all finished runs in the folder are measured. "decoupling" trains one head
    for each of 32 angles on three tasks with `seeds` (5) seeds, as lookup tables and, with at most 3 of the seeds, as
    attention-only Transformers; with a `model`, a language model or its profile, it also draws the paper's figures of
    its heads.
    "encodings" trains every positional encoding on two tasks with `seeds` (3) seeds (`quick`: one seed of four
    encodings), on `device`, at `size` "small", "paper" (the published size) or "medium", between the two, for two
    cores. Runs of all sizes are in the same tables.

    Runs are kept in `folder`, where existing ones are reused, and tables and figures are in its subfolder results.

    >>> ww.reproduce("decoupling").findings                            # doctest: +SKIP
    """
    if paper not in PAPERS:
        raise BadInput(f"no paper {paper!r}: {', '.join(PAPERS)}")
    given = {"model": model, "longest": longest, "quick": quick, "size": size, "device": device}
    given |= {"recipe": recipe, "finished_only": finished_only}
    for name, (only, default) in ONLY.items():
        if only != paper and given[name] != default:
            raise BadInput(f"{name} applies to {only}, not to {paper}")
    if seeds is not None and seeds < 1:
        raise BadInput(f"seeds must be at least 1, got {seeds}")
    if longest < 17:
        raise BadInput(f"longest must be at least 17, the length of training, got {longest}")
    check_devices(device, None)
    if size not in PLANS:
        raise BadInput(f"no size {size!r}: {', '.join(PLANS)}")
    folder = Path(folder)
    with processor_threads(threads):
        if paper == "dynamics":
            made = reproduce_multihop(
                folder, range(seeds or 3), recipes=recipe or ("64",), finished_only=finished_only, longest=longest,
                progress=progress, say=say,
            )  # fmt: skip
            save_prefixed(made, folder / "results" / "dynamics", first=False)
            draw_multihop(made, folder)
            return made
        if paper == "decoupling":
            return _decoupling(folder, seeds or 5, model, progress, say)
        return _encodings(folder, seeds or 3, quick, size, device, progress, say)


def show_reproduction(found: Reproduction, console: Console) -> None:
    """Claims beside findings, in the terminal."""
    if isinstance(found, MultihopResults):
        show_multihop(found, console)
    elif isinstance(found, Encodings):
        show_encodings(found, console)
    else:
        show_decoupling(found, console)
        if shown := found.about.get("model"):
            console.print(f"{shown['model']}: {shown['summary']}")


def reproduction_records(found: Reproduction) -> dict[str, Any]:
    """The small tables of a reproduction as JSON."""
    if isinstance(found, MultihopResults):
        return {name: records(table) for name, table in found.small_tables().items()}
    if isinstance(found, Encodings):
        return {"summary": records(found.summary()), "findings": records(findings(found))}
    shown = {name: records(getattr(found, name)) for name in ("findings", "curvature", "members")}
    return shown | ({"model": found.about["model"]} if "model" in found.about else {})


def _decoupling(folder: Path, seeds: int, model: AnyModel | Profile | None, progress: Progress, say: Say) -> Decoupling:
    real = None if model is None else _profile(model, folder, progress, say)
    made = reproduce_decoupling(folder / "decoupling", range(seeds), progress=progress)
    if real is not None:
        for name in OF_REAL_MODELS:
            plot(real, name, folder / "results" / f"decoupling-model-{name}.pdf")
        shown = {name: real.about[name] for name in ("model", "correlation", "medians")}
        shown["summary"] = " ".join(profile_sentences(real))
        made = replace(made, about=made.about | {"model": shown})
        made.save(folder / "decoupling")
    toys = train_transformers(folder / "decoupling-toy", range(min(seeds, TRANSFORMER_SEEDS)), progress=progress)
    for name, sweeps in (("decoupling", made), ("decoupling-transformer", toys)):
        save_prefixed(sweeps, folder / "results" / name)
        _draw(sweep_figures.FIGURES, sweep_figures.by_task(sweeps), folder / "results" / name)
    return made


def _profile(model: AnyModel | Profile, folder: Path, progress: Progress, say: Say) -> Profile:
    """A profile as given or saved, or that of a model, as `ww.profile` makes it."""
    if isinstance(model, Profile):
        return model
    if isinstance(model, (str, Path)):
        if (Path(model) / Profile.FILE).exists():
            return Profile.load(model)
        return profile(model, folder=folder / "profiles" / model_name(model), progress=progress, say=say)
    return profile(model, progress=progress, say=say)


def _encodings(
    folder: Path, seeds: int, quick: bool, size: str, device: str, progress: Progress, say: Say
) -> Encodings:
    name, prefix = "encodings" if size == "small" else f"encodings-{size}", folder / "results" / "encodings"
    made = reproduce_encodings(
        folder / name, range(seeds), quick=quick, size=size, device=device, progress=progress, say=say
    )
    if Path(f"{prefix}-layers.parquet").exists():  # runs of other sizes stay in the tables
        made = load_prefixed(Encodings, prefix).with_runs_of(made)
    save_prefixed(made, prefix)
    _draw(encoding_figures.FIGURES, made, prefix)
    return made


def _draw(figures: dict[str, Callable[[Any], Any]], made: Sweep | Encodings, prefix: Path) -> None:
    for name, draw in figures.items():
        save_drawn(prefix.with_name(f"{prefix.name}-{name}.png"), partial(draw, made))
