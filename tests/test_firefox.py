"""The page in Firefox: the same numbers, and the same answers to pointer and keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import firefox_and_driver
from explorer_page import lonely, two
from synthetic import pure_profile, random_profile
from wherewhat.explorer.page import explorer_html
from wherewhat.studies.ablation.selections import ranked
from wherewhat.studies.profile.result import Profile
from wherewhat.studies.profile.roles import in_role

pytest_plugins = ["explorer_page"]  # profile
pytestmark = [pytest.mark.browser, pytest.mark.weights, pytest.mark.slow]


@pytest.fixture(scope="module")
def firefox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path, driver = firefox_and_driver()
    folder = tmp_path_factory.mktemp("firefox")
    quiet = {"workspace": str(folder), "gecko_log": str(folder / "gecko.log")}
    prefs = {"ui.prefersReducedMotion": 1}
    started = driver.Marionette(bin=path, headless=True, startup_timeout=120, prefs=prefs, **quiet)
    try:
        started.start_session()
        yield started
    finally:
        started.cleanup()
        started.instance.profile.cleanup()


@pytest.fixture(scope="module")
def made() -> Profile:
    return random_profile(5, 4, 2, blocks=6)


@pytest.fixture
def show(firefox, tmp_path: Path):
    """Open the page of a profile, at the address after #."""

    def open_page(profile: Profile, hash: str = "") -> Any:
        file = tmp_path / "page.html"
        file.write_text(explorer_html([profile]), encoding="utf-8")
        firefox.navigate(file.as_uri() + hash)
        await_script(firefox, "return 'ready' in document.documentElement.dataset")
        return firefox

    return open_page


def texts(page, selector: str) -> list[str]:
    return page.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map(one => one.innerText)", [selector]
    )


def press(page, *names: str) -> None:
    from marionette_driver.keys import Keys

    for name in names:
        key = getattr(Keys, name)
        page.actions.sequence("key", "keys").key_down(key).key_up(key).perform()


def await_script(page, condition: str) -> None:
    """Wait until a script returns true; arrays of the page are decompressed while it is shown."""
    from marionette_driver import Wait

    Wait(page, timeout=20).until(lambda one: one.execute_script(condition), message=condition)


def focus(page, selector: str) -> None:
    page.execute_script("document.querySelector(arguments[0]).focus()", [selector])


def click(page, selector: str) -> None:
    """A click of the mouse on the middle of an element, which is scrolled into view."""
    from marionette_driver import By

    page.execute_script("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", [selector])
    page.actions.sequence("pointer", "mouse").click(page.find_element(By.CSS_SELECTOR, selector)).perform()


def button(name: str, panel: str) -> str:
    """Mark the button of this name in a panel, and return its selector."""
    return f"""
        const all = [...document.querySelectorAll("[data-panel={panel}] button")];
        const found = all.find((one) => one.innerText === "{name}");
        found.id = "{panel}-button";
        return "#" + found.id;
    """


def test_numbers_keys_and_colours(show, profile):
    row = lonely(profile.heads)
    page = show(profile, f"#h={row['layer']}.{row['head']}")
    assert texts(page, ".facts b")[:3] == [two(row["positional"]), two(row["symbolic"]), two(row["entropy"])]
    focus(page, "[data-figure=grid]")
    press(page, "ARROW_DOWN" if row["layer"] < 4 else "ARROW_UP")
    assert texts(page, "[data-panel=head] h2") == [
        f"Head {row['layer'] + (1 if row['layer'] < 4 else -1)}.{row['head']}"
    ]
    assert page.execute_script("return document.querySelectorAll('.heads circle').length") == len(profile.heads)
    grounds = page.execute_script("""
        const theme = [...document.querySelectorAll("button")].find((one) => one.innerText === "light / dark");
        return [0, 1].map(() => (theme.click(), getComputedStyle(document.body).backgroundColor));
    """)
    assert sorted(grounds) == ["rgb(21, 24, 27)", "rgb(255, 255, 255)"]


def test_the_strip_of_tokens(show, made):
    """Shade, keys with what a screen reader is told, and blocks that are clicked to swap them."""
    page = show(made, "#h=2.3")
    prompt = made.about["prompts"][0]
    starts, size = [start for start, _ in prompt["blocks"]], len(prompt["ids"])
    stored = made.tensors["token_attention"][0, 2, 3, :size].float()
    await_script(page, "return document.querySelectorAll('.strip [aria-selected=true]').length === 1")
    shares = "[...document.querySelectorAll('.strip [data-at]')].map(one => one.style.getPropertyValue('--share'))"
    shades = torch.tensor([float(share) for share in page.execute_script(f"return {shares}")])
    torch.testing.assert_close(shades, (stored / stored.max()).sqrt(), atol=6e-4, rtol=0)  # 3 decimals
    strip = ".strip[role=listbox][aria-label='The tokens of the prompt']"
    focus(page, strip)
    press(page, "HOME", "ARROW_DOWN", "ARROW_RIGHT")
    at = starts[0] + 1
    assert texts(page, "[role=status]")[0].startswith(f"Token {at + 1} of {size}, ")
    active = page.execute_script(
        "return document.querySelector(arguments[0]).getAttribute('aria-activedescendant')", [strip]
    )
    assert active.endswith(f"-{at}")
    press(page, "ENTER")
    await_script(page, f"return document.querySelector('.strip [aria-selected=true]').dataset.at === '{at}'")
    click(page, page.execute_script(button("blocks to swap", "tokens")))
    for block in (4, 1):
        click(page, f".strip [data-at='{starts[block]}']")
    marked = "['A', 'B'].map(one => document.querySelector(`.strip [data-swap=${one}]`)?.getAttribute('aria-label'))"
    await_script(page, f"return {marked}.join() === 'block 5,block 2'")


def test_the_table_of_heads(show, made):
    page, heads = show(made), made.heads
    names = "[data-panel=heads] tbody td:first-child"
    click(page, page.execute_script(button("on the answer", "heads")))
    order = heads.sort_values("answer", ascending=False, kind="stable")
    expected = [f"{row['layer']}.{row['head']}" for row in order.to_dict("records")]
    assert texts(page, names) == expected
    press(page, "ENTER")  # the button keeps the focus
    assert texts(page, "th[aria-sort=ascending]") == ["on the answer"]
    click(page, page.execute_script(button("10 most retrieving", "heads")))
    most = [f"{layer}.{head}" for layer, head in ranked(heads, "retrieving")[:10]]
    assert set(texts(page, "[data-panel=heads] tr[aria-current] td:first-child")) == set(most)
    assert texts(page, "[data-panel=head] h2") == [f"Head {most[0]}"]
    page.execute_script("""
        const filter = document.querySelector("[aria-label='Kind or role']");
        filter.value = "induction";
        filter.dispatchEvent(new Event("change"));
    """)
    assert len(texts(page, names)) == in_role(heads, "induction").sum() > 0


def test_the_swap_at_the_top(show):
    page = show(pure_profile())
    await_script(page, "return document.querySelectorAll('.act .share').length === 4")
    before = texts(page, ".act .share")
    focus(page, page.execute_script(button("swap", "story")))
    press(page, "ENTER")
    assert "swap back" in texts(page, "[data-panel=story] button")
    assert texts(page, ".act .share") == [*before[:2], *before[:1:-1]]
