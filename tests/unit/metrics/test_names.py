"""Every name, type and label; all of them bounded; each value as counted by hand."""

from __future__ import annotations

import asyncio
import gc
from itertools import pairwise

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from purgatory import (
    AsyncPurgatory,
    DelayedOperationPurgatory,
    Outcome,
    PurgatoryFullError,
    metrics,
)
from purgatory.core.outcome import WAIT_BOUNDS_MS
from tests.unit.core.probe import Probe, Setting
from tests.unit.core.test_supervision import kill
from timer import InlineExecutor, ManualClock, SystemTimer

OWN_NAMES = {
    "purgatory_pending_operations": ("gauge", {"purgatory"}),
    "purgatory_pending_operations_limit": ("gauge", {"purgatory"}),
    "purgatory_watch_entries": ("gauge", {"purgatory"}),
    "purgatory_watch_keys": ("gauge", {"purgatory"}),
    "purgatory_operations": ("counter", {"purgatory", "outcome"}),
    "purgatory_wait_seconds": ("histogram", {"purgatory", "outcome", "le"}),
    "purgatory_expiry_lateness_seconds": ("histogram", {"purgatory", "le"}),
    "purgatory_checks": ("counter", {"purgatory"}),
    "purgatory_callback_errors": ("counter", {"purgatory", "stage"}),
    "purgatory_missed_wakeups": ("counter", {"purgatory"}),
    "purgatory_reaper_last_advance_timestamp_seconds": ("gauge", {"purgatory"}),
    "purgatory_reaper_restarts": ("counter", {"purgatory"}),
    "purgatory_oldest_pending_age_seconds": ("gauge", {"purgatory"}),
    "timer_tasks": ("gauge", {"timer"}),
    "timer_wheels": ("gauge", {"timer"}),
    "timer_buckets_occupied": ("gauge", {"timer"}),
}
KAFKA_NAMES = {
    "kafka_server_delayedoperationpurgatory_purgatorysize": ("gauge", {"delayedOperation"}),
    "kafka_server_delayedoperationpurgatory_numdelayedoperations": ("gauge", {"delayedOperation"}),
    "kafka_server_delayedproducemetrics_expires": ("counter", set()),
    "kafka_server_delayedfetchmetrics_expires": ("counter", {"fetcherType"}),
}
OUTCOMES = {"immediate", "completed", "expired", "cancelled", "failed", "rejected"}
STAGES = {"try_complete", "on_complete", "on_expiration", "on_failure"}


