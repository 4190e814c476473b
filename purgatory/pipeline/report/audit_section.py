"""The section of the audit: the verdict, the counts, and witnesses drawn as timelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from purgatory.pipeline.jobs.audit.anomalies import NO_READS, NO_SENDS
from purgatory.pipeline.report.page import Column, PagePart, figure, row_links, table
from purgatory.pipeline.report.plots import Figure, axis_title, blank_layout, edge_label, row_ids
from purgatory.pipeline.report.sentences import AFTER_LOST, DUPLICATE, dedupe_anomalies
from purgatory.pipeline.result_rows import Row, group_by, milliseconds

MOST_DRAWN_WITNESSES = 4
"""The number of witnesses of a run that are drawn; the table `witnesses` has the rest."""

_UNKNOWN = "configuration unknown: "
_VERDICTS = ("violation", "indeterminate", "permitted")


def worst_verdict(audit: Sequence[Row]) -> str:
    """The verdict over some rows of the table `audit`: the worst that was found."""
    verdicts = {row["verdict"] for row in audit if row["count"]}
    return next((verdict for verdict in _VERDICTS if verdict in verdicts), "none")


def verdict_line(audit: Sequence[Row]) -> str:
    """The verdict of one run in a sentence, with the anomalies that led to it.

    Args:
        audit: the run's rows of the table of that name.
    """
    verdict = worst_verdict(audit)
    if verdict == "none" and (why := missing_evidence(audit)):
        return f"not decided ({why})"
    if verdict == "none":
        return "no anomaly of order or duplicates was found"
    cases = [row for row in dedupe_anomalies(audit) if row["verdict"] == verdict and row["count"]]
    anomalies = ", ".join(
        _count_text(name, rows) for name, rows in group_by(cases, "anomaly").items()
    )
    settings = [row["setting"] for row in cases]
    because = "" if verdict == "violation" else _settings(settings)
    return f"{verdict}: {anomalies}{because}"


def missing_evidence(audit: Sequence[Row]) -> str:
    """The tables that an audit needs and a run lacks; empty if it lacks none."""
    reasons = (row["setting"] for row in audit if not row["count"])
    return ", ".join(dict.fromkeys(why for why in reasons if why in (NO_SENDS, NO_READS)))


def _settings(settings: Sequence[str | None]) -> str:
    """The settings that decided, each once, in parentheses."""
    unknown: dict[str, None] = {}
    others: dict[str, None] = {}
    for setting in filter(None, settings):
        head, found, names = setting.partition(_UNKNOWN)
        if found and not head:
            unknown.update(dict.fromkeys(names.split(", ")))
        else:
            others[setting] = None
    texts = [*others, *([_UNKNOWN + ", ".join(unknown)] if unknown else [])]
    return f" ({'; '.join(texts)})" if texts else ""


def _count_text(anomaly: str, rows: Sequence[Row]) -> str:
    count, after = (sum(row.get(name, 0) for row in rows) for name in ("count", "after_lost"))
    return f"{_anomaly_words(anomaly)} {count:,}" + (
        f" ({after:,} after a lost response)" if after else ""
    )


def audit_section(part: PagePart, audit: Sequence[Row], witnesses: Sequence[Row]) -> str:
    """The section of one run.

    Args:
        part: where it stands.
        audit, witnesses: the run's rows of these tables, in their order.
    """
    if not audit:
        return ""
    verdict = worst_verdict(audit)
    broken = " broken" if verdict == "violation" else ""
    rows = [row for row in audit if row["count"] or row["verdict"] != "none"]
    absent = [_anomaly_words(row["anomaly"]) for row in audit if row["verdict"] == "none"]
    parts = [
        f'<section class="audit" id="{part.anchor("audit")}"><h3>Order and duplicates</h3>',
        f'<p><span class="mark{broken}">{escape(_headline(verdict, audit))}</span> '
        f"{escape(_promises(verdict, audit))}</p>",
    ]
    if rows:
        parts.append(table("Anomalies, and their verdicts.", _columns(), dedupe_anomalies(rows)))
    if absent:
        parts.append(f'<p class="note">Looked for and not found: {escape(", ".join(absent))}.</p>')
    parts.append(row_links(part, "audit", audit))
    if part.plotted:
        parts += _witnesses(part.number, witnesses)
    parts.append(row_links(part, "witnesses", witnesses))
    return "".join([*parts, "</section>"])


def _anomaly(row: Row) -> str:
    after = row.get("after_lost", 0)
    return _anomaly_words(row["anomaly"]) + (f", {after:,} after a lost response" if after else "")


def _promises(verdict: str, audit: Sequence[Row]) -> str:
    if verdict == "none" and (why := missing_evidence(audit)):
        return f"Nothing to decide on: {why}."
    return {
        "violation": "A guarantee is violated.",
        "indeterminate": "Whether a guarantee is violated can't be decided.",
        "permitted": "The settings permit all anomalies that were found.",
    }.get(verdict, "No anomaly of order or duplicates was found.")


def _headline(verdict: str, audit: Sequence[Row]) -> str:
    if verdict == "none" and missing_evidence(audit):
        return "not decided"
    return {"violation": "violated", "none": "in order"}.get(verdict, verdict)


def _columns() -> list[Column]:
    return [
        ("anomaly", False, _anomaly),
        ("group", False, lambda row: row["group"] or "-"),
        ("verdict", False, lambda row: row["verdict"]),
        ("because of", False, lambda row: row["setting"] or "-"),
        ("cases", True, lambda row: f"{row['count']:,}"),
    ]


def _witnesses(number: int, witnesses: Sequence[Row]) -> list[str]:
    chosen, undrawn = _choose_witnesses([row for row in witnesses if row["events"]])
    undrawn += sum(not row["events"] for row in witnesses)
    parts = []
    for place_, cases in enumerate(chosen):
        witness = cases[0]
        anchor = f"row-of-witness-{number}-{place_}"
        events = [{**e, "anchor": f"{anchor}-{n}"} for n, e in enumerate(witness["events"])]
        names = ", ".join(
            f"{_anomaly_words(case['anomaly'])} {case['rank']}"
            for case in _distinct_anomalies(cases)
        )
        heading = f"{names[0].upper()}{names[1:]}"
        caption = (
            "Each row is a send, from its start to its response, a read, an application of a "
            "record or a commit of an offset."
        )
        if len(events) > MOST_DRAWN_EVENTS:
            caption += f" The first {MOST_DRAWN_EVENTS} of {len(events):,} are drawn."
        plot = figure(
            f"witness-{number}-{place_}", timeline(events), f"Timeline of {heading}", caption
        )
        because = f", because of {witness['setting']}" if witness["setting"] else ""
        verdict_text = f"{witness['verdict']}{because}"
        parts.append(
            "<details class='witness'>"
            f"<summary><h4>{escape(heading)}</h4> {escape(verdict_text)}: "
            f"{escape(_witness_text(witness))}</summary>"
            f"{plot}{_events_table(heading, events)}</details>"
        )
    if undrawn > 0:
        parts.append(f'<p class="note">{undrawn:,} more cases are in the table witnesses.</p>')
    return parts


def _choose_witnesses(witnesses: Sequence[Row]) -> tuple[list[list[Row]], int]:
    """The first cases of each anomaly in turn, the worst verdicts first; and how many are left.

    Cases with the same rows of the trace are one: a duplicate is often that of a lost response too.
    """
    order = list(_VERDICTS)
    turns = [
        (row["rank"], order.index(row["verdict"]) if row["verdict"] in order else 9, key, row)
        for key, row in enumerate(witnesses)
    ]
    worst_first = sorted(turns, key=lambda turn: (turn[1], turn[0], turn[2]))
    by_verdict = group_by([{"verdict": turn[1], "row": turn[3]} for turn in worst_first], "verdict")
    same_key: dict[str, list[Row]] = {}
    for entries in by_verdict.values():
        for entry in entries:
            same_key.setdefault(repr(entry["row"]["events"]), []).append(entry["row"])
    cases = list(same_key.values())
    undrawn = sum(map(len, cases[MOST_DRAWN_WITNESSES:]))
    return cases[:MOST_DRAWN_WITNESSES], undrawn


def _distinct_anomalies(cases: Sequence[Row]) -> Sequence[Row]:
    """The name of a case, which distinguishes duplicates of lost responses."""
    if any(case["anomaly"] == DUPLICATE for case in cases):
        return [case for case in cases if case["anomaly"] != AFTER_LOST]
    return cases


def _witness_text(witness: Row) -> str:
    """The subject of a case: the columns that identify it, as far as they are set."""
    parts: Mapping[str, str] = {
        "topic": "topic",
        "partition": "partition",
        "offset": "offset",
        "producer": "producer",
        "consumer": "consumer",
        "key": "key",
        "value_id": "value",
        "sequence": "sequence",
    }
    words = [f"{word} {witness[name]}" for name, word in parts.items() if witness[name] is not None]
    return ", ".join(words) or "the run"


def _events_table(heading: str, events: Sequence[Row]) -> str:
    letter_of = letters(events)
    numbered = [{**event, "number": number} for number, event in enumerate(events, start=1)]
    columns: list[Column] = [
        ("#", True, lambda row: str(row["number"])),
        ("at, ms", True, lambda row: milliseconds(row["time_us"])),
        ("response, ms", True, lambda row: milliseconds(row["until_us"])),
        ("event", False, _event),
        ("by", False, client_name),
        ("value", False, lambda row: letter_of.get(row["value_id"], "-")),
        ("sequence", True, lambda row: _or_dash(row["sequence"])),
        ("outcome", False, lambda row: row["error"] or row["outcome"] or "-"),
        ("place", False, place),
    ]
    named = ", ".join(f"{letter} is {value}" for value, letter in letter_of.items())
    values = f" Of the values, {named}." if named else ""
    return table(f"The rows of the trace: {heading}.{values}", columns, numbered)


def _event(row: Row) -> str:
    again = (row["attempt"] or 1) > 1
    return f"{row['event']}, attempt {row['attempt']}" if again else str(row["event"])


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def _anomaly_words(anomaly: str) -> str:
    return anomaly.replace("_", " ")


# A witness of an anomaly as a timeline of sends, reads, effects and commits.


MOST_DRAWN_EVENTS = 12
"""The number of a witness's rows that are drawn, the earliest; its table has all."""

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
    """One row per event in the order of their times; a send extends from its start to its response.

    Args:
        events: of one witness, in their order; at least one.
    """
    points = events[:MOST_DRAWN_EVENTS]
    letter_of = letters(events)
    data: list[Figure] = []
    layout = blank_layout(height=90 + _ROW_PX * len(points))
    layout["showlegend"] = False
    layout["annotations"] = []
    for number, event in enumerate(points, start=1):
        color, symbol = _LOOKS.get(look(event), _OTHER_LOOK)
        times = [event["time_us"], event["until_us"]]
        times_ms = [time_us / 1000 for time_us in times if time_us is not None]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": times_ms,
                "y": [number] * len(times_ms),
                "ids": row_ids([event] * len(times_ms)),
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
        "range": [len(points) + 0.4, 0.2],
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
        **_range(points),
    }
    layout["margin"] |= {"t": 14}
    return {"data": data, "layout": layout}


def look(event: Row) -> str:
    """The mark of an event: the outcome of a send, else its kind."""
    return str(event["outcome"] if event["event"] == "send" else event["event"])


def client_name(event: Row) -> str:
    """The client of an event."""
    if event["event"] == "transaction":
        return str(event["transactional_id"])
    group = "" if event["group"] is None else f"{event['group']}/"
    if event["event"] == "send":
        return f"{group}producer {event['producer']}"
    if event["event"] == "commit":
        return group.rstrip("/")
    return f"{group}consumer {event['consumer']}"


def place(event: Row) -> str:
    """The place of an event in the log, as far as that is known."""
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
    """The range of times to draw, with some room, also where all events have one time."""
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
