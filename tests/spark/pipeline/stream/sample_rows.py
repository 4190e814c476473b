"""Rows of a run."""

from __future__ import annotations

from typing import Any

SECOND_US = 1_000_000
STARTED_US = 1_700_000_000 * SECOND_US


def operation(
    end_us: int, outcome: str = "completed", wait_us: int = 1_000, **more: Any
) -> dict[str, Any]:
    """A row of the table of operations, by the time when it ended."""
    start_us = end_us - wait_us
    return {
        "run_id": "run",
        "started_us": STARTED_US,
        "broker": 1,
        "purgatory": "Produce",
        "operation": 0,
        "keys": 1,
        "timeout_ms": 1_000,
        "start_us": start_us,
        "end_us": end_us,
        "wait_us": wait_us,
        "outcome": outcome,
        "kind": "producer",
        "watch_keys": ["orders-0"],
        **more,
    }
