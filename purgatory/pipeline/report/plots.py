"""The plots of the report, as figures of plotly in plain data.

Every function takes rows of the result tables and gives one figure. Colors are those of Okabe and
Ito, which are distinct for any color vision; labels or tables show all that a color shows. Labels
stand over the plots that they name, not beside them, so that a narrow screen has its whole width
for the plot. Backgrounds are left to the page, and so are the colors of text and grids, which the
page sets by the classes of plotly's elements: it may be light or dark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from purgatory.pipeline.result_rows import Row, group_by

Figure = dict[str, Any]

COLORS: Mapping[str, str] = {
    "immediate": "#009e73",
    "completed": "#0072b2",
    "expired": "#d55e00",
    "cancelled": "#999999",
    "failed": "#cc79a7",
    "pending": "#e69f00",
    "all": "#333333",
}
OTHER_COLOR = "#56b4e9"
_LINE_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")
_BROKER_COLORS = ("#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#999999")
_SYMBOLS = {
    "wait_p50_us": ("p50", "circle"),
    "wait_p95_us": ("p95", "diamond"),
    "wait_p99_us": ("p99", "square"),
    "wait_max_us": ("max", "line-ns-open"),
}
_SMALLEST_MS = 0.001
GRID = {"gridcolor": "#e5e7eb", "zerolinecolor": "#9ca3af", "automargin": True, "fixedrange": True}
_FAULT_COLOR = "rgba(213, 94, 0, 0.14)"
_LABELLED_ROW_PX = 50


def outcome_shares(waits: Sequence[Row]) -> Figure:
    """A bar per label of one run's shown waits, cut into the shares of its outcomes."""
    rows = [row for row in waits if row["outcome"] != "all" and not row["over_kinds"]]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": outcome,
            "y": [row["label"] for row in outcome_rows],
            "x": [100 * row["share"] for row in outcome_rows],
            "width": 0.5,
            "customdata": [row["operations"] for row in outcome_rows],
            "ids": row_ids(outcome_rows),
            "texttemplate": "%{x:.1f} %",
            "textposition": "inside",
            "textangle": 0,
            "insidetextanchor": "middle",
            "insidetextfont": {"color": "#ffffff"},
            "hovertemplate": "%{y}, " + outcome + ": %{x:.3f} % (%{customdata:,})<extra></extra>",
            "marker": {"color": COLORS.get(outcome, OTHER_COLOR), "line": {"width": 0}},
        }
        for outcome, outcome_rows in sorted(group_by(rows, "outcome").items(), key=outcome_order)
    ]
    layout = labelled_rows(list(group_by(rows, "label")))
    layout |= {
        "barmode": "stack",
        "uniformtext": {"minsize": 11, "mode": "hide"},
        "xaxis": {**GRID, "ticksuffix": " %", "range": [0, 100], "title": axis_title("operations")},
    }
    return {"data": data, "layout": layout}


def row_ids(rows: Sequence[Row]) -> list[str]:
    """The identifiers of the rows that points lead to; empty for none."""
    return [row.get("anchor", "") for row in rows]


def by_purgatory(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by purgatory: produces, of which a client waits for each, before fetches. O(rows)."""
    groups = group_by(rows, "purgatory").items()
    return dict(sorted(groups, key=lambda item: (item[0] != "Produce", item[0])))


def outcome_order(outcome_rows: tuple[str, Sequence[Row]]) -> int:
    """The place of an outcome in every plot; an unknown one stands last."""
    outcomes = list(COLORS)
    return outcomes.index(outcome_rows[0]) if outcome_rows[0] in COLORS else len(outcomes)


def waits_to_draw(waits: Sequence[Row]) -> list[Row]:
    """The rows with waits to draw: of one outcome and client, of operations that waited."""
    return [
        row
        for row in waits
        if row["outcome"] not in {"all", "immediate"}
        and not row["over_kinds"]
        and row["wait_max_us"] is not None
    ]


def wait_percentiles(waits: Sequence[Row]) -> Figure:
    """A line per label and outcome of one run's shown waits, from the median to the longest."""
    rows = waits_to_draw(waits)
    labels = [f"{row['label']}, {row['outcome']}" for row in rows]
    colors = [COLORS.get(row["outcome"], OTHER_COLOR) for row in rows]
    data: list[Figure] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [plotted_ms(row["wait_p50_us"]), plotted_ms(row["wait_max_us"])],
            "y": [label, label],
            "line": {"color": color, "width": 2},
            "hoverinfo": "skip",
            "showlegend": False,
        }
        for row, label, color in zip(rows, labels, colors, strict=True)
    ]
    for column, (name, symbol) in _SYMBOLS.items():
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [plotted_ms(row[column]) for row in rows],
                "y": labels,
                "customdata": [row[column] / 1000 for row in rows],
                "ids": row_ids(rows),
                "hovertemplate": "%{y}: " + name + " %{customdata:,.3f} ms<extra></extra>",
                "marker": {
                    "symbol": symbol,
                    "size": 14 if column == "wait_max_us" else 9,
                    "color": colors,
                    "line": {"width": 2, "color": colors},
                },
            }
        )
    traces = [plotted_ms(row[column]) for row in rows for column in _SYMBOLS]
    layout = labelled_rows(labels)
    layout["xaxis"] = {
        **GRID,
        **wait_axis(min(traces), max(traces)),
        "title": axis_title("wait"),
    }
    return {"data": data, "layout": layout}


