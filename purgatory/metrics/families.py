"""Prometheus metrics of purgatories and their timers, read when they are scraped.

    purgatory.metrics.register(produce_purgatory)

Nothing is done per operation: a scrape asks each purgatory for its exact counters. Labels are
bounded: the purgatory, the outcome, the callback's stage; never a watch key.

Ground rules
------------
* ``_collectors`` and a collector's purgatories change under ``_lock``. A scrape copies the latter
  under the lock and reads the purgatories without it, so a slow scrape holds up nobody.
* Purgatories are held weakly: one that is gone is not reported any more.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from purgatory.counters import WAIT_BOUNDS_MS, CountersSnapshot
from purgatory.delayed_operation_purgatory import DelayedOperationPurgatory
from timer import SystemTimer

_lock = threading.Lock()
_collectors: weakref.WeakKeyDictionary[CollectorRegistry, PurgatoryCollector] = (
    weakref.WeakKeyDictionary()
)


def register(
    purgatory: DelayedOperationPurgatory,
    registry: CollectorRegistry = REGISTRY,
    label: str | None = None,
) -> None:
    """Have ``registry`` report ``purgatory`` and its timer.

    Args:
        purgatory: what is reported; it is held weakly.
        registry: prometheus-client's default one, or one of your own.
        label: the value of the label ``purgatory``; by default its name. The timer's samples carry
            the same, or, if the purgatory was given its timer, that timer's name.

    Raises:
        ValueError: another purgatory is registered there under that label.
    """
    label = purgatory.name if label is None else label
    with _lock:
        collector = _collectors.get(registry)
        if collector is None:
            collector = _collectors[registry] = PurgatoryCollector()
            registry.register(collector)
        known = collector.purgatories.get(label)
        if known is not None and known is not purgatory:
            raise ValueError(
                f"a purgatory labelled {label!r} is registered already: pass another label="
            )
        collector.purgatories[label] = purgatory


def unregister(
    purgatory: DelayedOperationPurgatory, registry: CollectorRegistry = REGISTRY
) -> None:
    """Have ``registry`` report ``purgatory`` no more. Without effect if it does not."""
    with _lock:
        collector = _collectors.get(registry)
        if collector is None:
            return
        for label, known in list(collector.purgatories.items()):
            if known is purgatory:
                del collector.purgatories[label]


class PurgatoryCollector(Collector):
    """Reports any number of purgatories under one set of metric names."""

    def __init__(self) -> None:
        self.purgatories: weakref.WeakValueDictionary[str, DelayedOperationPurgatory] = (
            weakref.WeakValueDictionary()
        )

    def describe(self) -> Iterable[Metric]:
        """Return the families without samples: registering must not scrape."""
        return _Families().all()

    def collect(self) -> Iterator[Metric]:
        """Read every purgatory. O(purgatories)."""
        with _lock:
            purgatories = sorted(self.purgatories.items())
        families = _Families()
        for label, purgatory in purgatories:
            families.add(label, purgatory)
        yield from families.all()


class _Families:
    """The metric families of one scrape."""

    def __init__(self) -> None:
        self.pending = GaugeMetricFamily(
            "purgatory_pending_operations", "Operations that wait.", labels=["purgatory"]
        )
        self.entries = GaugeMetricFamily(
            "purgatory_watch_entries",
            "Entries on the watch lists: each pending operation counts once per key.",
            labels=["purgatory"],
        )
        self.keys = GaugeMetricFamily(
            "purgatory_watch_keys", "Keys that an operation waits on.", labels=["purgatory"]
        )
        self.operations = CounterMetricFamily(
            "purgatory_operations",
            "Operations by what became of them; immediate: completed without waiting.",
            labels=["purgatory", "outcome"],
        )
        self.waits = HistogramMetricFamily(
            "purgatory_wait_seconds",
            "How long operations waited, by what became of them.",
            labels=["purgatory", "outcome"],
        )
        self.lateness = HistogramMetricFamily(
            "purgatory_expiry_lateness_seconds",
            "How long after its time the purgatory's timer ran a task.",
            labels=["purgatory"],
        )
        self.checks = CounterMetricFamily(
            "purgatory_checks",
            "Conditions checked because of an event on a key.",
            labels=["purgatory"],
        )
        self.callback_errors = CounterMetricFamily(
            "purgatory_callback_errors",
            "Exceptions in callbacks, by the callback.",
            labels=["purgatory", "stage"],
        )
        self.missed_wakeups = CounterMetricFamily(
            "purgatory_missed_wakeups",
            "Operations whose condition held when they were about to expire: a trigger is missing.",
            labels=["purgatory"],
        )
        self.heartbeat = GaugeMetricFamily(
            "purgatory_reaper_last_advance_timestamp_seconds",
            "Unix time at which the reaper last came round.",
            labels=["purgatory"],
        )
        self.oldest = GaugeMetricFamily(
            "purgatory_oldest_pending_age_seconds",
            "How long the oldest pending operation has waited; 0 without any.",
            labels=["purgatory"],
        )
        self.tasks = GaugeMetricFamily("timer_tasks", "Tasks on the timer.", labels=["timer"])
        self.wheels = GaugeMetricFamily(
            "timer_wheels", "Levels of the timing wheel.", labels=["timer"]
        )
        self._timers: set[str] = set()
        self.buckets = GaugeMetricFamily(
            "timer_buckets_occupied", "Buckets in the delay queue.", labels=["timer"]
        )

    def all(self) -> list[Metric]:
        return [family for family in vars(self).values() if isinstance(family, Metric)]

    def add(self, label: str, purgatory: DelayedOperationPurgatory) -> None:
        self.pending.add_metric([label], purgatory.num_delayed)
        self.entries.add_metric([label], purgatory.watched)
        self.keys.add_metric([label], purgatory.watched_keys)
        self.oldest.add_metric([label], purgatory.oldest_pending_ns / 1e9)
        self._add_counters(label, purgatory.counters)
        if purgatory.reaper is not None:
            since_ns = purgatory.timer.clock.now_ns() - purgatory.reaper.last_advance_ns
            self.heartbeat.add_metric([label], time.time() - since_ns / 1e9)
        timer = purgatory.timer
        if isinstance(timer, SystemTimer):
            lateness = timer.lateness.snapshot()
            self.lateness.add_metric(
                [label], _buckets(lateness.bounds_ms, lateness.counts), lateness.sum_ms / 1e3
            )
            self._add_timer(label if purgatory.owns_timer else timer.name, timer)

    def _add_counters(self, label: str, counters: CountersSnapshot) -> None:
        for outcome, total in counters.outcomes.items():
            self.operations.add_metric([label, outcome], total)
        for outcome, waits in counters.waits.items():
            self.waits.add_metric(
                [label, outcome], _buckets(WAIT_BOUNDS_MS, waits.counts), waits.sum_ns / 1e9
            )
        for stage, total in counters.callback_errors.items():
            self.callback_errors.add_metric([label, stage], total)
        self.checks.add_metric([label], counters.checks)
        self.missed_wakeups.add_metric([label], counters.missed_wakeups)

    def _add_timer(self, label: str, timer: SystemTimer) -> None:
        if label in self._timers:
            return  # shared with another purgatory
        self._timers.add(label)
        self.tasks.add_metric([label], timer.size)
        self.wheels.add_metric([label], timer.levels_in_use)
        self.buckets.add_metric([label], timer.buckets_occupied)


def _buckets(bounds_ms: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return Prometheus' cumulative buckets, by upper bound in seconds."""
    bounds = [*(repr(bound_ms / 1_000) for bound_ms in bounds_ms), "+Inf"]
    return list(zip(bounds, accumulate(map(float, counts)), strict=True))
