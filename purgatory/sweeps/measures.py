"""The measures of a simulation in a sweep: the columns, and their values from a run's summary.

All waits are in milliseconds. Percentiles are those of the simulation's own summary: exact up to
10 ms, above that at most 0.1 % too small; the maximum is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

PURGATORIES: Mapping[tuple[str, str], str] = {
    ("Produce", "producer"): "produce",
    ("Fetch", "follower"): "fetch_follower",
    ("Fetch", "consumer"): "fetch_consumer",
}
"""The prefix of the columns of a purgatory, by its name and the kind of its requesters."""

_WAITS = {
    "wait_p50_ms": "p50",
    "wait_p95_ms": "p95",
    "wait_p99_ms": "p99",
    "wait_p999_ms": "p999",
    "wait_max_ms": "max",
}
_PRODUCERS = (
    "records",
    "requests",
    "retries",
    "acknowledged",
    "unanswered",
    "failed",
    "unknown",
    "unsettled",
    "duplicates",
    "reorderings",
    "lost",
)
_CONSUMERS = {
    "polls": "polls",
    "empty_polls": "empty_polls",
    "records_read": "records",
    "records_skipped": "skipped",
}


def _measures() -> dict[str, pa.DataType]:
    columns: dict[str, pa.DataType] = {}
    for prefix in PURGATORIES.values():
        columns[f"{prefix}_operations"] = pa.int64()
        columns[f"{prefix}_expired"] = pa.int64()
        columns[f"{prefix}_expiry_ratio"] = pa.float64()
        columns |= {f"{prefix}_{name}": pa.float64() for name in _WAITS}
    columns |= {name: pa.int64() for name in (*_PRODUCERS, *_CONSUMERS)}
    columns |= {"elections": pa.int64(), "virtual_ms": pa.int64()}
    return columns


MEASURES: Mapping[str, pa.DataType] = _measures()
"""The columns with the outcome of a run, and their types; null where a run failed."""

RESULTS = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        ("error", pa.string()),
        *MEASURES.items(),
        ("drained", pa.bool_()),
        ("computed_s", pa.float64()),
        ("elapsed_s", pa.float64()),
    ]
)
"""A row of a part: the key of the scenario, its error if it failed, its measures, and its processor
and wall-clock time in seconds."""


def measure_run(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The measures of a run, from its summary."""
    row: dict[str, Any] = {}
    for operations in summary["purgatories"]:
        prefix = PURGATORIES[operations["purgatory"], operations["kind"]]
        row |= {f"{prefix}_{name}": value for name, value in _operations(operations).items()}
    for name in _PRODUCERS:
        row[name] = sum(group[name] for group in summary["producers"])
    for name, source in _CONSUMERS.items():
        row[name] = sum(group[source] for group in summary["consumers"])
    for name in ("elections", "virtual_ms", "drained"):
        row[name] = summary[name]
    return row


def _operations(operations: Mapping[str, Any]) -> dict[str, Any]:
    completed = operations["operations"] - operations["pending"]
    waits = operations["wait_us"]
    return {
        "operations": operations["operations"],
        "expired": operations["expired"],
        "expiry_ratio": operations["expired"] / completed if completed else None,
        **{
            name: None if waits[source] is None else waits[source] / 1000
            for name, source in _WAITS.items()
        },
    }
