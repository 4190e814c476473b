"""The summary of a run as plain data, for the tables in the terminal and for `run.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from purgatory.simulation.arrivals import Arrivals
from purgatory.simulation.consumer import ConsumerGroup
from purgatory.simulation.latencies import Waits
from purgatory.simulation.producer_group import ProducerGroup
from purgatory.simulation.trace import OUTCOMES, WaitsKey

_SHARES = {"p50": 0.50, "p95": 0.95, "p99": 0.99, "p999": 0.999}

TABLE_ROWS = (("Produce", "producer"), ("Fetch", "follower"), ("Fetch", "consumer"))
"""The rows of the table of purgatories: a purgatory and its kind of requesters."""


def waits_summary(waits: Waits) -> dict[str, float | int | None]:
    """Count, mean, percentiles and maximum of some waits, in microseconds."""
    percentiles = dict(zip(_SHARES, waits.percentiles(*_SHARES.values()), strict=True))
    return {
        "count": waits.count,
        "mean": waits.mean_us,
        **percentiles,
        "max": waits.max_us if waits.count else None,
    }


def operations_summary(recorded: Mapping[WaitsKey, Waits]) -> list[dict[str, Any]]:
    """Per purgatory and kind: operations by outcome, and the waits of those that ended."""
    return [
        {
            "purgatory": purgatory,
            "kind": kind,
            **_outcomes(
                {key: waits for key, waits in recorded.items() if key[:2] == (purgatory, kind)}
            ),
        }
        for purgatory, kind in TABLE_ROWS
    ]


def brokers_summary(recorded: Mapping[WaitsKey, Waits]) -> list[dict[str, Any]]:
    """The same per broker and purgatory, over all kinds."""
    rows = []
    for broker in sorted({key[2] for key in recorded}):
        for purgatory in ("Produce", "Fetch"):
            chosen = {
                key: waits
                for key, waits in recorded.items()
                if key[0] == purgatory and key[2] == broker
            }
            rows.append({"broker": broker, "purgatory": purgatory, **_outcomes(chosen)})
    return rows


def _outcomes(recorded: Mapping[WaitsKey, Waits]) -> dict[str, Any]:
    by_outcome = {outcome: Waits() for outcome in OUTCOMES}
    completed = Waits()
    for (*_, outcome), waits in recorded.items():
        by_outcome[outcome].update(waits)
        if outcome != "pending":
            completed.update(waits)
    return {
        "operations": sum(waits.count for waits in by_outcome.values()),
        **{outcome: waits.count for outcome, waits in by_outcome.items()},
        "wait_us": waits_summary(completed),
        "wait_us_by_outcome": {
            outcome: waits_summary(waits) for outcome, waits in by_outcome.items() if waits.count
        },
    }


def producers_summary(
    groups: Iterable[ProducerGroup], arrivals: Mapping[str, Arrivals]
) -> list[dict[str, Any]]:
    """Per producer group: its records by outcome, and the rows of its request log."""
    rows = []
    for group in groups:
        row: dict[str, Any] = {"group": group.name, "acks": group.section.acks}
        row.update(asdict(group.counts))
        row["latency_us"] = {
            span: waits_summary(waits) for span, waits in group.latencies.waits_by_span().items()
        }
        log = arrivals.get(group.name)
        if log is not None:
            row["arrivals"] = {
                "rows": len(log),
                "bad_rows": log.bad_rows,
                "bad_rows_by_column": dict(sorted(log.bad_by_column.items())),
                "named_bad_rows": [str(bad) for bad in log.named_bad_rows],
            }
        rows.append(row)
    return rows


def consumers_summary(groups: Iterable[ConsumerGroup]) -> list[dict[str, Any]]:
    """Per consumer group: polls and records."""
    return [{"group": group.name, **asdict(group.counts)} for group in groups]
