"""The summary of a run: plain data for `run.json`, and the tables in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

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
"""The rows of the table of purgatories: a purgatory and who asks in it."""


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
    """Per purgatory and kind: operations by outcome, and the waits of all that were settled."""
    rows = []
    known = {(purgatory, kind) for purgatory, kinds in TABLE_ROWS for kind in kinds}
    asked = {(key[0], key[1]) for key in recorded} - known
    names = (*PURGATORIES, *_COORDINATED)
    in_order = sorted(asked, key=lambda row: (names.index(row[0]), row))
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
    """Per producer group: what became of its records, and of the rows of its request log."""
    rows = []
    for group in groups:
        row: dict[str, Any] = {"group": group.name, "acks": group.section.acks}
        row.update(asdict(group.counts))
        row["latency_us"] = {
            span: waits_summary(waits) for span, waits in group.latencies.by_span().items()
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
    """Per group of transactional producers: what became of their transactions; without such a
    group, nothing."""
    rows = [
        {
            "group": group.name,
            **asdict(group.transaction_counts),
            "commit_us": waits_summary(group.commit_waits),
            "transaction_us": waits_summary(group.whole_waits),
        }
        for group in groups
        if isinstance(group, TransactionalGroup)
    ]
    return {"transactions": rows} if rows else {}


_SPANS = {
    "record": "record: arrival to acknowledged",
    "attempt": "attempt: send to answer or break",
    "network": "  network, there and back",
    "queue": "  queue of its connection",
    "wait": "  wait at the broker",
    "broken": "  connection broke, no answer",
}

_COUNTS = ("records", "acknowledged", "failed", "duplicates", "reorderings", "lost")


def print_report(summary: Mapping[str, Any], console: Console) -> None:
    """Print the summary of a run as tables."""
    console.print(_headline(summary))
    console.print(_purgatories(summary))
    console.print(_producers(summary))
    latencies = _latencies(summary)
    if latencies.row_count:
        console.print(latencies)
    if "transactions" in summary:
        console.print(_transactions(summary))
    if summary["consumers"]:
        console.print(_consumers(summary))
    groups = _groups(summary)
    if groups.row_count:
        console.print(groups)
    for line in _remarks(summary):
        console.print(line, highlight=False, markup=False)


def _headline(summary: Mapping[str, Any]) -> str:
    seconds = summary["virtual_ms"] / 1_000
    return f"[bold]{summary['scenario']}[/bold], seed {summary['seed']}: {seconds:,.3f} s simulated"


def _table(title: str, first: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in first:
        table.add_column(column, overflow="fold")
    for column in numbers:
        table.add_column(column, justify="right")
    return table


def _purgatories(summary: Mapping[str, Any]) -> Table:
    table = _table(
        "Purgatories (waits in ms)",
        ("purgatory", "asked by"),
        ("operations", "at once", "by an event", "expired", "other", "p50", "p95", "p99", "max"),
    )
    for row in summary["purgatories"]:
        count = row["operations"]
        if not count:
            continue
        other = row["cancelled"] + row["failed"] + row["pending"]
        shares = [row["immediate"], row["completed"], row["expired"], other]
        waits = row["wait_us"]
        table.add_row(
            row["purgatory"],
            row["kind"],
            f"{count:,}",
            *(_share(part, count) for part in shares),
            *(_milliseconds(waits[name]) for name in ("p50", "p95", "p99", "max")),
        )
    return table


def _producers(summary: Mapping[str, Any]) -> Table:
    unanswered = any(row["unanswered"] for row in summary["producers"])
    columns = (*_COUNTS[:2], *(("unanswered",) if unanswered else ()), *_COUNTS[2:])
    table = _table("Producers (records)", ("group", "acks"), columns)
    for row in summary["producers"]:
        table.add_row(row["group"], str(row["acks"]), *(f"{row[name]:,}" for name in columns))
    return table


def _latencies(summary: Mapping[str, Any]) -> Table:
    shown = ("mean", "p50", "p95", "p99", "max")
    table = _table("Latencies of producers (ms)", ("group", "time"), ("count", *shown))
    for row in summary["producers"]:
        group = row["group"]
        for span, words in _SPANS.items():
            times = row["latency_us"][span]
            if times["count"]:
                numbers = (_milliseconds(times[name]) for name in shown)
                table.add_row(group, words, f"{times['count']:,}", *numbers)
                group = ""
    return table


def _transactions(summary: Mapping[str, Any]) -> Table:
    columns = ("begun", "committed", "aborted", "fenced", "failed", "zombies")
    times = ("p50", "p99", "max")
    table = _table("Transactions (times of commits in ms)", ("group",), (*columns, *times))
    for row in summary["transactions"]:
        counts = (f"{row[name]:,}" for name in columns)
        waits = (_milliseconds(row["commit_us"][name]) for name in times)
        table.add_row(row["group"], *counts, *waits)
    return table


def _consumers(summary: Mapping[str, Any]) -> Table:
    columns = ("polls", "empty polls", "records", "skipped")
    table = _table("Consumers", ("group",), columns)
    for row in summary["consumers"]:
        numbers = (row["polls"], row["empty_polls"], row["records"], row["skipped"])
        table.add_row(row["group"], *(f"{number:,}" for number in numbers))
    return table


def _groups(summary: Mapping[str, Any]) -> Table:
    columns = ("joins", "rebalances", "expelled", "commits", "read again")
    table = _table("Groups", ("group",), columns)
    for row in summary["consumers"]:
        if row["joins"]:
            numbers = (row[name.replace("read again", "reread")] for name in columns)
            table.add_row(row["group"], *(f"{number:,}" for number in numbers))
    return table


def _remarks(summary: Mapping[str, Any]) -> list[str]:
    remarks = []
    if summary["faults"]:
        remarks.append(
            f"faults: {summary['faults']}; leaders elected: {summary['elections']}, "
            f"of which unclean: {summary['unclean_elections']}"
        )
    for row in summary.get("transactions", ()):
        if row["unsettled"]:
            remarks.append(
                f"{row['group']}: {row['unsettled']:,} transactions were open at the end"
            )
    for row in summary["producers"]:
        if row["unsettled"]:
            remarks.append(f"{row['group']}: {row['unsettled']:,} records were open at the end")
        log = row.get("arrivals")
        if log is not None:
            remarks.append(f"{row['group']}: {log['rows']:,} recorded arrivals")
        if log is not None and log["bad_rows"]:
            remarks.append(f"{row['group']}: {log['bad_rows']:,} bad rows were skipped:")
            remarks += [f"  {bad}" for bad in log["named_bad_rows"]]
            missing = log["bad_rows"] - len(log["named_bad_rows"])
            if missing:
                remarks.append(f"  and {missing:,} more")
    return remarks


def _share(part: int, count: int) -> str:
    if part == 0:
        return "-"
    share = 100 * part / count
    return f"{share:.1f} %" if share >= 0.05 else "< 0.1 %"


def _milliseconds(wait_us: float | None) -> str:
    return "-" if wait_us is None else f"{wait_us / 1_000:,.2f}"
