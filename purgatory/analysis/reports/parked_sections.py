"""The sections on what was parked: sizes over time, their peaks, and the keys waited for most."""

from __future__ import annotations

from collections.abc import Sequence

from purgatory.analysis.reports.page import Column, figure, folded, section, table
from purgatory.analysis.reports.page_part import PagePart
from purgatory.analysis.reports.report_plots import sizes
from purgatory.analysis.reports.row_links import row_links
from purgatory.analysis.result_rows import Row, grouped


def sizes_section(part: PagePart, run: Row, occupancy: Sequence[Row]) -> str:
    """How many waited over time."""
    if not occupancy or not part.plotted:
        return ""
    marked = " Bands mark the faults." if run["faults"] else ""
    drawn = figure(
        f"sizes-{part.number}",
        sizes(occupancy, run["faults"]),
        f"Size of each purgatory over time in {run['run_id']}",
        f"In buckets of {run['bucket_width_us'] / 1000:,g} ms: the highest number in the bucket, "
        f"and the mean over its time.{marked} A click on a broker in the legend draws it too.",
    )
    figures = folded("In figures", _sizes_table(occupancy))
    rows = row_links(part, "occupancy", occupancy)
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
