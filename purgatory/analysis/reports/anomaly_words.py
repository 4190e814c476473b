"""What an audit found, in sentences: each case once, with the verdict on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from purgatory.analysis.reports.fault_words import fault_right_after, faults_during, seconds
from purgatory.analysis.reports.severity import Said, Severity
from purgatory.analysis.result_rows import Row, grouped

_FOUND: Mapping[str, tuple[str, str]] = {
    "inconsistent_offset": (
        "At one offset readers found different values",
        "At {n} offsets readers found different values",
    ),
    "duplicate": (
        "One record is stored more than once",
        "{n} records are stored more than once",
    ),
    "lost_ack_duplicate": (
        "One record was sent again after an answer that got lost, and is stored twice",
        "{n} records were sent again after answers that got lost, and are stored twice",
    ),
    "lost_write": ("One acknowledged record is lost", "{n} acknowledged records are lost"),
    "moved_write": (
        "One record was acknowledged at an offset where it is not, and lies at another",
        "{n} records were acknowledged at offsets where they are not, and lie at others",
    ),
    "unseen": (
        "One acknowledged record lies above what readers reached",
        "{n} acknowledged records lie above what readers reached",
    ),
    "aborted_read": (
        "One record was read though its sends failed or were aborted",
        "{n} records were read though their sends failed or were aborted",
    ),
    "partial_transaction": (
        "A group read one transaction in parts",
        "{n} times a group read a transaction in parts",
    ),
    "zombie_write": (
        "One record was written by a producer that had no transaction any more",
        "{n} records were written by producers that had no transaction any more",
    ),
    "retry_reorder": (
        "One record that was sent again lies behind later ones",
        "{n} records that were sent again lie behind later ones",
    ),
    "nonmonotonic_send": (
        "One record lies behind later ones, though it was sent once",
        "{n} records lie behind later ones, though they were sent once",
    ),
    "sequence_gap": (
        "One record is missing between stored ones",
        "{n} records are missing between stored ones",
    ),
    "multi_writer": (
        "Once a producer wrote to a partition while another one did",
        "{n} times a producer wrote to a partition while another one did",
    ),
    "poll_skip": ("One poll jumped over records", "{n} polls jumped over records"),
    "nonmonotonic_poll": ("One poll went back", "{n} polls went back"),
    "key_order_violation": (
        "One older version of a key was applied after a newer one",
        "{n} older versions of a key were applied after newer ones",
    ),
    "reprocess": (
        "One input was delivered again, and applied once",
        "{n} inputs were delivered again, and applied once",
    ),
    "effect_duplicate": (
        "One input was applied more than once",
        "{n} inputs were applied more than once",
    ),
    "offset_without_result": (
        "One committed input has no result",
        "{n} committed inputs have no result",
    ),
    "result_without_offset": (
        "One result is stored whose offset is not committed",
        "{n} results are stored whose offset is not committed",
    ),
}
_BENIGN = {"aborted_read", "multi_writer", "poll_skip", "nonmonotonic_poll", "reprocess"}
"""What harms nobody where the settings permit it."""
_VERDICTS = ("violation", "indeterminate", "permitted")


def anomalies_said(
    run: Row,
    audit: Sequence[Row],
    attempts: Sequence[Row] = (),
    witnesses: Sequence[Row] = (),
) -> Iterator[Said]:
    """A sentence for each anomaly and verdict; a duplicate after a lost answer is told once.

    Args:
        run: a run's row of the table `runs`.
        audit, attempts, witnesses: its rows of the tables of these names.
    """
    for verdict in _VERDICTS:
        found = grouped([r for r in audit if r["count"] and r["verdict"] == verdict], "anomaly")
        after_lost = sum(row["count"] for row in found.get("lost_ack_duplicate", ()))
        for anomaly, rows in found.items():
            if anomaly == "lost_ack_duplicate" and "duplicate" in found:
                continue
            if anomaly == "multi_writer" and verdict == "permitted":
                continue  # which any topic with two producers has: the table says so
            count = sum(row["count"] for row in rows)
            detail = ""
            if anomaly == "duplicate":
                whole = sum(r["count"] for r in audit if r["anomaly"] == anomaly) == count
                detail = _copies(attempts if whole else ()) + after_lost_text(count, after_lost)
            of = [w for w in witnesses if (w["anomaly"], w["verdict"]) == (anomaly, verdict)]
            when = _when(run, of, count)
            yield Said(
                f"{anomaly_text(anomaly, count)}{detail}{when}{_judged(verdict, rows)}.",
                _severity(anomaly, verdict),
                "audit",
            )


def anomaly_text(anomaly: str, count: int) -> str:
    """So many cases of an anomaly: a sentence without its end."""
    one, many = _FOUND.get(anomaly, (f"{anomaly}: one case", f"{anomaly}: {{n}} cases"))
    return one if count == 1 else many.format(n=f"{count:,}")


def _copies(attempts: Sequence[Row]) -> str:
    copies, stored = (
        sum(row[name] for row in attempts if row["outcome"] == "all")
        for name in ("copies", "stored")
    )
    if not copies:
        return ""
    return f" ({stored + copies:,} copies of {stored:,} records: {copies:,} too many)"


def after_lost_text(count: int, after_lost: int) -> str:
    """How many of so many duplicates were sent again after a lost answer; empty for none."""
    if not after_lost:
        return ""
    if after_lost == count:
        return ", sent again after an answer that did not come"
    return f", {after_lost:,} of them sent again after an answer that did not come"


def _when(run: Row, witnesses: Sequence[Row], count: int) -> str:
    """When so many cases were, as far as the witnesses tell: they are the first of them."""
    times = [row["time_us"] for row in witnesses if row["time_us"] is not None]
    if not times:
        return ""
    first_us, last_us = min(times), max(times)
    first, last = seconds(run, first_us), seconds(run, last_us)
    if sum(row["count"] for row in witnesses) < count:
        during, _ = faults_during(run, first_us, first_us)
        return f", the first at {first}{during or fault_right_after(run, first_us)}"
    during, _ = faults_during(run, first_us, last_us)
    during = during or fault_right_after(run, last_us)
    return f", at {first}{during}" if first == last else f", between {first} and {last}{during}"


def _judged(verdict: str, rows: Sequence[Row]) -> str:
    settings = "; ".join(dict.fromkeys(filter(None, (row["setting"] for row in rows))))
    because = f" ({settings})" if settings else ""
    if verdict == "violation":
        return f". That breaks what was promised{because}"
    if verdict == "permitted":
        return f". The settings permit that{because}"
    return f". Whether that breaks a promise, nobody can tell{because}"


def _severity(anomaly: str, verdict: str) -> Severity:
    if verdict == "violation":
        return Severity.VIOLATION
    if verdict == "indeterminate":
        return Severity.DOUBT
    return Severity.NOTE if anomaly in _BENIGN else Severity.HARM
