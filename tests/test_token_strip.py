"""The strip of tokens in a real browser: what it shows, and how it answers to pointer, keys and screen readers."""

from __future__ import annotations

import pytest
import torch

import wherewhat as ww
from conftest import weights
from explorer_page import address, saved, table
from synthetic import random_profile
from wherewhat.tracing.hook import implementation

pytest_plugins = ["explorer_page"]  # browser, show, profile
pytestmark = [pytest.mark.browser, pytest.mark.weights, pytest.mark.slow]


def strip(page) -> list[dict[str, str]]:
    return table(saved(page, "Download Every token as CSV"))


def token(page, number: int):
    return page.locator(f".strip [data-at='{number}']")


def swap(page) -> list[str]:
    """The blocks marked A and B in the strip; the other panel has chosen the same."""
    marked = [page.locator(f".strip [data-swap={one}]").get_attribute("aria-label") for one in "AB"]
    chosen = [page.get_by_label(f"{nth} block").evaluate("one => one.selectedIndex + 1") for nth in ("First", "Second")]
    assert marked == [f"block {number}" for number in chosen]
    return marked


def test_the_strip_shows_the_attention_that_the_model_itself_returns(show, profile, stories260k):
    """Every token for the last query of every prompt, the strongest ones for other queries of the first."""
    layer, head = 2, 5
    for prompt, query in ((0, None), (2, None), (0, 60), (0, 5), (0, 1)):
        given = profile.about["prompts"][prompt]
        with implementation(stories260k, "eager"), torch.no_grad():
            out = stories260k(torch.tensor([given["ids"]]), output_attentions=True).attentions
        row = out[layer][0, head, -1 if query is None else query]
        hash = f"#h={layer}.{head}&prompt={prompt}" + ("" if query is None else f"&token={query}")
        page = show(profile, hash=hash)
        shown = strip(page)
        assert "".join(one["text"] for one in shown).replace("'", "") == "".join(given["tokens"]).replace("'", "")
        found = torch.tensor([float(one["attention"]) for one in shown])
        if query is not None:
            kept = row.topk(8).indices
            assert found.count_nonzero() <= 8
            found, row = found[kept], row[kept]
            assert ("Stored for this query" in page.inner_text("[data-panel=tokens]")) is (query > 8)
        torch.testing.assert_close(found, row, atol=1e-5, rtol=0)
        target = "".join(given["tokens"][slice(*given["blocks"][given["target"]])])
        assert page.locator(".strip .block.target").text_content() == target
        assert page.locator(".strip [aria-selected=true]").count() == 1


def test_a_click_on_a_token_makes_it_the_query(show, profile):
    page = show(profile, hash="#h=2.5")
    token(page, 40).click()
    assert address(page) == "#h=2.5&token=40"
    assert token(page, 40).get_attribute("aria-selected") == "true"
    assert "token 41" in page.inner_text("[data-panel=tokens] .hint")
    assert page.locator(".strip .after").count() == len(profile.about["prompts"][0]["ids"]) - 41
    page.get_by_role("button", name="back to the last token").click()
    assert address(page) == "#h=2.5"
    page.get_by_label("Prompt", exact=True).select_option("prompt 2")
    assert address(page) == "#h=2.5&prompt=1"
    assert page.get_by_role("group", name="A click chooses").is_hidden()  # swaps are those of the first prompt
    token(page, 3).click()
    assert "Only the last query of this prompt is stored" in page.inner_text("[data-panel=tokens]")


def test_blocks_are_swapped_by_clicks_and_by_dragging_one_onto_another(show, profile):
    page = show(profile, hash="#h=2.5")
    starts = [start for start, _ in profile.about["prompts"][0]["blocks"]]
    page.get_by_role("button", name="blocks to swap").click()
    token(page, starts[4]).click()
    token(page, starts[1]).click()
    assert swap(page) == ["block 5", "block 2"]
    token(page, starts[3]).drag_to(token(page, starts[6] + 1))
    assert swap(page) == ["block 4", "block 7"]
    assert address(page) == "#h=2.5&swap=3%2C6"


def test_keys_move_through_tokens_and_choose_them(show, profile):
    page = show(profile, hash="#h=2.5")
    starts = [start for start, _ in profile.about["prompts"][0]["blocks"]]
    size = len(profile.about["prompts"][0]["ids"])
    said = page.locator("[role=status]")
    strip = page.get_by_role("listbox", name="The tokens of the prompt")
    strip.focus()
    for key, number in (("Home", 0), ("ArrowRight", 1), ("ArrowDown", starts[0]), ("ArrowDown", starts[1]),
                        ("ArrowUp", starts[0]), ("ArrowLeft", starts[0] - 1), ("End", size - 1)):  # fmt: skip
        page.keyboard.press(key)
        assert said.inner_text().startswith(f"Token {number + 1} of {size}, ")
        at = strip.get_attribute("aria-activedescendant")
        assert page.locator(f"#{at}").get_attribute("data-at") == str(number)
    share = profile.tensors["token_attention"][0, 2, 5, size - 1].item() / 65535
    assert said.inner_text().endswith(f": {100 * share:.0f} %, the query itself")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert address(page) == f"#h=2.5&token={starts[0]}"
    page.keyboard.press("Shift+Tab")  # to the choice of what a click chooses
    page.keyboard.press("Enter")
    strip.focus()
    for _ in range(2):
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
    assert swap(page) == ["block 2", "block 3"]


def test_a_thousand_tokens_are_readable(show):
    profile = random_profile(4, 4, 2, blocks=256, prompts=1)
    page = show(profile, hash="#h=1.1", width=390)
    assert page.locator(".strip [data-at]").count() == 1030
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator(".skyline").click()  # its middle leads to a token in the middle of the text
    chosen = page.locator(".strip [aria-selected=true]")
    assert 510 < int(chosen.get_attribute("data-at")) < 520
    box, inside = page.locator(".strip").bounding_box(), chosen.bounding_box()
    assert box["height"] < 300
    assert box["y"] <= inside["y"] <= box["y"] + box["height"]


def test_no_statement_is_divided_by_the_end_of_a_line(show, profile):
    """Its letter, A or B, stays beside it, and no line ends in the empty beginning of an outline."""
    page = show(profile, hash="#h=2.5&swap=3,6", width=390)
    parts = page.eval_on_selector_all(".strip .block", "all => all.map(one => one.getClientRects().length)")
    assert parts == [1] * len(profile.about["prompts"][0]["blocks"])
    assert page.locator(".strip").evaluate("one => one.scrollWidth <= one.clientWidth")


def test_real_words_are_shown_with_their_white_space(show, stories260k, tmp_path):
    tokenizer = ww.load_tokenizer(weights("stories260K"))
    file = tmp_path / "story.txt"
    file.write_text("One day\n\nTim saw a cat.\n" * 20)
    profile = ww.profile(stories260k, task=str(file), tokenizer=tokenizer, samples=1)
    shown = show(profile).locator(".strip").text_content()
    assert "⏎" in shown
    assert "Tim saw a cat." in shown
