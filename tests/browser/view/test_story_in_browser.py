"""The page of a story, in a real browser: step by step, what each host does and what is sent."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page, expect

from purgatory.view.errors import ViewError
from purgatory.view.page_server import read_story, story_page
from purgatory.virtual import World
from tests.browser.view.chromium import axe_widths, chromium, opened
from tests.browser.view.own_loop import own_loop
from tests.processes.documents.test_virtual_tutorial import SERVICE, run_tutorial

pytestmark = [pytest.mark.browser, pytest.mark.slow]

STORIES = Path(".pytest_cache") / "d" / "virtual-stories"
FEWER = ("--virtual-without", "1-4", "--virtual-plain-network", "-p", "cacheprovider")
"""The options that repeat the tutorial's failure, and the plugin that keeps its story."""


@dataclass
class Shown:
    """A story, and where its page is."""

    path: Path
    address: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.path.read_text())
        return found

    def index_of(self, source: str) -> int:
        """The last step that goes on at a line of the program."""
        steps = enumerate(self.document["steps"])
        return max(n for n, step in steps if (step["place"] or {}).get("source") == source)


def record_lost_update(path: Path) -> None:
    account = {"balance": 0}

    async def deposit() -> None:
        balance = account["balance"]
        await asyncio.sleep(0)
        account["balance"] = balance + 1

    async def main() -> None:
        await asyncio.gather(deposit(), deposit())

    with World(story=True) as world:
        world.run(main())
        world.save_story(path, title="a lost update", failure="assert 1 == 2", command="pytest")
    assert account == {"balance": 1}


