"""The prose that comes with the package: five documents of different kinds, each of more than 2,048 tokens."""

from __future__ import annotations

from importlib.resources import files

# Written for this project, except for fables, which stories15M wrote itself (temperature 0.9, seed 1).
FILES = {
    "story": ("ferry.txt", "documents/station.txt"),
    "manual": ("documents/manual.txt",),
    "fables": ("documents/fables.txt",),
    "report": ("documents/report.txt",),
    "code": ("documents/code.txt",),
}


def packaged_documents() -> dict[str, str]:
    """The text of every document, by its name.

    >>> list(packaged_documents())
    ['story', 'manual', 'fables', 'report', 'code']
    """
    folder = files("wherewhat.prompts")
    return {
        name: "\n\n".join(folder.joinpath(path).read_text(encoding="utf-8").strip() for path in paths)
        for name, paths in FILES.items()
    }
