"""The page of an atlas in a real browser: models side by side and on one plane, by family and by depth."""

from __future__ import annotations

import pytest

from explorer_page import address, saved, table, two
from synthetic import random_atlas
from wherewhat.studies.atlas.tables import by_depth, by_family

pytest_plugins = ["explorer_page"]  # browser, show
pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def atlas():
    return random_atlas(5, 6, 4, families=2)


def minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")


def test_every_head_of_every_model_is_on_the_plane(show, atlas):
    page = show(atlas)
    assert page.inner_text("h1") == "Random models"
    assert page.inner_text(".lead").startswith("120 heads of 5 models in 2 families: ")
    assert "Not measured: absent (it is not there)." in page.inner_text("header")
    rows = table(saved(page, "Download One plane as CSV"))
    assert len(rows) == len(atlas.heads) == 120
    ordered = atlas.heads.merge(atlas.models[["model", "family"]]).sort_values(["family", "model", "layer", "head"])
    for row, head in zip(rows, ordered.to_dict("records"), strict=True):
        assert (row["model"], row["kind"]) == (head["model"], head["kind"])
        assert (int(row["layer"]), int(row["head"])) == (head["layer"], head["head"])
        assert float(row["positional"]) == pytest.approx(head["positional"], abs=2e-5)
        assert float(row["symbolic"]) == pytest.approx(head["symbolic"], abs=2e-5)
    for figure in ("overlay", "multiples"):
        drawn = page.eval_on_selector_all(
            f"[data-figure={figure}] .dots path", "all => all.map(one => one.getAttribute('d'))"
        )
        assert sum(path.count("M") for path in drawn) == 120
    titles = page.locator("[data-figure=multiples] text.named").all_text_contents()
    assert titles == ["model-0", "model-2", "model-4", "model-1", "model-3"]
    r = atlas.models.set_index("model")["r"]
    shown = page.locator("[data-figure=multiples] .planes text.small").all_text_contents()
    assert shown == [minus(f"r = {two(r[name])} · 24 heads") for name in titles]


def test_hover_names_model_layer_and_head_and_a_click_selects_them(show, atlas):
    page = show(atlas)
    head = atlas.heads.query("model == 'model-4' and layer == 3 and head == 2").to_dict("records")[0]
    box = page.locator("[data-figure=multiples] g.one").nth(2).locator("rect.ground").bounding_box()
    inside = box["width"] - 8
    at = (box["x"] + 4 + inside * head["positional"], box["y"] + box["height"] - 4 - inside * head["symbolic"])
    page.mouse.move(*at)
    first = page.inner_text(".tip .first")
    assert first.startswith("Head model-4 3.2 ")
    assert f"positional {two(head['positional'])} · symbolic {two(head['symbolic'])}" in page.inner_text(".tip")
    assert page.locator("[data-figure=overlay] .front path").count() == 1
    page.mouse.click(*at)
    assert address(page) == "#h=model-4%203.2&model=model-4"
    assert page.locator("[data-figure=overlay] .chosen text").all_text_contents() == ["model-4 3.2"]
    page.keyboard.press("Escape")
    assert address(page) == ""
    again = show(atlas, hash="#h=model-4%203.2&model=model-4")
    assert again.locator("[data-figure=overlay] .chosen text").all_text_contents() == ["model-4 3.2"]
    assert again.get_by_role("button", name="model-4").get_attribute("aria-pressed") == "true"


def test_keys_move_through_heads_layers_and_models(show, atlas):
    page = show(atlas)
    page.locator("[data-figure=overlay]").focus()
    chosen = page.locator("[data-figure=overlay] .chosen text")
    for key, wanted in (
        ("ArrowRight", "model-0 0.0"),
        ("ArrowRight", "model-0 0.1"),
        ("ArrowDown", "model-0 1.1"),
        ("PageDown", "model-2 0.0"),
        ("ArrowUp", "model-0 5.0"),
        ("PageUp", "model-0 0.0"),
    ):
        page.keyboard.press(key)
        assert chosen.all_text_contents() == [wanted]
        assert page.inner_text("[role=status]").startswith(f"Head {wanted} ")
    page.locator("[data-figure=families]").focus()
    page.keyboard.press("ArrowDown")
    assert page.get_by_role("button", name="model-2").get_attribute("aria-pressed") == "true"
    assert page.inner_text("[role=status]").startswith("model-2, family 0")


def test_families_and_depth_are_the_tables(show, atlas):
    page = show(atlas)
    rows = table(saved(page, "Download By depth as CSV"))
    depths = by_depth(atlas.heads).set_index(["model", "fifth"])
    assert len(rows) == 25
    for row in rows:
        wanted = depths.loc[(row["model"], int(row["fifth"]) - 1)]
        for name in ("positional", "symbolic", "r"):
            assert float(row[name]) == pytest.approx(wanted[name], abs=1e-4)
    page.get_by_role("button", name="families").click()
    rows = table(saved(page, "Download By depth as CSV"))
    medians = by_family(depths.reset_index(), atlas.models, "fifth").set_index(["family", "fifth"])
    assert len(rows) == 10
    for row in rows:
        wanted = medians.loc[(row["family"], int(row["fifth"]) - 1)]
        assert float(row["r"]) == pytest.approx(wanted["r"], abs=1e-4)
    figure = page.locator("[data-figure=families]")
    assert figure.locator(".names text").all_text_contents() == [
        "family 0", "model-0", "model-2", "model-4", "family 1", "model-1", "model-3",
    ]  # fmt: skip
    figure.hover(position={"x": 60, "y": 40 + 21 * 4 + 10})
    family = by_family(atlas.models, atlas.models).query("family == 'family 1'").to_dict("records")[0]
    assert page.inner_text(".tip").splitlines()[2] == minus(
        f"r {two(family['r'])} · positional {two(family['positional'])} · symbolic {two(family['symbolic'])}"
    )
    r = atlas.models.set_index("model")["r"]
    rows = {row["model"]: row for row in table(saved(page, "Download By family as CSV"))}
    assert {name: float(row["r"]) for name, row in rows.items()} == pytest.approx(dict(r))


def test_names_stay_text_and_the_page_fits(show):
    hostile = random_atlas(
        3, 2, 2, names="<script>window.broken = 1</script> <img src=x onerror='window.broken = 2'> {}"
    )
    for scheme, width in (("dark", 1400), ("light", 420)):
        page = show(hostile, scheme=scheme, width=width)
        assert page.evaluate("window.broken") is None
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert "<script>window.broken" in page.inner_text("[data-panel=overlay]")


def test_forty_models_of_a_thousand_heads_stay_small(show):
    page = show(random_atlas(40, 32, 32, families=6))
    assert page.evaluate("document.getElementById('data').textContent.length") < 0.6e6
    quickest = page.evaluate("""() => {
        const figure = document.querySelector('[data-figure=overlay]'), { x, y } = figure.getBoundingClientRect();
        return Math.min(...Array.from({ length: 20 }, (_, at) => {
            const start = performance.now();
            figure.dispatchEvent(new PointerEvent('pointermove', { clientX: x + 100 + 10 * at, clientY: y + 200 }));
            return performance.now() - start;
        }));
    }""")
    assert quickest < 50  # milliseconds; other work on the machine only adds
