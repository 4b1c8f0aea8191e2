"""The live page in real browsers: type, click, drag, ablate, reload, save; compared with the library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Page

import wherewhat as ww
from conftest import firefox_and_driver, weights
from explorer_page import facts, place_of, saved, two
from live_page import served
from wherewhat.prompts.text import own_prompts
from wherewhat.serve.server import LivePage

pytest_plugins = ["explorer_page"]
pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.weights]
TEXT = "Here is a list. Ben has a dog. Tom has a cow. Sam has a car. Mom has a ball. Ben has a"
HOSTILE = "<script>window.broken = 1</script> <img src=x onerror='window.broken = 2'> and so on and so on"


@pytest.fixture(scope="module")
def running() -> Iterator[LivePage]:
    with served(str(weights("stories260K"))) as page:
        yield page


@pytest.fixture
def tab(browser, running) -> Iterator[Page]:
    """A tab that has measured the text; messages of the console and requests to elsewhere are errors."""
    context = browser.new_context(viewport={"width": 1400, "height": 900}, accept_downloads=True)
    page, noticed = context.new_page(), []
    page.emulate_media(reduced_motion="reduce")
    page.on("console", lambda message: noticed.append(message.text))
    page.on("pageerror", lambda error: noticed.append(str(error)))
    base = running.address.split("?")[0]
    page.on("request", lambda request: request.url.startswith((base, "blob:")) or noticed.append(request.url))
    page.goto(running.address)
    complete(page)
    ask(page, TEXT)
    yield page
    context.close()
    assert [one for one in noticed if "status of 4" not in one] == []  # the browser reports refusals


def wait(page: Page, expression: str, given: str = "") -> None:
    """Wait until this is true. Playwright's own way evaluates strings in the page, which its policy forbids."""
    for _ in range(600):
        if page.evaluate(expression, given):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"{expression} {given}: {page.inner_text('.status')}")


def complete(page: Page, has: str = "") -> None:
    wait(page, "has => document.documentElement.dataset.complete?.includes(has)", has)


def ask(page: Page, text: str) -> None:
    page.get_by_label("The prompt", exact=True).fill(text)
    complete(page, text)


def own_scores(running: LivePage, text: str, blocks, query: int | None = None) -> tuple[torch.Tensor, list[int]]:
    """Scores by the library, with a model and a tokenizer of their own."""
    model, tokenizer = ww.load(weights("stories260K")), ww.load_tokenizer(weights("stories260K"))
    ids = tokenizer(text)["input_ids"][: None if query is None else query + 1]
    scores = ww.score(ww.capture(model, torch.tensor([ids])), blocks=blocks)
    return torch.stack([scores.positional[0], scores.symbolic[0]]), ids


def spans(page: Page) -> list[tuple[int, int]]:
    """The blocks that the strip shows."""
    return [
        tuple(block)
        for block in page.evaluate(
            """[...document.querySelectorAll("[data-panel=ask] .strip .block")].map(
                block => [...block.children].map(token => Number(token.dataset.at))).map(
                all => [all[0], all.at(-1) + 1])"""
        )
    ]


def select(page: Page, label: str) -> None:
    page.mouse.click(*place_of(page, label))
    page.locator("[data-panel=head] h2", has_text=f"Head {label}").wait_for()


def test_typing_shows_scores_attention_and_answers_of_the_text(tab, running):
    blocks = spans(tab)
    assert len(blocks) == 4
    scores, ids = own_scores(running, TEXT, blocks)
    select(tab, "2.3")
    assert facts(tab)["positional score"][0] == two(float(scores[0, 2, 3]))
    assert facts(tab)["symbolic score"][0] == two(float(scores[1, 2, 3]))
    model, tokenizer = ww.load(weights("stories260K")), ww.load_tokenizer(weights("stories260K"))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(torch.tensor([ids]), output_attentions=True)
    own = out.attentions[2][0, 3, -1]
    heights = tab.eval_on_selector_all(
        "[data-panel=ask] .strip [data-at]", "all => all.map(one => Number(one.style.getPropertyValue('--share')))"
    )
    assert heights == pytest.approx((own / own.max()).sqrt().tolist(), abs=6e-3)  # small shares are rounded
    shown = tab.eval_on_selector_all("[data-panel=answer] tr", "all => all.map(one => one.innerText.split('\\t'))")
    top = out.logits[0, -1].softmax(-1).topk(10)
    assert [row[0].strip("“”") for row in shown] == [tokenizer.decode([one]) for one in top.indices.tolist()]
    assert shown[0][-1].startswith(f"{100 * float(top.values[0]):.0f}"[:1])
    tab.get_by_role("button", name="continue by 16 tokens").click()
    wait(tab, "document.querySelector('.written').textContent.length > 1")
    prompt = torch.tensor([ids])
    written = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=16, do_sample=False)
    assert tab.text_content(".written") == tokenizer.decode(written[0, len(ids) :])


