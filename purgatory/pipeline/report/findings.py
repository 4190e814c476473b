"""The input of a report, rows of a job's tables, and the findings in them, as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape

from purgatory.pipeline.ingest.trace_set import is_interrupted
from purgatory.pipeline.jobs.audit.basis import nothing_judged
from purgatory.pipeline.report.page import PagePart
from purgatory.pipeline.report.sentences import (
    Finding,
    Severity,
    anomaly_findings,
    expired_severity,
    expired_text,
    fault_findings,
    faults_during,
    seconds,
)
from purgatory.pipeline.result_rows import Row, group_by


@dataclass(frozen=True)
class Results:
    """Rows of the tables of an analysis, in their order.

    Only `runs`, `waits`, `latencies`, `attempts` and `audit` need rows of all runs; the other
    tables are only drawn, for the first `MOST_PLOTTED_RUNS` runs.
    """

    runs: Sequence[Row]
    waits: Sequence[Row] = ()
    latencies: Sequence[Row] = ()
    attempts: Sequence[Row] = ()
    occupancy: Sequence[Row] = ()
    over_time: Sequence[Row] = ()
    distribution: Sequence[Row] = ()
    expiry: Sequence[Row] = ()
    audit: Sequence[Row] = ()
    witnesses: Sequence[Row] = ()
    judged: Sequence[Row] = ()
    left_out: Sequence[Row] = ()
    slowest: Sequence[Row] = ()
    peaks: Sequence[Row] = ()
    hot_keys: Sequence[Row] = ()
    throughput: Sequence[Row] = ()
    replication: Sequence[Row] = ()

    def by_run(self) -> Mapping[str, Results]:
        """The results of each run, by its id. O(rows)."""
        tables = {
            column.name: group_by(getattr(self, column.name), "run_id") for column in fields(self)
        }
        return {
            run_id: Results(**{name: rows.get(run_id, []) for name, rows in tables.items()})
            for run_id in tables["runs"]
        }


# The findings of a run: event, severity, time, and the cause if the trace has it.
#
# A cause is a fault that was active at the same time, requests that queued behind others of their
# connection, or a setting that permits an anomaly. Every count and time comes from the tables of
# results.


_MOST_ERRORS = 3
_ALIKE = 0.01
_SECOND_US = 1_000_000
_TIMED_OUT, _DISCONNECTED = "REQUEST_TIMED_OUT", "DISCONNECTED"


def findings(results: Results) -> list[Finding]:
    """The findings of one run, the most severe first.

    Args:
        results: the rows of this run only; tables that a job does not compute are empty.
    """
    (run,) = results.runs
    found = [
        *_incomplete(run, results),
        *_expired(run, results),
        *_unanswered(run, results),
        *anomaly_findings(run, results.audit, results.attempts, results.witnesses),
        *_latencies(results.latencies),
        *_peaks(run, results),
    ]
    bad = any(finding.severity < Severity.FINE for finding in found)
    if not bad and not run["faults"]:
        found += _all_well(results)
    found += fault_findings(run, found)
    return sorted(found, key=lambda finding: finding.severity)


def _incomplete(run: Row, results: Results) -> Iterator[Finding]:
    if run["complete"]:
        return
    if not is_interrupted(results.left_out):
        yield Finding(
            "The trace is incomplete: files of it are missing, or left out.",
            Severity.INCOMPLETE,
            "runs",
            headline="the trace is incomplete",
        )
        return
    lacking = "records that were sent or read after it broke off are missing."
    if results.waits or results.peaks or not results.audit:
        lacking = (
            "requests that were pending when it broke off are missing, so waits and sizes near the "
            "end are too small."
        )
    yield Finding(
        f"The trace is incomplete: {lacking}",
        Severity.INCOMPLETE,
        "runs",
        headline="the trace is incomplete",
    )


def _all_well(results: Results) -> Iterator[Finding]:
    """The finding of a run without failures, as far as these tables show."""
    if not results.runs[0]["complete"] or results.left_out:
        return
    operations = {
        row["purgatory"]: row["operations"]
        for row in _whole_run_rows(results.waits)
        if row["outcome"] == "all"
    }
    parts = []
    if "Produce" in operations:
        parts.append(f"all {operations['Produce']:,} produces were answered in time")
    elif operations:
        parts.append(f"none of {sum(operations.values()):,} operations was late")
    if results.audit and not (results.judged and nothing_judged(results.judged[0])):
        parts.append("no record was lost, duplicated or reordered")
    if parts:
        yield Finding(f"Nothing went wrong: {', and '.join(parts)}.", Severity.FINE, "waits")
    elif not any((results.audit, results.attempts, results.slowest, results.peaks)):
        yield Finding("Nothing happened: the trace has no operations.", Severity.FINE, "waits")


def _whole_run_rows(waits: Sequence[Row]) -> Iterator[Row]:
    return (row for row in waits if row["kind"] == "all")


def _expired(run: Row, results: Results) -> Iterator[Finding]:
    """The expired operations of each purgatory."""
    for purgatory, rows in group_by(list(_whole_run_rows(results.waits)), "purgatory").items():
        counts = {row["outcome"]: row["operations"] for row in rows}
        expired = counts.get("expired", 0)
        if not expired:
            continue
        totals = [row for row in results.expiry if _is_total(row, purgatory)]
        when = ""
        if totals:
            from_us, until_us = (
                min(row["from_us"] for row in totals),
                max(row["until_us"] for row in totals),
            )
            during, why = faults_during(run, from_us, until_us)
            of_expired = next(row for row in rows if row["outcome"] == "expired")
            when = f" {_wait_text(of_expired)}. This was from {seconds(run, from_us)} to "
            when += f"{seconds(run, until_us)} into the run{during}."
            if purgatory == "Produce":
                when += f" {why}" if why else ""
                when += f" The leader had appended {'it' if expired == 1 else 'all of them'}."
        text = expired_text(purgatory, expired, counts["all"]) + when
        headline = expired_text(purgatory, expired, counts["all"]).partition(":")[0].rstrip(".")
        yield Finding(
            text, expired_severity(purgatory), "expiry" if totals else "waits", headline=headline
        )


def _wait_text(row: Row) -> str:
    """The waits of a row of `waits` in words; a single time if all are alike."""
    mean_us, most_us = row["wait_mean_us"], row["wait_max_us"]
    if row["operations"] == 1:
        return f"It waited {_duration(most_us)}"
    if most_us - mean_us <= _ALIKE * most_us:
        return f"Each waited {_duration(most_us)}"
    return f"They waited {_duration(mean_us)} on average, {_duration(most_us)} at most"


def _duration(time_us: float) -> str:
    return f"{time_us / 1e6:,.1f} s" if time_us >= _SECOND_US else f"{time_us / 1e3:,.0f} ms"


def _is_total(row: Row, purgatory: str) -> bool:
    return row["purgatory"] == purgatory and row["watch_key"] is None and row["expired"] > 0


def _unanswered(run: Row, results: Results) -> Iterator[Finding]:
    """Attempts with an unknown outcome, and those that failed."""
    attempts = results.attempts
    for group, rows in group_by(attempts, "group").items():
        for outcome, got, refused in (
            ("unknown", "do not know the outcome of", ""),
            ("fail", "had", " refused"),
        ):
            by_error = {row["error"]: row for row in rows if row["outcome"] == outcome}
            if "*" not in by_error:
                continue
            row = by_error.pop("*")
            if not by_error:
                yield _no_response_expected(group, row)
                continue
            during, _ = faults_during(run, row["from_us"], row["until_us"])
            from_s, until_s = seconds(run, row["from_us"]), seconds(run, row["until_us"])
            when = f"from {from_s} to {until_s} into the run"
            text = (
                f'Producers of group "{group}" {got} {_attempts(row["attempts"])}{refused}'
                f"{_errors(by_error)} {when}{during}"
            )
            if outcome == "unknown":
                text += _stored_text(row, attempts, with_copies=not results.audit)
                text += _timed_out_produces(results, by_error)
            of_all = sum(one["attempts"] for one in rows if one["outcome"] == "all")
            became = "were refused" if refused else "have an unknown outcome"
            headline = f"{row['attempts']:,} of {of_all:,} attempts to send {became}"
            yield Finding(f"{text}.", Severity.HARM, "latencies", "attempts", headline)


def _timed_out_produces(results: Results, by_error: Mapping[str, Row]) -> str:
    """The responses to produces that timed out at the broker, if each was one attempt of a group.

    This holds if the attempts have as many without a response.
    """
    produces = {
        row["outcome"]: row["operations"]
        for row in _whole_run_rows(results.waits)
        if row["purgatory"] == "Produce"
    }
    expired, timed_out = (
        produces.get("expired", 0),
        by_error[_TIMED_OUT]["attempts"] if _TIMED_OUT in by_error else 0,
    )
    broken = by_error[_DISCONNECTED]["attempts"] if _DISCONNECTED in by_error else 0
    answered = sum(
        row["count"] * {"attempt": 1, "broken": -1}.get(row["span"], 0) for row in results.latencies
    )
    lost = produces.get("all", 0) - answered
    if not expired or lost != expired - timed_out or not 0 <= lost <= broken:
        return ""
    text = f". The {expired:,} produces that timed out: {timed_out:,} got the response "
    text += _TIMED_OUT
    if lost:
        text += f", {lost:,} lost their connection before it"
        if broken > lost:
            text += f". {broken - lost:,} more attempts lost theirs before a broker read them"
    return text


def _no_response_expected(group: str, row: Row) -> Finding:
    """Attempts without a response and without an error: no failure."""
    return Finding(
        f'Producers of group "{group}" got no response to {_attempts(row["attempts"])}: they set '
        "acks=0, or the run ended first.",
        Severity.NOTE,
        "latencies",
        "attempts",
    )


def _attempts(number: int) -> str:
    return f"{number:,} attempt{'' if number == 1 else 's'}"


def _errors(by_error: dict[str, Row]) -> str:
    worst = sorted(by_error.items(), key=lambda item: (-item[1]["attempts"], item[0]))
    texts = [f"{row['attempts']:,} {error}" for error, row in worst[:_MOST_ERRORS]]
    more = len(worst) - _MOST_ERRORS
    texts += [f"{more:,} other errors"] if more > 0 else []
    return f" ({', '.join(texts)})" if texts else ""


def _stored_text(row: Row, attempts: Sequence[Row], *, with_copies: bool) -> str:
    """The number of the records in the log, in words."""
    if not any(attempt["stored"] for attempt in attempts):
        return "; none was read, so the trace does not show whether they are stored"
    if row["stored"] == row["records"]:
        stored = "it is stored" if row["records"] == 1 else "all of them are stored"
    elif row["stored"]:
        stored = f"{row['stored']:,} of them are stored"
    else:
        stored = "none of them was read"
    copies = f", {row['doubled']:,} more than once" if row["doubled"] else ""
    if row["doubled"] and with_copies:
        copies += f": {row['copies']:,} duplicate{'' if row['copies'] == 1 else 's'}"
    records = f"{row['records']:,} record{'' if row['records'] == 1 else 's'}"
    return f". They had {records}: {stored}{copies}"


def _latencies(latencies: Sequence[Row]) -> Iterator[Finding]:
    """The latency of the slowest group of clients, beside its wait in the purgatory."""
    by_group = {
        group: {row["span"]: row for row in rows}
        for group, rows in group_by(latencies, "group").items()
    }
    answered = {group: rows for group, rows in by_group.items() if "attempt" in rows}
    if not answered:
        return
    group, rows = max(
        answered.items(), key=lambda item: (item[1]["attempt"]["latency_p99_us"], item[0])
    )
    producers = (
        f'Producers of group "{group}"'
        if len(answered) == 1
        else f'The slowest producers, those of group "{group}",'
    )
    awaited = "a response or the end of their connection" if "broken" in rows else "a response"
    text = f"{producers} waited {_mean_and_p99(rows['attempt'])} for {awaited}"
    queue, wait = rows.get("queue"), rows.get("wait")
    severity = Severity.NOTE
    if queue and wait and queue["latency_mean_us"] > wait["latency_mean_us"]:
        text += (
            f". Answered attempts waited {_mean_and_p99(wait)} of it at the broker, and queued "
            f"{_mean_and_p99(queue)} behind other requests of their connection"
        )
    yield Finding(f"{text}.", severity, "latencies")


def _mean_and_p99(row: Row) -> str:
    mean, p99 = row["latency_mean_us"] / 1000, row["latency_p99_us"] / 1000
    return f"{mean:,.1f} ms on average (p99 {p99:,.1f} ms)"


def _peaks(run: Row, results: Results) -> Iterator[Finding]:
    """The peaks of parked operations, with their causes if the job has them."""
    for peak in (row for row in results.peaks if row["rank"] == 1):
        during, _ = faults_during(run, peak["at_us"], peak["at_us"])
        operations = f"{peak['size']:,} operation{'' if peak['size'] == 1 else 's'}"
        yield Finding(
            f"Peak pending: {operations} in {peak['purgatory']}, at "
            f"{seconds(run, peak['at_us'])} of the run{during}; {peak['arrivals_before']:,} had "
            f"come in the {peak['before_us'] / 1000:,.1f} ms before, where "
            f"{peak['arrivals_usual']:,.1f} are usual.",
            Severity.NOTE,
            "occupancy",
            "peaks",
        )


# The findings at the top of a run, with links to their plots and rows.


_MARKS: Mapping[Severity, str] = {
    Severity.INCOMPLETE: "incomplete",
    Severity.VIOLATION: "violated",
    Severity.HARM: "harm",
    Severity.DOUBT: "unclear",
    Severity.NOTE: "note",
    Severity.FINE: "fine",
}


def findings_list(part: PagePart, findings: Sequence[Finding], below: str) -> str:
    """The findings as HTML.

    Args:
        findings: the most severe first.
        below: the sections that follow, as HTML: only anchors in them are linked.
    """
    items = "".join(
        f"<li>{_mark(finding)} {_finding_html(part, finding, below)}</li>" for finding in findings
    )
    return f'<ul class="said">{items}</ul>' if items else ""


def _mark(finding: Finding) -> str:
    broken = " broken" if finding.severity < Severity.DOUBT else ""
    return f'<span class="mark{broken}">{_MARKS[finding.severity]}</span>'


def _finding_html(part: PagePart, finding: Finding, below: str) -> str:
    anchors = {
        "plot": part.anchor(finding.section),
        "rows": part.rows(finding.table or finding.section),
    }
    links = [
        f'<a href="#{anchor}" aria-label="{name}: {escape(finding.text)}">{name}</a>'
        for name, anchor in anchors.items()
        if f'id="{anchor}"' in below
    ]
    return f"{escape(finding.text)} <span class='links'>{' '.join(links)}</span>"
