"""The plots of the report, as figures of plotly in plain data.

Every function takes rows of the result tables and gives one figure. Colors are those of Okabe and
Ito, which people tell apart whatever their color vision; no figure says by color alone what its
labels or tables don't say too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from purgatory.pipeline.rows import Row, grouped

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
_OTHER_COLOR = "#56b4e9"
_BROKER_COLORS = ("#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#999999")
_SYMBOLS = {
    "wait_p50_us": ("p50", "circle"),
    "wait_p95_us": ("p95", "diamond"),
    "wait_p99_us": ("p99", "square"),
    "wait_max_us": ("max", "line-ns-open"),
}
_SMALLEST_MS = 0.001
_GRID = {"gridcolor": "#e5e7eb", "zerolinecolor": "#9ca3af", "automargin": True}


def outcome_shares(waits: Sequence[Row]) -> Figure:
    """A bar per label of one run's shown waits, cut into the shares of its outcomes."""
    rows = [row for row in waits if row["outcome"] != "all"]
    traces = []
    for outcome, of_outcome in grouped(rows, "outcome").items():
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": outcome,
                "y": [row["label"] for row in of_outcome],
                "x": [100 * row["share"] for row in of_outcome],
                "customdata": [row["operations"] for row in of_outcome],
                "texttemplate": "%{x:.1f} %",
                "textposition": "inside",
                "textangle": 0,
                "insidetextanchor": "middle",
                "hovertemplate": "%{y}, " + outcome + ": %{x:.3f} % (%{customdata:,})"
                "<extra></extra>",
                "marker": {"color": COLORS.get(outcome, _OTHER_COLOR)},
            }
        )
    labels = list(grouped(rows, "label"))
    layout = _layout(height=130 + 44 * len(labels))
    layout |= {
        "barmode": "stack",
        "uniformtext": {"minsize": 11, "mode": "hide"},
        "xaxis": {**_GRID, "title": {"text": "share of operations, %"}, "range": [0, 100]},
        "yaxis": {"categoryorder": "array", "categoryarray": labels[::-1], "automargin": True},
    }
    return {"data": traces, "layout": layout}


def waited(waits: Sequence[Row]) -> list[Row]:
    """The rows that have waits to draw: of one outcome, of operations that had to wait."""
    return [
        row
        for row in waits
        if row["outcome"] not in {"all", "immediate"} and row["wait_max_us"] is not None
    ]


def wait_percentiles(waits: Sequence[Row]) -> Figure:
    """A line per label and outcome of one run's shown waits, from the median to the longest."""
    rows = waited(waits)
    labels = [f"{row['label']}, {row['outcome']}" for row in rows]
    data: list[Figure] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [_drawn_ms(row["wait_p50_us"]), _drawn_ms(row["wait_max_us"])],
            "y": [label, label],
            "line": {"color": COLORS.get(row["outcome"], _OTHER_COLOR), "width": 2},
            "hoverinfo": "skip",
            "showlegend": False,
        }
        for row, label in zip(rows, labels, strict=True)
    ]
    for column, (name, symbol) in _SYMBOLS.items():
        colors = [COLORS.get(row["outcome"], _OTHER_COLOR) for row in rows]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [_drawn_ms(row[column]) for row in rows],
                "y": labels,
                "customdata": [row[column] / 1000 for row in rows],
                "hovertemplate": "%{y}: " + name + " %{customdata:,.3f} ms<extra></extra>",
                "marker": {
                    "symbol": symbol,
                    "size": 12 if column == "wait_max_us" else 10,
                    "color": colors,
                    "line": {"width": 2, "color": colors},
                },
            }
        )
    layout = _layout(height=150 + 34 * len(rows))
    layout |= {
        "xaxis": {**_GRID, "type": "log", "dtick": 1, "title": {"text": "wait, ms"}},
        "yaxis": {"categoryorder": "array", "categoryarray": labels[::-1], "automargin": True},
    }
    return {"data": data, "layout": layout}


def sizes(occupancy: Sequence[Row]) -> Figure:
    """The size of one run's purgatories over time, one below the other."""
    by_purgatory = grouped(occupancy, "purgatory")
    data: list[Figure] = []
    layout = _layout(height=110 + 210 * len(by_purgatory))
    gap = 0.12 / max(1, len(by_purgatory) - 1)
    height = (1 - gap * (len(by_purgatory) - 1)) / max(1, len(by_purgatory))
    for number, (purgatory, rows) in enumerate(by_purgatory.items(), start=1):
        top = 1 - (number - 1) * (height + gap)
        axis = "" if number == 1 else str(number)
        layout["yaxis" + axis] = {
            **_GRID,
            "domain": [max(0.0, top - height), top],
            "title": {"text": purgatory},
            "rangemode": "tozero",
        }
        for broker, of_broker in grouped(rows, "broker").items():
            data += _size_lines(of_broker, broker, "y" + axis, first=number == 1)
    layout["xaxis"] = {**_GRID, "title": {"text": "time, s"}, "anchor": f"y{len(by_purgatory)}"}
    if len(by_purgatory) <= 1:
        layout["xaxis"]["anchor"] = "y"
    layout["hovermode"] = "x unified" if len(by_purgatory) == 1 else "closest"
    return {"data": data, "layout": layout}


def _size_lines(rows: Sequence[Row], broker: int | None, axis: str, *, first: bool) -> list[Figure]:
    """Lines of one purgatory on one broker: mean and maximum; the mean alone of a single one."""
    starts_s = [row["bucket_start_us"] / 1e6 for row in rows]
    times_s = [*starts_s, rows[-1]["bucket_end_us"] / 1e6]
    common = {"type": "scatter", "mode": "lines", "x": times_s, "yaxis": axis, "showlegend": first}
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
                "fillcolor": "rgba(158, 202, 225, 0.35)",
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


def _drawn_ms(wait_us: float) -> float:
    """Where a wait lies on an axis of powers of ten, which has no place for 0."""
    return max(wait_us / 1000, _SMALLEST_MS)


def _layout(height: int) -> dict[str, Any]:
    return {
        "height": height,
        "margin": {"l": 10, "r": 20, "t": 50, "b": 50},
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1f2937"},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "normal"},
        "hoverlabel": {"font": {"family": "system-ui, sans-serif"}},
    }
