"""The metric families of one scrape: every name, its help, its labels, and what it is read from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from purgatory.core.counters import CountersSnapshot
from purgatory.core.reaper import Reaper
from purgatory.core.states import WAIT_BOUNDS_MS
from purgatory.metrics.kafka_names import KafkaFamilies
from purgatory.metrics.reported import Reported
from timer import SystemTimer

PURGATORY = ["purgatory", "broker"]
TIMER = ["timer", "broker"]
"""The broker comes last, and is left out where a purgatory has none."""


class Families:
    """The families of one scrape, filled by ``add``."""

    def __init__(self) -> None:
        self.pending = GaugeMetricFamily(
            "purgatory_pending_operations", "Operations that wait.", labels=PURGATORY
        )
        self.limit = GaugeMetricFamily(
            "purgatory_pending_operations_limit",
            "How many operations may wait; absent where there is no limit.",
            labels=PURGATORY,
        )
        self.entries = GaugeMetricFamily(
            "purgatory_watch_entries",
            "Entries on the watch lists: each pending operation counts once per key.",
            labels=PURGATORY,
        )
        self.keys = GaugeMetricFamily(
            "purgatory_watch_keys", "Keys that an operation waits on.", labels=PURGATORY
        )
        self.operations = CounterMetricFamily(
            "purgatory_operations",
            "Operations by what became of them; immediate: completed without waiting.",
            labels=["purgatory", "outcome", "broker"],
        )
        self.waits = HistogramMetricFamily(
            "purgatory_wait_seconds",
            "How long operations waited, by what became of them.",
            labels=["purgatory", "outcome", "broker"],
        )
        self.lateness = HistogramMetricFamily(
            "purgatory_expiry_lateness_seconds",
            "How long after its time the purgatory's timer ran a task.",
            labels=PURGATORY,
        )
        self.checks = CounterMetricFamily(
            "purgatory_checks",
            "Conditions checked because of an event on a key.",
            labels=PURGATORY,
        )
        self.callback_errors = CounterMetricFamily(
            "purgatory_callback_errors",
            "Exceptions in callbacks, by the callback.",
            labels=["purgatory", "stage", "broker"],
        )
        self.missed_wakeups = CounterMetricFamily(
            "purgatory_missed_wakeups",
            "Operations whose condition held when they were about to expire: a trigger is missing.",
            labels=PURGATORY,
        )
        self.heartbeat = GaugeMetricFamily(
            "purgatory_reaper_last_advance_timestamp_seconds",
            "Unix time at which the reaper last came round.",
            labels=PURGATORY,
        )
        self.restarts = CounterMetricFamily(
            "purgatory_reaper_restarts",
            "How many times the reaper had died and was started anew.",
            labels=PURGATORY,
        )
        self.oldest = GaugeMetricFamily(
            "purgatory_oldest_pending_age_seconds",
            "How long the oldest pending operation has waited; 0 without any.",
            labels=PURGATORY,
        )
        self.tasks = GaugeMetricFamily("timer_tasks", "Tasks on the timer.", labels=TIMER)
        self.wheels = GaugeMetricFamily("timer_wheels", "Levels of the timing wheel.", labels=TIMER)
        self.buckets = GaugeMetricFamily(
            "timer_buckets_occupied", "Buckets in the delay queue.", labels=TIMER
        )
        self._kafka = KafkaFamilies()
        self._timers: dict[tuple[str, ...], set[SystemTimer]] = {}

    def all(self) -> list[Metric]:
        """Return the families; Kafka's only if a purgatory is reported under those names."""
        for labels, timers in self._timers.items():
            self.tasks.add_metric(labels, sum(timer.size for timer in timers))
            self.wheels.add_metric(labels, max(timer.levels_in_use for timer in timers))
            self.buckets.add_metric(labels, sum(timer.buckets_occupied for timer in timers))
        self._timers.clear()
        own = [family for family in vars(self).values() if isinstance(family, Metric)]
        return own + self._kafka.all()

    def add(self, reported: Reported) -> None:
        """Read one purgatory. O(1), but for the timer's size: O(its buckets in use)."""
        purgatory = reported.purgatory()
        if purgatory is None:
            return
        labels = reported.name
        counters = purgatory.counters
        pending = purgatory.num_delayed
        self.pending.add_metric(labels, pending)
        if purgatory.max_pending is not None:
            self.limit.add_metric(labels, purgatory.max_pending)
        self.entries.add_metric(labels, purgatory.watched)
        self.keys.add_metric(labels, purgatory.watched_keys)
        self.oldest.add_metric(labels, purgatory.oldest_pending_ns / 1e9)
        self._add_counters(reported, counters)
        if purgatory.reaper is not None:
            self._add_reaper(labels, purgatory.reaper, pending, purgatory.timer.clock.now_ns())
        timer = purgatory.timer
        if isinstance(timer, SystemTimer):
            lateness = timer.lateness.snapshot()
            self.lateness.add_metric(
                labels, _buckets(lateness.bounds_ms, lateness.counts), lateness.sum_ms / 1e3
            )
            timer_labels = labels if reported.owns_timer else (timer.name, *reported.broker)
            self._timers.setdefault(timer_labels, set()).add(timer)
        if reported.kafka_expiries is not None:
            self._kafka.add(reported.kafka_expiries, labels, purgatory, counters)

    def _add_counters(self, reported: Reported, counters: CountersSnapshot) -> None:
        labels, label, broker = reported.name, reported.label, reported.broker
        for outcome, total in counters.outcomes.items():
            self.operations.add_metric([label, outcome, *broker], total)
        for outcome, waits in counters.waits.items():
            buckets = _buckets(WAIT_BOUNDS_MS, waits.counts)
            self.waits.add_metric([label, outcome, *broker], buckets, waits.sum_ns / 1e9)
        for stage, total in counters.callback_errors.items():
            self.callback_errors.add_metric([label, stage, *broker], total)
        self.checks.add_metric(labels, counters.checks)
        self.missed_wakeups.add_metric(labels, counters.missed_wakeups)

    def _add_reaper(
        self, labels: tuple[str, ...], reaper: Reaper, pending: int, now_ns: int
    ) -> None:
        # A reaper whose purgatory is closed, or that a fork left to be started by the first
        # operation, is not stale: nothing waits for it.
        needed = pending > 0 or reaper.is_alive
        since_ns = now_ns - reaper.last_advance_ns if needed else 0
        self.heartbeat.add_metric(labels, time.time() - since_ns / 1e9)
        self.restarts.add_metric(labels, reaper.restarts)


def _buckets(bounds_ms: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return Prometheus' cumulative buckets, by upper bound in seconds."""
    bounds = [*(repr(bound_ms / 1_000) for bound_ms in bounds_ms), "+Inf"]
    return list(zip(bounds, accumulate(map(float, counts)), strict=True))
