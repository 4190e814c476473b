"""Which registry reports which purgatories, and what a scrape of it reads.

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

import os
import threading
import weakref
from collections.abc import Iterable, Iterator

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from purgatory.core.async_purgatory import AsyncPurgatory, core_of
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.metrics import multiprocess
from purgatory.metrics.families import Families, Reported

_lock = threading.RLock()
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
        by_name = _collector_of(registry).reported
        while (known := by_name.setdefault(reported.name, reported)) is not reported:
            other = known.purgatory()
            if other is core:
                known.report_kafka_names(kafka_names)
                return
            if other is not None and not other.is_closed:
                of_broker = "" if broker is None else f" of broker {broker}"
                raise ValueError(
                    f"a purgatory labelled {known.label!r}{of_broker} is registered already: "
                    "pass another label="
                )
            if _take_off(known, by_name):
                replaced = known
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
        removed = [one for one in list(collector.reported.values()) if one.purgatory() is core]
        removed = [one for one in removed if _take_off(one, collector.reported)]
    for reported in removed:
        multiprocess.stop_publishing(reported)


def _take_off(reported: Reported, by_name: dict[tuple[str, ...], Reported]) -> bool:
    """Have it reported no more; return False if it was not, or another one is under its name."""
    name = reported.name
    if name in by_name and by_name[name] is reported:  # without a call: in one step
        del by_name[name]
        return True
    return False


def _collector_of(registry: CollectorRegistry) -> PurgatoryCollector:
    collector = _collectors.get(registry)
    if collector is None:
        made = PurgatoryCollector()
        collector = _collectors.setdefault(registry, made)
        if collector is made:
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
            for one in reported:
                if one.purgatory() is None:
                    _take_off(one, self.reported)
        families = Families()
        for one in sorted(reported, key=lambda one: one.name):
            families.add(one)
        yield from families.all()


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - the parent's may be held for ever
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
