"""The sections on what was parked: sizes over time, their peaks, and the keys waited for most."""

from __future__ import annotations

from collections.abc import Sequence

from purgatory.analysis.reports.page import Column, figure, folded, section, table
from purgatory.analysis.reports.page_part import PagePart
from purgatory.analysis.reports.report_plots import sizes
from purgatory.analysis.reports.row_links import row_links
from purgatory.analysis.result_rows import Row, grouped, milliseconds


def sizes_section(part: PagePart, run: Row, occupancy: Sequence[Row]) -> str:
    """How many waited over time."""
    if not occupancy or not part.plotted:
        return ""
    marked = " Bands mark the faults." if run["faults"] else ""
    width_us = occupancy[0]["bucket_end_us"] - occupancy[0]["bucket_start_us"]
    by_broker = any(row["broker"] is not None for row in occupancy)
    click = " A click on a broker in the legend draws it too." if by_broker else ""
    drawn = figure(
        f"sizes-{part.number}",
        sizes(occupancy, run["faults"]),
        f"Size of each purgatory over time in {run['run_id']}",
        f"In buckets of {width_us / 1000:,g} ms: the highest number in the bucket, "
        f"and the mean over its time.{marked}{click}",
    )
    figures = folded("In figures", _sizes_table(occupancy))
    rows = row_links(part, "occupancy", occupancy, "Rows" if by_broker else "Rows over all brokers")
    return section("How many waited", drawn, figures, rows, anchor=part.anchor("occupancy"))


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


def peaks_section(part: PagePart, peaks: Sequence[Row]) -> str:
    """When the most were parked, and what stood around it."""
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
    shown = table("The moments at which most were parked in each purgatory.", columns, peaks)
    rows = row_links(part, "peaks", peaks)
    return section("Peaks", shown, rows, anchor=part.anchor("peaks"))


def law_section(part: PagePart, law: Sequence[Row]) -> str:
    """Little's law: arrivals times mean wait is what was parked on average."""
    if not law:
        return ""
    columns: list[Column] = [
        ("purgatory", False, lambda row: row["purgatory"]),
        ("broker", False, lambda row: "all" if row["broker"] is None else str(row["broker"])),
        ("entries", True, lambda row: f"{row['entries']:,}"),
        ("per s", True, lambda row: f"{row['arrivals_per_s']:,.1f}"),
        ("mean wait, ms", True, lambda row: milliseconds(row["mean_wait_us"], digits=2)),
        ("product", True, lambda row: f"{row['arrivals_times_wait']:,.3f}"),
        ("mean parked", True, lambda row: f"{row['mean_parked']:,.3f}"),
        ("pending", True, lambda row: f"{row['pending']:,}"),
    ]
    shown = table("Arrivals, times the mean wait, is the mean number parked.", columns, law)
    return section("How many were parked on average", shown, row_links(part, "littles_law", law))


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
    shown = table("The keys that most waited for, by the mean number parked.", columns, keys)
    return section("Hot keys", shown, row_links(part, "hot_keys", keys))
