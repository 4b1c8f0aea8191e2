"""Numbers of the documentation that no table supports.

A number with a decimal point in the text of a page must be that of a rendered number or table on the same page, after
rounding, or be listed in KNOWN with where it comes from. tests/test_docs_content.py compares.
"""

from __future__ import annotations

import re

from docs_tables import ROOT

MARK = re.compile(r"<!--= .+? -->([\s\S]*?)<!--/-->")
CODE = re.compile(r"```[\s\S]*?```|`[^`]*`|\]\([^)]*\)")
DECIMAL = re.compile(r"(?<![\w.])\d[\d,]*\.\d+(?![\w.]*\d)")
RENDERED = re.compile(r"\d[\d,]*(?:\.\d+)?|\.\d+")
PAGES = ("results/*.md", "performance.md", "rotations.md", "serve.md")
KNOWN: dict[str, dict[str, str]] = {}


def loose(text: str) -> list[str]:
    """The decimal numbers of a page that are not those of its rendered numbers."""
    rendered = [float(one.replace(",", "")) for mark in MARK.findall(text) for one in RENDERED.findall(mark)]
    plain = CODE.sub("", MARK.sub("", text))
    return [one for one in DECIMAL.findall(plain) if not _supported(one, rendered)]


def _supported(number: str, rendered: list[float]) -> bool:
    value, half = float(number.replace(",", "")), 0.5 * 10.0 ** -len(number.split(".")[1])
    return any(abs(one - value) <= half + 1e-12 for one in rendered)


def unsupported() -> dict[str, list[str]]:
    """By page: the numbers that neither a table nor KNOWN supports."""
    found: dict[str, list[str]] = {}
    for path in sorted(path for pattern in PAGES for path in (ROOT / "docs").glob(pattern)):
        name = path.relative_to(ROOT / "docs").as_posix()
        numbers = [one for one in loose(path.read_text(encoding="utf-8")) if one not in KNOWN.get(name, {})]
        if numbers:
            found[name] = numbers
    return found


if __name__ == "__main__":
    for page, numbers in unsupported().items():
        print(f"{page}: {' '.join(numbers)}")
