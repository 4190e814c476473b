"""Metrics equal what was counted by hand, and are read when scraped."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from purgatory import DelayedOperation, DelayedOperationPurgatory, metrics
from purgatory.metrics.multiprocess import _Publisher
from timer import InlineExecutor, ManualClock, SystemTimer


class Waiting(DelayedOperation):
    """Completes once ``ready`` is set; raises if told to."""

    ready = False
    broken = False

    def try_complete(self) -> bool:
        if self.broken:
            raise RuntimeError("broken on purpose")
        return self.ready and self.force_complete()


class Setting:
    """A purgatory on a manual clock, registered in a registry of its own."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timer = SystemTimer("shared", clock=self.clock, executor=InlineExecutor())
        self.purgatory = self.another("Produce")
        self.registry = CollectorRegistry()
        metrics.register(self.purgatory, self.registry)

    def another(self, name: str) -> DelayedOperationPurgatory:
        return DelayedOperationPurgatory(name, timer=self.timer, reaper_enabled=False)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {"purgatory": "Produce"} | labels)

    def submit(self, delay_ms: int, *keys: str) -> Waiting:
        operation = Waiting(delay_ms)
        self.purgatory.try_complete_else_watch(operation, keys)
        return operation

    def pass_time(self, delta_ms: int) -> None:
        self.clock.advance(delta_ms)
        self.timer.advance_clock(0)


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_gauges_follow_pending_operations(setting: Setting) -> None:
    setting.submit(1_000, "a", "b")
    setting.pass_time(250)
    setting.submit(1_000, "b")
    assert setting.value("purgatory_pending_operations") == 2
    assert setting.value("purgatory_watch_entries") == 3
    assert setting.value("purgatory_watch_keys") == 2
    assert setting.value("purgatory_oldest_pending_age_seconds") == 0.25
    setting.pass_time(2_000)
    assert setting.value("purgatory_pending_operations") == 0
    assert setting.value("purgatory_watch_entries") == 0
    assert setting.value("purgatory_oldest_pending_age_seconds") == 0


def test_operations_are_counted_by_outcome(setting: Setting) -> None:
    ready = Waiting(1_000)
    ready.ready = True
    setting.purgatory.try_complete_else_watch(ready, ["a"])
    by_event = setting.submit(1_000, "a")
    by_event.ready = True
    setting.purgatory.check_and_complete("a")
    setting.submit(1_000, "a").cancel()
    broken = setting.submit(1_000, "a")
    broken.broken = True
    setting.purgatory.check_and_complete("a")
    setting.submit(1_000, "a")
    setting.pass_time(1_000)
    for outcome in ("immediate", "completed", "cancelled", "failed", "expired"):
        assert setting.value("purgatory_operations_total", outcome=outcome) == 1, outcome
    assert setting.value("purgatory_checks_total") == 2
    assert setting.value("purgatory_callback_errors_total", stage="try_complete") == 1
    assert setting.value("purgatory_callback_errors_total", stage="on_complete") == 0


def test_a_missed_trigger_is_counted(setting: Setting) -> None:
    operation = setting.submit(100, "a")
    operation.ready = True
    setting.pass_time(100)
    assert setting.value("purgatory_missed_wakeups_total") == 1
    assert setting.value("purgatory_operations_total", outcome="completed") == 1


def test_waits_fall_into_cumulative_buckets(setting: Setting) -> None:
    for delay_ms in (5, 40, 40, 700_000):
        setting.submit(delay_ms, "a")
    setting.pass_time(5)
    setting.pass_time(35)
    setting.pass_time(700_000)

    def up_to(bound: str) -> float | None:
        return setting.value("purgatory_wait_seconds_bucket", outcome="expired", le=bound)

    assert [up_to(bound) for bound in ("0.002", "0.005", "0.025", "0.05")] == [0, 1, 1, 3]
    assert up_to("300.0") == 3
    assert up_to("+Inf") == 4
    assert setting.value("purgatory_wait_seconds_count", outcome="expired") == 4
    assert setting.value("purgatory_wait_seconds_sum", outcome="expired") == pytest.approx(
        0.005 + 0.04 + 0.04 + 700.04
    )


def test_timer_samples_appear_once_for_a_shared_timer(setting: Setting) -> None:
    fetch = setting.another("Fetch")
    metrics.register(fetch, setting.registry)
    setting.submit(60_000, "a")
    lines = generate_latest(setting.registry).decode().splitlines()
    assert [line for line in lines if line.startswith("timer_tasks")] == [
        'timer_tasks{timer="shared"} 1.0'
    ]
    assert sum(line.startswith("# TYPE purgatory_pending_operations ") for line in lines) == 1


def test_lateness_of_expiries(setting: Setting) -> None:
    setting.submit(10, "a")
    setting.pass_time(40)
    assert setting.value("purgatory_expiry_lateness_seconds_bucket", le="0.025") == 0
    assert setting.value("purgatory_expiry_lateness_seconds_bucket", le="0.05") == 1


def test_a_second_purgatory_of_one_label_is_refused(setting: Setting) -> None:
    other = setting.another("Produce")
    with pytest.raises(ValueError, match="'Produce' is registered already"):
        metrics.register(other, setting.registry)
    metrics.register(other, setting.registry, label="Produce-1")
    metrics.register(other, setting.registry, label="Produce-1")
    assert (
        setting.registry.get_sample_value(
            "purgatory_pending_operations", {"purgatory": "Produce-1"}
        )
        == 0
    )


