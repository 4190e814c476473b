"""The sentences of a report on expired operations, faults and anomalies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from purgatory.pipeline.result_rows import Row, group_by


class Severity(IntEnum):
    """The severity of a finding, the most severe first."""

    INCOMPLETE = 0
    VIOLATION = 1
    HARM = 2
    DOUBT = 3
    FINE = 4
    NOTE = 5


@dataclass(frozen=True)
class Finding:
    """One or two sentences on a run.

    Attributes:
        text: plain text.
        section: the section of the page that shows it.
        table: the table of results with its rows; by default that of the section's name.
        headline: the failure in a few words, for the verdict; empty where nothing failed.
    """

    text: str
    severity: Severity
    section: str
    table: str | None = None
    headline: str = ""


# Expired operations in a sentence, and the severity of that.
#
# Expiry is not always a failure: some operations respond with partial results, some always expire.


class _Words(NamedTuple):
    operations: str
    expired: str
    severity: Severity = Severity.HARM


_PURGATORY_WORDS: Mapping[str, _Words] = {
    "Produce": _Words("produces", "timed out."),
    "Fetch": _Words(
        "fetches",
        "returned at fetch.max.wait.ms with less than fetch.min.bytes.",
        Severity.NOTE,
    ),
    "ShareFetch": _Words(
        "share fetches",
        "returned at fetch.max.wait.ms with less than fetch.min.bytes.",
        Severity.NOTE,
    ),
    "Rebalance": _Words(
        "rebalances",
        "expired: that of a new group always does; a later one completes without the members that "
        "did not join.",
        Severity.NOTE,
    ),
    "Sync": _Words("syncs", "expired: members that did not send SyncGroup are removed."),
    "Heartbeat": _Words("waits for heartbeats", "expired: the member is removed from its group."),
    "TransactionTimeout": _Words(
        "waits of transactions",
        "expired: an open transaction is aborted, the id of a completed one is forgotten.",
    ),
    "AcquisitionLock": _Words("acquisition locks", "expired: the records are delivered again."),
}


def expired_text(purgatory: str, expired: int, operations: int) -> str:
    """The share of a purgatory's operations that expired, as a sentence."""
    words = _words(purgatory)
    share = f"{expired:,} of {operations:,} {words.operations}"
    return f"{share} ({_percent(expired, operations)}) {words.expired}"


def expired_severity(purgatory: str) -> Severity:
    """The severity of expired operations in a purgatory."""
    return _words(purgatory).severity


def _words(purgatory: str) -> _Words:
    otherwise = _Words(f"operations in the purgatory {purgatory}", "timed out.")
    return _PURGATORY_WORDS.get(purgatory, otherwise)


def _percent(part: int, whole: int) -> str:
    """A share above 0, with enough digits that it is not 0.0 %."""
    percent = 100 * part / whole
    return f"{percent:.1f} %" if percent >= 0.1 else f"{percent:.1g} %"


# Injected faults of a run in words, and when they were active.


_MOST_NAMED = 3
_SHORT_RUN_US = 2_000_000
_RIGHT_AFTER_US = 500_000
_STATES: Mapping[str, str] = {
    "stall_follower": "the follower on {broker} was stalled",
    "slow_follower": "the follower on {broker} was slow",
    "kill": "{broker} was dead",
    "pause": "{broker} was paused",
    "cut_link": "a link between brokers was cut",
    "lose_requests": "requests got lost",
    "lose_responses": "responses of {broker} got lost",
    "delay_responses": "responses of {broker} were late",
    "refuse_produces": "{broker} refused produces",
}
_LAGGING = {"stall_follower", "slow_follower"}


def seconds(run: Row, time_us: float) -> str:
    """A time of a run in seconds, with more digits for short runs."""
    digits = 3 if run["duration_us"] < _SHORT_RUN_US else 1
    return f"{time_us / 1e6:,.{digits}f} s"


