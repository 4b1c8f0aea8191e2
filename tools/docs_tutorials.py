"""Execute the tutorials and turn them into pages with their outputs.

A tutorial is a notebook in docs/tutorials, committed without outputs. It runs in a folder of its own, in which `models`
holds the real models (`WHEREWHAT_WEIGHTS`, or ../shared/weights). What was executed is kept in build/tutorials and
reused as long as its code and the package are the same. Without the models a page has no outputs, unless CI is set.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

ROOT = Path(__file__).parents[1]
TUTORIALS, EXECUTED = ROOT / "docs" / "tutorials", ROOT / "build" / "tutorials"
MODELS = ("stories260K", "stories15M", "SmolLM2-135M-Instruct-GGUF/SmolLM2-135M-Instruct.Q4_1.gguf")
NOT_RUN = "> The models of this page were missing when it was built, so it has no outputs.\n\n"


def weights() -> Path:
    return Path(os.environ.get("WHEREWHAT_WEIGHTS") or ROOT.parent / "shared" / "weights").resolve()


def executed(notebook: Path) -> nbformat.NotebookNode | None:
    """The notebook with its outputs; None if the models are missing."""
    missing = [name for name in MODELS if not (weights() / name).exists()]
    if missing:
        if os.environ.get("CI"):
            raise SystemExit(f"{notebook.name}: {', '.join(missing)} is missing in {weights()}.")
        return None
    found = nbformat.read(notebook, as_version=4)
    stored = EXECUTED / f"{notebook.stem}-{_digest(found)}.ipynb"
    if not stored.is_file():
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "models").mkdir()
            for name in MODELS:
                (Path(folder) / "models" / Path(name).name).symlink_to(weights() / name)
            connection = {"transport": "ipc", "ip": str(Path(folder) / "kernel")}  # no port that others could read
            where, how = {"metadata": {"path": folder}}, Config(ConnectionFileMixin=connection)
            NotebookClient(found, timeout=1200, resources=where, config=how).execute()
        EXECUTED.mkdir(parents=True, exist_ok=True)
        nbformat.write(found, stored)
    for cell, ran in zip(_code(found), _code(nbformat.read(stored, as_version=4)), strict=True):
        cell.outputs = ran.outputs
    return found


def _code(notebook: nbformat.NotebookNode) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _digest(notebook: nbformat.NotebookNode) -> str:
    found = hashlib.sha256("\n\n".join(cell.source for cell in _code(notebook)).encode())
    for path in sorted((ROOT / "src").rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def page(notebook: nbformat.NotebookNode, name: str, pictures: Path) -> str:
    """The notebook as Markdown; its pictures are written to a folder beside the page."""
    parts = []
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        code = "\n".join(line for line in cell.source.splitlines() if not line.startswith("%"))
        parts.append(f"```python\n{code}\n```")
        shown = enumerate(_joined(cell.outputs))
        parts += [_output(one, f"{name}-{number}-{at}.png", pictures) for at, one in shown]
    return "\n\n".join(filter(None, parts)) + "\n"


def _joined(outputs: list[Any]) -> list[Any]:
    """The outputs, with what was printed in several parts as one."""
    found: list[Any] = []
    for output in outputs:
        if found and output.get("name") == found[-1].get("name") == "stdout":
            found[-1] = {**found[-1], "text": found[-1]["text"] + output["text"]}
        else:
            found.append(output)
    return found


def _output(output: Any, picture: str, pictures: Path) -> str:
    data = output.get("data", {})
    if output.get("name") == "stderr":
        return ""
    if "image/png" in data:
        pictures.mkdir(parents=True, exist_ok=True)
        (pictures / picture).write_bytes(base64.b64decode(data["image/png"]))
        return f"![Output]({pictures.name}/{picture})"
    if "<table" in data.get("text/html", ""):
        table = re.sub(r"<style[\s\S]*?</style>|<div>|</div>| border=\"1\"| class=\"dataframe\"", "", data["text/html"])
        return re.sub(r"\s*\n\s*", "\n", table).strip()
    text = output.get("text") or data.get("text/plain") or ""
    return f"```text\n{text.rstrip()}\n```" if text.strip() else ""


def write_tutorials(folder: Path) -> None:
    """All tutorials as pages of this folder, two executed at a time."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    notebooks = sorted(TUTORIALS.glob("*.ipynb"))
    with ThreadPoolExecutor(2) as pool:
        for notebook, found in zip(notebooks, pool.map(executed, notebooks), strict=True):
            text = page(found or nbformat.read(notebook, as_version=4), notebook.stem, folder / "pictures")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{notebook.stem}.md").write_text(text if found else NOT_RUN + text, encoding="utf-8")


if __name__ == "__main__":
    for given in sys.argv[1:]:
        executed(Path(given))