@pytest.mark.parametrize("label", [5, None, b"Produce"])
def test_a_label_that_is_no_string_is_refused(label: Any) -> None:
    registry = CollectorRegistry()
    named = DelayedOperationPurgatory(label, reaper_enabled=False)  # None takes its name
    with pytest.raises(TypeError, match="the label must be a string, not"):
        metrics.register(named, registry, label=label)
    assert generate_latest(registry) == b""


def test_a_label_that_can_not_be_written_is_refused(setting: Setting) -> None:
    other = setting.another("other")
    with pytest.raises(ValueError, match=r"the label can't be written as UTF-8: '.udc80'"):
        metrics.register(other, setting.registry, label="\udc80")
    misnamed = SystemTimer(7, clock=setting.clock, executor=InlineExecutor())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the timer's name must be a string, not 7"):
        metrics.register(
            DelayedOperationPurgatory("third", timer=misnamed, reaper_enabled=False),
            setting.registry,
        )
    assert b"Produce" in generate_latest(setting.registry)


def test_a_refused_purgatory_is_not_observed_under_kafkas_names(setting: Setting) -> None:
    fetch, other = setting.another("Fetch"), setting.another("Fetch")
    metrics.register(fetch, setting.registry)
    with pytest.raises(ValueError, match="registered already"):
        metrics.register(other, setting.registry, kafka_names=True)
    assert other.on_completed is None


class Client:
    """An object that goes with its purgatory: the collector finds both."""

    def __init__(self, registry: CollectorRegistry, name: str) -> None:
        self.itself = self
        self.registry = registry
        self.purgatory = DelayedOperationPurgatory(name, reaper_enabled=False)
        metrics.register(self.purgatory, registry)

    def __del__(self) -> None:
        metrics.unregister(self.purgatory, self.registry)
        self.purgatory.close()


def scrape_with_garbage(registry: CollectorRegistry, thresholds: range) -> None:
    before = gc.get_threshold()
    try:
        for threshold in thresholds:
            gc.set_threshold(0)
            Client(registry, f"client-{threshold}")
            gc.set_threshold(threshold)
            generate_latest(registry)
    finally:
        gc.set_threshold(*before)


def test_a_finalizer_may_unregister_in_the_middle_of_a_scrape(setting: Setting) -> None:
    scraping = threading.Thread(
        target=scrape_with_garbage, args=(setting.registry, range(1, 120)), daemon=True
    )
    scraping.start()
    scraping.join(60)
    assert not scraping.is_alive(), "the scrape waits for itself"
    gc.collect()
    assert b"client" not in generate_latest(setting.registry)


def test_publishing_requested_during_publishing_runs_afterwards() -> None:
    publisher = _Publisher()
    done: list[str] = []

    def publish() -> None:
        publisher._run_locked(lambda: done.append("the finalizer's"))
        done.append("the outer one")

    publishing = threading.Thread(target=publisher._run_locked, args=(publish,), daemon=True)
    publishing.start()
    publishing.join(60)
    assert done == ["the outer one", "the finalizer's"]


def test_unregistered_and_collected_purgatories_vanish(setting: Setting) -> None:
    other = setting.another("Fetch")
    metrics.register(other, setting.registry)
    del other
    gc.collect()
    assert b"Fetch" not in generate_latest(setting.registry)
    metrics.unregister(setting.purgatory, setting.registry)
    assert setting.value("purgatory_pending_operations") is None


def test_the_reapers_heartbeat_is_a_unix_time() -> None:
    registry = CollectorRegistry()
    with DelayedOperationPurgatory("Fetch") as purgatory:
        metrics.register(purgatory, registry)
        stamp = registry.get_sample_value(
            "purgatory_reaper_last_advance_timestamp_seconds", {"purgatory": "Fetch"}
        )
    assert stamp is not None
    assert 1.7e9 < stamp < 1e11


def test_brokers_of_one_process_have_a_label_of_their_own() -> None:
    registry = CollectorRegistry()
    with (
        DelayedOperationPurgatory("Produce") as first,
        DelayedOperationPurgatory("Produce") as second,
        DelayedOperationPurgatory("Produce") as alone,
    ):
        metrics.register(first, registry, broker=1, kafka_names=True)
        metrics.register(second, registry, broker=2, kafka_names=True)
        metrics.register(second, registry, broker=2)  # again: without effect
        metrics.register(alone, registry)
        with pytest.raises(ValueError, match="'Produce' of broker 2 is registered already"):
            metrics.register(alone, registry, broker=2)
        first.try_complete_else_watch(Waiting(10_000), ["key"])
        for name, label in (
            ("purgatory_pending_operations", "purgatory"),
            ("timer_tasks", "timer"),
            ("kafka_server_delayedoperationpurgatory_numdelayedoperations", "delayedOperation"),
        ):
            values = {
                broker: registry.get_sample_value(name, {label: "Produce", "broker": broker})
                for broker in ("1", "2")
            }
            assert values == {"1": 1, "2": 0}, name
        pending = registry.get_sample_value
        assert pending("purgatory_pending_operations", {"purgatory": "Produce"}) == 0
        metrics.unregister(second, registry)
        labels = {"purgatory": "Produce", "broker": "2"}
        assert pending("purgatory_pending_operations", labels) is None