def sizes(occupancy: Sequence[Row], faults: Sequence[Row] = ()) -> Figure:
    """The size of one run's purgatories over time, one below the other.

    Args:
        occupancy: the run's rows of the table of that name.
        faults: marked over all purgatories.
    """
    rows_of = by_purgatory(occupancy)
    data: list[Figure] = []
    end_s = max(row["bucket_end_us"] for row in occupancy) / 1e6
    layout = blank_layout(height=130 + 200 * len(rows_of))
    layout["annotations"], layout["shapes"] = [], [fault_band(fault, end_s) for fault in faults]
    height = 1 / len(rows_of)
    for number, (purgatory, rows) in enumerate(rows_of.items(), start=1):
        top = 1 - (number - 1) * height
        axis = "" if number == 1 else str(number)
        layout["yaxis" + axis] = {
            **GRID,
            "domain": [max(0.0, top - height), top - 0.16 * height],
            "rangemode": "tozero",
            "nticks": 5,
            "ticks": "outside",
            "tickcolor": "rgba(0,0,0,0)",
        }
        label = f"{purgatory}: pending operations"
        layout["annotations"].append(edge_label(label, y=top - 0.15 * height, yref="paper"))
        for broker, of_broker in group_by(rows, "broker").items():
            data += _size_lines(of_broker, broker, "y" + axis, first=number == 1)
    last = "" if len(rows_of) == 1 else str(len(rows_of))
    layout["xaxis"] = {
        **GRID,
        **time_axis(round(end_s * 1e6)),
        "ticks": "outside",
        "tickcolor": "rgba(0,0,0,0)",
        "anchor": "y" + last,
    }
    return {"data": data, "layout": layout}


def fault_band(fault: Row, end_s: float) -> Figure:
    """A band from the start of a fault to its end; to the end of the run if it has none."""
    start_s = fault["at_ms"] / 1000
    lasts_ms = fault["duration_ms"]
    fault_end_s = end_s if lasts_ms is None else min(end_s, start_s + lasts_ms / 1000)
    return {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": min(start_s, end_s),
        "x1": fault_end_s,
        "y0": 0,
        "y1": 1,
        "fillcolor": _FAULT_COLOR,
        "line": {"width": 1, "color": COLORS["expired"], "dash": "dot"},
        "layer": "below",
    }


