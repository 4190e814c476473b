"""The sections of one run in the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from html import escape

from purgatory.analysis.analysis_words import SPANS
from purgatory.analysis.reports.audit_report import audit_section
from purgatory.analysis.reports.headline import fault_in_words, headline
from purgatory.analysis.reports.page import Column, figure, section, table
from purgatory.analysis.reports.report_plots import outcome_shares, sizes, wait_percentiles, waited
from purgatory.analysis.reports.report_results import Results
from purgatory.analysis.reports.wait_plots import expiry_map, wait_bins, waits_over_time
from purgatory.analysis.result_rows import Row, grouped, milliseconds, shown_waits

MOST_PLOTTED_RUNS = 12
"""How many runs get plots; more would make a page that no browser opens with ease."""

MOST_EXPIRY_ROWS = 12
"""How many keys the table of expired operations shows; the one in Parquet has more."""


def operations_of(waits: Sequence[Row], outcome: str) -> int:
    """How many operations some rows of the table `waits` count under one outcome."""
    return sum(row["operations"] for row in waits if row["outcome"] == outcome)


def run_report(number: int, results: Results, *, plotted: bool) -> str:
    """All sections of one run.

    Args:
        number: the run's, for identifiers of plots.
        results: its rows, and no other run's.
        plotted: whether it gets plots.
    """
    (run,) = results.runs
    audited = audit_section(number, results.audit, results.witnesses, drawn=plotted)
    about = f'<p class="headline">{escape(headline(results))}</p>{_about(run)}'
    waits = shown_waits(results.waits)
    if not waits:
        none = '<section><p class="note">This run has no operations.</p></section>'
        return "\n".join(part for part in (about, none, audited) if part)
    parts = [about, _facts(waits, results.occupancy), _faults(run["faults"])]
    parts += [*_waits(number, run, waits, plotted=plotted), _latencies(results.latencies)]
    if plotted:
        parts += [
            _distribution(number, run, results.distribution),
            _over_time(number, run, results.over_time),
            _sizes(number, run, results.occupancy),
            _expiry(number, run, results.expiry),
        ]
    return "\n".join(part for part in (*parts, audited) if part)


def _waits(number: int, run: Row, waits: Sequence[Row], *, plotted: bool) -> Iterator[str]:
    """What became of the operations, and how long they waited."""
    name = run["run_id"]
    percentiles = ""
    if plotted:
        shares = figure(f"shares-{number}", outcome_shares(waits), f"Shares of outcomes in {name}")
        yield section("What became of the operations", shares)
        if waited(waits):
            percentiles = figure(
                f"waits-{number}",
                wait_percentiles(waits),
                f"Percentiles of the waits in {name}",
                "From the median to the longest wait, by powers of ten. What was completed at once "
                "did not wait and is left out; what was pending at the end waited so long at "
                "least.",
            )
    else:
        yield (
            f'<p class="note">Plots are drawn for the first {MOST_PLOTTED_RUNS} runs; the table '
            "occupancy has this one too.</p>"
        )
    yield section("How long they waited", percentiles, _waits_table(waits))


def _latencies(latencies: Sequence[Row]) -> str:
    if not latencies:
        return ""
    columns: list[Column] = [
        ("group", False, lambda row: row["group"]),
        ("span", False, lambda row: row["span"]),
        ("from ... to", False, lambda row: SPANS[row["span"]]),
        ("count", True, lambda row: f"{row['count']:,}"),
        *(
            (name, True, partial(_latency, f"latency_{name}_us"))
            for name in ("mean", "p50", "p95", "p99", "max")
        ),
    ]
    caption = (
        "In milliseconds; an attempt counts for each of its records. A purgatory's wait begins "
        "when the broker takes a request up. One request of a connection is served at a time, and "
        "the others queue behind it."
    )
    shown = table(caption, columns, latencies, is_total=lambda row: row["span"] == "record")
    return section("How long producers waited for answers", shown)


def _latency(column: str, row: Row) -> str:
    return milliseconds(row[column], digits=2)


def _about(run: Row) -> str:
    complete = run["complete"]
    seed = "" if run["seed"] is None else f"seed {run['seed']}, "
    mark = (
        '<span class="mark">complete</span>'
        if complete
        else '<span class="mark broken">incomplete</span>'
    )
    return (
        f"<p>Scenario <strong>{escape(run['scenario'])}</strong>, {seed}"
        f"{run['duration_us'] / 1e6:,.3f} s. {mark}</p>"
    )


def _facts(waits: Sequence[Row], occupancy: Sequence[Row]) -> str:
    """What matters most of one run, in figures that are seen at once."""
    overall = [row for row in waits if row["kind"] == "all"]
    operations = operations_of(overall, "all")
    facts = [("operations", f"{operations:,}", "")]
    for label, count in (
        ("had to wait", operations - operations_of(overall, "immediate")),
        ("expired", operations_of(overall, "expired")),
    ):
        facts.append((label, f"{count:,}", f" {100 * count / operations:.1f} %"))
    settled = [row for row in overall if row["outcome"] == "all"]
    longest = max((row["wait_max_us"] or 0 for row in settled), default=0)
    facts.append(("longest wait", f"{longest / 1000:,.1f}", " ms"))
    highest = [row["size_max"] for row in occupancy if row["broker"] is None]
    if highest:
        facts.append(("most that waited at once", f"{max(highest):,}", ""))
    return (
        '<dl class="facts">'
        + "".join(
            f"<div><dt>{label}</dt><dd>{figure}<small>{unit}</small></dd></div>"
            for label, figure, unit in facts
        )
        + "</dl>"
    )


def _faults(faults: Sequence[Row]) -> str:
    if not faults:
        return ""
    items = [f"<li>{escape(fault_in_words(fault))}</li>" for fault in faults]
    return section("What was made to go wrong", f"<ul>{''.join(items)}</ul>")


def _distribution(number: int, run: Row, distribution: Sequence[Row]) -> str:
    if not distribution:
        return ""
    drawn = figure(
        f"bins-{number}",
        wait_bins(distribution),
        f"Distribution of the waits in {run['run_id']}",
        "How many operations waited how long, in five bins per power of ten, by what became of "
        "them.",
        where="table distribution in Parquet",
    )
    return section("How the waits are distributed", drawn)


def _over_time(number: int, run: Row, over_time: Sequence[Row]) -> str:
    rows = [row for row in over_time if row["kind"] == row["outcome"] == "all"]
    if not any(row["wait_max_us"] is not None for row in rows):
        return ""
    width_us = rows[0]["window_end_us"] - rows[0]["window_start_us"]
    marked = " Bands mark the faults." if run["faults"] else ""
    drawn = figure(
        f"times-{number}",
        waits_over_time(rows, run["duration_us"], run["faults"]),
        f"Waits over time in {run['run_id']}",
        f"Of the operations that started in the same {width_us / 1000:,g} ms and had to wait; "
        f"percentiles above 10 ms are up to 0.1 % too small.{marked}",
        where="table waits_over_time in Parquet",
    )
    return section("When they waited", drawn)


def _expiry(number: int, run: Row, expiry: Sequence[Row]) -> str:
    if not any(row["expired"] for row in expiry):
        return ""
    keyed = any(row["watch_key"] is not None for row in expiry)
    by = "broker and partition" if keyed else "broker and purgatory"
    drawn = figure(
        f"expiry-{number}",
        expiry_map(expiry),
        f"Expired operations by {by} in {run['run_id']}",
        f"The share of those that waited which expired, by {by}."
        + ("" if keyed else " The trace does not tell the partitions that they waited for."),
    )
    return section("Where they expired", drawn, _expiry_table(expiry))


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
    ]
    return table(
        f"The brokers, and the {MOST_EXPIRY_ROWS} keys, where most of them expired.",
        columns,
        worst[: MOST_EXPIRY_ROWS + sum(row["watch_key"] is None for row in worst)],
        is_total=lambda row: row["watch_key"] is None,
    )


def _sizes(number: int, run: Row, occupancy: Sequence[Row]) -> str:
    if not occupancy:
        return ""
    marked = " Bands mark the faults." if run["faults"] else ""
    drawn = figure(
        f"sizes-{number}",
        sizes(occupancy, run["faults"]),
        f"Size of each purgatory over time in {run['run_id']}",
        f"In buckets of {run['bucket_width_us'] / 1000:,g} ms: the highest number in the bucket, "
        f"and the mean over its time.{marked} A click on a broker in the legend draws it too.",
    )
    return section("How many waited", drawn, _sizes_table(occupancy))


def _waits_table(waits: Sequence[Row]) -> str:
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
        "Waits by purgatory, who asked where several kinds did, and outcome. Percentiles are "
        "exact; those of all outcomes are over settled operations, without the pending ones."
    )
    return table(caption, columns, waits, is_total=lambda row: row["outcome"] == "all")


def _sizes_table(occupancy: Sequence[Row]) -> str:
    rows = []
    for purgatory, of_purgatory in grouped(occupancy, "purgatory").items():
        for broker, buckets in grouped(of_purgatory, "broker").items():
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
                    "peak_s": peak["bucket_start_us"] / 1e6,
                }
            )
    columns: list[Column] = [
        ("purgatory", False, lambda row: row["purgatory"]),
        ("broker", False, lambda row: row["broker"]),
        ("mean size", True, lambda row: f"{row['mean']:,.2f}"),
        ("highest size", True, lambda row: f"{row['peak']:,}"),
        ("first in the bucket at, s", True, lambda row: f"{row['peak_s']:,.3f}"),
    ]
    caption = "How many operations waited at the same time."
    return table(caption, columns, rows, is_total=lambda row: row["broker"] == "all")
