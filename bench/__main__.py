"""`make bench`: run every benchmark, print one table of ratios, and save the results in bench/results.json."""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path

import torch
import transformers
from rich.console import Console

from . import (
    ablation,
    cells,
    confirmation,
    encodings,
    ensemble,
    growth,
    imports,
    loading,
    memory,
    offload,
    overhead,
    profiles,
    published,
    rotations,
    series,
    serve,
    training,
)
from .table import last_committed, table

PARTS = """profiles loading published agreement overhead confirmation memory offload training series ablation ensemble
encodings cells rotations serve growth imports""".split()
RESULTS = Path(__file__).parent / "results.json"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", default=PARTS)
    console = Console()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results["machine"] = {
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    for part in parser.parse_args().parts:
        with console.status(f"measuring: {part}"):
            match part:
                case "profiles":
                    rows = [profiles.compare(case) for case, (path, *_) in profiles.CASES.items() if path.exists()]
                case "loading":
                    rows = loading.compare()
                case "published":
                    rows = [published.compare(17, 64), published.compare(65, 16), published.compare(129, 8)]
                case "agreement":
                    rows = [published.agreement(17, 64)]
                case "overhead":
                    rows = [overhead.compare(case) for case in overhead.CASES]
                case "confirmation":
                    rows = [confirmation.compare()]
                case "memory":
                    rows = [memory.compare()]
                case "offload":
                    rows = offload.compare()
                case "training":
                    rows = [training.compare()]
                case "series":
                    rows = [series.compare()]
                case "ablation":
                    rows = ablation.compare()
                case "ensemble":
                    rows = [ensemble.compare(task) for task in ("index", "retrieval", "induction")]
                    rows.append(ensemble.compare("induction", still=True))
                case "encodings":
                    rows = encodings.compare()
                case "cells":
                    rows = cells.compare()
                case "rotations":
                    rows = rotations.compare()
                case "growth":
                    rows = growth.compare()
                case "imports":
                    rows = imports.compare()
                case "serve":
                    rows = serve.compare()
                case _:
                    parser.error(f"no benchmark {part!r}")
        results[part] = rows
        partial = RESULTS.with_suffix(".partial")
        partial.write_text(json.dumps(results, indent=1) + "\n")
        partial.replace(RESULTS)
    shown, warnings = table(results, last_committed(RESULTS))
    console.print(shown)
    for warning in warnings:
        console.print(f"Warning: {warning}", style="bold red")


if __name__ == "__main__":
    main()