def test_a_click_on_a_token_makes_it_the_query_and_the_address_keeps_it(tab, running):
    tab.locator("[data-panel=ask] .strip [data-at='30']").click()
    complete(tab, '"query":30')
    blocks = spans(tab)
    scores, _ = own_scores(running, TEXT, blocks, query=30)
    select(tab, "1.2")
    expected = [two(float(scores[row, 1, 2])) for row in (0, 1)]
    assert [facts(tab)[name][0] for name in ("positional score", "symbolic score")] == expected
    tab.wait_for_timeout(300)
    before, here = facts(tab), tab.url
    tab.reload()
    complete(tab, '"query":30')
    tab.locator("[data-panel=head] h2", has_text="Head 1.2").wait_for()
    assert (facts(tab), tab.url) == (before, here)
    assert tab.input_value("[data-panel=ask] textarea") == TEXT


def test_blocks_are_drawn_with_the_mouse_and_with_the_keyboard(tab, running):
    tab.get_by_role("button", name="the ends of a new block").click()
    box = [tab.locator(f"[data-panel=ask] .strip [data-at='{at}']").bounding_box() for at in (8, 10)]
    tab.mouse.move(box[0]["x"] + 2, box[0]["y"] + 5)
    tab.mouse.down()
    tab.mouse.move(box[1]["x"] + 2, box[1]["y"] + 5)
    tab.mouse.up()
    complete_blocks(tab, [[8, 11]])
    tab.locator("[data-panel=ask] .strip").focus()
    for _ in range(3):  # from the query, the last token, to the beginning of a block, and on
        tab.keyboard.press("ArrowLeft")
    tab.keyboard.press("Home")
    for _ in range(20):
        tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Enter")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Enter")
    complete(tab, '"blocks":[[8,11],[20,23]]')
    assert spans(tab) == [(8, 11), (20, 23)]
    scores, _ = own_scores(running, TEXT, [(8, 11), (20, 23)])
    select(tab, "3.1")
    assert facts(tab)["symbolic score"][0] == two(float(scores[1, 3, 1]))


def complete_blocks(page: Page, blocks: list[list[int]]) -> None:
    """One block cannot be swapped, so nothing more is measured; the address has it."""
    wait(page, "words => decodeURIComponent(location.hash).includes(words)", json.dumps(blocks)[1:-1].replace(" ", ""))


def test_a_block_dragged_onto_another_swaps_them_without_a_forward_pass_and_run_it_runs_the_swapped_text(tab, running):
    select(tab, "2.3")
    tab.evaluate("scrollTo(0, 0)")
    passes = running.live.passes
    inside = [spans(tab)[at][0] + 1 for at in (0, 2)]
    places = [tab.locator(f"[data-panel=ask] .strip [data-at='{at}']").bounding_box() for at in inside]
    tab.mouse.move(places[0]["x"] + 3, places[0]["y"] + 5)
    tab.mouse.down()
    tab.mouse.move(places[1]["x"] + 3, places[1]["y"] + 5, steps=3)
    tab.mouse.up()
    wait(tab, "document.querySelector('[data-panel=run] .verdict').textContent.includes('inside the head')")
    assert running.live.passes == passes
    assert tab.inner_text("[data-panel=run] h2") == "Swap “Ben has a dog.” and “Sam has a car.”"
    tab.get_by_role("button", name="run it").click()
    wait(tab, "document.querySelector('[data-panel=run] .verdict').textContent.includes('after running')")
    assert running.live.passes == passes + 1
    model, tokenizer = ww.load(weights("stories260K")), ww.load_tokenizer(weights("stories260K"))
    ids, (a, b), (c, d) = tokenizer(TEXT)["input_ids"], spans(tab)[0], spans(tab)[2]
    ids[a:b], ids[c:d] = ids[c:d], ids[a:b]
    with torch.no_grad():
        top = model(torch.tensor([ids])).logits[0, -1].topk(10).indices.tolist()
    shown = tab.locator("[data-panel=run] .next").nth(1).locator("td:first-child").all_inner_texts()
    assert [text.strip("“”") for text in shown] == [tokenizer.decode([one]) for one in top]


