"""Report links of a built site that lead nowhere: missing files, missing anchors, or addresses outside of the site.

Usage: python tools/docs_links.py build/site. Pages may link to other sites, but must not load anything from them.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

NOT_CHECKED = {"404.html"}  # its links start at the root of a server
LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}


class Page(HTMLParser):
    """The targets of all links of a page, and the names that others can link to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" or (tag, name) == ("a", "name"):
                self.names.add(value or "")
            if (tag, name) in LOADED | {("a", "href")}:
                self.links.append((tag, value or ""))


def broken_links(site: Path) -> list[str]:
    """One line for every link of the site that leads nowhere."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found, names = [], {path.resolve(): page.names for path, page in pages.items()}
    for path, page in pages.items():
        if path.name in NOT_CHECKED:
            continue
        for tag, link in page.links:
            reason = _reason(path, tag, link, names, site)
            if reason:
                found.append(f"{path.relative_to(site)}: {link}: {reason}")
    return found


def _reason(path: Path, tag: str, link: str, names: dict[Path, set[str]], site: Path) -> str | None:
    parts = urlsplit(link)
    if parts.scheme in ("http", "https") or parts.netloc:
        return None if tag == "a" else "loaded from another site"
    if parts.scheme:
        return None if parts.scheme in ("data", "mailto") else f"unknown scheme {parts.scheme}"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
    target = target / "index.html" if target.is_dir() else target
    if not target.is_relative_to(site.resolve()):
        return "outside of the site"
    if not target.is_file():
        return "no such file"
    if parts.fragment and unquote(parts.fragment) not in names.get(target, {unquote(parts.fragment)}):
        return "no such anchor"
    return None


if __name__ == "__main__":
    broken = broken_links(Path(sys.argv[1]))
    print(*broken or ["All links lead somewhere."], sep="\n")
    sys.exit(bool(broken))
