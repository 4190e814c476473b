"""The summary of a run as tables in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

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
    if summary["consumers"]:
        console.print(_consumers(summary))
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
        ("purgatory", "requester"),
        ("operations", "at once", "by an event", "expired", "other", "p50", "p95", "p99", "max"),
    )
    for row in summary["purgatories"]:
        count = row["operations"]
        if not count:
            continue
        other_outcomes = row["cancelled"] + row["failed"] + row["pending"]
        shares = [row["immediate"], row["completed"], row["expired"], other_outcomes]
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


def _consumers(summary: Mapping[str, Any]) -> Table:
    columns = ("polls", "empty polls", "records", "skipped")
    table = _table("Consumers", ("group",), columns)
    for row in summary["consumers"]:
        numbers = (row["polls"], row["empty_polls"], row["records"], row["skipped"])
        table.add_row(row["group"], *(f"{number:,}" for number in numbers))
    return table


def _remarks(summary: Mapping[str, Any]) -> list[str]:
    notes = []
    if summary["faults"]:
        notes.append(
            f"faults: {summary['faults']}; leaders elected: {summary['elections']}, "
            f"of which unclean: {summary['unclean_elections']}"
        )
    for row in summary["producers"]:
        if row["unsettled"]:
            notes.append(f"{row['group']}: {row['unsettled']:,} records were open at the end")
        log = row.get("arrivals")
        if log is not None:
            notes.append(f"{row['group']}: {log['rows']:,} recorded arrivals")
        if log is not None and log["bad_rows"]:
            notes.append(f"{row['group']}: {log['bad_rows']:,} bad rows were skipped:")
            notes += [f"  {bad}" for bad in log["named_bad_rows"]]
            missing = log["bad_rows"] - len(log["named_bad_rows"])
            if missing:
                notes.append(f"  and {missing:,} more")
    return notes


def _share(part: int, count: int) -> str:
    if part == 0:
        return "-"
    share = 100 * part / count
    return f"{share:.1f} %" if share >= 0.05 else "< 0.1 %"


def _milliseconds(wait_us: float | None) -> str:
    return "-" if wait_us is None else f"{wait_us / 1_000:,.2f}"
