"""Every purgatory of this process as plain data: numbers, texts, lists and dicts, fit for JSON.

The cost does not grow with the number of pending operations: only the first and the last
``MAX_SAMPLED`` operations are looked at (a key on which a good part of all waits is among theirs),
and no lock is held while any user code (a ``__repr__``) runs.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from purgatory.core.async_purgatory import AsyncPurgatory, core_of
from purgatory.core.counters import CountersSnapshot
from purgatory.core.operation import DelayedOperation, submitted_ns, users_lock, watch_keys
from purgatory.core.outcome import FOREVER_MS, WAIT_BOUNDS_MS
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.core.recent_errors import cut_repr
from purgatory.debug.history import History
from purgatory.shared.relay import Relay, relays
from timer import SystemTimer, forking
from timer.histogram import HistogramSnapshot

MAX_SAMPLED = 1_000
"""The number of first operations that are looked at, and that of last ones."""
MAX_KEYS = 20
"""The number of an operation's keys that are looked at."""
MAX_COUNTED_KEYS = 10_000
"""The highest count of operations on a key."""
MAX_FRAMES = 8
"""The number of a thread's innermost calls that are shown."""

Purgatories = Iterable[DelayedOperationPurgatory | AsyncPurgatory]


def describe(
    purgatories: Purgatories | None = None, *, limit: int = 10, history: History | None = None
) -> dict[str, Any]:
    """Describe the pending operations of this process. O(MAX_SAMPLED + limit) for each purgatory.

    Args:
        purgatories: which; by default all of this process that are not closed.
        limit: how many operations, keys, locks and errors are shown of each, at most.
        history: for the rates and the outcomes of the last minutes; without it there are none.

    Returns:
        The values that docs/debug.md lists: ``time`` (UTC), ``process`` (its number),
        ``purgatories``, by name, and ``relays`` to other processes. Times of an operation are in
        milliseconds (``_ms``) by its timer's clock.

    Raises:
        ValueError: ``limit`` is negative.
    """
    if limit < 0:
        raise ValueError(f"limit must be 0 or more, not {limit}")
    selected = _open_purgatories() if purgatories is None else map(core_of, purgatories)
    descriptions = [_describe(item, limit, history) for item in selected]
    return {
        "time": _utc(datetime.now(UTC)),
        "process": os.getpid(),
        "purgatories": sorted(descriptions, key=lambda item: (item["name"], item["broker_id"])),
        "relays": [_describe_relay(relay) for relay in relays()],
    }


def _describe_relay(relay: Relay) -> dict[str, Any]:
    state, counts = relay.state, relay.counts
    return {
        "relay": cut_repr(relay),
        "state": state.name,
        "since": _utc(datetime.fromtimestamp(state.since, UTC)),
        "error": None if state.error is None else cut_repr(state.error),
        "watched_keys": relay.watched_keys,
        **counts._asdict(),
    }


def _open_purgatories() -> list[DelayedOperationPurgatory]:
    result = [item for item in forking.registered() if isinstance(item, DelayedOperationPurgatory)]
    return [candidate for candidate in result if not candidate.is_closed]


def _describe(
    purgatory: DelayedOperationPurgatory, limit: int, history: History | None
) -> dict[str, Any]:
    counters = purgatory.counters
    now_ns = purgatory.timer.clock.now_ns()
    parked = sample_operations(purgatory)
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
        "oldest": oldest(parked, now_ns, limit),
        "hottest_keys": hottest_keys(purgatory, parked, limit),
        "looked_at": len(parked),
        "foreign_locks": foreign_locks(purgatory, now_ns, limit),
        "recent_errors": _recent_errors(purgatory, limit),
        "reaper": _reaper(purgatory, now_ns),
        "timer": _timer(purgatory),
        **({} if history is None else {"past": history.rates(purgatory, counters)}),
    }


def _waits_ms(counters: CountersSnapshot) -> dict[str, dict[str, float | None]]:
    """Bounds that half, and 99 of 100, of the waits don't exceed, by outcome."""
    result = {}
    for outcome, waits in counters.waits.items():
        bounds_ms = tuple(map(float, WAIT_BOUNDS_MS))
        histogram = HistogramSnapshot(bounds_ms, waits.counts, waits.sum_ns / 1e6)
        if histogram.total:
            result[outcome] = _quantiles_ms(histogram)
    return result


