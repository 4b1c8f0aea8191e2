"""The page at a glance: one swap at the top, several tasks, and selections in the plane."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
import torch
from matplotlib.colors import to_hex

from explorer_page import address, facts, place_of
from synthetic import pure_profile, random_profile, random_series
from wherewhat.display.style import LAYERS
from wherewhat.explorer.page import demo_html
from wherewhat.studies.multihop.demo import TITLE, Demo, learning, profile_embedded
from wherewhat.studies.profile.result import Profile

pytest_plugins = ["explorer_page"]  # browser, show
pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def pure() -> Profile:
    return pure_profile()


def shares(page) -> list[list[str]]:
    acts = page.locator(".act")
    return [acts.nth(at).locator(".share").all_inner_texts() for at in range(acts.count())]


def test_one_swap_shows_attention_that_stays_and_attention_that_follows(show, pure):
    page = show(pure)  # reduced motion: nothing moves by itself
    story = page.locator("[data-panel=story]")
    assert story.locator(".act p").all_inner_texts() == [
        "Head 0.0 looks at where: its attention stays in place",
        "Head 1.1 looks at what: its attention follows the statement",
    ]
    before = shares(page)
    assert all(float(row[0].split()[0]) > 50 > 2 > float(row[1].split()[0]) for row in before)
    page.wait_for_timeout(3000)
    assert shares(page) == before
    story.get_by_role("button", name="swap").press("Enter")
    where, what = shares(page)
    assert where == before[0]
    assert what == before[1][::-1]
    first, second = (story.locator(f".act >> nth=0 >> .statement.{one}").bounding_box() for one in ("first", "second"))
    assert first["x"] > second["x"]
    story.get_by_role("button", name="Head 1.1").click()
    assert page.inner_text("[data-panel=head] h2") == "Head 1.1"


def test_the_swap_plays_by_itself_and_stops_at_a_click(show, pure):
    page = show(pure)
    page.emulate_media(reduced_motion="no-preference")
    page.reload()
    page.wait_for_selector(".story.after", timeout=6000)
    page.get_by_role("button", name="swap back").click()
    page.wait_for_timeout(3200)
    assert page.locator(".story.after").count() == 0


def test_too_little_attention_is_not_judged(show, pure):
    made = Profile(
        pure.heads, pure.frequencies, pure.about, pure.tensors | {"log_mass": pure.tensors["log_mass"].clone()}
    )
    made.tensors["log_mass"][0, 1] = -9.0  # 0.01 % on each block
    page = show(made, hash="#h=0.1")
    assert page.inner_text("[data-panel=swap] .verdict").startswith("Too little attention to judge (less than 0.10 %")
    page = show(made, hash="#h=0.0")
    assert page.inner_text("[data-panel=swap] .verdict").startswith("Attention stays in place")


def test_a_selected_head_is_shown_on_both_tasks(show, pure):
    other = pure.heads.assign(positional=[0.9, 0.8, 0.3, 0.25], symbolic=[0.1, 0.2, 0.6, 0.75])
    other.insert(0, "task", "stories/prose.txt")
    kept = {"settings": {"task": "stories/prose.txt"}, "kept": {"all": {"same": 3, "of": 4}}}
    made = Profile(pure.heads, pure.frequencies, pure.about | {"tasks": [kept]}, pure.tensors, other)
    page = show(made, hash="#h=1.1")
    assert "On prose.txt, 3 of 4 heads keep their kind." in page.inner_text(".lead")
    assert facts(page)["on prose.txt"] == ["0.25, 0.75"]
    frame = page.locator("[data-figure=plane] .corners line").bounding_box()
    box = page.locator("[data-figure=plane] .moves circle").bounding_box()
    x, y = box["x"] + box["width"] / 2 - frame["x"], box["y"] + box["height"] / 2 - frame["y"]
    assert (x / frame["width"], 1 - y / frame["height"]) == pytest.approx((0.25, 0.75), abs=0.01)
    assert page.locator("[data-figure=plane] .moves path").count() == 1


def test_the_name_of_a_selected_head_is_not_on_the_line_to_its_other_place(show, pure):
    """Whether that lies beside it, above it or below it."""

    def middle(box):
        return torch.tensor([box["x"] + box["width"] / 2, box["y"] + box["height"] / 2])

    kept = {"settings": {"task": "prose"}, "kept": {"all": {"same": 3, "of": 4}}}
    for place in ((0.2, 1.0), (0.15, 0.8), (0.9, 0.9)):
        other = pure.heads.assign(positional=place[0], symbolic=place[1])
        other.insert(0, "task", "prose")
        made = Profile(pure.heads, pure.frequencies, pure.about | {"tasks": [kept]}, pure.tensors, other)
        page = show(made, hash="#h=1.1")
        start, end = (
            middle(page.locator(f"[data-figure=plane] {one} circle").bounding_box()) for one in (".chosen", ".moves")
        )
        line = start + torch.linspace(0, 1, 101)[:, None] * (end - start)
        name = page.locator("[data-figure=plane] .chosen text").bounding_box()
        inside = (line - middle(name)).abs() < torch.tensor(
            [name["width"] / 2, name["height"] / 2 - 3]
        )  # of its letters
        assert not inside.all(1).any(), place


def test_names_of_selected_heads_at_one_place_do_not_cover_each_other(show):
    profile = random_profile(2, 4, 2, blocks=4)
    for positional, symbolic in ((0.0, 1.0), (1.0, 0.0), (0.5, 0.5)):
        profile.heads[["positional", "symbolic"]] = positional, symbolic
        page = show(profile, hash="#h=0.0,0.1,0.2,1.3")
        names = [one.bounding_box() for one in page.locator("[data-figure=plane] .chosen text").all()]
        assert len(names) == 4
        for at, one in enumerate(names):
            for other in names[:at]:
                apart = abs(one["y"] - other["y"]), abs(one["x"] - other["x"])
                assert apart[0] >= 14 or apart[1] > one["width"]


def test_a_straight_drag_selects_the_rectangle_that_it_spans(show):
    profile = random_profile(5, 4, 2, blocks=4)
    page = show(profile)
    page.locator("[data-figure=plane]").scroll_into_view_if_needed()
    frame = page.locator("[data-figure=plane] .corners line").bounding_box()
    page.mouse.move(frame["x"] + 2, frame["y"] + 2)
    page.mouse.down()
    page.mouse.move(frame["x"] + 0.5 * frame["width"], frame["y"] + 0.5 * frame["height"], steps=5)
    page.mouse.up()
    inside = profile.heads.query("positional < 0.5 and symbolic > 0.5")
    found = address(page).removeprefix("#h=").split("%2C")
    assert {f"{row['layer']}.{row['head']}" for row in inside.to_dict("records")} <= set(found)
    assert 0 < len(found) < len(profile.heads)


def test_names_lie_over_dots_and_a_click_leaves_no_frame(show, pure):
    page = show(pure)
    layers = page.eval_on_selector_all("[data-figure=plane] .frame > g", "all => all.map(one => one.className.baseVal)")
    assert layers.index("names") > layers.index("heads")
    page.mouse.click(*place_of(page, "0.1"))
    assert page.evaluate("document.activeElement.tagName") == "svg"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "none"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_at_one_frequency_no_dot_hides_another(show):
    profile = random_profile(4, 6, 3, blocks=4)
    profile.frequencies["positional"] = 1.0
    profile.frequencies["symbolic"] = profile.frequencies["symbolic"].round(1)
    page = show(profile, hash="#f=2")
    dots = page.eval_on_selector_all(
        "[data-figure=plane] .heads circle", "all => all.map(one => [one.cx.baseVal.value, one.cy.baseVal.value])"
    )
    places = torch.tensor(dots)
    apart = torch.cdist(places, places).fill_diagonal_(99)
    assert len(dots) == 24
    assert apart.min() > 2.5


def test_names_in_the_menus_of_a_swap_are_not_cut(show):
    profile = random_profile(2, 2, 2, blocks=4)
    profile.about["table"][0]["label"] = "Nathaniel-Alexander likes turquoise."
    for width in (1400, 1024, 390):
        page = show(profile, hash="#h=0.1&swap=0,1", width=width)
        first, second = page.get_by_label("First block"), page.get_by_label("Second block")
        natural = first.evaluate("one => { one.style.maxWidth = 'none'; return one.offsetWidth; }")
        first.evaluate("one => one.style.removeProperty('max-width')")
        assert first.evaluate("one => one.offsetWidth") == natural
        panel = page.locator("[data-panel=swap]").bounding_box()
        for menu in (first, second):
            box = menu.bounding_box()
            assert box["x"] + box["width"] <= panel["x"] + panel["width"] + 1


def test_heads_that_do_not_match_are_selected_in_one_model_only(show):
    page = show(random_profile(3, 2, 2, blocks=4), random_profile(4, 3, 2, blocks=4), hash="#h=1.1&with=1")
    titles = page.locator("[data-panel=head] h2")
    assert titles.all_inner_texts() == ["Head 1.1", "All heads"]
    page.locator("[data-figure=grid]").nth(1).focus()
    page.keyboard.press("ArrowDown")
    assert titles.nth(0).inner_text() == "All heads"
    assert titles.nth(1).inner_text().startswith("Head ")
    same = show(random_profile(3, 2, 2, blocks=4), random_series(layers=3), hash="#h=1.1&with=1")
    assert same.locator("[data-panel=head] h2").all_inner_texts() == ["Head 1.1", "Head 1.1"]


def test_the_page_of_the_demo_opens_on_the_film(browser, tmp_path):
    names = ("number", "letter")
    made = Demo({name: profile_embedded(name, prompts=2) for name in names}, {name: learning(name) for name in names})
    file = tmp_path / "demo.html"
    file.write_text(demo_html(made), encoding="utf-8")
    page = browser.new_page()
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]")
    assert page.title() == page.inner_text("h1") == TITLE
    assert page.inner_text(".lead").startswith("Every sequence is a path")
    assert page.locator(".film").count() == 1
    assert page.locator(".whose").all_inner_texts() == ["number, learning", "letter, learning"]
    page.get_by_label("Result shown").select_option("number")
    page.get_by_label("Compare with").select_option("")
    assert page.inner_text("h1") == "number"
    page.close()


def test_print_and_page_colour_layers_alike():
    style = files("wherewhat.explorer").joinpath("static/page.css").read_text("utf-8")
    for name, at in (("early", 0.0), ("late", 1.0)):
        (colour,) = re.findall(rf"--{name}: light-dark\((#\w+),", style)
        assert to_hex(LAYERS(at)) == colour
