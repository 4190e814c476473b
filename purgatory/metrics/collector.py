"""The purgatories reported by each registry, and the values that a scrape of it reads.

Ground rules
------------
* ``_collectors`` and a collector's ``reported`` change under ``_lock``. A scrape copies the latter
  under the lock and reads the purgatories without it, so a slow scrape holds up nobody.
* The lock is reentrant, and each change one step: a finalizer that the collector of garbage runs
  in the middle may register and unregister.
* Purgatories are held weakly: one that is gone is not reported any more.
* A child starts with a free lock: a scrape in the parent may have held it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from purgatory.core.async_purgatory import AsyncPurgatory, core_of
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.metrics import multiprocess
from purgatory.metrics.families import Families, Reported
from timer.locks import module_lock

_lock = module_lock()
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
        TypeError: the label, or the name of a timer that the purgatory was given, is no string.
        ValueError: another purgatory, that is not closed, is registered there under these labels;
            or the label can't be written as UTF-8.
    """
    core = core_of(purgatory)
    reported = Reported(purgatory, label, broker)
    replaced = None
    with _lock:
        collectors = _collector_of(registry).reported
        while (existing := collectors.setdefault(reported.name, reported)) is not reported:
            existing_purgatory = existing.purgatory()
            if existing_purgatory is core:
                existing.report_kafka_names(kafka_names)
                return
            if existing_purgatory is not None and not existing_purgatory.is_closed:
                of_broker = "" if broker is None else f" of broker {broker}"
                raise ValueError(
                    f"a purgatory labelled {existing.label!r}{of_broker} is registered already: "
                    "pass another label="
                )
            if _remove(existing, collectors):
                replaced = existing
        reported.report_kafka_names(kafka_names)
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
        matches = [
            entry for entry in list(collector.reported.values()) if entry.purgatory() is core
        ]
        matches = [one for one in matches if _remove(one, collector.reported)]
    for reported in matches:
        multiprocess.stop_publishing(reported)


def _remove(reported: Reported, collectors: dict[tuple[str, ...], Reported]) -> bool:
    """Have it reported no more; return False if it was not, or another one is under its name."""
    name = reported.name
    if name in collectors and collectors[name] is reported:  # without a call: in one step
        del collectors[name]
        reported.end_kafka_names()
        return True
    return False


def _collector_of(registry: CollectorRegistry) -> PurgatoryCollector:
    collector = _collectors.get(registry)
    if collector is None:
        new_collector = PurgatoryCollector()
        collector = _collectors.setdefault(registry, new_collector)
        if collector is new_collector:
            try:
                registry.register(collector)
            except BaseException:
                _collectors.pop(registry, None)
                raise
    return collector


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
            reported = list(self.reported.values())
            for entry in reported:
                if entry.purgatory() is None:
                    _remove(entry, self.reported)
        families = Families()
        for entry in sorted(reported, key=lambda entry: entry.name):
            families.add(entry)
        yield from families.all()
