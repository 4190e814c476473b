"""A witness of an anomaly as a timeline: what was sent, read, applied and committed, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from purgatory.analysis.reports.report_plots import Figure, axis_title, blank_layout, edge_label
from purgatory.analysis.result_rows import Row

MOST_DRAWN_EVENTS = 12
"""How many of a witness's rows are drawn, the earliest; its table has them all."""

_ROW_PX = 42
_MOST_LETTERS = 42
_LOOKS = {
    "ok": ("#0072b2", "circle"),
    "unknown": ("#e69f00", "diamond"),
    "fail": ("#d55e00", "x"),
    "read": ("#009e73", "triangle-up"),
    "effect": ("#cc79a7", "square"),
    "commit": ("#999999", "star"),
}
_OTHER_LOOK = ("#56b4e9", "circle-open")


def timeline(events: Sequence[Row]) -> Figure:
    """One row per event in the order of their times; a send reaches from its start to its answer.

    Args:
        events: of one witness, in their order; at least one.
    """
    drawn = events[:MOST_DRAWN_EVENTS]
    letter_of = letters(events)
    data: list[Figure] = []
    layout = blank_layout(height=90 + _ROW_PX * len(drawn))
    layout["showlegend"] = False
    layout["annotations"] = []
    for number, event in enumerate(drawn, start=1):
        color, symbol = _LOOKS.get(look(event), _OTHER_LOOK)
        times = [event["time_us"], event["until_us"]]
        times_ms = [time_us / 1000 for time_us in times if time_us is not None]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": times_ms,
                "y": [number] * len(times_ms),
                "line": {"width": 4, "color": color},
                "marker": {"size": 11, "color": color, "symbol": symbol},
                "hovertemplate": "%{x:,.3f} ms<extra></extra>",
            }
        )
        label = f"{number}. {summary(event, letter_of)}"
        if len(label) > _MOST_LETTERS:
            label = label[: _MOST_LETTERS - 1] + "…"
        layout["annotations"].append(edge_label(label, y=number - 0.45))
    layout["yaxis"] = {
        "range": [len(drawn) + 0.4, 0.2],
        "showticklabels": False,
        "showgrid": False,
        "zeroline": False,
        "fixedrange": True,
    }
    layout["xaxis"] = {
        "gridcolor": "#e5e7eb",
        "automargin": True,
        "fixedrange": True,
        "zeroline": False,
        "nticks": 5,
        "ticksuffix": " ms",
        "tickformat": ",",
        "title": axis_title("time since the start of the run"),
        **_range(drawn),
    }
    layout["margin"] |= {"t": 14}
    return {"data": data, "layout": layout}


def look(event: Row) -> str:
    """What an event looks like: the outcome of a send, else what it is."""
    return str(event["outcome"] if event["event"] == "send" else event["event"])


def who(event: Row) -> str:
    """Whose event it is."""
    if event["event"] == "transaction":
        return str(event["transactional_id"])
    group = "" if event["group"] is None else f"{event['group']}/"
    if event["event"] == "send":
        return f"{group}producer {event['producer']}"
    if event["event"] == "commit":
        return group.rstrip("/")
    return f"{group}consumer {event['consumer']}"


def place(event: Row) -> str:
    """Where it is in the log, as far as that is known."""
    if event["topic"] is None:
        return "-"
    offset = "" if event["offset"] is None else f" at {event['offset']}"
    return f"{event['topic']}-{event['partition']}{offset}"


def letters(events: Sequence[Row]) -> dict[int, str]:
    """A short name for each value of a witness, in the order in which they come: A, B, C."""
    values = dict.fromkeys(e["value_id"] for e in events if e["value_id"] is not None)
    return {
        value: chr(ord("A") + number % 26) + (str(number // 26) if number >= 26 else "")
        for number, value in enumerate(values)
    }


def summary(event: Row, letter_of: Mapping[int, str]) -> str:
    """An event in so few words that they stand over its row on a narrow screen."""
    value = "" if event["value_id"] is None else f" {letter_of[event['value_id']]}"
    if event["event"] == "send":
        again = "" if (event["attempt"] or 1) <= 1 else f", attempt {event['attempt']}"
        return f"send{value}{again}: {event['outcome']}, {place(event)}"
    if event["event"] == "read":
        return f"read{value}: {place(event)}"
    if event["event"] == "transaction":
        return f"transaction {event['transaction']}: {event['outcome']}"
    if event["event"] == "effect":
        return f"applied version {event['version']}: {place(event)}"
    return f"{event['event']}: {place(event)}"


def _range(events: Sequence[Row]) -> Figure:
    """The times that are drawn, with some room, also where all happened at once."""
    times_ms = [
        time_us / 1000
        for event in events
        for time_us in (event["time_us"], event["until_us"])
        if time_us is not None
    ]
    if not times_ms:
        return {}
    room_ms = max(0.06 * (max(times_ms) - min(times_ms)), 0.05)
    return {"range": [min(times_ms) - room_ms, max(times_ms) + room_ms]}
