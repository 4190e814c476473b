"""Plots of waits: how they are distributed, how they were over time, and where they expired."""

from __future__ import annotations

from collections.abc import Sequence

from purgatory.analysis.reports.report_plots import (
    COLORS,
    GRID,
    OTHER_COLOR,
    Figure,
    axis_title,
    blank_layout,
    drawn_ms,
    edge_label,
    fault_band,
    outcome_place,
    wait_axis,
)
from purgatory.analysis.result_rows import Row, grouped

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
    """How many operations of one run waited how long, a panel per purgatory, by outcome.

    Args:
        distribution: the run's rows of the table of that name; at least one.
    """
    by_purgatory = grouped(distribution, "purgatory")
    layout = _panels(list(by_purgatory), "operations per bin")
    data: list[Figure] = []
    for number, rows in enumerate(by_purgatory.values(), start=1):
        for outcome, of_outcome in sorted(grouped(rows, "outcome").items(), key=outcome_place):
            bounds = [(drawn_ms(row["low_us"]), drawn_ms(row["high_us"])) for row in of_outcome]
            data.append(
                {
                    "type": "bar",
                    "name": outcome,
                    "legendgroup": outcome,
                    "showlegend": not any(bar["name"] == outcome for bar in data),
                    # In the middle of its bin on an axis of powers of ten.
                    "x": [(low * high) ** 0.5 for low, high in bounds],
                    "width": [high - low for low, high in bounds],
                    "y": [row["operations"] for row in of_outcome],
                    "customdata": [f"{low:,.3g} to {high:,.3g} ms" for low, high in bounds],
                    "hovertemplate": outcome + ", %{customdata}: %{y:,}<extra></extra>",
                    "marker": {"color": COLORS.get(outcome, OTHER_COLOR), "line": {"width": 0}},
                    "yaxis": _axis("y", number),
                }
            )
    lows = [drawn_ms(row["low_us"]) for row in distribution]
    highs = [drawn_ms(row["high_us"]) for row in distribution]
    layout["xaxis"] |= {**wait_axis(min(lows), max(highs)), "title": axis_title("wait")}
    layout["barmode"] = "stack"
    return {"data": data, "layout": layout}


def waits_over_time(over_time: Sequence[Row], end_us: int, faults: Sequence[Row] = ()) -> Figure:
    """Percentiles of one run's waits by when the operations started, a panel per purgatory.

    Args:
        over_time: the run's rows over all kinds, topics and outcomes, of windows of time.
        end_us: the end of the run, in microseconds.
        faults: what went wrong, and when: marked over all panels.
    """
    by_purgatory = grouped(over_time, "purgatory")
    layout = _panels(list(by_purgatory), "wait, ms")
    layout["shapes"] = [fault_band(fault, end_us / 1e6) for fault in faults]
    data: list[Figure] = []
    for number, rows in enumerate(by_purgatory.values(), start=1):
        layout["yaxis" + ("" if number == 1 else str(number))] |= {
            "type": "log",
            "nticks": 6,
            "rangemode": "normal",
        }
        for column, (name, color, dash) in _LINES.items():
            settled = [row for row in rows if row[column] is not None]
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": name,
                    "legendgroup": name,
                    "showlegend": number == 1,
                    "x": [_middle_s(row) for row in settled],
                    "y": [drawn_ms(row[column]) for row in settled],
                    "customdata": [row["operations"] for row in settled],
                    "hovertemplate": f"%{{x}} s: {name} %{{y:,.3f}} ms of %{{customdata:,}}"
                    "<extra></extra>",
                    "line": {"width": 1.6, "color": color, "dash": dash},
                    "marker": {"size": 4, "color": color},
                    "yaxis": _axis("y", number),
                }
            )
    layout["xaxis"] |= {
        "range": [0, end_us / 1e6],
        "ticksuffix": " s",
        "title": axis_title("start of the operation"),
    }
    return {"data": data, "layout": layout}


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
            [f"{_of(cell)} on {_short(name)}" for cell in row]
            for name, row in zip(names, cells, strict=True)
        ],
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


def _panels(purgatories: Sequence[str], what: str) -> Figure:
    """A layout of panels, one below the other, with one x axis; each has its name over it."""
    layout = blank_layout(height=130 + _PANEL_PX * len(purgatories))
    layout["annotations"] = []
    height = 1 / len(purgatories)
    for number, purgatory in enumerate(purgatories, start=1):
        top = 1 - (number - 1) * height
        layout["yaxis" + ("" if number == 1 else str(number))] = {
            **GRID,
            "domain": [max(0.0, top - height), top - 0.18 * height],
            "rangemode": "tozero",
            "nticks": 5,
            "ticks": "outside",
            "tickcolor": "rgba(0,0,0,0)",
        }
        place = {"y": top - 0.17 * height, "yref": "paper", "yanchor": "bottom"}
        layout["annotations"].append(edge_label(f"{purgatory}: {what}", **place))
    layout["xaxis"] = {
        **GRID,
        "ticks": "outside",
        "tickcolor": "rgba(0,0,0,0)",
        "anchor": _axis("y", len(purgatories)),
    }
    return layout


def _axis(letter: str, number: int) -> str:
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
    shown = name if len(name) <= _MOST_LETTERS else "…" + name[-_MOST_LETTERS:]
    return shown.replace("<", "&lt;") + " "


def _of(cell: Sequence[int] | None) -> str:
    return "" if cell is None else f"{cell[0]:,} of {cell[1]:,}"
