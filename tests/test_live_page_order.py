"""The live page when answers are slow or fast, for prompts without scores, and where rows are merged."""

# ruff: noqa: F811 - fixtures are imported

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from playwright.sync_api import Error, Page, Route

from test_live_page import TEXT, ask, complete, running, select, spans, tab, wait  # noqa: F401 - fixtures

pytest_plugins = ["explorer_page"]
pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.weights]
OTHER = "There is a cat. Lily has a red hat. Tim has a big box. Lily has a"


@contextmanager
def held(page: Page, question: str) -> Iterator[None]:
    """Answers to this question arrive when the context ends."""
    waiting: list[Route] = []
    hold = lambda route: waiting.append(route)  # noqa: E731 - Playwright does not take a bound method
    page.route(f"**/api/{question}", hold)
    yield
    page.unroute(f"**/api/{question}", hold)
    for route in waiting:
        with suppress(Error):  # the page asked for something newer
            route.continue_()


def test_what_is_typed_selected_or_swapped_while_details_are_computed_takes_effect(tab):
    with held(tab, "details"):
        tab.get_by_label("The prompt", exact=True).fill(OTHER)
        wait(tab, "() => document.querySelector('[data-panel=ask] .strip').textContent.includes('Lily')")
        select(tab, "1.2")
        tab.get_by_label("The prompt", exact=True).fill(TEXT.replace("ball", "bed"))
        wait(tab, "() => document.querySelector('[data-panel=ask] .strip').textContent.includes('bed')")
        tab.get_by_role("button", name="blocks to swap").click()
        for block in (0, 1):
            tab.locator("[data-panel=ask] .strip .block").nth(block).locator("> *").first.click()
    complete(tab, "bed")
    wait(tab, "() => Boolean(document.documentElement.dataset.swapped)")
    tab.get_by_text("after the swap inside the head", exact=False).wait_for()


def test_a_page_whose_first_answer_is_fast_keeps_its_prompt(running, browser):
    context = browser.new_context()
    for _ in range(3):  # the trace is kept, so that the answer comes before the address is written
        page = context.new_page()
        page.goto(running.address)
        complete(page)
        page.wait_for_timeout(400)
        assert "live=" in page.url
        page.close()
    context.close()


def test_an_earlier_query_keeps_the_blocks_before_it(tab):
    tab.get_by_label("Example").select_option("binding")
    wait(tab, "() => document.querySelector('[data-panel=ask] .strip').textContent.includes('likes')")
    wait(tab, "() => document.querySelectorAll('[data-panel=ask] .strip .block').length === 8")
    whole = spans(tab)
    token = whole[3][1] + 1
    tab.locator(f"[data-panel=ask] .strip [data-at='{token}']").click()
    wait(tab, "() => document.querySelectorAll('[data-panel=ask] .strip .block').length === 4")
    assert spans(tab) == whole[:4]
    last = tab.locator("[data-panel=ask] .strip [data-at]").last
    last.click()
    wait(tab, "() => document.querySelectorAll('[data-panel=ask] .strip .block').length === 8")


def test_enter_ablates_the_heads_that_were_typed(tab):
    field = tab.get_by_label("Heads or frequencies to ablate")
    for heads in ("1.2", "3.0"):
        field.fill(heads)
        field.press("Enter")
        after = tab.locator("[data-panel=ablate] .nexts > *").nth(1)
        after.get_by_text(heads, exact=True).wait_for()


def test_a_prompt_without_scores_is_shaded_by_its_own_attention_and_keeps_no_other_prompt(tab, running):
    tab.get_by_role("button", name="statements", exact=True).click()
    tab.get_by_label("The prompt", exact=True).fill("One day a dog ran. It was so big")
    tab.get_by_text("No scores").wait_for()
    tab.wait_for_timeout(400)  # until the address is written
    before = tab.locator("[data-panel=ask] .strip").inner_html()
    assert "unscored" in tab.locator("#explorer").get_attribute("class")
    assert tab.get_by_role("button", name="add to prompts").is_disabled()
    assert tab.get_by_role("button", name="copy as Python").is_disabled()
    tab.evaluate("""() => { location.hash = location.hash.replace(/h=[^&]*/, '') + '&h=2.3' }""")
    tab.wait_for_timeout(300)
    assert tab.locator("[data-panel=ask] .strip").inner_html() == before  # the mean of all heads of this prompt
    tab.get_by_role("button", name="auto", exact=True).click()
    complete(tab, "One day a dog ran")
    assert "unscored" not in (tab.locator("#explorer").get_attribute("class") or "")
    assert tab.get_by_role("button", name="add to prompts").is_enabled()


def test_running_a_swapped_text_leaves_other_work_of_the_page_alone(tab, running):
    tab.get_by_role("button", name="blocks to swap").click()
    for block in (0, 1):
        tab.locator("[data-panel=ask] .strip .block").nth(block).locator("> *").first.click()
    tab.get_by_role("button", name="run it").wait_for()
    begun, free = threading.Event(), threading.Event()
    running.worker.submit(lambda _: (begun.set(), free.wait(30)), "another", "busy")
    assert begun.wait(30)
    with tab.expect_download() as download:
        tab.get_by_role("button", name="save page").click()
        tab.get_by_role("button", name="run it").click()
        free.set()
        tab.get_by_text("after running the swapped text", exact=False).wait_for()
    assert download.value.suggested_filename.endswith(".html")


def test_a_swap_means_the_same_blocks_in_every_panel_even_if_rows_are_merged(tab):
    ask(tab, "Once upon a time there was a little girl. " * 9 + "The girl")
    tab.get_by_role("button", name="tokens", exact=True).click()
    wait(tab, "() => document.querySelectorAll('[data-panel=ask] .strip .block').length > 80")
    complete(tab, '"tokens"')
    select(tab, "2.3")
    assert 40 < tab.get_by_label("First block").locator("option").count() <= 64
    wait(tab, "() => document.querySelectorAll('[data-panel=swap] svg .bars rect').length > 80")
    first, second = tab.get_by_label("First block"), tab.get_by_label("Second block")
    first.select_option(index=5)
    second.select_option(index=20)
    starts = [
        int(one.locator("option:checked").inner_text().split()[0].partition("\u2013")[0]) for one in (first, second)
    ]
    wait(tab, "() => document.querySelectorAll('[data-panel=ask] .strip [data-swap]').length === 2")
    marked = tab.evaluate(
        """() => [...document.querySelectorAll("[data-panel=ask] .strip .block")].flatMap(
            (block, at) => block.dataset.swap ? [[block.dataset.swap, at + 1]] : [])"""
    )
    assert dict(marked) == {"A": starts[0], "B": starts[1]}
