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
PUBLISHED, SETTING, REFERENCE = "published", "a setting or limit", "a number of a section, version or head"
ONCE = "measured once, as the page says"
KNOWN: dict[str, dict[str, str]] = {
    "performance.md": {
        **dict.fromkeys(("2.13", "0.68"), REFERENCE),
        **dict.fromkeys(("4.2", "5.4", "2.6"), "before the changes, whose code is gone"),
        "1.7": SETTING,
        **dict.fromkeys(("0.55", "0.72", "1.06", "0.27"), "counted on the page"),
    },
    "serve.md": {"1.6": SETTING},
    "rotations.md": {"0.8": SETTING},
    "results/ablation.md": {
        "10.4": "log 32,000",
        **dict.fromkeys(("18.6", "18.7", "17.3", "2606.21249"), REFERENCE),
        **dict.fromkeys("10.9 3.696 1.93 2.11 1.76 0.92 1.08 0.91 0.66 0.95 0.26 0.22 0.008 0.023 0.42".split(), ONCE),
    },
    "results/agreement.md": dict.fromkeys(("0.12", "0.999"), ONCE),
    "results/encodings.md": {
        **dict.fromkeys(("69.4", "77.7", "97.4"), PUBLISHED),
        **dict.fromkeys(("0.42", "0.004"), SETTING),
    },
    "results/encoding-sizes.md": {
        **dict.fromkeys(("6.1", "6.2"), REFERENCE),
        "0.125": "1 / 8 for 64 random signs",
        "0.05": SETTING,
    },
    "results/frequencies.md": {"0.17": SETTING, "9.5": ONCE},
    "results/lengths.md": {
        **dict.fromkeys(("2.3", "2.9"), ONCE),
        **dict.fromkeys(("3.1", "5.4", "5.5", "3.7"), REFERENCE),
        "0.0027": SETTING,
    },
    "results/rotations.md": {
        "10.4": "log 32,000",
        **dict.fromkeys(("0.78", "0.04", "0.32"), ONCE),
        **dict.fromkeys(("43.77", "43.76", "43.40", "37.76"), PUBLISHED),
    },
    "results/speed.md": dict.fromkeys(("3.5", "4.8", "13.6"), ONCE),
    "results/theorems.md": {
        **dict.fromkeys(("3.2", "3.1"), REFERENCE),
        **dict.fromkeys(("0.8", "0.0027"), SETTING),
    },
    "results/training.md": {
        **dict.fromkeys("0.39 0.62 0.01 0.96 0.09 0.06 0.99 1.00 0.31 0.86 13.5".split(), PUBLISHED),
        **dict.fromkeys(("2.4", "0.95", "0.999", "99.5", "1.2"), SETTING),
    },
}


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
