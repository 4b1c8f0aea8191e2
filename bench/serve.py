"""The live page in a real browser: from a key press to the painted plane, compared with one plain forward pass."""

from __future__ import annotations

import shutil
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

import wherewhat as ww

from .prompts import WEIGHTS

LARGER = Path(__file__).parents[2] / "larger-models"
CASES = {
    "SmolLM2, 64 tokens": (WEIGHTS / "SmolLM2-135M-Instruct-GGUF" / "SmolLM2-135M-Instruct.Q4_1.gguf", 64),
    "Qwen2.5-Coder-0.5B, 256 tokens": (LARGER / "qwen2.5-coder-0.5b.gguf", 256),
}
STATEMENTS = " Ann likes red. Bob likes tan. Eve likes pink. Tom likes blue."
# The time of the last paint of the plane after the key press, and of the swap after the drop.
WATCH = """
() => {
  window.pressed = window.painted = 0;
  const box = document.querySelector("[data-panel=ask] textarea");
  box.addEventListener("input", () => (window.pressed = performance.now()));
  const painted = () => (window.painted = performance.now());
  const watch = new MutationObserver(() => requestAnimationFrame(() => setTimeout(painted)));
  watch.observe(document.documentElement, { attributes: true, attributeFilter: ["data-painted"] });
}
"""
COMPLETE = "text => document.documentElement.dataset.complete.includes(JSON.stringify(text))"
SWAP = """
([i, j]) => new Promise((resolve) => {
  const blocks = document.querySelectorAll("[data-panel=ask] .strip .block");
  const at = (element, name) => element.firstChild.dispatchEvent(
    new PointerEvent(name, { bubbles: true, button: 0, pointerType: "mouse" }));
  at(blocks[i], "pointerdown");
  at(blocks[j], "pointermove");
  const start = performance.now();
  at(blocks[j], "pointerup");
  requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - start)));
})
"""


def compare(repeats: int = 7) -> list[dict[str, Any]]:
    """Medians over key presses and plain passes, measured alternately."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        return [{"model": "no Chromium: apt-get install chromium"}]
    rows = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        rows = [_case(browser, case, repeats) for case, (source, _) in CASES.items() if source.exists()]
        browser.close()
    return rows


def _case(browser: Any, case: str, repeats: int) -> dict[str, Any]:
    source, tokens = CASES[case]
    live = ww.explore(source)
    text = prompt_of(live.live.reader, tokens)
    page = browser.new_page()
    page.set_default_timeout(600_000)
    page.goto(live.address)
    page.wait_for_selector("html[data-complete]", state="attached")
    box = page.get_by_label("The prompt", exact=True)
    box.fill(text)
    _wait(page, COMPLETE, text)
    page.evaluate(WATCH)
    keys, plain, swaps = [], [], []
    for number in range(repeats):
        keys.append(_press(page, "abcdefghij"[number % 10]))
        _wait(page, COMPLETE, box.input_value())
        swaps.append(page.evaluate(SWAP, [number % 3, 3 + number % 3]))
        page.wait_for_timeout(200)
        ids = torch.tensor([live.live.reader.read(box.input_value())[0]])
        start = perf_counter()
        live.worker.submit(lambda _, ids=ids: _plain(live.live.model, ids), "bench", "plain").future.result()
        plain.append(perf_counter() - start)
    page.close()
    live.close()
    return {
        "model": case,
        "tokens": ids.shape[1],
        "plain ms": 1000 * median(plain),
        "key to painted plane ms": median(keys),
        "ratio": (median(keys)) / (1000 * median(plain)),
        "ratio less 60 ms": (median(keys) - 60) / (1000 * median(plain)),
        "swap painted ms": median(swaps),
    }


def _wait(page: Any, expression: str, given: str = "") -> None:
    """Wait until this is true; the page's policy forbids Playwright's own way."""
    while not page.evaluate(expression, given):
        page.wait_for_timeout(20)


def _press(page: Any, key: str) -> float:
    """Milliseconds from a key press to the painted plane; the key replaces the last letter of the text."""
    page.get_by_label("The prompt", exact=True).focus()
    page.keyboard.press("End")
    page.evaluate("window.painted = 0")
    page.keyboard.press(key)
    _wait(page, "window.painted > window.pressed && window.pressed > 0")
    return page.evaluate("window.painted - window.pressed")


def prompt_of(reader: Any, tokens: int) -> str:
    """Statements of who likes what, up to this number of tokens."""
    text = "Here is a list of what people like."
    while len(reader.read(text + STATEMENTS)[0]) <= tokens - 4:
        text += STATEMENTS
    return f"{text} Ann likes x"


@torch.no_grad()
def _plain(model: Any, ids: torch.Tensor) -> None:
    model(input_ids=ids, use_cache=False, logits_to_keep=1)
