"""The workers of a pre-forking server add up, by prometheus-client's multiprocess mode.

In that mode (``PROMETHEUS_MULTIPROC_DIR`` is set before prometheus-client is imported) a process
keeps its values in files that all workers can read, and whichever worker is scraped adds them up
with ``MultiProcessCollector``. A purgatory's counts are not such values: here they are written
there, every second, at exit, and by ``publish``.

Of a counter, the growth since the last time is written. Hence it never decreases: not when a
purgatory is replaced by another of its name, nor when a new worker gets the process id of a dead
one, and with it that one's file.

Ground rules
------------
* ``_publisher.lock`` guards everything here, and is held while the values are written, and while
  this process forks: no child is born with prometheus-client's own lock taken by our thread.
* A finalizer may start and stop publishing in the middle of that, on the thread that holds the
  lock, ``owner``: the call is ``deferred`` to its end, as prometheus-client's lock may be held too.
* In a child all counts start from zero, as its purgatories do, and the thread starts anew.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from prometheus_client import values
from prometheus_client.core import Metric
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from purgatory.core.recent_errors import log_safely
from purgatory.metrics.families import Families, Reported

INTERVAL_S = 1.0
"""The greatest age of another worker's values when this one is scraped."""

_LIMIT = "purgatory_pending_operations_limit"
_GAUGES: dict[str, tuple[str, Callable[[list[float]], float], float]] = {
    "purgatory_reaper_last_advance_timestamp_seconds": ("livemin", min, math.inf),
    "purgatory_oldest_pending_age_seconds": ("livemax", max, 0.0),
    "timer_wheels": ("livemax", max, 0.0),
}
"""The combination of all workers' gauges, and the value of one that is gone; else they add up."""

_SUM_MODE: tuple[str, Callable[[list[float]], float], float] = ("livesum", sum, 0.0)

_Series = tuple[str, tuple[tuple[str, str], ...]]
_Counts = dict[_Series, float]


def is_on() -> bool:
    """Whether prometheus-client is in multiprocess mode."""
    return bool(values.ValueClass._multiprocess)


def publish() -> None:
    """Write the values of this process for the other workers to read, now.

    Values are also written every second and at exit. Call this in a process that ends without
    Python's exit handlers: at the end of a ``multiprocessing.Process``, before ``os._exit``.
    Without effect unless prometheus-client is in multiprocess mode.
    """
    _publisher.publish()


def start_publishing(reported: Reported) -> None:
    """Start writing a purgatory's values, until it is garbage-collected."""
    _publisher.start(reported)


def stop_publishing(reported: Reported) -> None:
    """Write a purgatory's values a last time, and remove its gauges; its counters remain."""
    _publisher.stop(reported)


