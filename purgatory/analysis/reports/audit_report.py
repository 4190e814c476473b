"""What the report says of the audit: the verdict, the counts, and witnesses drawn as timelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from purgatory.analysis.auditing.anomalies import NO_READS, NO_SENDS
from purgatory.analysis.reports.cases_once import AFTER_LOST, DUPLICATE, cases_once
from purgatory.analysis.reports.page import Column, figure, table
from purgatory.analysis.reports.page_part import PagePart
from purgatory.analysis.reports.row_links import row_links
from purgatory.analysis.reports.witness_plots import (
    MOST_DRAWN_EVENTS,
    letters,
    place,
    timeline,
    who,
)
from purgatory.analysis.result_rows import Row, grouped, milliseconds

MOST_DRAWN_WITNESSES = 4
"""How many witnesses of a run are drawn; the table `witnesses` has the rest."""

_UNKNOWN = "configuration unknown: "
_VERDICTS = ("violation", "indeterminate", "permitted")


def verdict_of(audit: Sequence[Row]) -> str:
    """The verdict over some rows of the table `audit`: the worst that was found."""
    found = {row["verdict"] for row in audit if row["count"]}
    return next((verdict for verdict in _VERDICTS if verdict in found), "none")


def verdict_line(audit: Sequence[Row]) -> str:
    """The verdict of one run in a sentence, with the anomalies that led to it.

    Args:
        audit: the run's rows of the table of that name.
    """
    verdict = verdict_of(audit)
    if verdict == "none" and (why := nothing_to_decide_on(audit)):
        return f"not decided ({why})"
    if verdict == "none":
        return "no anomaly of order or duplicates was found"
    found = [row for row in cases_once(audit) if row["verdict"] == verdict and row["count"]]
    named = ", ".join(_counted(name, rows) for name, rows in grouped(found, "anomaly").items())
    settings = [row["setting"] for row in found]
    because = "" if verdict == "violation" else _settings(settings)
    return f"{verdict}: {named}{because}"


def nothing_to_decide_on(audit: Sequence[Row]) -> str:
    """What a run lacks without which its audit says nothing; empty if it has that."""
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
    said = [*others, *([_UNKNOWN + ", ".join(unknown)] if unknown else [])]
    return f" ({'; '.join(said)})" if said else ""


def _counted(anomaly: str, rows: Sequence[Row]) -> str:
    count, after = (sum(row.get(name, 0) for row in rows) for name in ("count", "after_lost"))
    return f"{_words(anomaly)} {count:,}" + (f" ({after:,} after a lost answer)" if after else "")


def audit_section(part: PagePart, audit: Sequence[Row], witnesses: Sequence[Row]) -> str:
    """The section of one run.

    Args:
        part: where it stands.
        audit, witnesses: the run's rows of these tables, in their order.
    """
    if not audit:
        return ""
    verdict = verdict_of(audit)
    broken = " broken" if verdict == "violation" else ""
    shown = [row for row in audit if row["count"] or row["verdict"] != "none"]
    absent = [_words(row["anomaly"]) for row in audit if row["verdict"] == "none"]
    parts = [
        f'<section class="audit" id="{part.anchor("audit")}"><h3>Order and duplicates</h3>',
        f'<p><span class="mark{broken}">{escape(_headline(verdict, audit))}</span> '
        f"{escape(_promises(verdict, audit))}</p>",
    ]
    if shown:
        parts.append(table("What was found, and how it is judged.", _columns(), cases_once(shown)))
    if absent:
        parts.append(f'<p class="note">Looked for and not found: {escape(", ".join(absent))}.</p>')
    parts.append(row_links(part, "audit", audit))
    if part.plotted:
        parts += _witnesses(part.number, witnesses)
    parts.append(row_links(part, "witnesses", witnesses))
    return "".join([*parts, "</section>"])


def _anomaly(row: Row) -> str:
    after = row.get("after_lost", 0)
    return _words(row["anomaly"]) + (f", {after:,} after a lost answer" if after else "")


def _promises(verdict: str, audit: Sequence[Row]) -> str:
    if verdict == "none" and (why := nothing_to_decide_on(audit)):
        return f"There was nothing to decide on: {why}."
    return {
        "violation": "What was promised is broken.",
        "indeterminate": "What was found may or may not break what was promised.",
        "permitted": "What was found is what the settings permit.",
    }.get(verdict, "No anomaly of order or duplicates was found.")


def _headline(verdict: str, audit: Sequence[Row]) -> str:
    if verdict == "none" and nothing_to_decide_on(audit):
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
    chosen, left = _chosen([row for row in witnesses if row["events"]])
    left += sum(not row["events"] for row in witnesses)
    parts = []
    for place_, cases in enumerate(chosen):
        witness = cases[0]
        events = witness["events"]
        names = ", ".join(f"{_words(one['anomaly'])} {one['rank']}" for one in _named(cases))
        heading = f"{names[0].upper()}{names[1:]}"
        caption = (
            "Each row is a send, from its start to its answer, a read, an application of a record "
            "or a commit of an offset."
        )
        if len(events) > MOST_DRAWN_EVENTS:
            caption += f" The first {MOST_DRAWN_EVENTS} of {len(events):,} are drawn."
        plot = figure(
            f"witness-{number}-{place_}", timeline(events), f"Timeline of {heading}", caption
        )
        judged = f"{witness['verdict']}{_because(witness)}"
        parts.append(
            "<details class='witness'>"
            f"<summary><h4>{escape(heading)}</h4> {escape(judged)}: {escape(_what(witness))}"
            f"</summary>{plot}{_events_table(heading, events)}</details>"
        )
    if left > 0:
        parts.append(f'<p class="note">{left:,} more cases are in the table witnesses.</p>')
    return parts


def _chosen(witnesses: Sequence[Row]) -> tuple[list[list[Row]], int]:
    """The first cases of each anomaly in turn, the worst verdicts first; and how many are left.

    Cases with the same rows of the trace are one: a duplicate is often that of a lost answer too.
    """
    order = list(_VERDICTS)
    turns = [
        (row["rank"], order.index(row["verdict"]) if row["verdict"] in order else 9, place, row)
        for place, row in enumerate(witnesses)
    ]
    worst_first = sorted(turns, key=lambda turn: (turn[1], turn[0], turn[2]))
    by_verdict = grouped([{"verdict": turn[1], "row": turn[3]} for turn in worst_first], "verdict")
    alike: dict[str, list[Row]] = {}
    for entries in by_verdict.values():
        for entry in entries:
            alike.setdefault(repr(entry["row"]["events"]), []).append(entry["row"])
    cases = list(alike.values())
    left = sum(map(len, cases[MOST_DRAWN_WITNESSES:]))
    return cases[:MOST_DRAWN_WITNESSES], left


def _named(cases: Sequence[Row]) -> Sequence[Row]:
    """What a case is called after: a duplicate is that of a lost answer too, or is not."""
    if any(one["anomaly"] == DUPLICATE for one in cases):
        return [one for one in cases if one["anomaly"] != AFTER_LOST]
    return cases


def _because(witness: Row) -> str:
    return f", because of {witness['setting']}" if witness["setting"] else ""


def _what(witness: Row) -> str:
    """What a case is about: the columns that identify it, as far as they are set."""
    named: Mapping[str, str] = {
        "topic": "topic",
        "partition": "partition",
        "offset": "offset",
        "producer": "producer",
        "consumer": "consumer",
        "key": "key",
        "value_id": "value",
        "sequence": "sequence",
    }
    words = [f"{word} {witness[name]}" for name, word in named.items() if witness[name] is not None]
    return ", ".join(words) or "the run"


def _events_table(heading: str, events: Sequence[Row]) -> str:
    letter_of = letters(events)
    numbered = [{**event, "number": number} for number, event in enumerate(events, start=1)]
    columns: list[Column] = [
        ("#", True, lambda row: str(row["number"])),
        ("at, ms", True, lambda row: milliseconds(row["time_us"])),
        ("answer, ms", True, lambda row: milliseconds(row["until_us"])),
        ("event", False, _event),
        ("by", False, who),
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


def _words(anomaly: str) -> str:
    return anomaly.replace("_", " ")
