"""The summary of a run as plain data, for the tables in the terminal and for `run.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from purgatory.simulation.arrivals import Arrivals
from purgatory.simulation.consumer import ConsumerGroup
from purgatory.simulation.latencies import Waits
from purgatory.simulation.producer_group import ProducerGroup, TransactionalGroup
from purgatory.simulation.runtime import GROUP_PURGATORIES, PURGATORIES, TRANSACTION_PURGATORIES
from purgatory.simulation.trace import OUTCOMES, WaitsKey

_SHARES = {"p50": 0.50, "p95": 0.95, "p99": 0.99, "p999": 0.999}
_COORDINATED = (*GROUP_PURGATORIES, *TRANSACTION_PURGATORIES)

TABLE_ROWS = (
    ("Produce", ("producer",)),
    ("Fetch", ("follower",)),
    ("Fetch", ("consumer",)),
    ("DeleteRecords", ("admin",)),
)
"""The rows of the table of purgatories: a purgatory and its kinds of requesters."""


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
    rows = []
    known = {(purgatory, kind) for purgatory, kinds in TABLE_ROWS for kind in kinds}
    coordinator_kinds = {(key[0], key[1]) for key in recorded} - known
    names = (*PURGATORIES, *_COORDINATED)
    in_order = sorted(coordinator_kinds, key=lambda row: (names.index(row[0]), row))
    for purgatory, kinds in (*TABLE_ROWS, *((name, (kind,)) for name, kind in in_order)):
        chosen = {key: waits for key, waits in recorded.items() if key[0] == purgatory}
        rows.append({"purgatory": purgatory, "kind": kinds[0], **_outcomes(chosen, kinds)})
    return rows


def brokers_summary(recorded: Mapping[WaitsKey, Waits]) -> list[dict[str, Any]]:
    """The same per broker and purgatory, over all kinds."""
    rows = []
    for broker in sorted({key[2] for key in recorded}):
        present = {key[0] for key in recorded if key[0] in _COORDINATED}
        for purgatory in (*PURGATORIES, *sorted(present)):
            chosen = {
                key: waits
                for key, waits in recorded.items()
                if key[0] == purgatory and key[2] == broker
            }
            rows.append({"broker": broker, "purgatory": purgatory, **_outcomes(chosen)})
    return rows


def _outcomes(
    recorded: Mapping[WaitsKey, Waits], kinds: Iterable[str] | None = None
) -> dict[str, Any]:
    wanted = None if kinds is None else set(kinds)
    by_outcome = {outcome: Waits() for outcome in OUTCOMES}
    settled = Waits()
    for (_, kind, _, outcome), waits in recorded.items():
        if wanted is None or kind in wanted:
            by_outcome[outcome].update(waits)
            if outcome != "pending":
                settled.update(waits)
    return {
        "operations": sum(waits.count for waits in by_outcome.values()),
        **{outcome: waits.count for outcome, waits in by_outcome.items()},
        "wait_us": waits_summary(settled),
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


def transactions_summary(groups: Iterable[ProducerGroup]) -> dict[str, list[dict[str, Any]]]:
    """Per group of transactional producers: its transactions by outcome; empty without such a
    group."""
    rows = [
        {
            "group": group.name,
            **asdict(group.transaction_counts),
            "commit_us": waits_summary(group.commit_waits),
            "transaction_us": waits_summary(group.transaction_waits),
        }
        for group in groups
        if isinstance(group, TransactionalGroup)
    ]
    return {"transactions": rows} if rows else {}
