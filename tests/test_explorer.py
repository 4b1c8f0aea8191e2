"""The explorer in a real browser, from disk and without a network: what it shows is what the tables hold."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
import torch
from playwright.sync_api import Browser, Page, sync_playwright

import brute_force
import wherewhat as ww
from conftest import missing, weights
from synthetic import random_profile, random_series
from wherewhat.prompts.other import own_prompts
from wherewhat.report.explorer import explorer_html
from wherewhat.studies.profile_file import Profile

AXE = Path(__file__).parents[1] / "explorer" / "node_modules" / "axe-core" / "axe.min.js"
HOSTILE = "<script>window.broken = 1</script> <img src=x onerror='window.broken = 2'> &amp; \"'"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        missing("no Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def profile(stories260k) -> Profile:
    tokenizer = ww.load_tokenizer(weights("stories260K"))
    return ww.profile(stories260k, ww.binding(tokenizer, pairs=8, samples=3))


@pytest.fixture(scope="module")
def hostile(stories260k, tmp_path_factory) -> Profile:
    tokenizer = ww.load_tokenizer(weights("stories260K"))
    texts = [f"=1+1. {HOSTILE} Ann likes {word}." for word in ("red", "tan", "sky")]
    text, spans = "So. ", []
    for one in texts:
        spans.append([len(text), len(text) + len(one)])
        text += one
    file = tmp_path_factory.mktemp("hostile") / "prompts.jsonl"
    file.write_text(json.dumps({"text": text + " Ann likes", "blocks": spans, "answer": " <b>red"}) + "\n")
    return ww.profile(stories260k, own_prompts(tokenizer, file), about={"model": f"models/{HOSTILE.replace('/', '')}"})


@pytest.fixture
def show(browser: Browser, tmp_path: Path):
    """Open a page of these sources from disk; whatever it asks for, says to the console or breaks is an error."""
    noticed: list[str] = []
    context = browser.new_context(viewport={"width": 1400, "height": 900}, offline=True, accept_downloads=True)

    def open_page(*sources, hash: str = "", names=None, scheme="light", width=1400) -> Page:
        file = tmp_path / "page.html"
        file.write_text(explorer_html(sources, names), encoding="utf-8")
        page = context.new_page()
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.set_viewport_size({"width": width, "height": 900})
        page.on("console", lambda message: noticed.append(message.text))
        page.on("pageerror", lambda error: noticed.append(str(error)))
        page.on("request", lambda request: request.url == file.as_uri() or noticed.append(request.url))
        page.goto(file.as_uri() + hash)
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    context.close()
    assert noticed == []


def place_of(page: Page, label: str) -> tuple[float, float]:
    """Where a head stands in the plane, on the screen."""
    page.locator("[data-figure=plane]").first.scroll_into_view_if_needed()
    return tuple(
        page.evaluate(
            """label => {
                const dot = [...document.querySelectorAll('.heads circle')].find(dot => dot.__data__.label === label);
                const box = dot.getBoundingClientRect();
                return [box.x + box.width / 2, box.y + box.height / 2];
            }""",
            label,
        )
    )


def lonely(heads: pd.DataFrame) -> pd.Series:
    """The head that is furthest from its nearest neighbour."""
    places = torch.tensor(heads[["positional", "symbolic"]].to_numpy())
    distance = torch.cdist(places, places).fill_diagonal_(math.inf).min(1).values
    return heads.iloc[int(distance.argmax())]


def facts(page: Page) -> dict[str, list[str]]:
    """The numbers of the chosen head by their names, with their intervals."""
    shown = page.eval_on_selector_all(".facts > div", "all => all.map(one => [...one.children].map(x => x.innerText))")
    return {name: values for name, *values in shown}


def saved(page: Page, button: str) -> str:
    with page.expect_download() as waiting:
        page.get_by_label(button, exact=True).first.click()
    return Path(waiting.value.path()).read_text(encoding="utf-8")


def address(page: Page) -> str:
    """The address when it was written, which takes a moment."""
    page.wait_for_timeout(250)
    return page.evaluate("location.hash")


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def two(value: float) -> str:
    return f"{value:.2f}"


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


def test_one_frequency_is_told_from_whole_heads(show, profile):
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
    assert "of whole heads, the variance" in said
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
    assert "holds what was chosen" in page.inner_text("dialog")


def test_keys_move_through_heads_and_layers(show, profile):
    page = show(profile, hash="#h=1.2")
    page.focus("[data-figure=grid]")
    for key, label in (("ArrowRight", "1.3"), ("ArrowDown", "2.3"), ("ArrowLeft", "2.2"), ("ArrowUp", "1.2")):
        page.keyboard.press(key)
        assert page.inner_text("[data-panel=head] h2") == f"Head {label}"
        assert page.inner_text("[role=status]").startswith(f"Head {label}")
    page.keyboard.press("Shift+ArrowDown")
    assert address(page) == "#h=1.2%2C2.2"


def test_a_lasso_chooses_the_heads_inside(show, profile):
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
    """Hidden states exchanged before the layer, the layer run again, its own attention read: by the published way."""
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


def test_tables_and_figures_can_be_taken_along(show, profile):
    page = show(profile)
    rows = table(saved(page, "Download The plane as CSV"))
    for found, wanted in zip(rows, profile.heads.to_dict("records"), strict=True):
        for name in profile.heads.columns.drop("kv_head"):
            same = found[name] == wanted[name] if name == "kind" else float(found[name]) == wanted[name]
            assert same, name
    assert len(table(saved(page, "Download Frequencies and layers as CSV"))) == len(profile.frequencies)
    assert [float(row["attention"]) for row in table(saved(page, "Download The prompt as CSV"))]
    for button in page.locator("button:text-is('SVG')").all():
        name = button.get_attribute("aria-label")
        drawing = ElementTree.fromstring(saved(page, name))
        assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
        if name == "Download The plane as SVG":
            (heads,) = (g for g in drawing.iter() if len(g.findall("{*}circle")) >= 40)
            assert len(heads) == 40
            assert all(dot.get("fill", "").startswith("rgb") for dot in heads)


def test_depth_and_prompt_show_what_the_tables_hold(show, profile):
    page = show(profile, hash="#h=2.5")
    medians = profile.heads.groupby("layer")["symbolic"].median()
    found = [float(row["symbolic_median"]) for row in table(saved(page, "Download By depth as CSV"))]
    assert found == pytest.approx(medians.tolist())
    prompt = profile.about["prompts"][0]
    width = prompt["blocks"][0][1] - prompt["blocks"][0][0]
    attention = profile.tensors["block_attention"][0, 2, 5] * width
    rows = table(saved(page, "Download The prompt as CSV"))
    assert [float(row["attention"]) for row in rows] == pytest.approx(attention.tolist(), rel=1e-6)
    assert [row["says"] for row in rows] == list(prompt["labels"])
    assert page.inner_text(".block.target b") == prompt["says"]
    assert page.inner_text(".query").startswith(prompt["tokens"][-1].strip())
    shown = " ".join(page.inner_text("[data-panel=prompt] .text").split())
    assert " ".join(prompt["text"].split())[:200] in shown


def test_text_that_looks_like_markup_is_shown_as_text(show, hostile):
    page = show(hostile, random_series())
    assert page.evaluate("window.broken") is None
    assert page.locator("[data-panel=prompt] .block").first.inner_text().startswith(f"=1+1. {HOSTILE}")
    assert page.locator("main img, main script").count() == 0
    assert HOSTILE.replace("/", "") in page.inner_text("h1")
    page.hover("[data-panel=swap] .pane rect")
    assert HOSTILE in page.inner_text(".tip")
    says = [row["says"] for row in table(saved(page, "Download The prompt as CSV"))]
    assert all(one.startswith("'=1+1. ") for one in says)  # nothing that a spreadsheet would run


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


def test_two_profiles_stand_side_by_side(show, profile):
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
    page.get_by_label("What is shown").select_option("series")
    assert page.locator(".film").count() == 1


def test_a_film_stands_beside_a_profile(show, profile):
    watched = random_series()
    page = show(watched, profile, random_profile(4, 2, 3, blocks=4), names=["series", "other", "same"], hash="#with=1")
    for left, right in (("plane",) * 2, ("grid",) * 2, ("head",) * 2, ("depth",) * 2, ("training", "frequencies"),
                        ("provenance",) * 2):  # fmt: skip
        tops = [page.locator(f".column.{kind} [data-panel={name}]").bounding_box()["y"]
                for kind, name in (("series", left), ("profile", right))]  # fmt: skip
        assert tops[0] == tops[1], left
    assert "none is compared" in page.inner_text(".lead")
    page.get_by_label("Compare with").select_option("same")
    ends = watched.heads.query("step == 950").set_index(["layer", "head"])["kind"]
    kinds = random_profile(4, 2, 3, blocks=4).heads.set_index(["layer", "head"])["kind"]
    same = sum(ends[place] == kinds[place] for place in ends.index)
    assert page.inner_text(".lead") == (
        "The heads of same were measured once, those of series at 20 steps. "
        f"At the last step {same} of 8 heads are of the same kind."
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(show, profile, scheme):
    if not AXE.exists():
        missing("no axe-core: run npm ci in the folder explorer")
    for sources, address in (([profile], "#h=1.2,3.4"), ([random_series(), profile], "#with=1"), ([profile], "#f=2")):
        page = show(*sources, hash=address, scheme=scheme)
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        page.evaluate(f"() => {{ {AXE.read_text(encoding='utf-8')} }}")
        found = page.evaluate("axe.run().then(result => result.violations)")
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        assert not serious, [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in serious]
        page.context.pages[-1].close()


def test_a_phone_shows_all_of_it(show, profile):
    for sources in ([profile], [random_series()]):
        page = show(*sources, width=390)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.locator("[data-figure=plane]").bounding_box()["width"] <= 390


# When a click has been painted: a task that starts after the next frame. Times go to window.painted.
WATCH_CLICKS = """() => {
  window.painted = [];
  let pressed = 0;
  document.addEventListener("mousedown", () => (pressed = performance.now()), true);
  document.addEventListener("click", () =>
    requestAnimationFrame(() => setTimeout(() => window.painted.push(performance.now() - pressed))), true);
}"""


@pytest.mark.parametrize(("layers", "heads", "frequencies"), [(30, 9, 32), (32, 32, 64)])
def test_the_page_opens_and_answers_at_once(show, layers, heads, frequencies):
    """Opened in a second, a click painted in 50 ms: the quickest of several, as other work on the machine only adds."""
    page = show(random_profile(layers, heads, frequencies))
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})  # time of the processor
    page.reload()
    page.wait_for_selector("html[data-ready]")
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    assert metrics["TaskDuration"] < 1
    page.evaluate(WATCH_CLICKS)
    times = [math.inf]
    for click in range(60):
        row, column = 2 * click % layers, click % heads
        box = page.locator("[data-figure=grid] .cells").bounding_box()
        page.mouse.move(
            box["x"] + (column + 0.5) / heads * box["width"], box["y"] + (row + 0.5) / layers * box["height"]
        )
        page.wait_for_timeout(100)
        page.mouse.down()
        page.mouse.up()
        page.wait_for_timeout(100)
        assert page.inner_text("[data-panel=head] h2") == f"Head {row}.{column}"
        times = page.evaluate("window.painted")
        if click >= 4 and min(times) < 50:
            break
    assert min(times) < 50, times


def test_firefox_shows_the_same(profile, tmp_path):
    path = shutil.which("firefox-esr") or shutil.which("firefox")
    if path is None:
        missing("no Firefox: apt-get install firefox-esr")
    try:
        from marionette_driver import marionette as driver
    except ImportError:  # it needs what Python 3.13 no longer has
        missing("marionette_driver cannot be imported")
    from marionette_driver import By, Wait
    from marionette_driver.keys import Keys

    row = lonely(profile.heads)
    file = tmp_path / "page.html"
    file.write_text(explorer_html([profile]), encoding="utf-8")
    quiet = {"workspace": str(tmp_path), "gecko_log": str(tmp_path / "gecko.log")}
    firefox = driver.Marionette(bin=path, headless=True, startup_timeout=120, **quiet)
    try:
        firefox.start_session()
        firefox.navigate(f"{file.as_uri()}#h={row['layer']}.{row['head']}")
        Wait(firefox, timeout=60).until(lambda one: one.execute_script("return document.documentElement.dataset.ready"))
        shown = firefox.execute_script("return [...document.querySelectorAll('.facts b')].map(one => one.innerText)")
        assert shown[:3] == [two(row["positional"]), two(row["symbolic"]), two(row["entropy"])]
        grid = firefox.find_element(By.CSS_SELECTOR, "[data-figure=grid]")
        firefox.execute_script("arguments[0].focus()", [grid])
        key = Keys.ARROW_DOWN if row["layer"] < 4 else Keys.ARROW_UP
        firefox.actions.sequence("key", "keys").key_down(key).key_up(key).perform()
        there = firefox.find_element(By.CSS_SELECTOR, "[data-panel=head] h2").text
        assert there == f"Head {row['layer'] + (1 if row['layer'] < 4 else -1)}.{row['head']}"
        dots = firefox.execute_script("return document.querySelectorAll('.heads circle').length")
        assert dots == len(profile.heads)
    finally:
        firefox.cleanup()
        firefox.instance.profile.cleanup()


def test_what_is_missing_is_shown_as_missing(show):
    """A profile of level prompt has no frequencies and no table of swaps; one head gave its blocks no attention."""
    profile = random_profile(3, 2, 2, blocks=4)
    del profile.tensors["log_mass"]
    profile.heads.loc[3, ["positional", "symbolic"]] = math.nan
    profile.heads.loc[3, "kind"] = "unmeasured"
    for name in ("variance", "exclusion_bound", "mean_frequency", "positional_without_first"):
        profile.heads[name] = math.nan
    about = profile.about | {"level": "prompt", "swaps": {"run": 10, "of": 48, "unseen_weight": 0.25}}
    page = show(Profile(profile.heads, profile.frequencies[:0], about, profile.tensors), hash="#h=1.1")
    assert page.inner_text(".badge") == "could not be measured"
    assert facts(page)["positional score"] == ["\N{EN DASH}"]
    assert page.locator("[data-figure=plane] .heads circle").count() == 5
    assert page.get_attribute("[data-figure=grid] path.unmeasured", "d")
    assert "no frequencies" in page.inner_text("[data-panel=head]")
    assert "10 of 48 were run" in page.inner_text("[data-panel=provenance]")
    page.keyboard.press("Escape")
    assert page.inner_text("[data-panel=head] h2") == "All heads"


def test_in_a_notebook_the_page_works_inside_its_frame_and_reaches_nothing_outside(browser, hostile, tmp_path):
    file = tmp_path / "notebook.html"
    file.write_text(f"<!doctype html><title>notebook</title>{hostile._repr_html_()}", encoding="utf-8")
    context = browser.new_context(offline=True, reduced_motion="reduce")
    page, noticed = context.new_page(), []
    page.on("console", lambda message: noticed.append(message.text))
    page.on("pageerror", lambda error: noticed.append(str(error)))
    page.goto(file.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("html[data-ready]").wait_for(state="attached")
    frame.locator("[data-figure=grid]").first.focus()
    page.keyboard.press("ArrowDown")
    frame.locator("[data-panel=head] h2").filter(has_text="Head ").wait_for()
    with page.expect_download() as waiting:
        frame.get_by_label("Download The plane as CSV", exact=True).first.click()
    assert len(table(Path(waiting.value.path()).read_text(encoding="utf-8"))) == len(hostile.heads)
    inside = page.frames[1]
    assert inside.evaluate("window.broken") is None
    assert inside.evaluate("(() => { try { return parent.document.title } catch { return 'refused' } })()") == "refused"
    assert noticed == []
    context.close()
