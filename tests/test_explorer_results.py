"""The explorer on results other than scores: ablated heads, and sequences of growing length."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from explorer_page import saved, table
from synthetic import random_ablation, random_lengths, random_plan, random_profile
from wherewhat.explorer.data_ablation import single_heads
from wherewhat.studies.lengths.paper import published_accuracy

pytest_plugins = ["explorer_page"]  # browser, show
pytestmark = [pytest.mark.browser, pytest.mark.slow]


def plain(value: float, form: str = ".3f") -> str:
    return f"{value:{form}}".replace("-", "\N{MINUS SIGN}")


def signed(value: float) -> str:
    return plain(value, "+.3f")


@pytest.fixture(scope="module")
def ablated():
    profile = random_profile(4, 3, 2, blocks=4)
    return profile, random_ablation(profile)


def test_a_head_shows_the_effect_of_ablating_it(show, ablated):
    page = show(*ablated, hash="#h=2.1")
    rows = single_heads(ablated[1]).query("layer == 2 and head == 1").to_dict("records")
    assert page.inner_text("[data-panel=ablation] h3") == "Ablating head 2.1"
    shown = page.locator("[data-panel=ablation] tbody tr")
    assert shown.count() == len(rows) == 2
    for at, row in enumerate(rows):
        cells = shown.nth(at).locator("th, td").all_text_contents()
        ranges = [
            f"{signed(row[name])} ({signed(row[low])} to {signed(row[high])})"
            for name, low, high in (("change", "low", "high"), ("against", "against_low", "against_high"))
        ]
        assert cells[1:3] == ["higher" if row["better"] else "lower", "6"]
        assert cells[3:5] == [plain(row["before"]), plain(row["after"])]
        assert cells[5:] == [ranges[0], signed(row["control"]), ranges[1]]
        assert shown.nth(at).locator("b").count() == row["counts"]
    page.evaluate("location.hash = '#h=2.1&f=2'")
    page.wait_for_selector("[data-panel=ablation] .hint:text('Of whole heads')")


def test_a_plan_of_rotations_is_shown_with_the_profile_of_its_model(show):
    profile = random_profile(3, 4, 5, blocks=4)
    plan = random_plan(profile, keep=2)
    page = show(profile, plan, hash="#h=1.2")
    panel = "[data-panel=rotations]"
    assert "2 of 5 rotations per key head, spread over the whole model: 12 in all" in page.inner_text(f"{panel} .hint")
    rows = table(saved(page, "Download Rotations to keep as CSV"))
    assert [(row["layer"], row["kv_head"], row["frequency"], row["kept"]) for row in rows] == [
        tuple(str(int(row[name])) for name in ("layer", "kv_head", "frequency", "kept"))
        for row in plan.planes.to_dict("records")
    ]
    assert [float(row["effect"]) for row in rows] == pytest.approx(plan.planes["effect"].tolist())
    box = page.locator(f"{panel} svg").bounding_box()
    page.mouse.click(box["x"] + 60, box["y"] + 8 + 5)  # the first row: key head 0.0, of heads 0.0 and 0.1
    assert page.inner_text("[data-panel=head] h2") == "Head 0.1"


def test_the_heads_with_the_largest_effects_are_named(show, ablated):
    page = show(*ablated, hash="#g=entropy")
    for at, measure in enumerate(("binding_probability", "text_loss")):
        rows = single_heads(ablated[1]).query("measure == @measure")
        rows = rows.assign(harm=rows["against"] * (-1 if measure == "binding_probability" else 1))
        worst = rows.query("counts == True and harm > 0").nlargest(5, "harm")
        wanted = [f"{row['layer']:.0f}.{row['head']:.0f}{signed(row['change'])}" for row in worst.to_dict("records")]
        assert len(wanted) > 1
        assert page.locator("[data-panel=ablation] tbody tr").nth(at).locator("span").all_text_contents() == wanted
    page.locator("[data-panel=ablation]").get_by_label("Head 0.0").first.click()
    assert page.inner_text("[data-panel=head] h2") == "Head 0.0"


def test_cells_are_coloured_by_the_effect_of_ablation(show, ablated):
    page = show(*ablated, hash="#g=ablation&m=text_loss")
    rows = single_heads(ablated[1]).query("measure == 'text_loss'")
    told = rows.query("counts == True")["against"]
    for name, number in (("worse", (told > 0).sum()), ("better", (told < 0).sum())):
        assert page.get_attribute(f"[data-figure=grid] path.{name}", "d").count("M") == number > 0
    assert f"at most {rows['change'].abs().max():.3f}" in page.inner_text("[data-panel=grid] .hint")
    strongest = page.evaluate("""() => {
        const loss = getComputedStyle(document.documentElement).getPropertyValue("--loss").trim();
        const probe = document.body.appendChild(document.createElement("i"));
        probe.style.color = loss;
        const colour = getComputedStyle(probe).color;
        return [...document.querySelectorAll("[data-figure=grid] .cells path")]
            .filter((path) => getComputedStyle(path).fill === colour).map((path) => path.getAttribute("d"));
    }""")
    assert len(strongest) == 1
    assert strongest[0].startswith("M0,0h")  # the first head alone
    assert strongest[0].count("M") == 1
    page.hover("[data-figure=grid]", position={"x": 60, "y": 30})
    change = rows.query("layer == 0 and head == 0")["change"].item()
    assert f"ablating it changes loss on text by {signed(change)}" in page.inner_text(".tip")
    page.get_by_label("Measure of the ablation").select_option("binding_probability")
    assert page.locator("[data-panel=grid] .hint").inner_text().startswith("Change in probability")
    columns = table(saved(page, "Download The grid as CSV"))[0]
    assert float(columns["text_loss_change"]) == pytest.approx(change)


def test_lengths_are_drawn_as_the_tables_have_them(show):
    found = random_lengths()
    page = show(found)
    assert page.inner_text("h1") == "number, by length"
    rows = table(saved(page, "Download Right answers by length as CSV"))
    expected = found.accuracy.to_dict("records")
    for row, wanted in zip(rows, expected, strict=True):
        assert (int(row["length"]), row["hops"]) == (wanted["length"], str(wanted["hops"] or "all"))
        for name, column in (("accuracy", "accuracy"), ("accuracy_low", "low"), ("accuracy_high", "high")):
            assert float(row[name]) == pytest.approx(wanted[column], abs=1e-6)
    published = published_accuracy("number", (17, 20, 50, 100, 300, 1000))
    assert {int(row["length"]): float(row["published"]) for row in rows if row["published"]} == published
    assert page.get_attribute("[data-figure=lengths] .published path", "d").count("M") == len(published)
    looks = table(saved(page, "Download Attention by length as CSV"))
    for row in looks:
        wanted = found.heads.query(f"length == {row['length']} and layer == {row['head'].split('.')[0]}").iloc[0]
        assert [float(row[name]) for name in ("self", "next", "later")] == pytest.approx(
            wanted[["self", "next", "later"]].tolist(), abs=1e-6
        )
    losses = table(saved(page, "Download Length at which heads lose their token as CSV"))
    assert [row["measured"] for row in losses] == ["120", "", "40", "900"]


def test_loss_lengths_are_drawn_at_their_heights(show):
    found = random_lengths()
    page = show(found)
    axis = page.locator("[data-figure=losses] .up .domain").bounding_box()
    for name in ("measured", "predicted"):
        marks = page.locator(f"[data-figure=losses] .end.{name}")
        for at, tokens in enumerate(found.loss[name]):
            box = marks.nth(at).bounding_box()
            middle = box["y"] + box["height"] / 2
            if tokens > 1000:  # not within the lengths measured
                assert middle < axis["y"]
                continue
            share = (axis["y"] + axis["height"] - middle) / axis["height"]
            assert share == pytest.approx(np.log(tokens / 17) / np.log(1000 / 17), abs=0.01)


def test_sharpened_lengths_are_named_so_and_predict_nothing(show):
    found = random_lengths()
    found = replace(found, loss=found.loss.assign(predicted=math.nan), about=found.about | {"sharpened": True})
    page = show(found)
    assert page.inner_text("h1") == "number, by length, sharpened"
    assert "log n / log 17" in page.inner_text(".lead")
    assert page.inner_text(".command code").endswith("--sharpen")
    assert page.locator("[data-figure=losses] .end.measured").count() == 4
    assert page.locator("[data-figure=losses] .end.predicted").count() == 0


def test_lengths_answer_to_hover_keys_and_clicks(show):
    found = random_lengths()
    page = show(found, random_profile(4, 1, 2, blocks=4), hash="#with=1")
    page.focus("[data-figure=lengths]")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    rows = found.accuracy.query("length == 50").to_dict("records")
    said = [f"{name} {100 * row['accuracy']:.0f} % ({row['low']:.2f} to {row['high']:.2f})"
            for name, row in zip(("all", "1 hop", "2 hops", "3 hops"), rows, strict=True)]  # fmt: skip
    assert page.inner_text("[role=status]") == ", ".join(["50 tokens", *said, "published 98 %"])
    page.hover("[data-figure=lengths]", position={"x": 50, "y": 100})
    assert page.inner_text(".tip").startswith("17 tokens")
    page.get_by_role("button", name="2 hops").click()
    assert page.locator("[data-figure=lengths] .line.chosen").count() == 1
    mark = page.locator("[data-figure=losses] .end.measured").nth(2)
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    page.mouse.move(box["x"] + 4, box["y"] + 40)
    assert page.locator(".tip div").all_text_contents()[:2] == [
        "Head 2.0", "half is lost at: measured 40 tokens, predicted beyond the lengths measured"
    ]  # fmt: skip
    for figure in ("attention-by-length", "losses", "plane", "grid"):
        assert page.locator(f"[data-figure={figure}] .lit > *").count() == 1
    page.mouse.click(box["x"] + 4, box["y"] + 40)
    assert page.inner_text("[data-panel=head] h2") == "Head 2.0"
    page.focus("[data-figure=attention-by-length]")
    page.keyboard.press("ArrowUp")
    assert page.inner_text("[role=status]").startswith("Head 1.0 loses half of its attention on the next token at: ")
    ends = page.locator("[data-figure=attention-by-length] .chosen .end")
    assert ends.count() == 1  # measured beyond all lengths, predicted at 500
    page.get_by_role("button", name="later").click()
    assert ends.count() == 0