def faults_during(run: Row, from_us: int, until_us: int) -> tuple[str, str]:
    """The faults that were active in an interval, and a remark on them.

    Returns:
        Both as text, which may be empty: ", while broker 2 was dead (4.0 s to 8.0 s)", and a
        sentence. Faults that were active for less than half of the interval are marked as such.
    """
    active = [
        fault
        for fault in run["faults"]
        if fault["at_ms"] * 1000 <= until_us and from_us <= _end_us(run, fault)
    ]
    texts = [_with_times(run, fault) for fault in active[:_MOST_NAMED]]
    more = len(active) - _MOST_NAMED
    texts += [f"{more:,} other faults were in force"] if more > 0 else []
    why = ""
    if active and all(fault["kind"] in _LAGGING for fault in active):
        why = "The follower was still in the ISR, so acks=all waited for it."
    if not texts:
        return "", ""
    begun_us = max(from_us, min(fault["at_ms"] * 1000 for fault in active))
    over_us = min(until_us, max(_end_us(run, fault) for fault in active))
    whole = 2 * (over_us - begun_us) >= until_us - from_us
    return f"{', while' if whole else '; in a part of that time'} {' and '.join(texts)}", why


def fault_soon_after(run: Row, time_us: int) -> str:
    """The fault that began within half a second after a time, if any.

    The text is as ", right before broker 2 was dead (...)". Records that are lost when a leader
    dies were acknowledged before.
    """
    for fault in run["faults"]:
        if 0 < fault["at_ms"] * 1000 - time_us <= _RIGHT_AFTER_US:
            return f", right before {_with_times(run, fault)}"
    return ""


def fault_findings(run: Row, others: Sequence[Finding]) -> list[Finding]:
    """A finding on the faults that no other finding names."""
    texts = [_with_times(run, fault) for fault in run["faults"]]
    new = [text for text in texts if not any(text in other.text for other in others)]
    if not new:
        return []
    more = f", and {len(new) - _MOST_NAMED:,} more faults" if len(new) > _MOST_NAMED else ""
    text = f"{'; '.join(new[:_MOST_NAMED])}{more}."
    return [Finding(text[0].upper() + text[1:], Severity.NOTE, "faults", "runs")]


def fault_text(fault: Row) -> str:
    """A fault in words, with its broker and its times."""
    of_broker = "" if fault["broker"] is None else f" of broker {fault['broker']}"
    text = f"{fault['kind']}{of_broker} from {fault['at_ms'] / 1000:,.3f} s"
    if fault["duration_ms"] is not None:
        text += f" to {(fault['at_ms'] + fault['duration_ms']) / 1000:,.3f} s"
    return text


def _with_times(run: Row, fault: Row) -> str:
    broker = "all brokers" if fault["broker"] is None else f"broker {fault['broker']}"
    state = _STATES.get(fault["kind"])
    if state is None:
        whose = "" if fault["broker"] is None else f" of {broker}"
        state = f"the fault {fault['kind']}{whose} was in force"
    start = seconds(run, fault["at_ms"] * 1000)
    if fault["duration_ms"] is None:
        return f"{state.format(broker=broker)} (from {start} on)"
    return f"{state.format(broker=broker)} ({start} to {seconds(run, _end_us(run, fault))})"


def _end_us(run: Row, fault: Row) -> int:
    if fault["duration_ms"] is None:
        return int(run["duration_us"])
    return int((fault["at_ms"] + fault["duration_ms"]) * 1000)


# Rows of the table `audit` without duplicate cases.
#
# A record that is stored twice after a lost response is a case of two anomalies.


DUPLICATE, AFTER_LOST = "duplicate", "lost_ack_duplicate"
_SAME = ("run_id", "group", "verdict", "setting")


def dedupe_anomalies(audit: Sequence[Row]) -> list[Row]:
    """Merge the rows of `lost_ack_duplicate` into those of `duplicate`.

    Rows of `duplicate` have their number in `after_lost`.
    """
    duplicates = {_same(row) for row in audit if row["anomaly"] == DUPLICATE}
    after = {_same(row): row["count"] for row in audit if row["anomaly"] == AFTER_LOST}
    return [
        {**row, "after_lost": after.get(_same(row), 0)} if row["anomaly"] == DUPLICATE else row
        for row in audit
        if row["anomaly"] != AFTER_LOST or _same(row) not in duplicates
    ]


def _same(row: Row) -> tuple[object, ...]:
    return tuple(row.get(name) for name in _SAME)


# The anomalies of an audit in sentences, with their verdicts.


