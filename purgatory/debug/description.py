"""Every purgatory of this process as plain data: numbers, texts, lists and dicts, fit for JSON.

What it costs does not grow with what waits: of the operations only the first and the last
``LOOKED_AT`` are looked at, and no lock is held while any user code (a ``__repr__``) runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from purgatory.core.async_purgatory import AsyncPurgatory
from purgatory.core.counters import CountersSnapshot
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.core.states import WAIT_BOUNDS_MS
from purgatory.debug.foreign_locks import foreign_locks
from purgatory.debug.parked import hottest_keys, looked_at, oldest
from purgatory.debug.past import Past
from timer import HistogramSnapshot, SystemTimer, forking

Purgatories = Iterable[DelayedOperationPurgatory | AsyncPurgatory]


def describe(
    purgatories: Purgatories | None = None, *, most: int = 10, past: Past | None = None
) -> dict[str, Any]:
    """Return what this process is waiting for. O(LOOKED_AT + most) for each purgatory.

    Args:
        purgatories: which; by default all of this process that are not closed.
        most: how many operations, keys, locks and errors are told of each, at most.
        past: what the rates and the outcomes of the last minutes are taken from; without it there
            are none.

    Returns:
        What docs/debug.md lists: ``time`` (UTC), ``process`` (its number) and ``purgatories``, by
        name. Times of an operation are in milliseconds (``_ms``) by its timer's clock.

    Raises:
        ValueError: ``most`` is negative.
    """
    if most < 0:
        raise ValueError(f"most must be 0 or more, not {most}")
    chosen = _open_ones() if purgatories is None else map(_core_of, purgatories)
    described = [_described(one, most, past) for one in chosen]
    return {
        "time": _utc(datetime.now(UTC)),
        "process": os.getpid(),
        "purgatories": sorted(described, key=lambda one: (one["name"], one["broker_id"])),
    }


def _core_of(purgatory: DelayedOperationPurgatory | AsyncPurgatory) -> DelayedOperationPurgatory:
    return purgatory.core if isinstance(purgatory, AsyncPurgatory) else purgatory


def _open_ones() -> list[DelayedOperationPurgatory]:
    found = [one for one in forking.protected() if isinstance(one, DelayedOperationPurgatory)]
    return [one for one in found if not one.is_closed]


def _described(
    purgatory: DelayedOperationPurgatory, most: int, past: Past | None
) -> dict[str, Any]:
    counters = purgatory.counters
    now_ns = purgatory.timer.clock.now_ns()
    parked = looked_at(purgatory)
    return {
        "name": str(purgatory.name),
        "broker_id": purgatory.broker_id,
        "closed": purgatory.is_closed,
        "pending": purgatory.num_delayed,
        "pending_limit": purgatory.max_pending,
        "watch_entries": purgatory.watched,
        "watch_keys": purgatory.watched_keys,
        "oldest_ms": purgatory.oldest_pending_ns / 1e6,
        "outcomes": counters.outcomes,
        "waits_ms": _waits_ms(counters),
        "checks": counters.checks,
        "missed_wakeups": counters.missed_wakeups,
        "callback_errors": counters.callback_errors,
        "oldest": oldest(parked, now_ns, most),
        "hottest_keys": hottest_keys(purgatory, parked, most),
        "looked_at": len(parked),
        "foreign_locks": foreign_locks(purgatory, now_ns, most),
        "recent_errors": _recent_errors(purgatory, most),
        "reaper": _reaper(purgatory, now_ns),
        "timer": _timer(purgatory),
        **({} if past is None else {"past": past.of(purgatory, counters)}),
    }


def _waits_ms(counters: CountersSnapshot) -> dict[str, dict[str, float | None]]:
    """Bounds that half, and 99 of 100, of the waits don't exceed, by outcome."""
    found = {}
    for outcome, waits in counters.waits.items():
        bounds_ms = tuple(map(float, WAIT_BOUNDS_MS))
        histogram = HistogramSnapshot(bounds_ms, waits.counts, waits.sum_ns / 1e6)
        if histogram.total:
            found[outcome] = _quantiles_ms(histogram)
    return found


def _quantiles_ms(histogram: HistogramSnapshot) -> dict[str, float | None]:
    """None stands for more than the largest bound."""
    bounds_ms = {"p50": histogram.quantile_ms(0.5), "p99": histogram.quantile_ms(0.99)}
    return {
        name: bound_ms if bound_ms < float("inf") else None for name, bound_ms in bounds_ms.items()
    }


def _recent_errors(purgatory: DelayedOperationPurgatory, most: int) -> list[dict[str, Any]]:
    return [
        {
            "time": _utc(datetime.fromtimestamp(fault.time_s, UTC)),
            "event": fault.event,
            "stage": fault.stage,
            "operation": fault.operation,
            "error": fault.error,
        }
        for fault in purgatory.recent_faults()[:most]
    ]


def _reaper(purgatory: DelayedOperationPurgatory, now_ns: int) -> dict[str, Any] | None:
    reaper = purgatory.reaper
    if reaper is None:
        return None
    return {
        "alive": reaper.is_alive,
        "came_round_ms_ago": max(0, now_ns - reaper.last_advance_ns) / 1e6,
        "restarts": reaper.restarts,
    }


def _timer(purgatory: DelayedOperationPurgatory) -> dict[str, Any]:
    timer = purgatory.timer
    if not isinstance(timer, SystemTimer):
        return {"tasks": timer.size}
    return {
        "tasks": timer.size,
        "wheels": timer.levels_in_use,
        "buckets_occupied": timer.buckets_occupied,
        "lateness_ms": _quantiles_ms(timer.lateness.snapshot()),
    }


def _utc(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
