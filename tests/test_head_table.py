"""The table of heads, retrieval and roles in a real browser, as the tables of the profile have them."""

from __future__ import annotations

import pytest

from explorer_page import address, place_of
from synthetic import random_profile
from wherewhat.core.kinds import LITTLE
from wherewhat.studies.ablation.selections import ranked
from wherewhat.studies.profile.roles import in_role, rests_on_little

pytest_plugins = ["explorer_page"]  # browser, show
pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def profile():
    made = random_profile(5, 4, 2, blocks=4)
    made.heads.loc[[3, 7, 11], "on_blocks"] = LITTLE / 2
    made.about["little"] |= {"heads": 3, "of": 20}
    return made


def labels(heads) -> list[str]:
    return [f"{row['layer']}.{row['head']}" for row in heads.to_dict("records")]


def rows(page) -> list[str]:
    return page.locator("[data-panel=heads] tbody tr td:first-child").all_inner_texts()


def test_heads_are_sorted_filtered_and_searched(show, profile):
    page, heads = show(profile), profile.heads
    table = page.locator("[data-panel=heads]")
    assert rows(page) == labels(heads)
    for title, column in (("on the answer", "answer"), ("on blocks", "on_blocks"), ("positional", "positional")):
        button = table.get_by_role("button", name=title, exact=True)
        button.click()
        assert rows(page) == labels(heads.sort_values(column, ascending=False, kind="stable"))
        button.press("Enter")
        assert rows(page) == labels(heads.sort_values(column, kind="stable"))
        assert table.locator("th[aria-sort=ascending]").inner_text() == title
    table.get_by_role("button", name="head", exact=True).click()
    for choice, wanted in (
        ("what", heads["kind"] == "what"),
        ("rests on little", rests_on_little(heads)),
        *((role, in_role(heads, role)) for role in ("retrieving", "induction", "sink", "current-token")),
    ):
        table.get_by_label("Kind or role").select_option(choice)
        assert rows(page) == labels(heads[wanted])
        assert table.locator(".found").inner_text() == f"{wanted.sum()} of 20 heads"
    table.get_by_label("Kind or role").select_option("")
    table.get_by_label("Search heads").fill("3.")
    assert rows(page) == labels(heads.query("layer == 3"))
    table.get_by_label("Search heads").fill("induct")
    assert rows(page) == labels(heads[in_role(heads, "induction")])


def test_what_is_listed_can_be_selected_and_copied_for_the_command_line(show, profile):
    page = show(profile)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    table = page.locator("[data-panel=heads]")
    table.get_by_role("button", name="10 most retrieving").click()
    most = [f"{layer}.{head}" for layer, head in ranked(profile.heads, "retrieving")[:10]]
    assert rows(page)[:10] == most
    assert set(address(page).removeprefix("#h=").split("%2C")) == set(most)
    assert page.inner_text("[data-panel=head] h2") == f"Head {most[0]}"
    assert table.locator("tr[aria-current]").count() == 10
    table.get_by_label("Search heads").fill("2.")
    table.get_by_role("button", name="copy as list").click()
    table.get_by_role("button", name="copied").wait_for()
    listed = page.evaluate("navigator.clipboard.readText()")
    assert sorted(listed.split(", ")) == ["2.0", "2.1", "2.2", "2.3"]
    table.get_by_label("Head 2.1").click()
    assert page.inner_text("[data-panel=head] h2") == "Head 2.1"


def test_the_grid_shows_retrieval(show, profile):
    page = show(profile, hash="#g=retrieval")
    heads = profile.heads
    assert f"at most {100 * heads['answer'].max():.0f} %" in page.inner_text("[data-panel=grid] .hint")
    marked = in_role(heads, "retrieving")
    assert page.get_attribute("[data-figure=grid] path.retrieving", "d").count("M") == marked.sum() > 0
    heads = heads.assign(answer=float("nan"))
    none = show(type(profile)(heads, profile.frequencies, profile.about, profile.tensors))
    assert none.get_by_role("button", name="retrieval", exact=True).count() == 0  # no prompt has an answer


def test_heads_on_little_attention_are_faded_counted_and_described(show, profile):
    page = show(profile, hash="#h=0.3")
    assert "3 of them rest on little attention: less than 1 %" in page.inner_text(".lead")
    assert page.locator("[data-figure=plane] circle.little").count() == 3
    faded = page.eval_on_selector_all(".faded path", "all => all.map(one => one.getAttribute('d')).join('')")
    assert faded.count("M") == 3
    assert "Only 0.50 % of its attention is on the blocks" in page.inner_text("[data-panel=head] .hint >> nth=0")
    page.mouse.move(*place_of(page, "0.3"))
    assert "rests on little attention: 0.50 % on the blocks" in page.inner_text(".tip")


def test_the_criterion_of_a_sink_is_stated(show, profile):
    said = show(profile).inner_text("[data-panel=provenance]")
    assert "tokens before the blocks on which at least 10 % of heads put at least 30 % of their attention" in said
