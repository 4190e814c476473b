"""The page in a real browser: it shows what is there, and takes no name for markup."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pytest

from purgatory import debug
from tests.browser.pipeline.browsing import Browser, headless_browser
from tests.unit.core.probe import Probe
from tests.unit.debug.conftest import Looked

pytestmark = pytest.mark.browser

MARKUP = "<img src=x onerror=document.title='broken'>"
DRAWN = """new Promise((done, fail) => {
    const end = Date.now() + 60000;
    const look = () => document.querySelector("section h2") ? done(true)
        : Date.now() > end ? fail("nothing is drawn") : setTimeout(look, 20);
    look();
})"""


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Silent(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address(looked: Looked) -> Iterator[str]:
    pages = debug.wsgi_app([looked.purgatory])
    with make_server("127.0.0.1", 0, pages, Server, Silent) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with headless_browser(tmp_path) as opened:
        yield opened


def texts(browser: Browser, selector: str) -> list[str]:
    found: Any = browser.evaluate(
        f"[...document.querySelectorAll({selector!r})].map(one => one.textContent)"
    )
    return [str(text) for text in found]


def test_the_page_shows_pending_operations(address: str, browser: Browser, looked: Looked) -> None:
    for number in range(25):
        looked.purgatory.try_complete_else_watch(Probe(60_000), [f"key {number}", MARKUP])
    looked.purgatory.try_complete_else_watch(Probe(hooks={"on_complete": fail}, ready=True), ["a"])
    for width in (390, 1_280):
        browser.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        browser.load(address)
        browser.evaluate(DRAWN)
        assert texts(browser, "h2") == ["Fetch"]
        [lead, worry] = texts(browser, ".lead")
        assert lead.startswith("25 operations wait; the oldest for ")
        assert worry == "Callbacks raised once."
        captions = texts(browser, "caption")
        assert "The oldest operations" in captions
        assert "The keys on which most wait" in captions
        cells = texts(browser, "td")
        assert cells[cells.index(repr(MARKUP)) + 1] == "25"
        assert texts(browser, "img") == []
        assert browser.evaluate("document.title") == "What is waiting"
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.console == []
    assert all(url.startswith((address, "about:")) for url in browser.requests)


def fail() -> None:
    raise ValueError("as told")


def test_the_page_follows_until_it_is_paused(
    address: str, browser: Browser, looked: Looked
) -> None:
    browser.load(address)
    browser.evaluate(DRAWN)
    assert texts(browser, ".lead") == ["Nothing waits."]
    looked.purgatory.try_complete_else_watch(Probe(), ["a"])
    browser.evaluate(
        """new Promise((done, fail) => {
            const end = Date.now() + 60000;
            const look = () => document.querySelector(".lead").textContent.startsWith("1 ")
                ? done(true) : Date.now() > end ? fail("it does not follow") : setTimeout(look, 20);
            look();
        })"""
    )
    browser.evaluate("document.getElementById('pause').click()")
    assert texts(browser, "#pause") == ["Go on"]
    assert browser.evaluate("document.getElementById('pause').ariaPressed") == "true"
