"""The rates of purgatories over the last minutes, from samples of their counters.

Ground rules
------------
* One thread samples, once ``start`` is called; in the child of a fork the next ``start`` starts
  another one. Only that thread changes ``_samples``.
* A sample is a tuple that is appended to a deque in one step. A reader copies the deque, and begins
  anew if it changed meanwhile: no lock is needed, which a fork could leave taken.
* Purgatories are held weakly.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from purgatory.core.counters import CountersSnapshot
from purgatory.core.purgatory import DelayedOperationPurgatory
from timer import forking
from timer.machine_time import time

INTERVAL_S = 5
MINUTES = 15
"""The length of the history."""
RATES_S = {"1m": 60, "5m": 300, "15m": 900}
"""The periods of the rates."""


class Sample(NamedTuple):
    """The counts of a purgatory at some time."""

    time_s: float
    outcomes: dict[str, int]


class History:
    """The samples of the purgatories of a process.

    Args:
        now_s: a clock that never goes back, in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._samples: WeakKeyDictionary[DelayedOperationPurgatory, deque[Sample]] = (
            WeakKeyDictionary()
        )
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start a thread that samples all purgatories every five seconds. Idempotent."""
        thread = self._thread
        if thread is None or not thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="purgatory-debug", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the sampling thread, within five seconds."""
        self._thread = None

    def _run(self) -> None:
        while self._thread is threading.current_thread():
            self.sample()
            time.sleep(INTERVAL_S)

    def sample(self) -> None:
        """Sample each open purgatory. O(purgatories)."""
        for purgatory in forking.registered():
            if isinstance(purgatory, DelayedOperationPurgatory) and not purgatory.is_closed:
                samples = self._samples.get(purgatory)
                if samples is None:
                    capacity = MINUTES * 60 // INTERVAL_S + 1
                    samples = self._samples[purgatory] = deque(maxlen=capacity)
                samples.append(Sample(self._now_s(), purgatory.counters.outcomes))

    def rates(self, purgatory: DelayedOperationPurgatory, now: CountersSnapshot) -> dict[str, Any]:
        """Return the outcomes of the last minutes. O(samples).

        Args:
            now: the purgatory's counters.

        Returns:
            ``per_s``, by ``1m``, ``5m`` and ``15m``: outcomes a second over that time, or over as
            much of it as is known, which ``known_s`` says. ``minutes``: the outcomes of each
            minute, the last one first.
        """
        last = Sample(self._now_s(), now.outcomes)
        samples = [*self._copied(purgatory), last]
        covered_s = last.time_s - samples[0].time_s
        per_s = {name: _rates(samples, last, window_s) for name, window_s in RATES_S.items()}
        minutes = []
        for minute in range(min(MINUTES, int(covered_s // 60) + (covered_s > 0))):
            end = _sample_at(samples, last.time_s - 60 * minute)
            begin = _sample_at(samples, last.time_s - 60 * (minute + 1))
            minutes.append(_differences(begin, end))
        return {"known_s": covered_s, "per_s": per_s, "minutes": minutes}

    def _copied(self, purgatory: DelayedOperationPurgatory) -> list[Sample]:
        while True:
            try:
                return list(self._samples.get(purgatory, ()))
            except RuntimeError:
                continue  # one was added just now


def _sample_at(samples: list[Sample], time_s: float) -> Sample:
    """The last sample that is not later; the first of all, if there is none."""
    older = [sample for sample in samples if sample.time_s <= time_s]
    return older[-1] if older else samples[0]


def _differences(begin: Sample, end: Sample) -> dict[str, int]:
    return {name: count - begin.outcomes[name] for name, count in end.outcomes.items()}


def _rates(samples: list[Sample], last: Sample, window_s: float) -> dict[str, float]:
    begin = _sample_at(samples, last.time_s - window_s)
    elapsed_s = last.time_s - begin.time_s
    counts = _differences(begin, last)
    return {name: count / elapsed_s if elapsed_s > 0 else 0.0 for name, count in counts.items()}
