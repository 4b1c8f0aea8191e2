"""The documentation: links that lead nowhere are found, pages are complete, and every figure has its command."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

import wherewhat as ww

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import docs  # noqa: E402
import docs_doctests  # noqa: E402
import figures  # noqa: E402
from docs_links import broken_links  # noqa: E402
from docs_reference import write_reference  # noqa: E402


def site(folder: Path, body: str) -> list[str]:
    (folder / "other").mkdir()
    (folder / "other" / "page.html").write_text('<h2 id="here">Here</h2><img src="../dot.png">')
    (folder / "dot.png").write_bytes(b"")
    (folder / "index.html").write_text(body)
    return broken_links(folder)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('<a href="missing.html">x</a>', "no such file"),
        ('<a href="other/page.html#nowhere">x</a>', "no such anchor"),
        ('<a href="#nowhere">x</a>', "no such anchor"),
        ('<img src="missing.png">', "no such file"),
        ('<a href="../outside.html">x</a>', "outside of the site"),
        ('<script src="https://example.org/x.js"></script>', "loaded from another site"),
        ('<a href="javascript:alert(1)">x</a>', "unknown scheme javascript"),
    ],
)
def test_a_link_that_leads_nowhere_is_found(tmp_path, body, reason):
    (found,) = site(tmp_path, body)
    assert found.startswith("index.html: ")
    assert found.endswith(reason)


def test_links_that_lead_somewhere_are_accepted(tmp_path):
    body = '<a href="other/page.html#here">x</a><a href="https://example.org">y</a><a id="a" href="#a">z</a>'
    assert site(tmp_path, body) == []


def test_links_are_rewritten_for_the_site_and_checked(monkeypatch, tmp_path):
    monkeypatch.setattr(docs, "PAGES", tmp_path)

    def rewritten(text: str, repository: str | None = None) -> str:
        return docs.rewrite(text, "docs/results/speed.md", "results/speed.md", repository)

    assert rewritten("[a](../../SECURITY.md#x)") == "[a](../security.md#x)"
    assert rewritten("![a](../figures/plane.png)") == "![a](../figures/plane.png)"
    assert rewritten("[code](../../src/wherewhat)") == "code"
    assert rewritten("[code](../../src)", "https://example.org/w") == "[code](https://example.org/w/tree/main/src)"
    assert rewritten("`[a](nowhere.md)`\n```\n[a](nowhere.md)\n```\n[b](#anchor)").count("nowhere") == 2
    with pytest.raises(SystemExit, match=r"speed\.md: the link to nowhere\.md leads nowhere"):
        rewritten("[a](nowhere.md)")


def test_a_page_that_is_not_in_nav_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(docs, "PAGES", tmp_path)
    (tmp_path / "a.md").write_text("# A")
    docs.check_nav([{"Start": ["a.md"]}])
    for nav, problem in ([], "a.md: not in nav"), (["a.md", {"B": "b.md"}], "b.md: missing"):
        with pytest.raises(SystemExit, match=problem):
            docs.check_nav(nav)


def test_every_page_of_the_repository_is_in_nav():
    nav = docs.listed(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    pages = {docs.page_of(str(path.relative_to(ROOT))) for path in (ROOT / "docs").rglob("*.md")}
    assert pages | set(docs.FROM_ROOT.values()) <= set(nav)
    assert len(nav) == len(set(nav))


def test_the_reference_has_every_public_name_and_command(tmp_path):
    write_reference(tmp_path)
    names = "".join((tmp_path / page).read_text() for page in ("functions.md", "results.md"))
    assert sorted(re.findall(r"(?m)^::: .*\.(\w+)$", names)) == sorted(ww.__all__)
    commands = (tmp_path / "commands.md").read_text()
    assert re.search(r"(?m)^\| `--seed` \| `0` \|", commands)
    assert "wherewhat profile [OPTIONS]" in commands
    assert "[bold]" not in commands


def test_examples_of_docstrings_are_shown_as_sessions():
    shown = docs_doctests.fenced("Text.\n\n>>> f(1)    # doctest: +SKIP\n2\n\nMore.")
    assert shown == "Text.\n\n```pycon\n>>> f(1)\n2\n```\n\nMore."


def anchors(path: Path) -> set[str]:
    """The names of the headings of a page, as GitHub and the site make them."""
    titles = re.findall(r"(?m)^#+ (.+)$", path.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_to_a_heading_lead_to_one():
    """The README is not part of the site, whose links are checked when it is built."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]
    for page in pages:
        for target, name in re.findall(r"\]\(([^)\s:#]*)#([^)\s]+)\)", page.read_text(encoding="utf-8")):
            assert name in anchors((page.parent / target).resolve() if target else page), f"{page}: {target}#{name}"


def test_figures_from_tables_are_figures_of_the_documentation():
    assert {f"{name}.png" for name in figures.DRAWN} <= {path.name for path in (ROOT / "docs/figures").iterdir()}


def test_every_figure_is_in_the_gallery_with_a_command():
    gallery = (ROOT / "docs" / "gallery.md").read_text()
    assert set(re.findall(r"figures/([\w.-]+)\)", gallery)) == {path.name for path in (ROOT / "docs/figures").iterdir()}
    followed = re.findall(r"(?:^!\[.*\n)+\n(```sh\nwherewhat)?", gallery, re.MULTILINE)
    assert all(followed)
