"""A run of a scenario with its rows kept, and what is estimated from them.

The rows are taken as they come (`Simulation`'s ``publisher``), those of sends alone. What began
before `WARM_UP_MS` is left out: the cluster starts empty, and the laws are of the steady state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from purgatory.simulation import LoadedScenario, Simulation
from purgatory.trace.table_rows import SendRow

WARM_UP_MS = 1_000
_US_PER_MS = 1_000
_LOOK_EVERY_US = 10_000


class _KeptSends:
    """Keeps the rows of sends, and no others."""

    def __init__(self) -> None:
        self.rows: list[SendRow] = []
        self.send: Callable[[SendRow], None] = self.rows.append

    def _no_send(self, row: object) -> None:
        """Drop a row."""

    operation = read = commit = transaction = _no_send


@dataclass(frozen=True)
class KeptRun:
    """A run that is over: its rows of sends, its summary, and when the arrivals ended."""

    sends: list[SendRow]
    summary: dict[str, Any]
    duration_ms: int


Estimate = Callable[[KeptRun], float]
"""Makes one number of a run."""


def run(loaded: LoadedScenario, on_begin: Callable[[Simulation], object] | None = None) -> KeptRun:
    """Run a scenario. Some hundred bytes of memory for each attempt to send a record.

    Args:
        loaded: the scenario.
        on_begin: is given what runs it, before it begins.
    """
    kept = _KeptSends()
    simulation = Simulation(loaded, publisher=kept)
    if on_begin is not None:
        on_begin(simulation)
    return KeptRun(kept.rows, simulation.run(), simulation.duration_ms)


def mean_ms(begin: str, end: str) -> Estimate:
    """The mean time between two moments of a send, which are columns, in milliseconds.

    It raises a ValueError where no record arrived after the warm-up.
    """

    def estimate(kept: KeptRun) -> float:
        spans: list[int] = [
            getattr(row, end) - getattr(row, begin)
            for row in kept.sends
            if row.created_us is not None and row.created_us >= WARM_UP_MS * _US_PER_MS
        ]
        if not spans:
            raise ValueError(f"no record arrived after the first {WARM_UP_MS} ms")
        return sum(spans) / len(spans) / _US_PER_MS

    return estimate


def mean_present(begin: str, end: str) -> Estimate:
    """How many sends are between two moments of theirs, looked at each 10 ms after the warm-up."""

    def estimate(kept: KeptRun) -> float:
        begun = [getattr(row, begin) for row in kept.sends]
        ended = [getattr(row, end) for row in kept.sends]
        window = (WARM_UP_MS * _US_PER_MS, kept.duration_ms * _US_PER_MS)
        return _counted(begun, ended, *window, kept.summary["seed"])

    return estimate


def records_under_way(kept: KeptRun) -> float:
    """How many records are under way, looked at each 10 ms of the whole run: from their arrival
    until they are acknowledged."""
    ends: dict[tuple[int, int], tuple[int, int]] = {}
    for row in kept.sends:
        if row.outcome == "ok" and row.answer_us is not None and row.created_us is not None:
            ends.setdefault((row.producer, row.sequence), (row.created_us, row.answer_us))
    begun, ended = zip(*ends.values(), strict=True)
    end_us = kept.summary["virtual_ms"] * _US_PER_MS
    return _counted(begun, ended, 0, end_us, kept.summary["seed"])


def rate_and_time(kept: KeptRun) -> tuple[float, float]:
    """Of the whole run, by its summary: records acknowledged per ms, and their mean time in ms."""
    (group,) = kept.summary["producers"]
    records = group["latency_us"]["record"]
    return records["count"] / kept.summary["virtual_ms"], records["mean"] / _US_PER_MS


def _counted(
    begun: Iterable[int], ended: Iterable[int], start_us: int, end_us: int, seed: int
) -> float:
    """The mean of how many have begun and not ended, at one moment by chance in each 10 ms.

    At even moments it would be wrong by the same in all runs, where a fault comes at the same time.
    O(n log n).
    """
    begun, ended, chance = sorted(begun), sorted(ended), Random(seed).random
    count = max(1, (end_us - start_us) // _LOOK_EVERY_US)
    step_us = (end_us - start_us) / count
    moments = [start_us + (number + chance()) * step_us for number in range(count)]
    total = sum(bisect_right(begun, at_us) - bisect_right(ended, at_us) for at_us in moments)
    return total / count
