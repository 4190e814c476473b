"""The metric families of one scrape: every name, its help, its labels, and its source.

Kafka's own names are reported beside them where that is wanted, for dashboards that exist. A
broker's JMX exporter says, of its purgatories::

    kafka_server_delayedoperationpurgatory_purgatorysize{delayedOperation="Fetch"}
    kafka_server_delayedoperationpurgatory_numdelayedoperations{delayedOperation="Fetch"}
    kafka_server_delayedproducemetrics_expires_total
    kafka_server_delayedfetchmetrics_expires_total{fetcherType="follower"}

The last two are of the purgatories named ``Produce`` and ``Fetch``.

Ground rules
------------
* ``KafkaExpiries`` counts under its own lock, which is reentrant: a finalizer in the middle of it
  may complete operations. Each completed operation calls it once.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from purgatory.core.async_purgatory import AsyncPurgatory, core_of
from purgatory.core.counters import CountersSnapshot
from purgatory.core.operation import DelayedOperation
from purgatory.core.outcome import WAIT_BOUNDS_MS
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.core.reaper import Reaper
from timer import SystemTimer, forking
from timer.machine_time import time

FETCHER_TYPES = ("follower", "consumer")

PURGATORY = ["purgatory", "broker"]
TIMER = ["timer", "broker"]
"""The broker comes last, and is left out where a purgatory has none."""


class Reported:
    """One purgatory and its label. The purgatory is held weakly.

    Args:
        purgatory: what is reported.
        label: the value of the label ``purgatory``; by default its name.
        broker: the value of the label ``broker``; None leaves it out.

    Raises:
        TypeError: the label, or the timer's name, is no string.
        ValueError: it can't be written as UTF-8.
    """

    def __init__(
        self,
        purgatory: DelayedOperationPurgatory | AsyncPurgatory,
        label: str | None,
        broker: int | None = None,
    ) -> None:
        core = core_of(purgatory)
        self.purgatory = weakref.ref(core)
        self.label = _validate_label("label", core.name if label is None else label)
        self.broker = () if broker is None else (str(broker),)
        self.owns_timer = core.owns_timer or isinstance(purgatory, AsyncPurgatory)
        if not self.owns_timer and isinstance(core.timer, SystemTimer):
            _validate_label("timer's name", core.timer.name)
        self.kafka_expiries: KafkaExpiries | None = None

    @property
    def name(self) -> tuple[str, ...]:
        """Its unique name in the registry: the label, and the broker's if there is one."""
        return (self.label, *self.broker)

    def report_kafka_names(self, enabled: bool) -> None:
        """Report it under Kafka's names too, from now on, if that is wanted."""
        if enabled and self.kafka_expiries is None:
            core = self.purgatory()
            assert core is not None, "its registration holds it"
            self.kafka_expiries = KafkaExpiries(core)

    def end_kafka_names(self) -> None:
        """Observe it no more."""
        expiries, self.kafka_expiries = self.kafka_expiries, None
        core = self.purgatory()
        if expiries is not None and core is not None:
            expiries.detach(core)


def _validate_label(label_name: str, label: object) -> str:
    """Return ``label``, since one that can't be written would break every scrape."""
    if not isinstance(label, str):
        raise TypeError(
            f"the {label_name} must be a string, not {label!r} ({type(label).__name__})"
        )
    try:
        label.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the {label_name} can't be written as UTF-8: {label!r}, {error}"
        ) from None
    return label


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
        families = [family for family in vars(self).values() if isinstance(family, Metric)]
        return families + self._kafka.all()

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
        is_needed = pending > 0 or reaper.is_alive
        since_ns = now_ns - reaper.last_advance_ns if is_needed else 0
        self.heartbeat.add_metric(labels, time.time() - since_ns / 1e9)
        self.restarts.add_metric(labels, reaper.restarts)


