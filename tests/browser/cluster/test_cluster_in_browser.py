"""The page over a cluster that runs, in a real browser: its drawing is the control's state."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

import pytest

pytest.importorskip("playwright", reason="Playwright is not installed")

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from playwright.sync_api import Browser, expect

from purgatory.cluster import ClusterConfig, ThreadedCluster, TopicSpec
from purgatory.cluster.control.control import Control
from tests.browser.view.chromium import chromium, opened, press, told, until

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]

PATIENT_S = 90
PATIENT_MS = PATIENT_S * 1_000
POLL_MS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    config = ClusterConfig(brokers=3, topics=[TopicSpec("orders", 2, 3)])
    with ThreadedCluster(config) as running:
        yield running


@contextmanager
def controlled(cluster: ThreadedCluster, **options: Any) -> Iterator[Control]:
    """The control of a cluster, listening."""
    control = Control(cluster.running, **options)
    cluster.call(control.start)
    try:
        yield control
    finally:
        cluster.call(control.stop)


@contextmanager
def consumers(cluster: ThreadedCluster, count: int) -> Iterator[None]:
    """Consumers whose fetches wait for records that never come."""

    async def start() -> list[AIOKafkaConsumer]:
        started = []
        for _ in range(count):
            consumer = AIOKafkaConsumer(
                "orders",
                bootstrap_servers=cluster.bootstrap_servers,
                fetch_max_wait_ms=POLL_MS,
                request_timeout_ms=2 * POLL_MS,
                auto_offset_reset="latest",
            )
            await consumer.start()
            started.append(consumer)
        return started

    async def stop() -> None:
        for consumer in running:
            await consumer.stop()

    running = cluster.call(start)
    try:
        yield
    finally:
        cluster.call(stop)


def produce(cluster: ThreadedCluster, count: int) -> None:
    """Produce to all replicas."""

    async def send() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, acks="all")
        await producer.start()
        try:
            for number in range(count):
                await producer.send_and_wait("orders", b"%d" % number, partition=number % 2)
        finally:
            await producer.stop()

    cluster.call(send)


def state_of(control: Control) -> dict[str, Any]:
    """The state by the control."""
    with urlopen(f"{control.url}/state", timeout=PATIENT_S) as answer:
        state: dict[str, Any] = json.load(answer)
    return state


def faults_of(control: Control, kind: str) -> list[bool]:
    """Whether the faults of a kind are in force, as the control tells."""
    faults = [one for one in state_of(control)["faults"] if one["kind"] == kind]
    return [one["ended_s"] is None for one in faults]


def pending_of(state: dict[str, Any]) -> dict[str, dict[str, int]]:
    """The waiting operations, by broker and purgatory."""
    return {
        str(broker["id"]): {one["name"]: one["pending"] for one in broker["purgatories"]}
        for broker in state["brokers"]
    }


SHOWN_PENDING = """Object.fromEntries([...model.brokers.values()].map((broker) => [broker.id,
    Object.fromEntries([...broker.purgatories.values()].map((one) => [one.name, one.pending]))]))"""
MARKS = """Object.fromEntries([...model.brokers.values()].map((broker) => {
    const counts = Object.fromEntries([...broker.purgatories.keys()].map((name) => [name, 0]));
    for (const { slots } of broker.buckets.values()) {
        for (const one of slots) if (one !== null) counts[one.purgatory] += 1;
    }
    return [broker.id, counts];
}))"""


def test_marks_are_the_waiting_operations(browser: Browser, cluster: ThreadedCluster) -> None:
    with (
        controlled(cluster) as control,
        consumers(cluster, 4),
        opened(browser, control.page_url) as page,
    ):

        def is_same() -> bool:
            before = pending_of(state_of(control))
            marks, pending, drawn = told(page, f"[{MARKS}, {SHOWN_PENDING}, drawn]")
            here = {broker: sum(counts.values()) for broker, counts in marks.items()}
            after = pending_of(state_of(control))
            return bool(before == marks == pending == after and drawn == here)

        # Consumers wait long, and followers shortly: now and then nothing comes between looks.
        until(lambda: sum(one["Fetch"] for one in told(page, MARKS).values()) >= 4, PATIENT_S)
        until(is_same, PATIENT_S)
        produce(cluster, 6)
        ends = "model.topics.get('orders').partitions.map((one) => one.high_watermark)"
        until(lambda: told(page, ends) == [3, 3], PATIENT_S)
        until(is_same, PATIENT_S)
        completed = """[...model.brokers.values()].map(
            (broker) => broker.purgatories.get('Produce').outcomes.completed)"""
        assert sum(told(page, completed)) >= 6
        rates = page.locator("#rates")
        expect(rates.get_by_role("heading", name="Produce")).to_be_visible(timeout=PATIENT_MS)
        expect(rates.locator("div").filter(has_text="Produce")).to_contain_text(
            has("per second, at most [1-9]", "waits: p50"), timeout=PATIENT_MS
        )
        drawing = page.locator("#trace-drawing svg")
        expect(drawing).to_have_attribute(
            "aria-label", has("acknowledged", "appended", "answered"), timeout=PATIENT_MS
        )
        page.keyboard.press("?")
        expect(page.get_by_text("In a wheel that has the focus")).to_be_visible()
        expect(page.get_by_text("play, pause")).to_be_hidden()


def has(*words: str) -> re.Pattern[str]:
    """A pattern of words in their order."""
    return re.compile(".*".join(words))


def test_fault_buttons_use_the_entered_token(browser: Browser, cluster: ThreadedCluster) -> None:
    with controlled(cluster) as open_to_all, controlled(cluster, token="open sesame") as control:
        faults: Callable[[str], list[bool]] = lambda kind: faults_of(open_to_all, kind)  # noqa: E731
        with opened(browser, f"{control.url}/", expected_errors=("401",)) as page:
            field = page.locator("#token input")
            field.fill("wrong")
            page.get_by_role("button", name="Go on").click()
            expect(field).to_be_empty(timeout=PATIENT_MS)
            field.fill("open sesame")
            page.get_by_role("button", name="Go on").click()
            expect(page.locator("#mode")).to_have_text("live", timeout=PATIENT_MS)
            press(page, "stall follower 1")
            until(lambda: faults("stall_follower") == [True], PATIENT_S)
            line = page.locator("#faults li").filter(has_text="stall follower 1")
            line.get_by_role("button", name="Heal").click(timeout=PATIENT_MS)
            until(lambda: faults("stall_follower") == [False], PATIENT_S)
            expect(page.locator("#faults-note")).to_have_text(
                "None is in force.", timeout=PATIENT_MS
            )
            press(page, "kill 1")
            revive = page.get_by_role("button", name="Revive broker 1")
            expect(page.get_by_role("heading", name="Broker 1 (dead)")).to_be_visible(
                timeout=PATIENT_MS
            )
            revive.click(timeout=PATIENT_MS)
            until(lambda: state_of(open_to_all)["brokers"][0]["alive"], PATIENT_S)
            expect(revive).to_have_count(0, timeout=PATIENT_MS)
            expect(page.get_by_role("heading", name="Broker 1", exact=True)).to_be_visible()
            heal_all = page.get_by_role("button", name="Heal all")
            press(page, "pause 1")
            until(lambda: faults("pause") == [True], PATIENT_S)
            heal_all.click(timeout=PATIENT_MS)
            until(lambda: faults("pause") == [False], PATIENT_S)


def test_page_shows_a_stopped_cluster_and_polls_for_it(
    browser: Browser, cluster: ThreadedCluster
) -> None:
    asked_at: list[float] = []
    with controlled(cluster) as control:
        gone = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED", "ERR_EMPTY_RESPONSE", "RESET")
        with opened(browser, control.page_url, expected_errors=gone) as page:
            note = page.locator("#note")
            expect(note).to_be_hidden()
            cluster.call(control.stop)
            page.on("request", lambda request: asked_at.append(time.monotonic()))
            expect(note).to_contain_text("The picture is old", timeout=PATIENT_MS)

            def has_asked_four_times() -> bool:
                page.wait_for_timeout(100)  # events of the page come while it is waited for
                return len(asked_at) >= 4

            until(has_asked_four_times, PATIENT_S)
            assert asked_at[3] - asked_at[0] > 1  # half a second, one, two: and longer each time
            with controlled(cluster, port=control.port):
                expect(note).to_be_hidden(timeout=PATIENT_MS)
                moment = told(page, "model.atUs")
                until(lambda: told(page, "model.atUs") != moment, PATIENT_S)