def scraped(registry: CollectorRegistry) -> dict[str, tuple[str, set[str]]]:
    """Return type and labels of what a real scrape's text has, by name."""
    found: dict[str, tuple[str, set[str]]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        labels: set[str] = set().union(*(sample.labels for sample in family.samples))
        found[family.name] = (family.type, labels)
    return found


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_every_name_has_its_type_and_labels(registry: CollectorRegistry) -> None:
    with DelayedOperationPurgatory("Produce", max_pending=10) as purgatory:
        metrics.register(purgatory, registry)
        assert scraped(registry) == OWN_NAMES


def test_kafkas_names_are_exported_on_request(registry: CollectorRegistry) -> None:
    with (
        DelayedOperationPurgatory("Produce", max_pending=10) as produce,
        DelayedOperationPurgatory("Fetch") as fetch,
    ):
        metrics.register(produce, registry)
        metrics.register(fetch, registry, kafka_names=True)
        assert scraped(registry).keys() - OWN_NAMES.keys() == KAFKA_NAMES.keys() - {
            "kafka_server_delayedproducemetrics_expires"
        }
        metrics.register(produce, registry, kafka_names=True)
        assert scraped(registry) == OWN_NAMES | KAFKA_NAMES


def test_labels_are_bounded_however_many_keys_are_watched(registry: CollectorRegistry) -> None:
    setting = Setting()
    metrics.register(setting.purgatory, registry)

    def samples() -> int:
        return sum(len(family.samples) for family in registry.collect())

    before = samples()
    for number in range(1_000):
        setting.submit(Probe(), f"secret-{number}")
    assert samples() == before
    text = generate_latest(registry).decode()
    assert "secret" not in text
    sets: dict[str, set[str]] = {"outcome": set(), "stage": set()}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            for label, values in sets.items():
                if label in sample.labels:
                    values.add(sample.labels[label])
    assert sets == {"outcome": OUTCOMES, "stage": STAGES}


def test_waits_have_buckets_from_1_ms_to_5_min(registry: CollectorRegistry) -> None:
    assert (WAIT_BOUNDS_MS[0], WAIT_BOUNDS_MS[-1]) == (1, 300_000)
    steps = [b / a for a, b in pairwise(WAIT_BOUNDS_MS)]
    assert max(steps) <= 3, "a percentile is known to a factor of 3 at worst"
    setting = Setting()
    metrics.register(setting.purgatory, registry)
    for delay_ms in (1, 300_000, 300_001):
        setting.submit(Probe(delay_ms), "key")
    setting.pass_time(300_001)

    def up_to(bound: str) -> float | None:
        labels = {"purgatory": "Manual", "outcome": "expired", "le": bound}
        return registry.get_sample_value("purgatory_wait_seconds_bucket", labels)

    assert [up_to(bound) for bound in ("0.001", "300.0", "+Inf")] == [1, 2, 3]


def test_the_limit_and_rejections_are_reported(registry: CollectorRegistry) -> None:
    with DelayedOperationPurgatory("Produce", max_pending=2) as purgatory:
        metrics.register(purgatory, registry)
        for _ in range(2):
            purgatory.try_complete_else_watch(Probe(), ["key"])
        for _ in range(3):
            with pytest.raises(PurgatoryFullError):
                purgatory.try_complete_else_watch(Probe(), ["key"])
        labels = {"purgatory": "Produce"}
        values = [
            registry.get_sample_value("purgatory_pending_operations", labels),
            registry.get_sample_value("purgatory_pending_operations_limit", labels),
            registry.get_sample_value(
                "purgatory_operations_total", labels | {"outcome": "rejected"}
            ),
        ]
        assert values == [2, 2, 3]


def test_no_limit_is_reported_without_one(registry: CollectorRegistry) -> None:
    metrics.register(Setting().purgatory, registry)
    assert "purgatory_pending_operations_limit" not in {
        sample.name for family in registry.collect() for sample in family.samples
    }


class Fetch(Probe):
    """A fetch, by a follower or a consumer."""

    is_from_follower = False


def test_kafkas_expiries_equal_the_expired_operations(registry: CollectorRegistry) -> None:
    clock = ManualClock()
    timer = SystemTimer("manual", clock=clock, executor=InlineExecutor())
    seen: list[str] = []
    produce, fetch = (
        DelayedOperationPurgatory(
            name,
            timer=timer,
            reaper_enabled=False,
            on_completed=lambda operation, counted_as, wait_ns: seen.append(counted_as),
        )
        for name in ("Produce", "Fetch")
    )
    for purgatory in (produce, fetch):
        metrics.register(purgatory, registry, kafka_names=True)
    for count, is_from_follower in ((2, True), (3, False)):
        for _ in range(count):
            operation = Fetch(delay_ms=10)
            operation.is_from_follower = is_from_follower
            fetch.try_complete_else_watch(operation, ["a", "b"])
    produce.try_complete_else_watch(Probe(delay_ms=10), ["a"])
    fetch.try_complete_else_watch(Fetch(ready=True), ["a"])

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"kafka_server_{name}", labels)

    sizes = "delayedoperationpurgatory_purgatorysize"
    assert value(sizes, delayedOperation="Fetch") == 10
    assert value(sizes, delayedOperation="Produce") == 1
    numbers = "delayedoperationpurgatory_numdelayedoperations"
    assert value(numbers, delayedOperation="Fetch") == 5
    clock.advance(10)
    timer.advance_clock(0)
    assert value("delayedfetchmetrics_expires_total", fetcherType="follower") == 2
    assert value("delayedfetchmetrics_expires_total", fetcherType="consumer") == 3
    assert value("delayedproducemetrics_expires_total") == 1
    assert sorted(seen) == ["expired"] * 6 + ["immediate"], "the user's observer is still called"


