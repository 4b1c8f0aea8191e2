"""Build the documentation site: gather the pages in build/pages, build them with zensical into build/site, check links.

Usage: python tools/docs.py [--gather]

Pages are the Markdown files of docs/, some of the repository's own (FROM_ROOT), the executed tutorials, and the
generated reference. Links between them are those that work in the repository; here they are made to work in the site. A
warning, a link that leads nowhere, a page that is missing in `nav` of mkdocs.yml and a number that differs from its
table are errors.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import yaml

from docs_links import broken_links
from docs_numbers import outdated
from docs_reference import write_reference
from docs_tutorials import write_tutorials

ROOT = Path(__file__).parents[1]
PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
FROM_ROOT = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "results/README.md": "results/tables.md",
    "README.md": "index.md",  # links to it lead to the first page
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
# Search works from disk with this script, which zensical would load from another site.
SHIM = "https://unpkg.com/iframe-worker/shim"


def page_of(path: str) -> str | None:
    """Where a file of the repository is in the site; None if it is not part of it."""
    if path in FROM_ROOT:
        return FROM_ROOT[path]
    page = path.removeprefix("docs/")
    inside = page != path and ((ROOT / path).is_file() or (PAGES / page).is_file())  # a file of docs/, or generated
    return re.sub(r"\.ipynb$", ".md", page) if inside else None


def rewrite(text: str, source: str, page: str, repository: str | None = None) -> str:
    """The text of a file as a page of the site: its relative links lead to pages, to the repository, or become text."""

    def link(found: re.Match[str]) -> str:
        mark, words, target = found.groups()
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        path, _, anchor = target.partition("#")
        path = os.path.normpath(PurePosixPath(source).parent / path)
        other = page_of(path)
        if other is None and not (ROOT / path).exists():
            raise SystemExit(f"{source}: the link to {target} leads nowhere.")
        if other is not None:
            other = os.path.relpath(other, PurePosixPath(page).parent)
            return f"{mark}[{words}]({other}{'#' if anchor else ''}{anchor})"
        return f"[{words}]({repository}/tree/main/{path})" if repository else words

    outside = re.split(r"(?m)(^```[\s\S]*?^```|`[^`\n]+`(?!\]))", text)
    return "".join(part if i % 2 else LINK.sub(link, part) for i, part in enumerate(outside))


def gather(repository: str | None = None) -> None:
    """Write all pages and pictures to build/pages."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES, ignore=shutil.ignore_patterns("*.md", "*.ipynb"))
    write_reference(PAGES / "reference")
    write_tutorials(PAGES / "tutorials")
    for path in sorted((PAGES / "tutorials").glob("*.md")):
        source = f"docs/tutorials/{path.stem}.ipynb"
        path.write_text(rewrite(path.read_text(encoding="utf-8"), source, f"tutorials/{path.name}", repository))
    sources = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))]
    for source in [*sources, *(one for one, page in FROM_ROOT.items() if page != "index.md")]:
        page = page_of(source)
        assert page is not None
        text = rewrite((ROOT / source).read_text(encoding="utf-8"), source, page, repository)
        (PAGES / page).parent.mkdir(parents=True, exist_ok=True)
        (PAGES / page).write_text(text, encoding="utf-8")
    rewrite((ROOT / "README.md").read_text(encoding="utf-8"), "README.md", "index.md")  # its links, too, lead somewhere


def listed(nav: list) -> list[str]:
    """All pages of `nav`."""
    entries = [next(iter(one.values())) if isinstance(one, dict) else one for one in nav]
    return [page for one in entries for page in (listed(one) if isinstance(one, list) else [one])]


def check_nav(nav: list) -> None:
    there, named = {str(path.relative_to(PAGES)) for path in PAGES.rglob("*.md")}, set(listed(nav))
    for problem, pages in {"not in nav of mkdocs.yml": there - named, "missing": named - there}.items():
        if pages:
            raise SystemExit(f"{', '.join(sorted(pages))}: {problem}.")


def build() -> None:
    shutil.rmtree(SITE, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=ROOT, check=True)
    for path in SITE.rglob("*.html"):
        root = os.path.relpath(SITE, path.parent)
        text = path.read_text(encoding="utf-8").replace(SHIM, f"{root}/assets/iframe-worker.js")
        path.write_text(text, encoding="utf-8")
    broken = broken_links(SITE)
    if broken:
        raise SystemExit("\n".join(broken))


def main() -> None:
    old = [str(path.relative_to(ROOT)) for path in outdated((ROOT / "docs").rglob("*.md"))]
    if old:
        raise SystemExit(f"{', '.join(old)}: numbers differ from their tables: python tools/docs_numbers.py --write")
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    gather(settings.get("repo_url"))
    check_nav(settings["nav"])
    if "--gather" not in sys.argv[1:]:
        build()
        print(f"The site is in {SITE / 'index.html'}")


if __name__ == "__main__":
    main()