def _size_lines(rows: Sequence[Row], broker: int | None, axis: str, *, first: bool) -> list[Figure]:
    """Lines of one purgatory on one broker: mean and maximum; the mean alone of a single one."""
    starts_s = [row["bucket_start_us"] / 1e6 for row in rows]
    times_s = [*starts_s, rows[-1]["bucket_end_us"] / 1e6]
    common = {"type": "scatter", "mode": "lines", "x": times_s, "yaxis": axis, "showlegend": first}
    meta = {"row": max(rows, key=lambda row: row["size_max"]).get("anchor", "")}
    common["meta"] = meta
    mean = [row["size_mean"] for row in rows]
    if broker is None:
        highest = [row["size_max"] for row in rows]
        return [
            {
                **common,
                "name": "all brokers, highest",
                "legendgroup": "highest",
                "y": [*highest, highest[-1]],
                "line": {"shape": "hv", "width": 1, "color": "#9ecae1"},
                "fill": "tozeroy",
                "fillcolor": "rgba(158, 202, 225, 0.28)",
                "hovertemplate": "%{x} s: at most %{y:,}<extra></extra>",
            },
            {
                **common,
                "name": "all brokers, mean",
                "legendgroup": "mean",
                "y": [*mean, mean[-1]],
                "line": {"shape": "hv", "width": 1.8, "color": "#0072b2"},
                "hovertemplate": "%{x} s: %{y:,.2f} on average<extra></extra>",
            },
        ]
    return [
        {
            **common,
            "name": f"broker {broker}, mean",
            "meta": {**meta, "broker": str(broker)},
            "legendgroup": f"broker {broker}",
            "y": [*mean, mean[-1]],
            "line": {
                "shape": "hv",
                "width": 1.2,
                "color": _BROKER_COLORS[broker % len(_BROKER_COLORS)],
            },
            "visible": "legendonly",
            "hovertemplate": f"broker {broker}, " + "%{x} s: %{y:,.2f} on average<extra></extra>",
        }
    ]


def plotted_ms(wait_us: float) -> float:
    """The place of a wait on an axis of powers of ten, which has none for 0."""
    return max(wait_us / 1000, _SMALLEST_MS)


def wait_axis(shortest_ms: float, longest_ms: float) -> Figure:
    """An axis of powers of ten from at most the shortest to beyond the longest wait."""
    first, last = math.floor(math.log10(shortest_ms)), math.ceil(math.log10(longest_ms) + 1e-9)
    powers = range(first, max(last, first + 1) + 1)
    step = 1 + len(powers) // 8
    return {
        "type": "log",
        "range": [powers[0] - 0.05, powers[-1] + 0.05],
        "tickvals": [10.0**power for power in powers[::step]],
        "ticktext": [_duration(power) for power in powers[::step]],
        "minor": {"dtick": "D1", "showgrid": True, "gridcolor": "#eef0f3"},
    }


def _duration(power: int) -> str:
    """A power of ten of milliseconds in its usual unit."""
    if power < 0:
        return f"{10 ** (power + 3)} µs"
    return f"{10**power} ms" if power < 3 else f"{10 ** (power - 3):,} s"


def labelled_rows(labels: Sequence[str]) -> dict[str, Any]:
    """A layout with a row per label, the first on top, each with its label over it."""
    layout = blank_layout(height=120 + _LABELLED_ROW_PX * len(labels))
    layout["yaxis"] = {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": labels[::-1],
        "range": [-0.6, len(labels) - 0.3],
        "showticklabels": False,
        "showgrid": False,
        "zeroline": False,
        "fixedrange": True,
    }
    layout["annotations"] = [edge_label(label, y=label, yshift=21) for label in labels]
    return layout


def edge_label(text: str, **position: Any) -> Figure:
    """A label at the left edge. Its text must have no markup that plotly knows."""
    return {
        "text": text.replace("<", "&lt;"),
        "showarrow": False,
        "xref": "paper",
        "x": 0,
        "xanchor": "left",
        "yref": "y",
        "yanchor": "middle",
        "borderpad": 0,
        **position,
    }


def axis_title(text: str) -> dict[str, Any]:
    return {"text": text, "standoff": 8}


def time_axis(end_us: int, title: str = "time since the start of the run") -> dict[str, Any]:
    """The time of a run: the page zooms all plots with this unit at once."""
    return {"range": [0, end_us / 1e6], "ticksuffix": " s", "title": axis_title(title)}


def blank_layout(height: int) -> dict[str, Any]:
    return {
        "height": height,
        "margin": {"l": 20, "r": 24, "t": 40, "b": 50},
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1f2937"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "normal"},
        "hoverlabel": {"font": {"family": "system-ui, sans-serif"}},
        "dragmode": False,
    }


# Plots of waits: how they are distributed, how they were over time, and where they expired.


_PANEL_PX = 190
_CELL_PX = 44
_MOST_MAP_PX = 700
_MOST_LETTERS = 18
_LINES = {
    "wait_p50_us": ("p50", "#0072b2", "solid"),
    "wait_p99_us": ("p99", "#d55e00", "solid"),
    "wait_max_us": ("max", "#999999", "dot"),
}
_RATIO_COLORS = [[0.0, "#f2e9d8"], [0.001, "#fdd49e"], [0.5, "#e6550d"], [1.0, "#7f0000"]]