def test_a_reaper_that_died_is_counted_once_it_was_started_anew(
    registry: CollectorRegistry,
) -> None:
    def counted() -> float | None:
        labels = {"purgatory": "Produce"}
        return registry.get_sample_value("purgatory_reaper_restarts_total", labels)

    with DelayedOperationPurgatory("Produce") as purgatory, capture_logs():
        metrics.register(purgatory, registry)
        for restarts in range(3):
            assert counted() == restarts
            kill(purgatory)
            assert counted() == restarts, "nobody has looked after it yet"
            purgatory._state.reaper_look_ns = 0  # as if a second had passed
            late = Probe(delay_ms=5)
            purgatory.try_complete_else_watch(late, ["key"])
            assert late.wait(60) is Outcome.EXPIRED, "the new one does its work"
        assert counted() == 3


def test_a_closed_purgatorys_heartbeat_is_not_stale(registry: CollectorRegistry) -> None:
    purgatory = DelayedOperationPurgatory("Produce")
    metrics.register(purgatory, registry)
    purgatory.close()
    reaper = purgatory.reaper
    assert reaper is not None
    name, labels = "purgatory_reaper_last_advance_timestamp_seconds", {"purgatory": "Produce"}
    before = registry.get_sample_value(name, labels)
    reaper._last_advance_ns -= 3_600 * 10**9  # type: ignore[attr-defined]  # as if an hour passed
    after = registry.get_sample_value(name, labels)
    assert before is not None
    assert after is not None
    assert after >= before


def test_a_purgatory_on_an_event_loop_is_reported_with_its_timer(
    registry: CollectorRegistry,
) -> None:
    async def main() -> None:
        async with AsyncPurgatory("Fetch", max_pending=7) as purgatory:
            metrics.register(purgatory, registry, label="Fetch-1")
            metrics.register(purgatory, registry, label="Fetch-1")  # again: without effect
            waiting = asyncio.create_task(purgatory.wait(["key"], until=lambda: False, timeout=60))
            await asyncio.sleep(0)
            found = {
                sample.name: sample.value
                for family in registry.collect()
                for sample in family.samples
                if sample.labels in ({"purgatory": "Fetch-1"}, {"timer": "Fetch-1"})
            }
            assert found["purgatory_pending_operations"] == 1
            assert found["purgatory_pending_operations_limit"] == 7
            assert found["timer_tasks"] == 1
            assert found["purgatory_reaper_last_advance_timestamp_seconds"] > 1.7e9
            waiting.cancel()
            metrics.unregister(purgatory, registry)
            assert all(not family.samples for family in registry.collect())

    asyncio.run(main())


def test_a_closed_purgatory_makes_room_for_the_next_of_its_name(
    registry: CollectorRegistry,
) -> None:
    first = DelayedOperationPurgatory("Fetch")
    metrics.register(first, registry)
    first.close()
    with DelayedOperationPurgatory("Fetch", max_pending=5) as second:
        metrics.register(second, registry)
        labels = {"purgatory": "Fetch"}
        assert registry.get_sample_value("purgatory_pending_operations_limit", labels) == 5


def test_timers_of_one_name_add_up(registry: CollectorRegistry) -> None:
    purgatories = []
    for label in ("A", "B"):
        timer = SystemTimer("shared", clock=ManualClock(), executor=InlineExecutor())
        purgatory = DelayedOperationPurgatory(label, timer=timer, reaper_enabled=False)
        purgatory.try_complete_else_watch(Probe(), ["key"])
        metrics.register(purgatory, registry)
        purgatories.append(purgatory)
    assert registry.get_sample_value("timer_tasks", {"timer": "shared"}) == 2


def test_being_registered_keeps_no_purgatory_alive(registry: CollectorRegistry) -> None:
    setting = Setting()
    metrics.register(setting.purgatory, registry)
    metrics.register(setting.purgatory, registry, label="again", kafka_names=True)
    del setting
    gc.collect()
    assert all(not family.samples for family in registry.collect())
