"""Which registry reports which purgatories, and what a scrape of it reads.

Ground rules
------------
* ``_collectors`` and a collector's ``reported`` change under ``_lock``. A scrape copies the latter
  under the lock and reads the purgatories without it, so a slow scrape holds up nobody.
* Purgatories are held weakly: one that is gone is not reported any more.
* A child starts with a free lock: a scrape in the parent may have held it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from purgatory.async_purgatory import AsyncPurgatory
from purgatory.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.metrics import multiprocess
from purgatory.metrics.families import Families
from purgatory.metrics.reported import Reported, core_of

_lock = threading.Lock()
_collectors: weakref.WeakKeyDictionary[CollectorRegistry, PurgatoryCollector] = (
    weakref.WeakKeyDictionary()
)


def register(
    purgatory: DelayedOperationPurgatory | AsyncPurgatory,
    registry: CollectorRegistry = REGISTRY,
    label: str | None = None,
    kafka_names: bool = False,
    broker: int | None = None,
) -> None:
    """Have ``registry`` report ``purgatory`` and its timer.

    Registering it again under the same labels has no effect, but that ``kafka_names`` may be added.
    In prometheus-client's multiprocess mode it is published to the other workers, too.

    Args:
        purgatory: what is reported; it is held weakly.
        registry: prometheus-client's default one, or one of your own.
        label: the value of the label ``purgatory``; by default its name. The timer's samples carry
            the same, or, if the purgatory was given its timer, that timer's name.
        kafka_names: report it under Kafka's own names as well.
        broker: the value of the label ``broker``, where one process is several brokers; by default
            there is no such label.

    Raises:
        ValueError: another purgatory, that is not closed, is registered there under these labels.
    """
    core = core_of(purgatory)
    with _lock:
        collector = _collectors.get(registry)
        if collector is None:
            collector = PurgatoryCollector()
            registry.register(collector)
            _collectors[registry] = collector
        reported = Reported(purgatory, label, False, broker)
        replaced = collector.reported.get(reported.name)
        known = None if replaced is None else replaced.purgatory()
        if replaced is not None and known is core:
            replaced.report_kafka_names(kafka_names)
            return
        if known is not None and not known._closed:
            of_broker = "" if broker is None else f" of broker {broker}"
            raise ValueError(
                f"a purgatory labelled {reported.label!r}{of_broker} is registered already: "
                "pass another label="
            )
        reported.report_kafka_names(kafka_names)
        collector.reported[reported.name] = reported
    if multiprocess.is_on():
        if replaced is not None:
            multiprocess.stop_publishing(replaced)
        multiprocess.start_publishing(reported)


def unregister(
    purgatory: DelayedOperationPurgatory | AsyncPurgatory,
    registry: CollectorRegistry = REGISTRY,
) -> None:
    """Have ``registry`` report ``purgatory`` no more. Without effect if it does not."""
    core = core_of(purgatory)
    with _lock:
        collector = _collectors.get(registry)
        if collector is None:
            return
        removed = [one for one in collector.reported.values() if one.purgatory() is core]
        for reported in removed:
            del collector.reported[reported.name]
    for reported in removed:
        multiprocess.stop_publishing(reported)


class PurgatoryCollector(Collector):
    """Reports any number of purgatories under one set of metric names."""

    def __init__(self) -> None:
        self.reported: dict[tuple[str, ...], Reported] = {}

    def describe(self) -> Iterable[Metric]:
        """Return the families without samples: registering must not scrape."""
        return Families().all()

    def collect(self) -> Iterator[Metric]:
        """Read every purgatory. O(purgatories)."""
        with _lock:
            gone = [name for name, one in self.reported.items() if one.purgatory() is None]
            for name in gone:
                del self.reported[name]
            reported = sorted(self.reported.items())
        families = Families()
        for _name, one in reported:
            families.add(one)
        yield from families.all()


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - the parent's may be held for ever
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
