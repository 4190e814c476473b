"""What happened in a run, how bad, when, and why as far as its trace tells: sentences, as data.

A cause is named only where the trace has it: a fault that was in force in the same time, requests
that queued behind others of their connection, a setting that permits what was found. Every count
and time comes from the tables of results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from purgatory.analysis.reports.anomaly_words import anomalies_said
from purgatory.analysis.reports.expiry_words import expired_severity, expired_text
from purgatory.analysis.reports.fault_words import faults_during, faults_said, seconds
from purgatory.analysis.reports.report_results import Results
from purgatory.analysis.reports.severity import Said, Severity
from purgatory.analysis.result_rows import Row, grouped

_MOST_ERRORS = 3


def what_happened(results: Results) -> list[Said]:
    """The sentences on one run, the worst first.

    Args:
        results: its rows, and no other run's; tables that a job doesn't make are empty.
    """
    (run,) = results.runs
    said = [
        *_incomplete(run, results),
        *_expired(run, results),
        *_unanswered(run, results.attempts, is_audited=bool(results.audit)),
        *anomalies_said(run, results.audit, results.attempts, results.witnesses),
        *_latencies(results.latencies),
        *_peaks(run, results),
    ]
    bad = any(one.severity < Severity.FINE for one in said)
    if not bad and not run["faults"]:
        said += _nothing(results)
    said += faults_said(run, said)
    return sorted(said, key=lambda one: one.severity)


def _incomplete(run: Row, results: Results) -> Iterator[Said]:
    if run["complete"]:
        return
    lacking = "what was sent and read after it broke off is not in it."
    if results.waits or results.littles_law or not results.audit:
        lacking = (
            "what was waiting when it broke off is in no table, so waits and sizes near the end "
            "are too small."
        )
    yield Said(f"The trace is incomplete: {lacking}", Severity.INCOMPLETE, "runs")


def _nothing(results: Results) -> Iterator[Said]:
    """That all went well, as far as these tables tell."""
    if not results.runs[0]["complete"]:
        return
    settled = {
        row["purgatory"]: row["operations"]
        for row in _of_whole_run(results.waits)
        if row["outcome"] == "all"
    }
    parts = []
    if "Produce" in settled:
        parts.append(f"all {settled['Produce']:,} produces were answered in time")
    elif settled:
        parts.append(f"none of {sum(settled.values()):,} operations was late")
    if results.audit:
        parts.append("no record was lost, doubled or put out of order")
    if parts:
        yield Said(f"Nothing went wrong: {', and '.join(parts)}.", Severity.FINE, "waits")
    elif not any((results.audit, results.attempts, results.slowest, results.littles_law)):
        yield Said("Nothing happened: the trace has no operations.", Severity.FINE, "waits")


def _of_whole_run(waits: Sequence[Row]) -> Iterator[Row]:
    return (row for row in waits if row["kind"] == "all")


def _expired(run: Row, results: Results) -> Iterator[Said]:
    """What was not answered in time, of each purgatory."""
    for purgatory, rows in grouped(list(_of_whole_run(results.waits)), "purgatory").items():
        counts = {row["outcome"]: row["operations"] for row in rows}
        expired = counts.get("expired", 0)
        if not expired:
            continue
        of = [row for row in results.expiry if _is_total(row, purgatory)]
        when = ""
        if of:
            from_us, until_us = (
                min(row["from_us"] for row in of),
                max(row["until_us"] for row in of),
            )
            during, why = faults_during(run, from_us, until_us)
            when = f" They waited between {seconds(run, from_us)} and {seconds(run, until_us)}"
            when += f"{during}."
            when += f" {why}" if why and purgatory == "Produce" else ""
        text = expired_text(purgatory, expired, counts["all"]) + when
        yield Said(text, expired_severity(purgatory), "expiry" if of else "waits")


def _is_total(row: Row, purgatory: str) -> bool:
    return row["purgatory"] == purgatory and row["watch_key"] is None and row["expired"] > 0


def _unanswered(run: Row, attempts: Sequence[Row], *, is_audited: bool) -> Iterator[Said]:
    """Attempts whose fate the producer was not told, or that were refused."""
    for group, rows in grouped(attempts, "group").items():
        for outcome, got, refused in (
            ("unknown", "got no certain answer to", ""),
            ("fail", "had", " refused"),
        ):
            of = {row["error"]: row for row in rows if row["outcome"] == outcome}
            if "*" not in of:
                continue
            row = of.pop("*")
            if not of:
                yield _not_asked(group, row)
                continue
            during, _ = faults_during(run, row["from_us"], row["until_us"])
            when = f"between {seconds(run, row['from_us'])} and {seconds(run, row['until_us'])}"
            text = (
                f'Producers of group "{group}" {got} {_attempts(row["attempts"])}{refused}'
                f"{_errors(of)} {when}{during}"
            )
            if outcome == "unknown":
                text += _stored(row, attempts, with_copies=not is_audited)
            yield Said(f"{text}.", Severity.HARM, "latencies", "attempts")


def _not_asked(group: str, row: Row) -> Said:
    """Attempts of which no error is known either: nothing that went wrong."""
    return Said(
        f'Producers of group "{group}" know no answer to {_attempts(row["attempts"])}: they asked '
        "for none (acks=0), or the run ended first.",
        Severity.NOTE,
        "latencies",
        "attempts",
    )


def _attempts(number: int) -> str:
    return f"{number:,} attempt{'' if number == 1 else 's'}"


def _errors(of: dict[str, Row]) -> str:
    worst = sorted(of.items(), key=lambda one: (-one[1]["attempts"], one[0]))
    named = [f"{row['attempts']:,} {error}" for error, row in worst[:_MOST_ERRORS]]
    more = len(worst) - _MOST_ERRORS
    named += [f"{more:,} other errors"] if more > 0 else []
    return f" ({', '.join(named)})" if named else ""


def _stored(row: Row, attempts: Sequence[Row], *, with_copies: bool) -> str:
    """How many of the records in question are in the log."""
    if not any(one["stored"] for one in attempts):
        return "; nobody read them, so whether they are stored the trace does not tell"
    if row["stored"] == row["records"]:
        stored = "it is stored" if row["records"] == 1 else "all of them are stored"
    elif row["stored"]:
        stored = f"{row['stored']:,} of them are stored"
    else:
        stored = "none of them was read"
    again = ""
    if row["doubled"] and with_copies:
        again = f", {row['doubled']:,} more than once: {_copies(row['copies'])} too many"
    return (
        f". They had {row['records']:,} record{'' if row['records'] == 1 else 's'}: {stored}{again}"
    )


def _copies(number: int) -> str:
    return f"{number:,} cop{'y' if number == 1 else 'ies'}"


def _latencies(latencies: Sequence[Row]) -> Iterator[Said]:
    """How long clients waited, beside what the purgatory tells: of the slowest group."""
    by_group = {
        group: {row["span"]: row for row in rows}
        for group, rows in grouped(latencies, "group").items()
    }
    answered = {group: rows for group, rows in by_group.items() if "attempt" in rows}
    if not answered:
        return
    group, rows = max(
        answered.items(), key=lambda one: (one[1]["attempt"]["latency_p99_us"], one[0])
    )
    of = (
        f'Producers of group "{group}"'
        if len(answered) == 1
        else f'The slowest producers, those of group "{group}",'
    )
    text = f"{of} got an answer after {_mean_and_p99(rows['attempt'])}"
    queue, wait = rows.get("queue"), rows.get("wait")
    severity = Severity.NOTE
    if queue and wait and queue["latency_mean_us"] > wait["latency_mean_us"]:
        text += (
            f", though their requests waited at the broker for {_mean_and_p99(wait)}: they queued "
            f"behind others of their connection for {_mean_and_p99(queue)}"
        )
    yield Said(f"{text}.", severity, "latencies")


def _mean_and_p99(row: Row) -> str:
    mean, p99 = row["latency_mean_us"] / 1000, row["latency_p99_us"] / 1000
    return f"{mean:,.1f} ms on average (p99 {p99:,.1f} ms)"


def _peaks(run: Row, results: Results) -> Iterator[Said]:
    """The most that waited at once: with the causes, where a job looked for them."""
    for peak in (row for row in results.peaks if row["rank"] == 1):
        during, _ = faults_during(run, peak["at_us"], peak["at_us"])
        operations = f"{peak['size']:,} operation{'' if peak['size'] == 1 else 's'}"
        yield Said(
            f"At most {operations} waited at once in {peak['purgatory']}, at "
            f"{seconds(run, peak['at_us'])}{during}; {peak['arrivals_before']:,} had come in the "
            f"{peak['before_us'] / 1000:,.1f} ms before, where {peak['arrivals_usual']:,.1f} are "
            "usual.",
            Severity.NOTE,
            "occupancy",
            "peaks",
        )
