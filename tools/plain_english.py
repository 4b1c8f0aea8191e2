"""Report phrases of the old private dialect in code, documentation and page; exit with 1 if there are any.

Run by `make check`, or with files and folders as arguments: `python tools/plain_english.py src/wherewhat/core`.
Each finding is printed as FILE:LINE: PHRASE -> SUGGESTION. A line that contains "plain-english: ok" is skipped.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Checked when no path is given.
CHECKED = (
    "src explorer/src tests docs examples bench tools results/README.md README.md CONTRIBUTING.md CHANGELOG.md "
    "Makefile pyproject.toml"
)
SUFFIXES = {".py", ".pyi", ".md", ".ts", ".js", ".mjs", ".html", ".css", ".toml", ".ipynb", ""}
SKIPPED = re.compile(
    r"node_modules|__pycache__|\.min\.|/dist/|/static/|/explorer\.js$|package-lock|/test_plain_english\.py$"
)

COUNTED = """rows? tokens? seeds? prompts? statements? blocks? samples? steps? swaps? draws? one cells? angles? planes?
scores? heads? layers? models? keys? queries values? numbers? lines? panels? bars? dots? bytes
seconds milliseconds ms""".split()
PER = """head block prompt layer seed frequency plane model angle statement step place length task run cell pair query
key token family row line hop call batch sample position process file shift member""".split()
# Not "to score a model" or "the token a head attends to": there the first word is a verb, or a verb follows.
VERB_AFTER = "is|has|had|was|can|may|must|attends|looks|sees|reads|holds|gets|gives|takes|needs"
A_PER_B = rf"(?<!\bto )(?<!\bcan )(?<!\bnot )\b(?:{'|'.join(COUNTED)}) an? (?:{'|'.join(PER)})\b(?! (?:{VERB_AFTER})\b)"

# Regular expressions, in which a space also matches a line break, and what to write instead.
DIALECT: dict[str, str] = {
    A_PER_B: "one X per Y",
    r"\bfrom which on\b": "the first ... after which",
    r"\b(?:tokens|blocks|heads|rows|steps)_a_(?:block|prompt|layer|head)\b": "x_per_y",
    r"\b(?:goes|go|went|going) on where\b": "resumes",
    r"\b(?:same|the) command goes on\b": "rerun the command to resume",
    r"\bgive the (?:same )?command again\b": "rerun the command",
    r"\bcommand is given again\b": "the command is rerun",
    r"\b(?:is|are|was|were) not (?:measured|computed|trained|asked) again\b": "existing results are reused",
    r"\btries only these again\b": "rerun the command to retry only these",
    r"\bwhat is there is\b": "existing results are",
    r"\bfor want of\b": "skipped: ...; because ... is missing",
    r"\bcannot be told\b": "is indistinguishable from",
    r"\bnot told apart\b": "is indistinguishable from",
    r"\bfrom guessing\b": "from chance",
    r"\b(?:is|are) told (?:at the end|when|how|where)\b": "is reported, is listed",
    r"\bthe first so many\b": "the first `length`",
    r"\bso many (?:tokens|positions|prompts|steps|seeds|samples|processes|cells)\b(?! that\b)": "the number of",
    r"(?<!\bthere )\bis no (?:TOML|JSON|YAML|number|folder|file|model|profile|prompt|run|table)\b": "is not a valid",
    r"\bare no one\b": "do not form one",
    r"\bturn(?:s|ed|ing)? (?:\w+ )?heads off\b": "ablate heads",
    r"\bheads?(?: is| are| was| were| that were| that are)? turned off\b": "ablated",
    r"\bholds? it all\b": "on which the ability depends",
    r"\bnumbers for machines\b": "JSON output",
    r"\bopens from disk\b": "self-contained HTML file",
    r"\b(?:dimensions?|layers?|planes?|that|which) do(?:es)? not turn\b": "non-rotary, without rotation",
    r"\bposition turns\b": "position rotates",
    r"\bturning (?:planes?|dimensions?)\b": "rotating planes, rotary dimensions",
    r"\bfolders? elsewhere\b": "remote folder",
    r"\bcells? at work\b": "running cells",
    r"\bswaps done by hand\b": "explicit swaps",
    r"\bwhere or what, for every\b": "positional and symbolic score of every",
    r"\bas people write them\b": "formatted for people",
    r"\btaken by turns\b": "measured alternately",
}


def compiled(pattern: str) -> re.Pattern[str]:
    """A space outside of lookbehinds also matches a line break with the indentation or comment sign after it."""
    parts = re.split(r"(\(\?<[!=][^)]*\))", pattern)
    spaced = (part if part.startswith("(?<") else part.replace(" ", r"(?: |[ \t]*\n[ \t#*/]*)") for part in parts)
    return re.compile("".join(spaced), re.IGNORECASE)


PATTERNS = [(compiled(pattern), better) for pattern, better in DIALECT.items()]


def files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in found:
            if file.is_file() and file.suffix in SUFFIXES and not SKIPPED.search(file.as_posix()):
                yield file


def findings(file: Path) -> Iterator[str]:
    if file.resolve() == Path(__file__).resolve():
        return
    text = file.read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines()
    place = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
    for match, better in phrases(text):
        number = text.count("\n", 0, match.start())
        if "plain-english: ok" not in lines[number]:
            yield f"{place}:{number + 1}: {' '.join(match.group().split())} -> {better}"


def phrases(text: str) -> list[tuple[re.Match[str], str]]:
    """Every phrase of the dialect in a text, in order, with its suggestion."""
    found = [(match, better) for pattern, better in PATTERNS for match in pattern.finditer(text)]
    return sorted(found, key=lambda phrase: phrase[0].start())


def main(arguments: list[str]) -> int:
    chosen = [Path(argument).resolve() for argument in arguments] or [ROOT / name for name in CHECKED.split()]
    found = [finding for file in files([path for path in chosen if path.exists()]) for finding in findings(file)]
    print("\n".join(found) if found else "No phrases of the old dialect.")
    if found:
        print(f"{len(found)} phrases to rewrite; see the suggestions.", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
