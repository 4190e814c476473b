"""Rows of the results of a stream, as its queries give them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from purgatory.pipeline.stream.windowed_waits import OUTCOMES

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)
_TIME = pa.timestamp("us", "UTC")
_COUNTS = dict.fromkeys(("operations", *OUTCOMES, "wait_max_us"), pa.int64())
_WAITS = pa.schema(
    {
        **dict.fromkeys(("run_id", "purgatory", "kind"), pa.string()),
        "window_start": _TIME,
        "window_end": _TIME,
        **_COUNTS,
        "wait_mean_us": pa.float64(),
    }
)
_ORDER = pa.schema(
    {
        **dict.fromkeys(("run_id", "topic", "anomaly", "group", "doubt"), pa.string()),
        **dict.fromkeys(
            ("partition", "producer", "value_id", "sequence", "offset", "other_offset", "count"),
            pa.int64(),
        ),
        "time": _TIME,
    }
)
_ASIDE = pa.schema(
    {
        **dict.fromkeys(("run_id", "source", "reason", "example"), pa.string()),
        "rows": pa.int64(),
    }
)


def window(at_s: float, *, length_s: float = 10.0, **columns: Any) -> pa.Table:
    """A row of ``waits``, of a window that begins so long after noon."""
    start = NOON + timedelta(seconds=at_s)
    row = {
        "run_id": "run",
        "purgatory": "Produce",
        "kind": "producer",
        "window_start": start,
        "window_end": start + timedelta(seconds=length_s),
        **dict.fromkeys(OUTCOMES, 0),
        "completed": 90,
        "wait_mean_us": 2_000.0,
        "wait_max_us": 8_000,
        **columns,
    }
    row["operations"] = sum(row[outcome] for outcome in OUTCOMES)
    return pa.Table.from_pylist([row], schema=_WAITS)


def case(anomaly: str, at_s: float, **columns: Any) -> pa.Table:
    """A row of ``order``."""
    row = {
        "run_id": "run",
        "topic": "orders",
        "partition": 1,
        "anomaly": anomaly,
        "group": "shop",
        "producer": 3,
        "count": 1,
        "time": NOON + timedelta(seconds=at_s),
        **columns,
    }
    return pa.Table.from_pylist([row], schema=_ORDER)


def aside(reason: str, rows: int, **columns: Any) -> pa.Table:
    """A row of ``aside``."""
    row = {"run_id": "", "source": "sends", "reason": reason, "rows": rows, **columns}
    return pa.Table.from_pylist([row], schema=_ASIDE)