def test_heads_are_ablated_beside_random_ones_that_are_drawn_again(tab):
    select(tab, "2.3")
    tab.get_by_role("button", name="the selected head", exact=True).click()
    verdict = tab.locator("[data-panel=ablate] .verdict", has_text="Probability of")
    verdict.wait_for()
    model, tokenizer = ww.load(weights("stories260K")), ww.load_tokenizer(weights("stories260K"))
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    with ww.gate(model, ablate=[(2, 3)]), torch.no_grad():
        chances = model(ids).logits[0, -1].softmax(-1)
    shown = tab.locator("[data-panel=ablate] .next").nth(1).locator("td:first-child").all_inner_texts()
    assert [text.strip("“”") for text in shown] == [
        tokenizer.decode([one]) for one in chances.topk(10).indices.tolist()
    ]
    tab.get_by_role("button", name="draw random heads again").click()
    tab.locator("[data-panel=ablate] .verdict", has_text="in 2 draws").wait_for()
    tab.get_by_role("button", name="the ten most retrieving here").click()
    tab.locator("[data-panel=ablate] .verdict", has_text="no single block contains the answer").wait_for()
    tab.get_by_label("Heads or frequencies to ablate").fill("10 most symbolic heads")
    tab.get_by_role("button", name="ablate", exact=True).click()
    tab.locator("[data-panel=ablate] .verdict", has_text="without 10 heads").wait_for()
    tab.get_by_label("Band of frequencies").select_option("slowest quarter")
    tab.locator("[data-panel=ablate] .verdict", has_text="without 1 frequency").wait_for()
    tab.wait_for_timeout(300)
    assert '"how":"drop"' in tab.evaluate("decodeURIComponent(location.hash)")


def test_a_saved_page_opens_without_the_server_and_shows_the_same(tab, browser, running, tmp_path):
    select(tab, "2.3")
    shown = facts(tab)
    with tab.expect_download() as waiting:
        tab.get_by_role("button", name="save page").click()
    file = tmp_path / "saved.html"
    waiting.value.save_as(file)
    assert running.address.split("token=")[1] not in file.read_text()
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]")
    assert page.inner_text("[data-panel=head] h2") == "Head 2.3"
    same = ("positional score", "symbolic score", "entropy", "on the blocks")
    assert {name: facts(page)[name][0] for name in same} == {name: shown[name][0] for name in same}
    context.close()


def test_prompts_are_collected_into_a_file_that_a_profile_takes(tab, tmp_path):
    tab.get_by_role("button", name="add to prompts").click()
    ask(tab, TEXT.replace("Ben has a dog", "Ben has a car"))
    tab.get_by_role("button", name="add to prompts").click()
    with tab.expect_download() as waiting:
        tab.get_by_role("button", name="download prompts.jsonl (2)").click()
    file = tmp_path / "prompts.jsonl"
    waiting.value.save_as(file)
    first, second = own_prompts(ww.load_tokenizer(weights("stories260K")), file)
    assert first.ids != second.ids
    assert len(ww.profile(str(weights("stories260K")), task=str(file)).about["prompts"]) == 2


def test_hostile_text_does_nothing_and_a_prompt_that_is_too_long_is_refused_in_the_page(tab):
    ask(tab, HOSTILE)
    assert tab.evaluate("window.broken") is None
    tab.get_by_label("The prompt", exact=True).fill("a cat " * 400)
    tab.locator(".status.wrong", has_text="tokens; at most 512 are measured here").wait_for()
    ask(tab, TEXT)
    assert tab.locator(".status.wrong").count() == 0


