"""The page in front of a proxy, in a real browser: its brokers, what passes, and its faults."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("playwright", reason="Playwright is not installed")

from playwright.sync_api import Browser, expect

from purgatory.cluster import ClusterConfig, Listener, ThreadedCluster, TopicSpec
from purgatory.proxy import ProxyConfig, ThreadedProxy
from tests.browser.view.chromium import chromium, opened, press, told, until
from tests.wire.cluster.confluent_client import ConfluentClient

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]

PATIENT_S = 90
PATIENT_MS = PATIENT_S * 1_000
REQUESTS = """[...model.brokers.values()].reduce(
    (sum, broker) => sum + (broker.purgatories.get('produce')?.outcomes.requests ?? 0), 0)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    config = ClusterConfig(
        brokers=2,
        topics=[TopicSpec("orders", 2, 2)],
        listeners=[Listener("OPEN"), Listener("LOGIN", sasl=["PLAIN"])],
        users={"ann": "secret"},
    )
    with ThreadedCluster(config) as running:
        yield running


def test_requests_and_faults_are_shown_and_faults_begun(
    browser: Browser, cluster: ThreadedCluster
) -> None:
    addresses = cluster.bootstrap_servers.split(",")
    with (
        ThreadedProxy(ProxyConfig(to=addresses[:1])) as proxy,
        opened(browser, proxy.serve_control()) as page,
    ):
        expect(page.locator("#mode")).to_have_text("proxy", timeout=PATIENT_MS)
        client = ConfluentClient(proxy.bootstrap_servers)
        client.produce("orders", [b"one"])
        for number, address in enumerate(addresses, 1):
            card = page.get_by_role("region", name=f"Broker {number}")
            expect(card).to_contain_text(address, timeout=PATIENT_MS)
        cards = page.locator("#brokers")
        expect(cards.get_by_role("cell", name="produce").first).to_be_visible(timeout=PATIENT_MS)
        expect(page.get_by_text("Partitions", exact=True)).to_be_hidden()
        expect(page.locator(".skip")).to_have_text("To the brokers")

        rates = page.locator("td[data-head='per second']").filter(has_text=re.compile("[1-9]"))

        def is_rate_shown() -> bool:
            client.produce("orders", [b"one more"])
            return rates.count() > 0

        until(is_rate_shown, PATIENT_S)
        offered = page.locator("#press-list button").all_text_contents()
        assert any(text.startswith("return error") for text in offered)
        assert not [text for text in offered if text.startswith(("kill", "stall follower"))]

        requests = told(page, REQUESTS)
        for broker in (1, 2):
            press(page, f"return error {broker} (3, produce, NOT_LEADER_OR_FOLLOWER)")
        line = page.locator("#faults li")
        expect(line).to_have_count(2, timeout=PATIENT_MS)
        client.produce("orders", [b"two"])  # is sent again until the fault has ended
        until(lambda: told(page, REQUESTS) >= requests + 4, PATIENT_S)
        expect(line).to_have_count(1, timeout=PATIENT_MS)
        line.get_by_role("button", name="Heal").click(timeout=PATIENT_MS)
        expect(page.locator("#faults-note")).to_have_text("None is in force.", timeout=PATIENT_MS)
        faults = proxy.state()["faults"]
        assert sorted(fault["uses"] for fault in faults) == [0, 3]
        passed = sum(broker["requests"].get("produce", 0) for broker in proxy.state()["brokers"])
        until(lambda: told(page, REQUESTS) == passed, PATIENT_S)


def test_brokers_are_shown_before_and_after_their_ids_are_known(
    browser: Browser, cluster: ThreadedCluster
) -> None:
    servers = cluster.bootstrap_servers_of("LOGIN").split(",")
    with (
        ThreadedProxy(ProxyConfig(to=servers)) as proxy,
        opened(browser, proxy.serve_control()) as page,
    ):
        cards = page.locator("#brokers h3")
        expect(cards).to_have_text(["A bootstrap server"] * 2, timeout=PATIENT_MS)
        expect(page.locator("#faults-answer")).to_have_text(
            "No fault fits now.", timeout=PATIENT_MS
        )
        login: dict[str, Any] = {
            "sasl.mechanism": "PLAIN",
            "sasl.username": "ann",
            "sasl.password": "secret",
        }
        client = ConfluentClient(proxy.bootstrap_servers)
        client.produce("orders", [b"one"], **{"security.protocol": "SASL_PLAINTEXT", **login})
        expect(cards).to_have_text(["Broker 1", "Broker 2"], timeout=PATIENT_MS)
        expect(page.locator("#faults-answer")).to_be_empty(timeout=PATIENT_MS)
        press(page, "cut connections 2")
        expect(page.locator("#faults-answer")).to_have_text(
            "Done: cut connections 2", timeout=PATIENT_MS
        )
