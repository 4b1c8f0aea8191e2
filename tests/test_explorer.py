"""The explorer in a real browser shows what the tables hold."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
import torch

import brute_force
from explorer_page import HOSTILE, address, facts, lonely, place_of, saved, table, two
from synthetic import random_profile, random_series

pytest_plugins = ["explorer_page"]  # browser, show, profile, hostile
pytestmark = [pytest.mark.browser, pytest.mark.weights, pytest.mark.slow]


def test_the_header_is_written_from_the_data(show, profile):
    page = show(profile)
    kinds = profile.heads["kind"].value_counts()
    assert page.inner_text(".lead").startswith(f"{kinds.get('where', 0)} of 40 heads look at where")
    assert page.title().startswith(page.inner_text("h1"))


def test_hover_names_a_head_and_lights_it_everywhere(show, profile):
    page, row = show(profile), lonely(profile.heads)
    page.mouse.move(*place_of(page, f"{row['layer']}.{row['head']}"))
    said = page.inner_text(".tip")
    assert f"Head {row['layer']}.{row['head']}" in said
    assert (
        f"positional {two(row['positional'])} · symbolic {two(row['symbolic'])} · entropy {two(row['entropy'])}" in said
    )
    for figure in ("plane", "grid"):
        assert page.locator(f"[data-figure={figure}] .lit > *").count() == 1
    page.mouse.move(5, 5)
    assert page.locator(".tip").is_hidden()
    assert page.locator(".lit > *").count() == 0


def test_a_click_shows_the_head_as_the_table_has_it(show, profile):
    page, row = show(profile), lonely(profile.heads)
    label = f"{row['layer']}.{row['head']}"
    page.mouse.click(*place_of(page, label))
    assert page.inner_text("[data-panel=head] h2") == f"Head {label}"
    shown = facts(page)
    for axis in ("positional", "symbolic"):
        assert shown[f"{axis} score"] == [two(row[axis]), f"{two(row[f'{axis}_low'])} to {two(row[f'{axis}_high'])}"]
    assert shown["entropy"] == [two(row["entropy"])]
    assert shown["mean frequency"] == [f"{row['mean_frequency']:.0f}"]
    assert shown["exclusion bound"] == [f"{two(row['variance'])} ≤ {two(row['exclusion_bound'])}"]
    words = {"where": "looks at where", "what": "looks at what", "unfocused": "is unfocused", "mixed": "is mixed"}
    assert page.inner_text(".badge") == words[row["kind"]]
    over = table(saved(page, "Download Score by frequency as CSV"))
    expected = profile.frequencies.query(f"layer == {row['layer']} and head == {row['head']}")
    for found, wanted in zip(over, expected.to_dict("records"), strict=True):
        assert int(found["frequency"]) == wanted["frequency"]
        for name in ("positional", "symbolic", "use_norm", "angle"):
            assert float(found[name]) == pytest.approx(wanted[name], rel=1e-6)


def test_the_address_shows_the_same_view_again(show, profile):
    page = show(profile, hash="#h=1.2,3.4&f=2&g=symbolic&sorted=yes")
    assert page.inner_text("[data-panel=head] h2") == "Head 3.4"
    assert page.locator("[data-figure=plane] .chosen circle").count() == 2
    assert page.get_attribute("[data-panel=grid] button:text-is('symbolic')", "aria-pressed") == "true"
    at = profile.frequencies.query("layer == 3 and head == 4 and frequency == 2").iloc[0]
    assert facts(page)["positional score"] == [two(at["positional"]), "at frequency 2"]
    page.click("[data-panel=grid] button:text-is('entropy')")
    page.keyboard.press("Escape")
    assert address(page) == "#g=entropy&sorted=yes"
    assert page.inner_text("[data-panel=head] h2") == "All heads"
    page.evaluate("location.hash = '#h=0.0'")
    page.wait_for_selector("[data-panel=head] h2:text-is('Head 0.0')")
    show(profile, hash="#p=7&with=9&h=99.9&f=77&step=5&g=nonsense&swap=50,60")


def test_one_frequency_is_distinguished_from_whole_heads(show, profile):
    page = show(profile, hash="#h=3.4")
    top = page.locator("[data-panel=plane]").bounding_box()["y"]
    assert page.locator(".scope").is_hidden()
    assert "95 % interval" in page.inner_text("[data-panel=head]")
    assert "correlate with r" in page.inner_text("[data-panel=depth] .hint")
    page.evaluate("location.hash = '#h=3.4&f=2'")
    page.wait_for_selector(".scope:text('frequency 2 alone')")
    assert page.locator("[data-panel=plane]").bounding_box()["y"] == top
    whole = profile.heads.query("layer == 3 and head == 4").iloc[0]
    at = profile.frequencies.query("frequency == 2")
    shown = facts(page)
    for axis in ("positional", "symbolic"):
        part = at.query("layer == 3 and head == 4")[axis].item()
        assert shown.pop(f"{axis} score") == [two(part), "at frequency 2"]
    assert shown["entropy"] == [two(whole["entropy"]), "whole head"]
    assert all(mark == "whole head" for _, mark in shown.values())
    assert page.inner_text("[data-panel=head] .badge").endswith(" at frequency 2")
    assert "95 % interval" not in page.inner_text("[data-panel=head]")
    assert page.inner_text("[data-panel=swap] .hint").startswith("Of the whole head: ")
    for name in ("plane", "grid", "depth"):
        assert page.inner_text(f"[data-panel={name}] .hint").startswith("At frequency 2 alone. ")
    said = page.inner_text("[data-panel=depth] .hint")
    assert "correlate" not in said
    assert "Below, for whole heads: the variance" in said
    layers, heads = (table(saved(page, f"Download {name} as CSV")) for name in ("By depth", "The plane"))
    medians = at.groupby("layer")["positional"].median()
    assert [float(row["positional_median"]) for row in layers] == pytest.approx(medians.tolist(), rel=1e-6)
    assert [float(row["symbolic"]) for row in heads] == pytest.approx(at["symbolic"].tolist(), rel=1e-6)
    assert list(heads[0]) == ["frequency", "layer", "head", "kind", "positional", "symbolic"]
    assert not any("variance" in name or "entropy" in name for name in layers[0])


def test_only_terms_are_coloured(show, profile):
    page = show(profile)
    page.click("text=? help")
    words = page.eval_on_selector_all("dialog p b", "all => all.map(one => one.innerText)")
    assert words == ["where", "what", "where", "what"]
    assert "stores what is selected" in page.inner_text("dialog")


def test_keys_move_through_heads_and_layers(show, profile):
    page = show(profile, hash="#h=1.2")
    page.focus("[data-figure=grid]")
    for key, label in (("ArrowRight", "1.3"), ("ArrowDown", "2.3"), ("ArrowLeft", "2.2"), ("ArrowUp", "1.2")):
        page.keyboard.press(key)
        assert page.inner_text("[data-panel=head] h2") == f"Head {label}"
        assert page.inner_text("[role=status]").startswith(f"Head {label}")
    page.keyboard.press("Shift+ArrowDown")
    assert address(page) == "#h=1.2%2C2.2"


def test_a_lasso_selects_the_heads_inside(show, profile):
    page = show(profile)
    page.locator("[data-figure=plane]").scroll_into_view_if_needed()
    box = page.locator(".corners rect.where").bounding_box()
    corners = [(-4, -4), (box["width"] + 9, -4), (box["width"] + 9, box["height"] + 9), (-4, box["height"] + 9)]
    page.mouse.move(box["x"] + corners[0][0], box["y"] + corners[0][1])
    page.mouse.down()
    for x, y in corners[1:]:
        page.mouse.move(box["x"] + x, box["y"] + y, steps=3)
    page.mouse.up()
    slack = 4 / page.locator("[data-figure=plane] .corners line").bounding_box()["width"]
    inside = profile.heads.query(f"positional >= {0.8 - slack} and symbolic <= {0.2 + slack}")
    assert len(inside) > 1
    assert page.locator("[data-figure=plane] .chosen circle").count() == len(inside)
    assert page.locator("[data-panel=head] tbody tr").count() == len(inside)
    row = lonely(profile.heads)
    page.keyboard.down("Shift")
    page.mouse.click(*place_of(page, f"{row['layer']}.{row['head']}"))
    assert abs(page.locator("[data-figure=plane] .chosen circle").count() - len(inside)) == 1


def test_swaps_are_what_swapping_gives(show, profile, stories260k):
    """As published: swap the hidden states before the layer, rerun the layer, and read its own attention."""
    prompt = profile.about["prompts"][0]
    ids, spans, layer, head = torch.tensor([prompt["ids"]]), prompt["blocks"], 2, 5
    implementation = stories260k.config._attn_implementation
    stories260k.set_attn_implementation("eager")
    attention = brute_force.attention_modules(stories260k, ids)[layer]
    for i, j in ((0, 7), (6, 2)):
        order = torch.arange(ids.shape[1])
        order[slice(*spans[i])], order[slice(*spans[j])] = torch.arange(*spans[j]), torch.arange(*spans[i])
        rows = [
            brute_force.last_rows(stories260k, ids, attention)[0, head],
            brute_force.last_rows(stories260k, ids, attention, order[None])[0, head],
        ]
        shown = table(
            saved(show(profile, hash=f"#h={layer}.{head}&swap={i},{j}"), "Download Before and after a swap as CSV")
        )
        for name, row in zip(("before", "after"), rows, strict=True):
            for found, (start, stop) in zip(shown, spans, strict=True):
                # the page holds logarithms in float16: eleven bits of a number below 32
                assert float(found[name]) == pytest.approx(row[start:stop].sum().item(), rel=2e-2)
    stories260k.set_attn_implementation(implementation)


def test_tables_and_figures_can_be_downloaded(show, profile):
    page = show(profile)
    rows = table(saved(page, "Download The plane as CSV"))
    for found, wanted in zip(rows, profile.heads.to_dict("records"), strict=True):
        for name in profile.heads.columns.drop("kv_head"):
            same = found[name] == wanted[name] if name == "kind" else float(found[name]) == wanted[name]
            assert same, name
    assert len(table(saved(page, "Download Frequencies and layers as CSV"))) == len(profile.frequencies)
    for button in page.locator("button:text-is('SVG')").all():
        name = button.get_attribute("aria-label")
        drawing = ElementTree.fromstring(saved(page, name))
        assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
        if name == "Download The plane as SVG":
            (heads,) = (g for g in drawing.iter() if len(g.findall("{*}circle")) >= 40)
            assert len(heads) == 40
            assert all(dot.get("fill", "").startswith("rgb") for dot in heads)


def test_depth_shows_what_the_tables_hold(show, profile):
    page = show(profile, hash="#h=2.5")
    medians = profile.heads.groupby("layer")["symbolic"].median()
    found = [float(row["symbolic_median"]) for row in table(saved(page, "Download By depth as CSV"))]
    assert found == pytest.approx(medians.tolist())


def test_text_that_looks_like_markup_is_shown_as_text(show, hostile):
    page = show(hostile, random_series())
    assert page.evaluate("window.broken") is None
    assert page.locator(".strip .block").first.text_content().strip().startswith(f"=1+1. {HOSTILE}")
    assert page.locator("main img, main script").count() == 0
    assert HOSTILE.replace("/", "") in page.inner_text("h1")
    page.hover("[data-panel=swap] .pane rect")
    assert HOSTILE in page.inner_text(".tip")
    texts = [row["text"] for row in table(saved(page, "Download Every token as CSV"))]
    assert "'=" in texts  # nothing that a spreadsheet would run
    assert not any(text.startswith("=") for text in texts)


def test_the_film_moves_heads_as_the_table_says(show):
    watched = random_series()
    page = show(watched, hash="#h=0.1")
    steps = sorted(watched.heads["step"].unique())

    def check(step: int) -> None:
        assert page.inner_text(".step") == f"step {step:,} of 950"
        for row in watched.heads.query(f"step == {step}").to_dict("records"):
            if (row["layer"], row["head"]) == (0, 1):
                assert facts(page)["positional score"] == [two(row["positional"])]
            label = f"{row['layer']}.{row['head']}"
            x, y = place_of(page, label)
            frame = page.locator("[data-figure=plane] .corners line").bounding_box()
            assert (x - frame["x"]) / frame["width"] == pytest.approx(row["positional"], abs=0.01)
            assert 1 - (y - frame["y"]) / frame["height"] == pytest.approx(row["symbolic"], abs=0.01)
        for row in watched.accuracy.query(f"step == {step}").to_dict("records"):
            shown = page.locator(".spark b").nth(row["hops"] - 1).inner_text()
            assert shown == f"{100 * row['accuracy']:.0f} %"

    check(950)
    for number in (3, 11):
        page.get_by_label("Step of training").fill(str(number))
        check(steps[number])
    page.focus("input[type=range]")
    page.keyboard.press("ArrowRight")
    check(steps[12])
    since = watched.purity.query("gamma == 0.1 and layer == 0 and head == 1")["step"].item()
    for ahead in (True, False):
        page.get_by_label("Step of training").fill(str(steps.index(since) - ahead))
        page.mouse.move(*place_of(page, "0.1"))
        assert facts(page)["pure since"] == ["not yet" if ahead else f"step {since:,}"]
        assert (f"pure since step {since:,}" in page.inner_text(".tip")) is not ahead
        reached = watched.purity.query(f"gamma == 0.1 and step <= {since - 50 * ahead}").groupby("layer")["step"]
        words = [f"pure since {', '.join(map(str, steps))}" for _, steps in reached]
        assert page.locator(".since text").all_text_contents() == words
    page.get_by_label("Play the training").click()
    page.wait_for_selector("[aria-label='Pause']")
    page.wait_for_selector("[aria-label='Play the training']")
    check(950)


def test_two_profiles_are_shown_side_by_side(show, profile):
    other = random_profile(5, 8, 3, blocks=6)
    page = show(profile, random_series(), other, names=["one", "series", "other"])
    page.get_by_label("Compare with").select_option("other")
    assert page.locator("[data-figure=plane]").count() == 2
    assert page.inner_text("h1") == "one and other"
    tops = [page.locator("[data-panel=head]").nth(at).bounding_box()["y"] for at in (0, 1)]
    assert tops[0] == tops[1]
    page.focus("[data-figure=grid] >> nth=1")
    page.keyboard.press("ArrowRight")
    label = page.inner_text("[data-panel=head] h2 >> nth=0").removeprefix("Head ")
    layer, head = map(int, label.split("."))
    for at, source in enumerate((profile, other)):
        row = source.heads.query(f"layer == {layer} and head == {head}").iloc[0]
        shown = page.locator(".facts").nth(at).locator("b").first.inner_text()
        assert shown == two(row["positional"])
    page.get_by_label("Result shown").select_option("series")
    assert page.locator(".film").count() == 1


def test_a_series_is_shown_beside_a_profile(show, profile):
    watched = random_series()
    page = show(watched, profile, random_profile(4, 2, 3, blocks=4), names=["series", "other", "same"], hash="#with=1")
    for left, right in (("plane",) * 2, ("grid",) * 2, ("head",) * 2, ("depth",) * 2, ("training", "frequencies"),
                        ("provenance",) * 2):  # fmt: skip
        tops = [page.locator(f".column.{kind} [data-panel={name}]").bounding_box()["y"]
                for kind, name in (("series", left), ("profile", right))]  # fmt: skip
        assert tops[0] == tops[1], left
    assert "heads are not compared" in page.inner_text(".lead")
    page.get_by_label("Compare with").select_option("same")
    ends = watched.heads.query("step == 950").set_index(["layer", "head"])["kind"]
    kinds = random_profile(4, 2, 3, blocks=4).heads.set_index(["layer", "head"])["kind"]
    same = sum(ends[place] == kinds[place] for place in ends.index)
    assert page.inner_text(".lead") == (
        "The heads of same were measured once, those of series at 20 steps. "
        f"At the last step, {same} of 8 heads are of the same kind."
    )