def test_a_tab_that_is_closed_in_the_middle_leaves_the_others_alone(tab, browser, running):
    other = browser.new_page()
    other.goto(running.address)
    complete(other)
    other.get_by_label("The prompt", exact=True).fill(TEXT * 3)
    other.close()
    ask(tab, TEXT.replace("dog", "car"))
    assert len(spans(tab)) > 1


def test_a_table_of_the_live_page_can_be_downloaded(tab):
    assert saved(tab, "Download The plane as CSV").count("\n") == 41


def test_firefox_types_clicks_ablates_and_reloads(running, tmp_path):
    path, driver = firefox_and_driver()
    from marionette_driver import By, Wait

    quiet = {"workspace": str(tmp_path), "gecko_log": str(tmp_path / "gecko.log")}
    firefox = driver.Marionette(bin=path, headless=True, startup_timeout=120, **quiet)

    def until(script: str) -> None:
        Wait(firefox, timeout=60).until(lambda one: one.execute_script(f"return {script}"))

    def press(words: str) -> None:
        firefox.execute_script(
            "[...document.querySelectorAll('button')].find(one => one.innerText === arguments[0]).click()", [words]
        )

    try:
        firefox.start_session()
        firefox.navigate(running.address)
        until("document.documentElement.dataset.complete")
        box = firefox.find_element(By.CSS_SELECTOR, "[data-panel=ask] textarea")
        box.clear()
        box.send_keys(TEXT)
        until("(document.documentElement.dataset.complete ?? '').includes('Ben has a\"')")
        blocks = [tuple(one) for one in firefox.execute_script(
            "return [...document.querySelectorAll('.strip .block')].map(one => [Number(one.firstChild.dataset.at), "
            "Number(one.lastChild.dataset.at) + 1])")]  # fmt: skip
        scores, _ = own_scores(running, TEXT, blocks)
        grid = firefox.find_element(By.CSS_SELECTOR, "[data-figure=grid]")
        firefox.execute_script("arguments[0].focus()", [grid])
        from marionette_driver.keys import Keys

        firefox.execute_script("location.hash = location.hash.replace(/&?h=[^&]*/, '') + '&h=2.3'")
        until("document.querySelector('[data-panel=head] h2').innerText === 'Head 2.3'")
        shown = firefox.execute_script("return [...document.querySelectorAll('.facts b')].map(one => one.innerText)")
        assert shown[:2] == [two(float(scores[0, 2, 3])), two(float(scores[1, 2, 3]))]
        firefox.execute_script("arguments[0].focus()", [grid])
        firefox.actions.sequence("key", "keys").key_down(Keys.ARROW_DOWN).key_up(Keys.ARROW_DOWN).perform()
        until("document.querySelector('[data-panel=head] h2').innerText === 'Head 3.3'")
        press("the selected head")
        until("document.querySelector('[data-panel=ablate] .verdict').innerText.startsWith('Probability')")
        firefox.execute_script("return new Promise(resolve => setTimeout(resolve, 300))")
        firefox.refresh()
        until("(document.documentElement.dataset.complete ?? '').includes('Ben has a\"')")
        assert firefox.execute_script("return document.querySelector('[data-panel=head] h2').innerText") == "Head 3.3"
    finally:
        firefox.cleanup()
        firefox.instance.profile.cleanup()


def test_the_live_page_works_inside_a_frame_of_a_notebook(browser, running, tmp_path):
    """A page of another origin on this machine, as Jupyter is."""
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    class Notebook(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(f"<!doctype html><title>notebook</title>{running._repr_html_()}".encode())

        def log_message(self, *_: object) -> None: ...

    notebook = ThreadingHTTPServer(("127.0.0.1", 0), Notebook)
    Thread(target=notebook.serve_forever, daemon=True).start()
    page = browser.new_page()
    page.goto(f"http://localhost:{notebook.server_port}/")
    frame = page.frame_locator("iframe")
    frame.locator("html[data-complete]").wait_for(state="attached", timeout=60_000)
    assert frame.locator("[data-figure=plane] .heads circle").count() == 40
    page.close()
    notebook.shutdown()
    assert Path(tmp_path).exists()
