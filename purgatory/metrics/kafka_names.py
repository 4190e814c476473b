"""Kafka's own names for what a purgatory counts, for dashboards that exist.

A broker's JMX exporter says, of its purgatories::

    kafka_server_delayedoperationpurgatory_purgatorysize{delayedOperation="Fetch"}
    kafka_server_delayedoperationpurgatory_numdelayedoperations{delayedOperation="Fetch"}
    kafka_server_delayedproducemetrics_expires_total
    kafka_server_delayedfetchmetrics_expires_total{fetcherType="follower"}

The last two are of the purgatories named ``Produce`` and ``Fetch``.

Ground rules
------------
* ``KafkaExpiries`` counts under its own lock, which is reentrant, since a finalizer that runs in
  the middle of it may settle operations; it is asked once per settled operation, and does
  nothing for those that did not expire.
"""

from __future__ import annotations

import threading

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from purgatory.core.counters import CountersSnapshot
from purgatory.core.operation import DelayedOperation
from purgatory.core.purgatory import DelayedOperationPurgatory
from timer import forking

FETCHER_TYPES = ("follower", "consumer")


class KafkaExpiries:
    """How many fetches of a purgatory expired, by kind of fetcher; counted from now on.

    An operation with a true attribute ``is_from_follower`` is a follower's, any other a consumer's.

    Args:
        purgatory: only that named ``Fetch`` is observed.
    """

    def __init__(self, purgatory: DelayedOperationPurgatory) -> None:
        self._observer = purgatory.on_settled
        self._after_fork()
        if purgatory.name == "Fetch":
            forking.protect(self)
            purgatory.on_settled = self._observe

    def by_fetcher_type(self) -> dict[str, int]:
        """Return a copy of the counts."""
        with self._lock:
            return dict(self._counts)

    def _observe(self, operation: DelayedOperation, counted_as: str, wait_ns: int) -> None:
        if counted_as == "expired":
            from_follower = getattr(operation, "is_from_follower", False)
            with self._lock:
                self._counts["follower" if from_follower else "consumer"] += 1
        if self._observer is not None:
            self._observer(operation, counted_as, wait_ns)

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