def _buckets(bounds_ms: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return Prometheus' cumulative buckets, by upper bound in seconds."""
    bounds = [*(repr(bound_ms / 1_000) for bound_ms in bounds_ms), "+Inf"]
    return list(zip(bounds, accumulate(map(float, counts)), strict=True))


class KafkaExpiries:
    """Expired fetches of a purgatory, by kind of fetcher; counted from now on.

    An operation with a true attribute ``is_from_follower`` is a follower's, any other a consumer's.

    Args:
        purgatory: only that named ``Fetch`` is observed.
    """

    def __init__(self, purgatory: DelayedOperationPurgatory) -> None:
        self._observer = purgatory.on_completed
        self._is_detached = False
        self._after_fork()
        if purgatory.name == "Fetch":
            forking.register(self)
            purgatory.on_completed = self._on_completed

    def detach(self, purgatory: DelayedOperationPurgatory) -> None:
        """Count no more, and put back the observer that it found, wherever it stands by now."""
        self._is_detached = True  # behind an observer of the user's it stays, and passes on
        observer = purgatory.on_completed
        if observer == self._on_completed:
            purgatory.on_completed = self._observer
            return
        outer = getattr(observer, "__self__", None)
        while isinstance(outer, KafkaExpiries):
            if outer._observer == self._on_completed:
                outer._observer = self._observer
                return
            outer = getattr(outer._observer, "__self__", None)

    def by_fetcher_type(self) -> dict[str, int]:
        """Return a copy of the counts."""
        with self._lock:
            return dict(self._counts)

    def _on_completed(self, operation: DelayedOperation, outcome: str, wait_ns: int) -> None:
        if outcome == "expired" and not self._is_detached:
            from_follower = getattr(operation, "is_from_follower", False)
            with self._lock:
                self._counts["follower" if from_follower else "consumer"] += 1
        observer = self._observer
        if observer is not None:
            observer(operation, outcome, wait_ns)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        self._counts = dict.fromkeys(FETCHER_TYPES, 0)


class KafkaFamilies:
    """The families of one scrape under Kafka's names."""

    def __init__(self) -> None:
        self.size = GaugeMetricFamily(
            "kafka_server_delayedoperationpurgatory_purgatorysize",
            "Entries on the watch lists, as purgatory_watch_entries.",
            labels=["delayedOperation", "broker"],
        )
        self.delayed = GaugeMetricFamily(
            "kafka_server_delayedoperationpurgatory_numdelayedoperations",
            "Operations that wait, as purgatory_pending_operations.",
            labels=["delayedOperation", "broker"],
        )
        self.produce_expires = CounterMetricFamily(
            "kafka_server_delayedproducemetrics_expires",
            "Produces that expired.",
            labels=["broker"],
        )
        self.fetch_expires = CounterMetricFamily(
            "kafka_server_delayedfetchmetrics_expires",
            "Fetches that expired, by the kind of fetcher.",
            labels=["fetcherType", "broker"],
        )
        self._produces: dict[tuple[str, ...], int] = {}
        self._fetches: dict[tuple[str, ...], int] = {}

    def add(
        self,
        expiries: KafkaExpiries,
        name: tuple[str, ...],
        purgatory: DelayedOperationPurgatory,
        counters: CountersSnapshot,
    ) -> None:
        """Add one purgatory; the expiries of those of one name, and broker, add up.

        Args:
            expiries: of its fetches.
            name: its label, and that of its broker if it has one.
            purgatory: what is reported.
            counters: what it has counted.
        """
        self.size.add_metric(name, purgatory.watched)
        self.delayed.add_metric(name, purgatory.num_delayed)
        broker = name[1:]
        if purgatory.name == "Produce":
            self._produces[broker] = self._produces.get(broker, 0) + counters.outcomes["expired"]
        elif purgatory.name == "Fetch":
            for fetcher_type, expired in expiries.by_fetcher_type().items():
                labels = (fetcher_type, *broker)
                self._fetches[labels] = self._fetches.get(labels, 0) + expired

    def all(self) -> list[Metric]:
        """Return the families that have a sample."""
        for labels, expired in self._produces.items():
            self.produce_expires.add_metric(labels, expired)
        for labels, expired in self._fetches.items():
            self.fetch_expires.add_metric(labels, expired)
        self._produces, self._fetches = {}, {}
        families = (self.size, self.delayed, self.produce_expires, self.fetch_expires)
        return [family for family in families if family.samples]
