"""The report's section on an audit: the verdict in a sentence, and which witnesses are drawn."""

from __future__ import annotations

import re
from typing import Any

import pytest

from purgatory.pipeline.jobs.audit.anomalies import EVENT
from purgatory.pipeline.report.audit_section import (
    MOST_DRAWN_EVENTS,
    MOST_DRAWN_WITNESSES,
    audit_section,
    letters,
    timeline,
    verdict_line,
    worst_verdict,
)
from purgatory.pipeline.report.page import PagePart

Row = dict[str, Any]


def _row(anomaly: str, verdict: str, count: int, setting: str | None = None) -> Row:
    return {
        "run_id": "run",
        "anomaly": anomaly,
        "group": "orders",
        "verdict": verdict,
        "setting": setting,
        "count": count,
    }


def _event(event: str, time_us: int, **columns: Any) -> Row:
    return {**dict.fromkeys(EVENT), "event": event, "time_us": time_us, **columns}


def _witness(anomaly: str, rank: int, verdict: str, events: list[Row]) -> Row:
    names = ("setting", "topic", "partition", "offset", "producer", "consumer", "key", "sequence")
    row = {"anomaly": anomaly, "rank": rank, "verdict": verdict, **dict.fromkeys(names)}
    return {**row, "value_id": 7, "events": events}


SEND = _event("send", 1000, until_us=2000, outcome="ok", attempt=1, producer=3, value_id=7)


def test_worst_verdict_is_shown_with_its_anomalies() -> None:
    audit = [
        _row("duplicate", "permitted", 3, "idempotence=false"),
        _row("retry_reorder", "violation", 1200, "idempotence=true"),
        _row("retry_reorder", "violation", 1, "max_in_flight=1"),
        _row("lost_write", "none", 0),
    ]
    assert worst_verdict(audit) == "violation"
    assert verdict_line(audit) == "violation: retry reorder 1,201"


def test_a_case_of_two_anomalies_is_counted_once() -> None:
    audit = [
        _row("duplicate", "permitted", 40, "idempotence=false"),
        _row("lost_ack_duplicate", "permitted", 38, "idempotence=false"),
    ]
    permitted = "permitted: duplicate 40 (38 after a lost response) (idempotence=false)"
    assert verdict_line(audit) == permitted
    assert verdict_line(audit[1:]) == "permitted: lost ack duplicate 38 (idempotence=false)"


def test_permitting_or_unknown_setting_is_named_once() -> None:
    unknown = "configuration unknown: "
    audit = [
        _row("duplicate", "indeterminate", 3, unknown + "idempotence"),
        _row("retry_reorder", "indeterminate", 2, unknown + "idempotence, max_in_flight"),
        _row("lost_write", "indeterminate", 1, "the trace is incomplete"),
        _row("key_order_violation", "indeterminate", 0, "no effects in the trace"),
    ]
    assert verdict_line(audit) == (
        "indeterminate: duplicate 3, retry reorder 2, lost write 1 "
        "(the trace is incomplete; configuration unknown: idempotence, max_in_flight)"
    )


@pytest.mark.parametrize("audit", [[], [_row("duplicate", "none", 0)]])
def test_audit_without_anomalies_is_reported(audit: list[Row]) -> None:
    assert verdict_line(audit) == "no anomaly of order or duplicates was found"


def test_drawn_cases_are_violations_first_of_each_anomaly() -> None:
    def one(anomaly: str, rank: int, verdict: str) -> Row:
        event = {**SEND, "producer": rank, "group": anomaly}
        return _witness(anomaly, rank, verdict, [event])

    witnesses = [one("duplicate", rank, "permitted") for rank in range(1, 11)]
    witnesses += [one("lost_write", rank, "violation") for rank in (1, 2)]
    witnesses += [one("multi_writer", 1, "permitted"), _witness("x", 1, "violation", [])]
    page = audit_section(PagePart(0), [_row("lost_write", "violation", 2)], witnesses)
    drawn = re.findall(r"<h4>([^<]*)</h4>", page)
    assert drawn == ["Lost write 1", "Lost write 2", "Duplicate 1", "Multi writer 1"]
    assert len(drawn) == MOST_DRAWN_WITNESSES
    assert "10 more cases are in the table witnesses" in page
    plain = PagePart(0, plotted=False)
    assert "<h4>" not in audit_section(plain, [_row("lost_write", "violation", 2)], witnesses)


def test_cases_with_the_same_rows_are_drawn_once() -> None:
    witnesses = [
        _witness(anomaly, rank, "permitted", [{**SEND, "producer": rank}])
        for anomaly in ("duplicate", "lost_ack_duplicate")
        for rank in (1, 2)
    ]
    page = audit_section(PagePart(0), [_row("duplicate", "permitted", 2)], witnesses)
    assert re.findall(r"<h4>([^<]*)</h4>", page) == [
        "Duplicate 1",
        "Duplicate 2",
    ]
    assert "more cases are" not in page


def test_no_case_has_two_rows_in_the_table() -> None:
    found = [
        _row("duplicate", "permitted", 40, "idempotence=false"),
        _row("lost_ack_duplicate", "permitted", 38, "idempotence=false"),
        _row("lost_ack_duplicate", "violation", 1, "idempotence=true"),
    ]
    page = audit_section(PagePart(0), found, [])
    cells = re.findall(r"<td>([^<]*duplicate[^<]*)</td>", page)
    assert cells == ["duplicate, 38 after a lost response", "lost ack duplicate"]


def test_send_extends_to_its_response_and_is_a_point_without_one() -> None:
    figure = timeline([SEND, {**SEND, "until_us": None}, _event("read", 2500, value_id=8)])
    assert [trace["x"] for trace in figure["data"]] == [[1.0, 2.0], [1.0], [2.5]]
    assert [trace["y"][0] for trace in figure["data"]] == [1, 2, 3]
    texts = [label["text"] for label in figure["layout"]["annotations"]]
    assert texts == ["1. send A: ok, -", "2. send A: ok, -", "3. read B: -"]
    low, high = figure["layout"]["xaxis"]["range"]
    assert low < 1.0 and high > 2.5


def test_a_long_witness_is_cut_and_its_values_keep_short_names() -> None:
    events = [_event("read", time_us, value_id=time_us) for time_us in range(60)]
    assert len(timeline(events)["data"]) == MOST_DRAWN_EVENTS
    assert [letters(events)[number] for number in (0, 25, 26, 59)] == ["A", "Z", "A1", "H2"]