def record_crash(path: Path) -> None:
    """A consumer on a host crashes, and a broker dies, while records are produced."""
    aiokafka: Any = pytest.importorskip("aiokafka")

    async def main(world: World, cluster: Any) -> None:
        async def consume() -> None:
            consumer = aiokafka.AIOKafkaConsumer("orders", bootstrap_servers=servers)
            async with consumer:
                while True:
                    await consumer.getone()

        servers = cluster.bootstrap_servers
        billing = world.host("billing", consume)
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers) as producer:
            for number in range(3):
                await producer.send_and_wait("orders", b"order %d" % number)
                await asyncio.sleep(1)
            billing.crash()
            await cluster.kill(3)
            await asyncio.sleep(1)
            billing.restart()
            await asyncio.sleep(2)
            await producer.send_and_wait("orders", b"the last")

    with World(story=True) as world:
        cluster = world.cluster(topics=["orders"])
        world.run(main(world, cluster))
        world.save_story(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stories, recorded before the browser's driver runs a loop on this thread."""
    made = tmp_path_factory.mktemp("stories")
    record_lost_update(made / "lost.story.json")
    record_crash(made / "crash.story.json")
    status, _ = run_tutorial(made, SERVICE, "test_billing.py", "--virtual-seed", "1", *FEWER)
    assert status == 1
    return made


@pytest.fixture(scope="module")
def browser(folder: Path) -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def lost_update(folder: Path) -> Iterator[Shown]:
    path = folder / "lost.story.json"
    with own_loop(lambda: story_page(read_story(path))) as address:
        yield Shown(path, address)


@pytest.fixture(scope="module")
def crash(folder: Path) -> Iterator[Shown]:
    path = folder / "crash.story.json"
    with own_loop(lambda: story_page(read_story(path))) as address:
        yield Shown(path, address)


def lanes(page: Page) -> Any:
    """The drawing of the hosts' and brokers' lanes."""
    return page.locator("#lanes svg")


def host(page: Page, name: str) -> Any:
    """The page's element of a host or broker."""
    return page.locator(".host").filter(has=page.get_by_role("heading", name=name))


def test_a_lost_update_is_followed_step_by_step(browser: Browser, lost_update: Shown) -> None:
    with opened(browser, lost_update.address) as page:
        happened = page.locator("#happened")
        expect(page.locator("h1")).to_have_text("a lost update")
        expect(page.locator("#failure")).to_have_text("assert 1 == 2")
        # The end, where it failed, comes first.
        expect(happened).to_contain_text("Step 6 of 6, on client: main() #1 at test_story_in")
        page.keyboard.press("ArrowLeft")
        expect(happened).to_contain_text("deposit() #3")
        expect(page.locator("#source")).to_have_text("await asyncio.sleep(0)")
        expect(host(page, "client")).to_contain_text("main() #1 waits at")
        expect(host(page, "client")).not_to_contain_text("deposit() #2 waits")
        page.keyboard.press("ArrowLeft")
        expect(host(page, "client")).to_contain_text("deposit() #3 waits at")
        # "w" jumps to the waker: the step at which this task began.
        page.keyboard.press("w")
        expect(happened).to_contain_text("Step 2 of 6, on client: deposit() #2")
        page.get_by_role("button", name="main() #1").click()
        expect(happened).to_contain_text("Step 1 of 6")
        expect(page.locator("#back")).to_be_disabled()
        page.locator("#step").fill("2")
        expect(happened).to_contain_text("Step 3 of 6, on client: deposit() #3")
        expect(page.locator("#lanes .own-step")).to_have_count(6)
        expect(page.locator("#lanes .own-step.later")).to_have_count(3)
        lanes = page.locator("#lanes svg").bounding_box()
        assert lanes is not None
        page.mouse.click(lanes["x"] + 24 + 36 * 4, lanes["y"] + 40)
        expect(happened).to_contain_text("Step 5 of 6")
        page.keyboard.press("Home")
        page.locator("#play").click()
        expect(happened).to_contain_text("Step 6 of 6", timeout=20_000)
        expect(page.locator("#play")).to_have_text("Play")


@pytest.mark.timeout(300)
def test_page_of_the_tutorials_failure_opens_at_its_cause(browser: Browser, folder: Path) -> None:
    path = folder / STORIES / "test_billing.py-test_every_order_is_charged.story.json"
    with (
        own_loop(lambda: story_page(read_story(path))) as address,
        opened(browser, address) as page,
    ):
        page.set_viewport_size({"width": 1_280, "height": 800})
        happened = page.locator("#happened")
        expect(happened).to_contain_text("fault: run_billing.<locals>.deploy()")
        for seen in (happened, page.locator("#lanes .fault-step:not(.later)").last, lanes(page)):
            box = seen.bounding_box()
            assert box is not None and box["y"] >= 0 and box["y"] + box["height"] <= 800
        before = lanes(page).bounding_box()
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#source code")).not_to_be_empty()
        assert lanes(page).bounding_box() == before


def test_a_crash_is_seen_with_its_messages_records_and_faults(
    browser: Browser, crash: Shown
) -> None:
    document = crash.document
    restarted = crash.index_of("await asyncio.sleep(2)")
    down = next(band for band in document["bands"] if band["nodes"] == ["billing"])
    with opened(
        browser, f"{crash.address}#step={document['steps'][down['from']]['number']}"
    ) as page:
        expect(page.locator("#lanes .name")).to_have_text(document["nodes"])
        assert document["nodes"] == ["client", "billing", "broker 1", "broker 2", "broker 3"]
        expect(page.locator("#faults")).to_have_text("billing is down")
        expect(host(page, "billing: down")).to_be_visible()
        expect(host(page, "billing")).not_to_contain_text("waits at")
        expect(page.locator("#lanes .band.down")).not_to_have_count(0)
        in_lane = page.locator("#lanes .band.down").first.bounding_box()
        assert in_lane is not None and 22 <= in_lane["height"] <= 24  # with its outline
        before = page.locator("#happened").inner_text()
        page.locator("#all-steps").check()
        expect(page.locator("#happened")).not_to_have_text(before)  # one of more steps
        page.goto(f"{crash.address}#step={document['steps'][restarted]['number']}")
        expect(page.locator("#faults")).to_have_text("broker 3 is down")
        expect(host(page, "billing")).to_contain_text("consume")
        # The record on its way, and where it arrives.
        [last] = [
            message
            for message in document["messages"]
            if message["source"] == "client" and "= the last" in str(message["frames"])
        ]
        page.goto(f"{crash.address}#step={document['steps'][last['sent']]['number']}")
        expect(page.locator("#under-way")).to_contain_text("Produce v7")
        expect(page.locator("#under-way .records").last).to_have_text("orders-0: null = the last")
        expect(page.locator("#lanes .message.under-way")).not_to_have_count(0)
        page.goto(f"{crash.address}#step={document['steps'][last['ended']]['number']}")
        expect(page.locator("#messages")).to_contain_text("arrived: client")
        expect(page.locator("#messages .records").first).to_have_text("orders-0: null = the last")
        expect(page.locator("#under-way")).not_to_contain_text("the last")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_accessible(
    browser: Browser, lost_update: Shown, crash: Shown, scheme: Any
) -> None:
    for axe_width, story in zip(axe_widths(scheme), (lost_update, crash), strict=False):
        with opened(browser, story.address, scheme=scheme) as page:
            page.keyboard.press("ArrowLeft")
            page.set_viewport_size({"width": axe_width, "height": 900})
            label = page.locator("label", has=page.locator("#all-steps"))
            assert label.evaluate("label => parseFloat(getComputedStyle(label).fontSize)") > 10
            found = Axe().run(page)
            assert found.violations_count == 0, found.generate_report()
            for width in (390, 768, 1_920):
                page.set_viewport_size({"width": width, "height": 900})
                assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_command_serves_a_story_until_ctrl_c(lost_update: Shown) -> None:
    command = [sys.executable, "-m", "purgatory", "view", str(lost_update.path), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        [address] = [word for word in process.stdout.readline().split() if b"http" in word]
        with urlopen(address.decode().replace("story.html", "story")) as response:
            assert json.load(response) == lost_update.document
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


def test_invalid_story_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    path.write_text('{"format": "another"}')
    command = [sys.executable, "-m", "purgatory", "view", str(path), "--no-open"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr.count("\n") == 1 and "it.json is no story of a world" in ended.stderr
    for text in ("no JSON", "[]", '{"format": "purgatory story", "version": 99}'):
        path.write_text(text)
        with pytest.raises(ViewError, match="is no story"):
            read_story(path)
    with pytest.raises(ViewError, match="No such file"):
        read_story(tmp_path / "none.json")


def test_token_is_required_of_other_machines(lost_update: Shown) -> None:
    with own_loop(lambda: story_page(read_story(lost_update.path), "0.0.0.0")) as address:
        page, _, token = address.replace("0.0.0.0", "127.0.0.1").partition("#token=")
        with urlopen(page) as response:
            assert b"story_page.js" in response.read()
        data = page.replace("story.html", "story")
        with pytest.raises(HTTPError, match="401"):
            urlopen(data)
        with urlopen(Request(data, headers={"Authorization": f"Bearer {token}"})) as response:
            assert json.load(response)["title"] == "a lost update"