def wait_bins(distribution: Sequence[Row]) -> Figure:
    """The numbers of one run's operations by wait, a panel per purgatory, by outcome.

    Args:
        distribution: the run's rows of the table of that name; at least one.
    """
    rows_of = by_purgatory(distribution)
    layout = panels([f"{purgatory}: operations per bin" for purgatory in rows_of])
    data: list[Figure] = []
    for number, rows in enumerate(rows_of.values(), start=1):
        for outcome, outcome_rows in sorted(group_by(rows, "outcome").items(), key=outcome_order):
            bounds = [
                (plotted_ms(row["low_us"]), plotted_ms(row["high_us"])) for row in outcome_rows
            ]
            data.append(
                {
                    "type": "bar",
                    "name": outcome,
                    "legendgroup": outcome,
                    "showlegend": not any(bar["name"] == outcome for bar in data),
                    # In the middle of its bin on an axis of powers of ten.
                    "x": [(low * high) ** 0.5 for low, high in bounds],
                    "width": [high - low for low, high in bounds],
                    "y": [row["operations"] for row in outcome_rows],
                    "customdata": [f"{low:,.3g} to {high:,.3g} ms" for low, high in bounds],
                    "ids": row_ids(outcome_rows),
                    "hovertemplate": outcome + ", %{customdata}: %{y:,}<extra></extra>",
                    "marker": {"color": COLORS.get(outcome, OTHER_COLOR), "line": {"width": 0}},
                    "yaxis": axis_name("y", number),
                }
            )
    lows = [plotted_ms(row["low_us"]) for row in distribution]
    highs = [plotted_ms(row["high_us"]) for row in distribution]
    layout["xaxis"] |= {**wait_axis(min(lows), max(highs)), "title": axis_title("wait")}
    layout["barmode"] = "stack"
    return {"data": data, "layout": layout}


def waits_over_time(over_time: Sequence[Row], end_us: int, faults: Sequence[Row] = ()) -> Figure:
    """Percentiles of one run's waits by when the operations started, a panel per purgatory.

    Args:
        over_time: the run's rows over all kinds, topics and outcomes, of windows of time.
        end_us: the end of the run, in microseconds.
        faults: marked over all panels.
    """
    rows_of = by_purgatory(over_time)
    layout = panels([f"{purgatory}: wait, ms" for purgatory in rows_of])
    layout["shapes"] = [fault_band(fault, end_us / 1e6) for fault in faults]
    data: list[Figure] = []
    for number, rows in enumerate(rows_of.values(), start=1):
        layout["yaxis" + ("" if number == 1 else str(number))] |= {
            "type": "log",
            "nticks": 6,
            "rangemode": "normal",
        }
        for column, (name, color, dash) in _LINES.items():
            known = [row for row in rows if row[column] is not None]
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": name,
                    "legendgroup": name,
                    "showlegend": number == 1,
                    "x": [_middle_s(row) for row in known],
                    "y": [plotted_ms(row[column]) for row in known],
                    "customdata": [row["operations"] for row in known],
                    "ids": row_ids(known),
                    "hovertemplate": f"%{{x}} s: {name} %{{y:,.3f}} ms of %{{customdata:,}}"
                    "<extra></extra>",
                    "line": {"width": 1.6, "color": color, "dash": dash},
                    "marker": {"size": 4, "color": color},
                    "yaxis": axis_name("y", number),
                }
            )
    layout["xaxis"] |= time_axis(end_us, "start of the operation")
    return {"data": data, "layout": layout}


def line_color(place: int) -> str:
    """The color of a line by its place among the lines of a plot."""
    return _LINE_COLORS[place % len(_LINE_COLORS)]


