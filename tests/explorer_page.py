"""A report opened in a real browser, from disk and without a network, and helpers to read it."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from playwright.sync_api import Browser, Page, sync_playwright

import wherewhat as ww
from conftest import missing, weights
from wherewhat.explorer.page import explorer_html
from wherewhat.prompts.text import own_prompts
from wherewhat.studies.profile.result import Profile

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
    """Open a page of these sources from disk; any request, console message or exception is an error."""
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
    """The position of a head of the plane on the screen."""
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
    """The numbers of the selected head by their names, with their intervals."""
    shown = page.eval_on_selector_all(".facts > div", "all => all.map(one => [...one.children].map(x => x.innerText))")
    return {name: values for name, *values in shown}


def saved(page: Page, button: str) -> str:
    with page.expect_download() as waiting:
        page.get_by_label(button, exact=True).first.click()
    return Path(waiting.value.path()).read_text(encoding="utf-8")


def address(page: Page) -> str:
    """The address, which is written after a short delay."""
    page.wait_for_timeout(250)
    return page.evaluate("location.hash")


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def two(value: float) -> str:
    return f"{value:.2f}"
