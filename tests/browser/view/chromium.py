"""The system's Chromium, driven by Playwright, and pages that note what went wrong on them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any, Literal

import pytest

pytest.importorskip("playwright", reason="Playwright is not installed")

from playwright.sync_api import Browser, Page, sync_playwright

DRAWN = "() => window.purgatoryView && Object.keys(purgatoryView.drawn).length > 0"


def until(is_so: Callable[[], object], seconds: float = 20) -> None:
    """Wait for a condition. Playwright's own evaluates text, which the page's policy forbids."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that is ended with the `with` block; skips where none is installed.

    In continuous integration, where CI is true, a missing browser fails the test.
    """
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        reason = "no browser is installed (chromium or google-chrome; Debian: chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Browser,
    url: str,
    *,
    width: int = 1_280,
    scheme: Literal["light", "dark"] = "light",
    motion: Literal["no-preference", "reduce"] = "no-preference",
    expected_errors: tuple[str, ...] = (),
) -> Iterator[Page]:
    """A page that is drawn; afterwards, that nothing went wrong there but what is expected."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion=motion
    )
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    try:
        page.goto(url)
        if "401" not in expected_errors:
            page.wait_for_function(DRAWN)
        yield page
        assert [text for text in wrong if not any(one in text for one in expected_errors)] == []
    finally:
        context.close()


def axe_widths(scheme: Literal["light", "dark"]) -> Iterator[int]:
    """The width for each page in turn: over both schemes, each page has a narrow and a wide one."""
    return cycle((390, 1_280) if scheme == "light" else (1_280, 390))


def told(page: Page, expression: str) -> Any:
    """The value of an expression; `model` is the page's model."""
    return page.evaluate(
        f"() => {{ const {{ model, drawn, circled }} = purgatoryView; return {expression}; }}"
    )


def press(page: Page, text: str, patience_ms: float = 90_000) -> None:
    """Press the fault whose text begins so."""
    button = page.locator("#press-list button").filter(has_text=text).first
    button.wait_for(state="attached", timeout=patience_ms)
    # The button may be in a closed section, and the list may be rendered again meanwhile.
    page.evaluate(
        "document.querySelectorAll('#press-list details').forEach(o => { o.open = true })"
    )
    button.click(timeout=patience_ms)
