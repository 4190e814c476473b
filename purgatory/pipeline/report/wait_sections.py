"""The sections on waits: outcomes of operations, and their waits, over time and by place."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape
from shlex import quote

from purgatory.pipeline.jobs.result_orders import LATENCY_SPANS
from purgatory.pipeline.report.page import (
    Column,
    PagePart,
    collapsible,
    figure,
    row_links,
    section,
    table,
)
from purgatory.pipeline.report.plots import (
    by_purgatory,
    expiry_map,
    outcome_shares,
    sizes,
    wait_bins,
    wait_percentiles,
    waits_over_time,
    waits_to_draw,
)
from purgatory.pipeline.report.sentences import expired_severity
from purgatory.pipeline.result_rows import Row, group_by, label_waits, milliseconds

MOST_EXPIRY_ROWS = 12
"""The number of keys in the table of expired operations; the one in Parquet has more."""

_QUANTILES = ("p50", "p95", "p99", "max")


def waits_section(
    part: PagePart,
    run: Row,
    waits: Sequence[Row],
    latencies: Sequence[Row],
    attempts: Sequence[Row],
) -> str:
    """Latencies of clients, beside the waits of operations in the purgatories."""
    shown = part.anchored("waits", label_waits(waits))
    rows_of = by_purgatory(shown)
    if latencies and "Produce" not in rows_of:
        rows_of = {"Produce": [], **rows_of}
    parts = [f'<span id="{part.anchor("latencies")}"></span>'] if rows_of or attempts else []
    for number, (purgatory, rows) in enumerate(rows_of.items()):
        of_clients = part.anchored("latencies", latencies) if purgatory == "Produce" else []
        parts.append(f"<h4>{escape(purgatory)}</h4>")
        drawn = [*_as_waits(of_clients), *waits_to_draw(rows)]
        if part.plotted and drawn:
            parts.append(
                figure(
                    f"waits-{part.number}-{number}",
                    wait_percentiles(drawn),
                    f"Percentiles of the waits of {purgatory} in {run['run_id']}",
                    "From the median to the longest, by powers of ten. Operations that completed "
                    "at once did not wait and are left out; pending ones waited at least so long.",
                )
            )
        if of_clients:
            parts.append(_latencies_table(of_clients) + row_links(part, "latencies", latencies))
        if rows:
            parts.append(_waits_table(rows, purgatory))
        if of_clients and attempts:
            parts.append(_attempts(part, attempts))
    if attempts and not latencies:
        parts.append(_attempts(part, attempts))
    if shown:
        parts.append(row_links(part, "waits", waits))
    heading = "Client latency beside the waits" if latencies else "Waits"
    return section(heading, *parts, anchor=part.anchor("waits"))


def _as_waits(latencies: Sequence[Row]) -> list[Row]:
    """The latencies of clients, as rows that are drawn as waits are."""
    names = {
        "record": "until acknowledged",
        "attempt": "send to response",
        "queue": "of it, queued",
    }
    return [
        {
            "label": row["group"],
            "outcome": names[row["span"]],
            "over_kinds": False,
            "anchor": row["anchor"],
            **{f"wait_{name}_us": row[f"latency_{name}_us"] for name in _QUANTILES},
        }
        for row in latencies
        if row["span"] in names
    ]


def _attempts(part: PagePart, attempts: Sequence[Row]) -> str:
    """The outcomes of attempts, folded away."""
    columns: list[Column] = [
        ("group", False, lambda row: row["group"]),
        ("outcome", False, lambda row: row["outcome"]),
        ("error", False, lambda row: "any" if row["error"] == "*" else row["error"]),
        ("attempts", True, lambda row: f"{row['attempts']:,}"),
        ("records", True, lambda row: f"{row['records']:,}"),
        ("stored", True, lambda row: f"{row['stored']:,}"),
        ("duplicates", True, lambda row: f"{row['copies']:,}"),
        ("from, s", True, lambda row: f"{row['from_us'] / 1e6:,.3f}"),
        ("until, s", True, lambda row: f"{row['until_us'] / 1e6:,.3f}"),
    ]
    caption = (
        "Attempts to send by their outcome, and the records in them: a record counts as stored "
        "where a consumer read it, and in each outcome that one of its attempts had."
    )
    content = table(caption, columns, attempts, is_total=lambda row: row["outcome"] == "all")
    return collapsible("Outcomes of attempts to send", content) + row_links(
        part, "attempts", attempts
    )


def outcomes_section(part: PagePart, run: Row, waits: Sequence[Row]) -> str:
    """The outcomes of the operations; their figures are in the table of waits."""
    content = part.anchored("waits", label_waits(waits))
    if not content or not part.plotted:
        return ""
    shares = figure(
        f"shares-{part.number}", outcome_shares(content), f"Shares of outcomes in {run['run_id']}"
    )
    return section("Outcomes of the operations", shares)


def _latencies_table(latencies: Sequence[Row]) -> str:
    columns: list[Column] = [
        ("group", False, lambda row: row["group"]),
        ("span", False, lambda row: row["span"]),
        ("from ... to", False, lambda row: LATENCY_SPANS[row["span"]]),
        ("count", True, lambda row: f"{row['count']:,}"),
        *(
            (name, True, partial(_milliseconds, f"latency_{name}_us"))
            for name in ("mean", "p50", "p95", "p99", "max")
        ),
    ]
    caption = (
        "Latency of clients in milliseconds; an attempt counts for each of its records. "
        "A wait in the purgatory begins when the broker handles the request. A broker handles one "
        "request of a connection at a time; the others queue behind it."
    )
    return table(caption, columns, latencies, is_total=lambda row: row["span"] == "record")


def _milliseconds(column: str, row: Row, digits: int = 2) -> str:
    return milliseconds(row[column], digits=digits)


def distribution_section(
    part: PagePart, run: Row, distribution: Sequence[Row], slowest: Sequence[Row]
) -> str:
    """The distribution of the waits, by outcome.

    A bin leads to the first of the slowest operations that is in it.
    """
    if not distribution or not part.plotted:
        return ""
    operations = part.anchored("slowest", slowest)
    plot = figure(
        f"bins-{part.number}",
        wait_bins([{**row, "anchor": _first_within(row, operations)} for row in distribution]),
        f"Distribution of the waits in {run['run_id']}",
        "Numbers of operations by wait, in five bins per power of ten, and by the outcome of them.",
        where="table distribution in Parquet",
    )
    rows = row_links(part, "distribution", distribution)
    return section("Distribution of the waits", plot, rows)


def _first_within(bin_: Row, operations: Sequence[Row]) -> str:
    """The identifier of the first operation in a bin; empty for none."""
    return next(
        (
            row["anchor"]
            for row in operations
            if (row["purgatory"], row["outcome"]) == (bin_["purgatory"], bin_["outcome"])
            and bin_["low_us"] <= row["wait_us"] < bin_["high_us"]
        ),
        "",
    )


def over_time_section(part: PagePart, run: Row, over_time: Sequence[Row]) -> str:
    """The waits over time, with the faults marked."""
    all_rows = [row for row in over_time if row["kind"] == row["outcome"] == "all"]
    rows = part.anchored("waits_over_time", all_rows)
    if not part.plotted or not any(row["wait_max_us"] is not None for row in rows):
        return ""
    width_us = rows[0]["window_end_us"] - rows[0]["window_start_us"]
    marked = " Bands mark the faults." if run["faults"] else ""
    plot = figure(
        f"times-{part.number}",
        waits_over_time(rows, run["duration_us"], run["faults"]),
        f"Waits over time in {run['run_id']}",
        f"Of the operations that started in the same {width_us / 1000:,g} ms and had to wait; "
        f"percentiles above 10 ms are up to 0.1 % too small.{marked}",
    )
    columns: list[Column] = [
        ("purgatory", False, lambda row: row["purgatory"]),
        ("from, s", True, lambda row: f"{row['window_start_us'] / 1e6:,.3f}"),
        ("count", True, lambda row: f"{row['operations']:,}"),
        *(
            (f"{name}, ms", True, partial(_milliseconds, f"wait_{name}_us", digits=1))
            for name in ("p50", "p99", "max")
        ),
        *view_columns(run, "window_start_us"),
    ]
    ordered = [row for of_purgatory in by_purgatory(rows).values() for row in of_purgatory]
    return section(
        "Waits over time",
        plot,
        collapsible("In figures", table("Waits by the start of the operations.", columns, ordered)),
        row_links(part, "waits_over_time", over_time),
        anchor=part.anchor("over-time"),
    )


def expiry_section(part: PagePart, run: Row, expiry: Sequence[Row]) -> str:
    """The expired operations by broker and by key."""
    if not any(row["expired"] for row in expiry):
        return ""
    plot = ""
    anchored = part.anchored("expiry", expiry)
    worst_first = sorted(
        group_by([row for row in anchored if part.plotted], "purgatory").items(),
        key=lambda item: (expired_severity(item[0]), item[0]),
    )
    for number, (purgatory, rows) in enumerate(worst_first):
        if not any(row["expired"] for row in rows):
            continue
        keyed = any(row["watch_key"] is not None for row in rows)
        by = "broker and partition" if keyed else "broker"
        counts = [row for row in rows if row["watch_key"] is None]
        expired, waited = (sum(row[name] for row in counts) for name in ("expired", "operations"))
        plot += figure(
            f"expiry-{part.number}-{number}",
            expiry_map(rows),
            f"{purgatory}: expired operations by {by} in {run['run_id']}",
            f"{purgatory}: of {waited:,} operations that had to wait, {expired:,} expired. Their "
            f"share by {by}"
            + (
                "; one that waited for several partitions counts in each."
                if keyed
                else ": the trace does not have the partitions that they waited for."
            ),
        )
    figures = collapsible("In figures", _expiry_table(anchored))
    figures += row_links(part, "expiry", expiry)
    return section("Expired operations by place", plot, figures, anchor=part.anchor("expiry"))


def _expiry_table(expiry: Sequence[Row]) -> str:
    worst = sorted(
        (row for row in expiry if row["expired"]),
        key=lambda row: (row["watch_key"] is not None, -row["expiry_ratio"], -row["expired"]),
    )
    columns: list[Column] = [
        ("purgatory", False, lambda row: row["purgatory"]),
        ("broker", True, lambda row: str(row["broker"])),
        ("waited for", False, lambda row: row["watch_key"] or "all"),
        ("waited", True, lambda row: f"{row['operations']:,}"),
        ("expired", True, lambda row: f"{row['expired']:,}"),
        ("share, %", True, lambda row: f"{100 * row['expiry_ratio']:.2f}"),
        ("from, s", True, lambda row: f"{row['from_us'] / 1e6:,.3f}"),
        ("until, s", True, lambda row: f"{row['until_us'] / 1e6:,.3f}"),
    ]
    return table(
        f"The brokers, and the {MOST_EXPIRY_ROWS} keys, where most of them expired.",
        columns,
        worst[: MOST_EXPIRY_ROWS + sum(row["watch_key"] is None for row in worst)],
        is_total=lambda row: row["watch_key"] is None,
    )


def _waits_table(waits: Sequence[Row], purgatory: str) -> str:
    columns: list[Column] = [
        ("purgatory", False, lambda row: row["label"]),
        ("outcome", False, lambda row: row["outcome"]),
        ("operations", True, lambda row: f"{row['operations']:,}"),
        ("share, %", True, lambda row: f"{100 * row['share']:.2f}"),
        ("mean, ms", True, lambda row: milliseconds(row["wait_mean_us"])),
        ("p50, ms", True, lambda row: milliseconds(row["wait_p50_us"])),
        ("p95, ms", True, lambda row: milliseconds(row["wait_p95_us"])),
        ("p99, ms", True, lambda row: milliseconds(row["wait_p99_us"])),
        ("max, ms", True, lambda row: milliseconds(row["wait_max_us"])),
    ]
    caption = (
        f"{purgatory}: waits by requester, where there are several kinds, and outcome. Percentiles "
        "are exact; those of all outcomes are over completed operations, without the pending ones."
    )
    return table(caption, columns, waits, is_total=lambda row: row["outcome"] == "all")


def slowest_section(part: PagePart, run: Row, slowest: Sequence[Row]) -> str:
    """The operations that waited longest, each with the command that shows it in the view."""
    if not slowest:
        return ""
    columns: list[Column] = [
        ("purgatory", False, lambda row: row["purgatory"]),
        ("kind", False, lambda row: row["kind"]),
        ("outcome", False, lambda row: row["outcome"]),
        ("waited for", False, lambda row: ", ".join(row["watch_keys"] or ()) or "-"),
        ("broker", True, lambda row: str(row["broker"])),
        ("operation", True, lambda row: str(row["operation"])),
        ("at, s", True, lambda row: f"{row['start_us'] / 1e6:,.3f}"),
        ("wait, ms", True, lambda row: milliseconds(row["wait_us"], digits=2)),
    ]
    columns += view_columns(run, "start_us")
    anchored = part.anchored("slowest", slowest)
    ordered = [row for rows in by_purgatory(anchored).values() for row in rows]
    caption = "The operations that waited longest in each purgatory, produces first."
    content = table(caption, columns, ordered)
    return section(
        "The slowest", content, row_links(part, "slowest", slowest), anchor=part.anchor("slowest")
    )


def view_columns(run: Row, column: str) -> list[Column]:
    """A column of commands that show the moment of a row; none where the view can't read the trace.

    Args:
        column: has the moment, in microseconds.
    """
    if "://" in run["folder"]:
        return []
    command = f"purgatory view {quote(run['folder'])} --at"
    return [("in the view", False, lambda row: f"{command} {row[column]}us")]


# The sections on parked operations: sizes over time, their peaks, and the keys waited for most.


def sizes_section(part: PagePart, run: Row, occupancy: Sequence[Row]) -> str:
    """Parked operations over time."""
    if not occupancy or not part.plotted:
        return ""
    marked = " Bands mark the faults." if run["faults"] else ""
    width_us = occupancy[0]["bucket_end_us"] - occupancy[0]["bucket_start_us"]
    by_broker = any(row["broker"] is not None for row in occupancy)
    click = " A click on a broker in the legend draws it too." if by_broker else ""
    anchored = part.anchored("occupancy", occupancy)
    plot = figure(
        f"sizes-{part.number}",
        sizes(anchored, run["faults"]),
        f"Size of each purgatory over time in {run['run_id']}",
        f"In buckets of {width_us / 1000:,g} ms: the highest number in the bucket, "
        f"and the mean over its time.{marked}{click}",
    )
    figures = collapsible("In figures", _sizes_table(run, anchored))
    rows = row_links(part, "occupancy", occupancy, "Rows" if by_broker else "Rows over all brokers")
    return section(
        "Pending operations over time", plot, figures, rows, anchor=part.anchor("occupancy")
    )


def _sizes_table(run: Row, occupancy: Sequence[Row]) -> str:
    rows = []
    for purgatory, of_purgatory in group_by(occupancy, "purgatory").items():
        for broker, buckets in group_by(of_purgatory, "broker").items():
            peak = max(buckets, key=lambda row: row["size_max"])
            span_us = buckets[-1]["bucket_end_us"] - buckets[0]["bucket_start_us"]
            weighted = sum(
                row["size_mean"] * (row["bucket_end_us"] - row["bucket_start_us"])
                for row in buckets
            )
            rows.append(
                {
                    "purgatory": purgatory,
                    "broker": "all" if broker is None else str(broker),
                    "mean": weighted / span_us,
                    "peak": peak["size_max"],
                    "peak_us": peak["bucket_start_us"],
                    "anchor": peak["anchor"],
                }
            )
    columns: list[Column] = [
        ("purgatory", False, lambda row: row["purgatory"]),
        ("broker", False, lambda row: row["broker"]),
        ("mean size", True, lambda row: f"{row['mean']:,.2f}"),
        ("highest size", True, lambda row: f"{row['peak']:,}"),
        ("at, s", True, lambda row: f"{row['peak_us'] / 1e6:,.3f}"),
        *view_columns(run, "peak_us"),
    ]
    caption = "Operations that waited at the same time."
    return table(caption, columns, rows, is_total=lambda row: row["broker"] == "all")


def peaks_section(part: PagePart, peaks: Sequence[Row]) -> str:
    """The highest peaks of parked operations, and their surroundings."""
    if not peaks:
        return ""
    columns: list[Column] = [
        ("purgatory", False, lambda row: row["purgatory"]),
        ("parked", True, lambda row: f"{row['size']:,}"),
        ("at, s", True, lambda row: f"{row['at_us'] / 1e6:,.3f}"),
        ("the oldest for, ms", True, lambda row: milliseconds(row["oldest_us"], digits=1)),
        ("came before", True, lambda row: f"{row['arrivals_before']:,}"),
        ("usual", True, lambda row: f"{row['arrivals_usual']:,.1f}"),
        ("faults", False, lambda row: ", ".join(row["faults"] or ()) or "-"),
    ]
    content = table("The moments at which most were parked in each purgatory.", columns, peaks)
    rows = row_links(part, "peaks", peaks)
    return section("Peaks", content, rows, anchor=part.anchor("peaks"))


def keys_section(part: PagePart, keys: Sequence[Row]) -> str:
    """The keys that most operations waited for."""
    if not keys:
        return ""
    columns: list[Column] = [
        ("purgatory", False, lambda row: row["purgatory"]),
        ("key", False, lambda row: row["key"]),
        ("mean parked", True, lambda row: f"{row['mean_parked']:,.3f}"),
        ("entries", True, lambda row: f"{row['entries']:,}"),
        ("expired", True, lambda row: f"{row['expired']:,}"),
        ("mean wait, ms", True, lambda row: milliseconds(row["wait_mean_us"], digits=2)),
        ("max, ms", True, lambda row: milliseconds(row["wait_max_us"], digits=2)),
    ]
    content = table(
        "The keys that most operations waited for, by the mean number parked.", columns, keys
    )
    return section("Hot keys", content, row_links(part, "hot_keys", keys))