def _quantiles_ms(histogram: HistogramSnapshot) -> dict[str, float | None]:
    """None stands for more than the largest bound."""
    bounds_ms = {"p50": histogram.quantile_ms(0.5), "p99": histogram.quantile_ms(0.99)}
    return {
        name: bound_ms if bound_ms < float("inf") else None for name, bound_ms in bounds_ms.items()
    }


def _recent_errors(purgatory: DelayedOperationPurgatory, limit: int) -> list[dict[str, Any]]:
    return [
        {
            "time": _utc(datetime.fromtimestamp(fault.time_s, UTC)),
            "event": fault.event,
            "stage": fault.stage,
            "operation": fault.operation,
            "error": fault.error,
        }
        for fault in purgatory.recent_faults()[:limit]
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


def _utc(timestamp: datetime) -> str:
    return timestamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Pending operations.


def sample_operations(purgatory: DelayedOperationPurgatory) -> list[DelayedOperation]:
    """Return the oldest and newest pending operations, oldest first. O(MAX_SAMPLED)."""
    first, last = purgatory.pending_ends(MAX_SAMPLED)
    return first + last


def oldest(parked: Sequence[DelayedOperation], now_ns: int, limit: int) -> list[dict[str, Any]]:
    """Describe the oldest operations. O(limit).

    Args:
        parked: in the order in which they came.
        now_ns: the time by their timer's clock.
        limit: of how many at most.
    """
    return [_describe_operation(operation, now_ns) for operation in parked[:limit]]


def _describe_operation(operation: DelayedOperation, now_ns: int) -> dict[str, Any]:
    age_ms = max(0, now_ns - submitted_ns(operation)) / 1e6
    keys = watch_keys(operation)
    delay_ms: object = operation.delay_ms  # which a user may have changed to anything since
    remaining_ms = None
    if isinstance(delay_ms, int) and delay_ms < FOREVER_MS:
        remaining_ms = delay_ms - age_ms
    return {
        "operation": cut_repr(operation),
        "age_ms": age_ms,
        "expires_in_ms": remaining_ms,
        "keys": [cut_repr(key) for key in keys[:MAX_KEYS]],
        "more_keys": max(0, len(keys) - MAX_KEYS),
    }


def hottest_keys(
    purgatory: DelayedOperationPurgatory, parked: Sequence[DelayedOperation], limit: int
) -> list[dict[str, Any]]:
    """Return the keys with the most pending operations. O(MAX_SAMPLED + limit * MAX_COUNTED_KEYS).

    A key that can't be hashed or compared any more is passed over.

    Args:
        limit: of how many keys at most.
    """
    key_counts: Counter[Hashable] = Counter()
    for operation in parked:
        with suppress(Exception):
            key_counts.update(watch_keys(operation)[:MAX_KEYS])
    result = []
    for key, times in key_counts.most_common(limit):
        with suppress(Exception):
            result.append((purgatory.waiting_on(key, MAX_COUNTED_KEYS), times, key))
    result.sort(key=lambda item: item[:2], reverse=True)
    return [
        {"key": cut_repr(key), "waiting": waiting, "or_more": waiting == MAX_COUNTED_KEYS}
        for waiting, _, key in result
        if waiting
    ]


# The holders of the locks that operations wait for.


def foreign_locks(
    purgatory: DelayedOperationPurgatory, now_ns: int, limit: int
) -> list[dict[str, Any]]:
    """Return which operations wait for their user's lock, the longest first.

    Args:
        now_ns: the time by the purgatory's timer.
        limit: of how many at most.
    """
    waiting = sorted(purgatory.waiting_for_locks(), key=lambda item: item[1])
    result = []
    for operation, since_ns in waiting[:limit]:
        lock = users_lock(operation)
        result.append(
            {
                "operation": cut_repr(operation),
                "lock": cut_repr(lock),
                "for_ms": max(0, now_ns - since_ns) / 1e6,
                "holder": _lock_owner(lock),
            }
        )
    return result


def _lock_owner(lock: object) -> dict[str, Any] | None:
    """Return the thread that holds a lock, with its calls; None if the lock does not know it."""
    # The owner of Python's own locks stands in their repr alone.
    owner = re.search(r"\bowner=(\d+)\b", cut_repr(lock))
    if owner is None or owner[1] == "0":
        return None
    thread = int(owner[1])
    names = [item.name for item in threading.enumerate() if item.ident == thread]
    frame = sys._current_frames().get(thread)
    calls = traceback.extract_stack(frame)[-MAX_FRAMES:] if frame is not None else []
    return {
        "thread": names[0] if names else str(thread),
        "calls": [f"{call.name} ({call.filename}:{call.lineno})" for call in reversed(calls)],
    }