_SENTENCES: Mapping[str, tuple[str, str]] = {
    "inconsistent_offset": (
        "At one offset readers found different values",
        "At {n} offsets readers found different values",
    ),
    "duplicate": (
        "One record is stored more than once",
        "{n} records are stored more than once",
    ),
    "lost_ack_duplicate": (
        "One record was sent again after a response was lost, and is stored twice",
        "{n} records were sent again after responses were lost, and are stored twice",
    ),
    "lost_write": ("One acknowledged record is lost", "{n} acknowledged records are lost"),
    "moved_write": (
        "One record was acknowledged at one offset, and is stored at another",
        "{n} records were acknowledged at one offset, and are stored at another",
    ),
    "unseen": (
        "One acknowledged record lies beyond the readers' positions",
        "{n} acknowledged records lie beyond the readers' positions",
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
    "failed_send": (
        "One record was never stored, as its producer could know",
        "{n} records were never stored, as their producers could know",
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
"""Anomalies that are harmless where the settings permit them."""
_VERDICTS = ("violation", "indeterminate", "permitted")


def anomaly_findings(
    run: Row,
    audit: Sequence[Row],
    attempts: Sequence[Row] = (),
    witnesses: Sequence[Row] = (),
) -> Iterator[Finding]:
    """A finding per anomaly and verdict; duplicates after a lost response count once."""
    for verdict in _VERDICTS:
        by_anomaly = group_by(
            [r for r in audit if r["count"] and r["verdict"] == verdict], "anomaly"
        )
        after_lost = sum(row["count"] for row in by_anomaly.get("lost_ack_duplicate", ()))
        for anomaly, rows in by_anomaly.items():
            if anomaly == "lost_ack_duplicate" and "duplicate" in by_anomaly:
                continue
            if anomaly == "multi_writer" and verdict == "permitted":
                continue  # which any topic with two producers has: the table says so
            count = sum(row["count"] for row in rows)
            detail = ""
            if anomaly == "duplicate":
                whole = sum(r["count"] for r in audit if r["anomaly"] == anomaly) == count
                detail = _copies(attempts if whole else ()) + after_lost_text(count, after_lost)
            cases = [w for w in witnesses if (w["anomaly"], w["verdict"]) == (anomaly, verdict)]
            when = _when(run, cases, count)
            yield Finding(
                f"{anomaly_text(anomaly, count)}{detail}{when}{_verdict_text(verdict, rows)}.",
                _severity(anomaly, verdict),
                "audit",
                headline=anomaly_text(anomaly, count),
            )


def anomaly_text(anomaly: str, count: int) -> str:
    """The number of cases of an anomaly: a sentence without its full stop."""
    singular, plural = _SENTENCES.get(anomaly, (f"{anomaly}: one case", f"{anomaly}: {{n}} cases"))
    return singular if count == 1 else plural.format(n=f"{count:,}")


def _copies(attempts: Sequence[Row]) -> str:
    copies, stored = (
        sum(row[name] for row in attempts if row["outcome"] == "all")
        for name in ("copies", "stored")
    )
    if not copies:
        return ""
    duplicates = f"{copies:,} duplicate{'' if copies == 1 else 's'}"
    return f" ({stored + copies:,} stored for {stored:,} records: {duplicates})"


def after_lost_text(count: int, after_lost: int) -> str:
    """The number of duplicates that were sent again after a lost response; empty for none."""
    if not after_lost:
        return ""
    if after_lost == count:
        return ", sent again because no response came"
    return f", {after_lost:,} of them sent again because no response came"


def _when(run: Row, witnesses: Sequence[Row], count: int) -> str:
    """The times of cases by their witnesses, which are the first of them."""
    times = [row["time_us"] for row in witnesses if row["time_us"] is not None]
    if not times:
        return ""
    first_us, last_us = min(times), max(times)
    first, last = seconds(run, first_us), seconds(run, last_us)
    if sum(row["count"] for row in witnesses) < count:
        during, _ = faults_during(run, first_us, first_us)
        return f", the first at {first}{during or fault_soon_after(run, first_us)}"
    during, _ = faults_during(run, first_us, last_us)
    during = during or fault_soon_after(run, last_us)
    return f", at {first}{during}" if first == last else f", between {first} and {last}{during}"


def _verdict_text(verdict: str, rows: Sequence[Row]) -> str:
    settings = "; ".join(dict.fromkeys(filter(None, (row["setting"] for row in rows))))
    because = f" ({settings})" if settings else ""
    if verdict == "violation":
        return f". This violates the guarantees{because}"
    if verdict == "permitted":
        return f". The settings permit this{because}"
    return f". Whether this violates a guarantee can't be decided{because}"


def _severity(anomaly: str, verdict: str) -> Severity:
    if verdict == "violation":
        return Severity.VIOLATION
    if verdict == "indeterminate":
        return Severity.DOUBT
    return Severity.NOTE if anomaly in _BENIGN else Severity.HARM