def expiry_map(expiry: Sequence[Row]) -> Figure:
    """The share of a purgatory's operations that expired, by broker and partition.

    Without partitions, by broker.

    Args:
        expiry: one run's rows of the table of that name, of one purgatory; at least one.
    """
    with_keys = [row for row in expiry if row["watch_key"] is not None]
    column = "watch_key" if with_keys else "purgatory"
    rows = with_keys or expiry
    brokers = sorted({row["broker"] for row in rows})
    names = sorted({row[column] for row in rows}, key=_by_partition)
    counts = {(row[column], row["broker"]): [0, 0] for row in rows}
    anchors = {(row[column], row["broker"]): row.get("anchor", "") for row in rows}
    for row in rows:
        counts[row[column], row["broker"]][0] += row["expired"]
        counts[row[column], row["broker"]][1] += row["operations"]
    layout = blank_layout(height=min(_MOST_MAP_PX, 170 + _CELL_PX * len(names)))
    layout["xaxis"] = {
        **GRID,
        "type": "category",
        "showgrid": False,
        "title": axis_title("broker"),
        "ticks": "",
    }
    layout["yaxis"] = {
        **GRID,
        "type": "category",
        "autorange": "reversed",
        "showgrid": False,
        "ticks": "",
        "tickvals": names,
        "ticktext": [_short(name) for name in names],
    }
    cells = [[counts.get((name, broker)) for broker in brokers] for name in names]
    heat = {
        "type": "heatmap",
        "x": [str(broker) for broker in brokers],
        "y": names,
        "z": [[None if cell is None else 100 * cell[0] / cell[1] for cell in row] for row in cells],
        "customdata": [
            [f"{_cell_texts(cell)} on {_short(name)}" for cell in row]
            for name, row in zip(names, cells, strict=True)
        ],
        "ids": [[anchors.get((name, broker), "") for broker in brokers] for name in names],
        "hovertemplate": "broker %{x}: %{z:.2f} % (%{customdata})<extra></extra>",
        "hoverongaps": False,
        "zmin": 0,
        "colorscale": _RATIO_COLORS,
        "xgap": 2,
        "ygap": 2,
        "colorbar": {
            "orientation": "h",
            "y": 1,
            "yanchor": "bottom",
            "thickness": 10,
            "ticksuffix": " %",
            "nticks": 5,
            "title": {"text": "expired", "side": "top"},
        },
    }
    if len(names) <= 20 and len(brokers) <= 8:
        heat["text"] = [
            ["" if cell is None else f"{100 * cell[0] / cell[1]:.1f} %" for cell in row]
            for row in cells
        ]
        heat["texttemplate"] = "%{text}"
    return {"data": [heat], "layout": layout}


def panels(labels: Sequence[str]) -> Figure:
    """A layout of panels, one below the other, with one x axis; each has its label over it."""
    layout = blank_layout(height=130 + _PANEL_PX * len(labels))
    layout["annotations"] = []
    height = 1 / len(labels)
    for number, label in enumerate(labels, start=1):
        top = 1 - (number - 1) * height
        layout["yaxis" + ("" if number == 1 else str(number))] = {
            **GRID,
            "domain": [max(0.0, top - height), top - 0.18 * height],
            "rangemode": "tozero",
            "nticks": 5,
            "ticks": "outside",
            "tickcolor": "rgba(0,0,0,0)",
        }
        position = {"y": top - 0.17 * height, "yref": "paper", "yanchor": "bottom"}
        layout["annotations"].append(edge_label(label, **position))
    layout["xaxis"] = {
        **GRID,
        "ticks": "outside",
        "tickcolor": "rgba(0,0,0,0)",
        "anchor": axis_name("y", len(labels)),
    }
    return layout


def axis_name(letter: str, number: int) -> str:
    """The name of an axis of a panel, from 1 on."""
    return letter if number == 1 else f"{letter}{number}"


def _middle_s(row: Row) -> float:
    middle: float = (row["window_start_us"] + row["window_end_us"]) / 2e6
    return middle


def _by_partition(name: str) -> tuple[str, int]:
    """`orders-10` after `orders-9`."""
    topic, _, partition = name.rpartition("-")
    return (topic, int(partition)) if partition.isdecimal() else (name, -1)


def _short(name: str) -> str:
    """A name that leaves a narrow screen room for the map: its end, which has the partition."""
    text = name if len(name) <= _MOST_LETTERS else "…" + name[-_MOST_LETTERS:]
    return text.replace("<", "&lt;") + " "


def _cell_texts(cell: Sequence[int] | None) -> str:
    return "" if cell is None else f"{cell[0]:,} of {cell[1]:,}"
