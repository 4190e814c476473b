"""Throughput of clients over time, and consumer lag."""

from __future__ import annotations

from collections.abc import Sequence

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
    Figure,
    axis_name,
    fault_band,
    line_color,
    panels,
    time_axis,
)
from purgatory.pipeline.report.wait_sections import view_columns
from purgatory.pipeline.result_rows import Row

_LABELS = {
    "producer": "producers: acknowledged records per s",
    "consumer": "consumers: records per s",
    "lag": "consumer lag: records",
}


def throughput_section(part: PagePart, run: Row, rows: Sequence[Row]) -> str:
    """Throughput by group and topic over time, and consumer lag at the end of each window."""
    if not rows or not part.plotted:
        return ""
    anchor = f"row-of-throughput-{part.number}-"
    plot = figure(
        f"throughput-{part.number}",
        throughput_over_time(rows, run["duration_us"], run["faults"], anchor),
        f"Throughput and consumer lag over time in {run['run_id']}",
        "Records that producers got acknowledged and that consumers read, per second; and consumer "
        "lag: acknowledged records that a group had not read at the end of the window, over the "
        "partitions of the topic.",
        where="table throughput in Parquet",
    )
    return section(
        "Throughput and consumer lag",
        plot,
        collapsible("In figures", _most_table(run, rows, anchor)),
        row_links(part, "throughput", rows),
        anchor=part.anchor("throughput"),
    )


def throughput_over_time(
    throughput: Sequence[Row], end_us: int, faults: Sequence[Row] = (), anchor: str = ""
) -> Figure:
    """The throughput of one run's clients over time, and consumer lag, in three panels.

    Args:
        throughput: the run's rows of the table of that name; at least one.
        end_us: the end of the run, in microseconds.
        faults: marked over all panels.
        anchor: the prefix of the identifiers of the rows that lines lead to.
    """
    width_us, windows_us = _width_us(throughput), _windows(throughput)
    lines = _lines(throughput)
    shown = [kind for kind in _LABELS if any(line[0] == kind for line in lines)]
    layout = panels([_LABELS[kind] for kind in shown])
    layout["shapes"] = [fault_band(fault, end_us / 1e6) for fault in faults]
    names = list(dict.fromkeys((group, topic) for _, group, topic, _ in lines))
    middles_s = [(at_us + width_us / 2) / 1e6 for at_us in windows_us]
    ends_s = [(at_us + width_us) / 1e6 for at_us in windows_us]
    data: list[Figure] = []
    for number, (kind, group, topic, values) in enumerate(lines):
        label = f"{group}, {topic}".replace("<", "&lt;")
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": label,
                "legendgroup": label,
                "showlegend": not any(line["name"] == label for line in data),
                "meta": {"client": group, "topic": topic, "row": f"{anchor}{number}"},
                "x": ends_s if kind == "lag" else middles_s,
                "y": values,
                "line": {
                    "width": 1.8,
                    "color": line_color(names.index((group, topic))),
                },
                "hovertemplate": f"{label}, %{{x}} s: %{{y:,.0f}}<extra></extra>",
                "yaxis": axis_name("y", shown.index(kind) + 1),
            }
        )
    layout["xaxis"] |= time_axis(end_us)
    return {"data": data, "layout": layout}


_Line = tuple[str, str, str, list[float]]
"""A key of `_LABELS`, the group, the topic, and a value for each of `_windows`."""


def _width_us(throughput: Sequence[Row]) -> int:
    """The width of all windows, in microseconds."""
    width_us: int = throughput[0]["window_end_us"] - throughput[0]["window_start_us"]
    return width_us


def _windows(throughput: Sequence[Row]) -> list[int]:
    """The starts of the windows with rows and of their neighbours, in microseconds.

    All others between the first and the last are empty: a line through these has the same shape.
    """
    width_us = _width_us(throughput)
    starts_us = {row["window_start_us"] for row in throughput}
    neighbours_us = {start_us + step for start_us in starts_us for step in (-width_us, width_us)}
    first_us, last_us = min(starts_us), max(starts_us)
    return sorted(at_us for at_us in starts_us | neighbours_us if first_us <= at_us <= last_us)


def _lines(throughput: Sequence[Row]) -> list[_Line]:
    width_us, windows_us = _width_us(throughput), _windows(throughput)
    lines: list[_Line] = [
        (*line, [per_window.get(at_us, 0) * 1e6 / width_us for at_us in windows_us])
        for line, per_window in _records_per_window(throughput).items()
    ]
    lags = consumer_lag(throughput, windows_us)
    return lines + [("lag", *line, [*values]) for line, values in lags.items()]


def _most_table(run: Row, throughput: Sequence[Row], anchor: str) -> str:
    rows = []
    for number, (kind, group, topic, values) in enumerate(_lines(throughput)):
        most = max(values)
        at_us = _windows(throughput)[values.index(most)]
        rows.append({"kind": kind, "group": group, "topic": topic, "most": most})
        rows[-1] |= {"at_us": at_us, "anchor": f"{anchor}{number}"}
    columns: list[Column] = [
        ("of", False, lambda row: row["kind"]),
        ("group", False, lambda row: row["group"]),
        ("topic", False, lambda row: row["topic"]),
        ("highest", True, lambda row: f"{row['most']:,.0f}"),
        ("at, s", True, lambda row: f"{row['at_us'] / 1e6:,.3f}"),
        *view_columns(run, "at_us"),
    ]
    return table("The highest throughput and lag.", columns, rows)


def _records_per_window(throughput: Sequence[Row]) -> dict[tuple[str, str, str], dict[int, int]]:
    counts: dict[tuple[str, str, str], dict[int, int]] = {}
    for row in throughput:
        per_window = counts.setdefault((row["kind"], row["group"], row["topic"]), {})
        start_us = row["window_start_us"]
        per_window[start_us] = per_window.get(start_us, 0) + row["records"]
    return counts


def consumer_lag(
    throughput: Sequence[Row], windows_us: Sequence[int]
) -> dict[tuple[str, str], list[int]]:
    """The lag of each group of consumers and topic at the end of each window, in records.

    The lag is the highest acknowledged offset less the highest offset that the group had read, over
    the partitions of the topic; 0 where the group had read further. O(rows + groups x windows).
    """
    produced: dict[tuple[str, int], dict[int, int]] = {}
    consumed: dict[tuple[str, str], dict[int, dict[int, int]]] = {}
    for row in throughput:
        if row["end_offset"] is None:
            continue
        topic, partition, start_us = row["topic"], row["partition"], row["window_start_us"]
        if row["kind"] == "producer":
            ends = produced.setdefault((topic, partition), {})
        else:
            ends = consumed.setdefault((row["group"], topic), {}).setdefault(partition, {})
        ends[start_us] = max(ends.get(start_us, 0), row["end_offset"])
    result = {}
    for (group, topic), partitions in consumed.items():
        lag = [0] * len(windows_us)
        for of_topic, partition in produced:
            if of_topic != topic:
                continue
            log_end = position = 0
            read = partitions.get(partition, {})
            for number, at_us in enumerate(windows_us):
                log_end = max(log_end, produced[topic, partition].get(at_us, 0))
                position = max(position, read.get(at_us, 0))
                lag[number] += max(0, log_end - position)
        result[group, topic] = lag
    return result