class _Publisher:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._owner: int | None = None
        self._deferred: deque[Callable[[], object]] = deque()
        self._counts: dict[Reported, _Counts] = {}
        self._values: dict[_Series, Any] = {}
        self._gauges: dict[_Series, float] = {}
        self._thread: threading.Thread | None = None
        self._is_set_up = False
        self._has_forked = False
        self._has_failed = False

    def start(self, reported: Reported) -> None:
        self._run_locked(lambda: self._start(reported))

    def stop(self, reported: Reported) -> None:
        self._run_locked(lambda: self._stop(reported))

    def publish(self) -> None:
        self._run_locked(self._publish)

    def _run_locked(self, function: Callable[[], object]) -> None:
        """Call ``function`` under the lock, or later if this thread already holds it."""
        if self._owner == threading.get_ident():
            self._deferred.append(function)
            return
        with self.lock:
            self._owner = threading.get_ident()
            try:
                function()
                while self._deferred:
                    self._deferred.popleft()()
            finally:
                self._owner = None

    # Under the lock.

    def _start(self, reported: Reported) -> None:
        self._counts.setdefault(reported, {})
        self._ensure_started()
        self._publish()

    def _stop(self, reported: Reported) -> None:
        if reported in self._counts:
            self._publish()
            del self._counts[reported]
            self._publish()

    # The process's life.

    def _ensure_started(self) -> None:
        if not self._is_set_up:
            self._is_set_up = True
            atexit.register(self._at_exit)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(
                    before=self.lock_for_fork,
                    after_in_parent=self._after_fork_in_parent,
                    after_in_child=self._after_fork_in_child,
                )
        if self._thread is None:
            self._start_thread()

    def lock_for_fork(self) -> None:
        self.lock.acquire()

    def _after_fork_in_parent(self) -> None:
        self._has_forked = True
        self.lock.release()

    def _after_fork_in_child(self) -> None:
        self.lock = threading.Lock()
        self._owner = None
        self._has_forked = False
        self._counts = {reported: {} for reported in self._counts}
        self._start_thread()

    def _start_thread(self) -> None:
        self._thread = threading.Thread(
            target=self._run, name="purgatory-metrics-publisher", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        timer_event = threading.Event()
        while True:
            try:
                self.publish()
                self._has_failed = False
            except Exception as error:
                # A full disk, a folder that was removed: said once, until it works again.
                if not self._has_failed:
                    log_safely("error", "metrics_publishing_failed", exc_info=error)
                self._has_failed = True
            timer_event.wait(INTERVAL_S)

    def _at_exit(self) -> None:
        with suppress(Exception):  # the folder may be gone by now
            self.publish()

    # Writing; under the lock.

    def _publish(self) -> None:
        for reported in [purgatory for purgatory in self._counts if purgatory.purgatory() is None]:
            del self._counts[reported]
        totals = Families()
        for reported, counts in self._counts.items():
            families = Families()
            families.add(reported)
            self._count(families.all(), counts)
            totals.add(reported)
        self._gauge(totals.all())

    def _count(self, families: Iterable[Metric], counts: _Counts) -> None:
        for metric in families:
            if metric.type == "gauge":
                continue
            for sample in _plain(metric):
                series = _series(sample)
                increase = sample.value - counts.get(series, 0.0)
                if increase > 0 or series not in self._values:
                    self._value(metric, sample, "").inc(increase)
                    counts[series] = sample.value

    def _gauge(self, families: Iterable[Metric]) -> None:
        gauges: dict[_Series, list[float]] = {}
        for metric in families:
            if metric.type != "gauge":
                continue
            mode = _GAUGES.get(metric.name, _SUM_MODE)[0]
            for sample in metric.samples:
                self._value(metric, sample, mode)
                gauges.setdefault(_series(sample), []).append(sample.value)
        for series in self._gauges:
            gauges.setdefault(series, [])
        for series, series_values in gauges.items():
            _mode, combine, empty_value = _GAUGES.get(series[0], _SUM_MODE)
            self._gauges[series] = combine(series_values) if series_values else empty_value
        if self._is_idle_master():
            for series in self._gauges:
                if series[0] == _LIMIT:
                    self._gauges[series] = 0.0
        for series, value in self._gauges.items():
            self._values[series].set(value)

    def _is_idle_master(self) -> bool:
        """Whether this process only forks the workers: what its purgatories could take, it won't,
        so their limit must not be added to the workers'."""
        if not self._has_forked:
            return False
        purgatories = (reported.purgatory() for reported in self._counts)
        return not any(
            purgatory is not None
            and (any(purgatory.counters.outcomes.values()) or purgatory.num_delayed)
            for purgatory in purgatories
        )

    def _value(self, metric: Metric, sample: Sample, mode: str) -> Any:
        series = _series(sample)
        value = self._values.get(series)
        if value is None:
            value = self._values[series] = values.ValueClass(
                metric.type,
                metric.name,
                sample.name,
                tuple(sample.labels),
                tuple(sample.labels.values()),
                metric.documentation,
                multiprocess_mode=mode,
            )
        return value


def _series(sample: Sample) -> _Series:
    return sample.name, tuple(sample.labels.items())


def _plain(metric: Metric) -> Iterator[Sample]:
    """Yield a counter's samples; of a histogram the sum and the buckets, not cumulated."""
    lower_count = 0.0
    for sample in metric.samples:
        if sample.name.endswith("_bucket"):
            labels = dict(sample.labels, le=_le(sample.labels["le"]))
            yield Sample(sample.name, labels, sample.value - lower_count)
            lower_count = 0.0 if labels["le"] == "+Inf" else sample.value
        elif not sample.name.endswith("_count"):
            yield sample


def _le(bound: str) -> str:
    """Return a bucket's bound as prometheus-client's own histograms write it."""
    return str(floatToGoString(float(bound)))  # type: ignore[no-untyped-call]


_publisher = _Publisher()
