"""A run at a glance: load, pending requests, expiries, faults, and its worst moment."""

from __future__ import annotations

from typing import Any

from purgatory.settings.typed_duration import duration_text
from purgatory.trace import change_rows as rows
from purgatory.view.state import PageEncoder
from purgatory.view.timeline import ABANDONED, CHANGED, COMPLETED, PARKED, Timeline
from purgatory.view.trace_columns import keys_at

MOST_BUCKETS = 240


def overview(timeline: Timeline, encoder: PageEncoder, end_us: int) -> dict[str, Any]:
    """Return the buckets of a run, its faults, and its worst moment. O(events).

    Returns:
        `width_us`, and for each bucket `started` (requests that arrived), `pending` (the most that
        waited) and `failed` (produces that timed out, and requests that failed); `faults`; and
        `worst`, with `at_us`, `operation` and `text`, or None if no request was completed.
    """
    width_us = max(1, -(-(end_us + 1) // MOST_BUCKETS))
    count = end_us // width_us + 1
    started, most_pending, failed = [0] * count, [0] * count, [0] * count
    faults: dict[int, dict[str, Any]] = {}
    completed = timeline.completed
    pending = bucket = 0
    worst: tuple[bool, int, int] | None = None
    worst_ref = -1
    for at_us, kind, ref in zip(timeline.at, timeline.kind, timeline.ref, strict=True):
        now = min(count - 1, at_us // width_us)
        for passed in range(bucket + 1, now + 1):
            most_pending[passed] = pending
        bucket = now
        if kind == PARKED:
            started[now] += 1
            pending += 1
            most_pending[now] = max(most_pending[now], pending)
        elif kind == ABANDONED:
            pending -= 1
        elif kind == COMPLETED:
            is_bad = _is_failure(timeline, ref)
            failed[now] += is_bad
            # The more requests wait when one fails, the worse; without failures, the longest wait.
            rank = (is_bad, pending if is_bad else completed.wait_us[ref], -at_us)
            if worst is None or rank > worst:
                worst, worst_ref = rank, ref
            if completed.parked[ref] < 0:
                started[now] += 1
            else:
                pending -= 1
        elif kind == CHANGED and timeline.changes.change.at(ref) == rows.FAULT:
            fault = encoder.fault(ref)
            faults[fault["number"]] = fault
    for passed in range(bucket + 1, count):
        most_pending[passed] = pending
    return {
        "width_us": width_us,
        "started": started,
        "pending": most_pending,
        "failed": failed,
        "faults": [
            {"from_us": one["since_us"], "until_us": one["until_us"], "text": one["text"]}
            for one in faults.values()
        ],
        "worst": None if worst is None else _worst_moment(timeline, worst_ref),
    }


def _is_failure(timeline: Timeline, ref: int) -> bool:
    """Whether a request failed; the response to an expired fetch is a normal one."""
    completed = timeline.completed
    outcome = completed.outcome.at(ref)
    return outcome == "failed" or (
        outcome == "expired" and completed.purgatory.at(ref) == "Produce"
    )


def _worst_moment(timeline: Timeline, ref: int) -> dict[str, Any]:
    """The moment before a request was completed, when it still waited."""
    completed = timeline.completed
    wait_us = completed.wait_us[ref]
    keys = ", ".join(keys_at(completed.keys, ref)[:3])
    became = completed.outcome.at(ref) if _is_failure(timeline, ref) else "was answered"
    return {
        "at_us": max(0, completed.time_us[ref] - min(1, wait_us)),
        "operation": completed.ids[ref],
        "text": f"{completed.purgatory.at(ref)}{f' on {keys}' if keys else ''} at broker "
        f"{completed.broker[ref]} {became} after {duration_text(wait_us)}",
    }
