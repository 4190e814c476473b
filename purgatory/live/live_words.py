"""What happened so far in a stream, in sentences: how bad, when, and why as far as rows tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

from purgatory.analysis.reports.anomaly_words import after_lost_text, anomaly_text
from purgatory.analysis.reports.cases_once import AFTER_LOST, DUPLICATE
from purgatory.analysis.reports.expiry_words import expired_severity, expired_text
from purgatory.analysis.reports.severity import Said, Severity
from purgatory.live.live_rows import LATE
from purgatory.live.told_so_far import Cases, Times, ToldSoFar, Waits

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US_PER_S = 1_000_000


def happened_so_far(told: ToldSoFar, until_us: Mapping[str, int]) -> list[Said]:
    """The sentences, the worst first. O(purgatories and buckets).

    Args:
        told: what the results add up to.
        until_us: up to when each query has told all, by its name.
    """
    said = [*_aside(told), *_expired(told), *_anomalies(told)]
    if not any(one.severity < Severity.FINE for one in said):
        said += _nothing_wrong(told, until_us)
    said += _waited(told)
    return sorted(said, key=lambda one: one.severity)


def moment(time_us: int) -> str:
    """A time with its day: 2026-11-24 12:00:10 UTC."""
    return f"{_day(time_us)} {clock(time_us)} UTC"


def clock(time_us: int) -> str:
    """A time of its day, as exact as it is: 12:00:10, or 12:00:10.250."""
    digits = "milliseconds" if time_us % _US_PER_S else "seconds"
    return _time(time_us).time().isoformat(digits)


def duration_text(duration_us: int) -> str:
    """A duration in the unit in which it is a small number: 250 ms, 10 s, 2 min, 3 h, 4 days."""
    for unit, of_us in (
        ("days", 86_400_000_000),
        ("h", 3_600_000_000),
        ("min", 60_000_000),
        ("s", _US_PER_S),
    ):
        if duration_us >= 2 * of_us or duration_us == of_us:
            return f"{duration_us / of_us:,.3g} {unit}"
    return f"{duration_us / 1000:,g} ms"


def between(times: Times) -> str:
    """From when to when, with the days, once if it is one."""
    first, last = times.from_us, times.until_us
    if first == last:
        return f"at {clock(first)} UTC on {_day(first)}"
    if _day(first) == _day(last):
        return f"between {clock(first)} and {clock(last)} UTC on {_day(first)}"
    return f"between {moment(first)} and {moment(last)}"


def _time(time_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=time_us)


def _day(time_us: int) -> str:
    return _time(time_us).date().isoformat()


def _aside(told: ToldSoFar) -> Iterator[Said]:
    """What is in no result, and so missing from all other sentences."""
    late = sum(one.rows for (_, reason), one in told.aside.items() if reason == LATE)
    bad = sum(one.rows for one in told.aside.values()) - late
    parts = [
        f"{rows:,} {words[rows != 1]}"
        for rows, words in (
            (late, ("came later than rows may", "came later than rows may")),
            (bad, ("is no row of a run", "are no rows of a run")),
        )
        if rows
    ]
    if parts:
        whole = f"{late + bad:,} row{'' if late + bad == 1 else 's'} changed no result"
        yield Said(f"{whole}: {', '.join(parts)}.", Severity.INCOMPLETE, "aside")


def _expired(told: ToldSoFar) -> Iterator[Said]:
    for purgatory, waits in told.waits.items():
        expired = waits.outcomes["expired"]
        if expired:
            yield Said(
                f"{expired_text(purgatory, expired, waits.operations)} They ended "
                f"{between(waits.expired)}{_worst(told, purgatory)}; {_newest(waits)}.",
                expired_severity(purgatory),
                f"over-time-{list(told.waits).index(purgatory)}",
                "waits",
            )


def _worst(told: ToldSoFar, purgatory: str) -> str:
    """The bucket in which the most expired, if they did in several."""
    found = {
        number: of_time[purgatory].expired
        for number, of_time in told.buckets.items()
        if purgatory in of_time and of_time[purgatory].expired
    }
    worst = max(found, key=lambda number: found[number])
    if len(found) < 2 or list(found.values()).count(found[worst]) > 1:
        return ""
    return (
        f", the most of them, {found[worst]:,}, in the {duration_text(told.width_us)} from "
        f"{clock(told.bucket_us(worst))}"
    )


def _newest(waits: Waits) -> str:
    """Whether it goes on."""
    which = f"the newest window, which ends at {clock(waits.newest_us)}"
    if waits.newest_expired:
        return f"{waits.newest_expired:,} of them in {which}"
    return f"none of them in {which}"


def _anomalies(told: ToldSoFar) -> Iterator[Said]:
    """A sentence for each anomaly; a duplicate after a lost answer is told once."""
    found: dict[str, Cases] = {}
    for (anomaly, _), cases in told.anomalies.items():
        of_all = found.setdefault(anomaly, Cases())
        of_all.count += cases.count
        of_all.doubtful += cases.doubtful
        of_all.times.take(cases.times.from_us, cases.times.until_us)
    after_lost = found[AFTER_LOST].count if AFTER_LOST in found else 0
    for anomaly, cases in found.items():
        if anomaly == AFTER_LOST and DUPLICATE in found:
            continue
        lost = after_lost_text(cases.count, after_lost) if anomaly == DUPLICATE else ""
        doubt = (
            f" Of {cases.doubtful:,} of them readers did not get far enough to be sure."
            if cases.doubtful
            else ""
        )
        yield Said(
            f"{anomaly_text(anomaly, cases.count)}{lost}, {between(cases.times)}"
            f"{_meanwhile(told, cases.times)}.{doubt}",
            Severity.HARM,
            "order",
        )


def _meanwhile(told: ToldSoFar, times: Times) -> str:
    """That produces timed out in the same time, which is why they are sent again."""
    produces = told.waits.get("Produce")
    if produces is None or not produces.outcomes["expired"]:
        return ""
    expired = produces.expired
    if expired.until_us < times.from_us or times.until_us < expired.from_us:
        return ""
    whole = expired.from_us <= times.from_us and times.until_us <= expired.until_us
    return ", while produces timed out" if whole else "; in a part of that time produces timed out"


def _nothing_wrong(told: ToldSoFar, until_us: Mapping[str, int]) -> Iterator[Said]:
    """That all went well, as far as the results tell."""
    parts = []
    produces = told.waits.get("Produce")
    if produces is not None:
        parts.append(f"all {produces.settled:,} produces were answered in time")
    elif told.waits:
        settled = sum(one.settled for one in told.waits.values())
        parts.append(f"none of {settled:,} operations was late")
    if until_us.get("order"):
        parts.append("no record was found doubled, missing or out of order")
    if parts:
        text = f"Nothing went wrong so far: {', and '.join(parts)}."
        yield Said(text, Severity.FINE, "over-time-0", "waits")
    else:
        yield Said("Nothing is known yet: no window is closed.", Severity.NOTE, "waits")


def _waited(told: ToldSoFar) -> Iterator[Said]:
    """How long operations waited, of each purgatory."""
    for number, (purgatory, waits) in enumerate(told.waits.items()):
        if waits.settled and waits.max_us:
            name = {"Produce": "Produces", "Fetch": "Fetches"}.get(
                purgatory, f"Operations in the purgatory {purgatory}"
            )
            yield Said(
                f"{name} waited {waits.sum_us / waits.settled / 1000:,.1f} ms on average, and "
                f"{waits.max_us / 1000:,.1f} ms at most, in the window that begins at "
                f"{clock(waits.max_at.from_us)}.",
                Severity.NOTE,
                f"over-time-{number}",
                "waits",
            )
