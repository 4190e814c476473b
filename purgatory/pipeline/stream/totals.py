"""What the results of a stream add up to, for its page: as much memory however long it runs.

Times are in microseconds since 1970. What would grow is cut: buckets of time get twice as wide when
there are many, and names after the first `MOST_NAMES` are one, `OTHERS`.

Ground rules: not for several threads; `StreamReport` has the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pyarrow as pa

from purgatory.pipeline.report.sentences import (
    AFTER_LOST,
    DUPLICATE,
    Said,
    Severity,
    after_lost_text,
    anomaly_text,
    expired_severity,
    expired_text,
)
from purgatory.pipeline.result_rows import Row
from purgatory.pipeline.stream.rows import LATE
from purgatory.pipeline.stream.windowed_waits import OUTCOMES

MOST_BUCKETS = 120
"""How many buckets of time there are at most."""

MOST_NAMES = 24
"""How many purgatories there are by name; as many anomalies, and reasons to set rows aside."""

MOST_ROWS = 200
"""How many of the newest rows of each table are kept."""

OTHERS = "(others)"

_MOST_RUNS = 8
_MOST_CHARACTERS = 300
"""A text is cut behind these: rows come from anybody."""

_Name = TypeVar("_Name")


@dataclass
class Times:
    """From when to when something was; before it was, both are 0."""

    from_us: int = 0
    until_us: int = 0

    def take(self, from_us: int, until_us: int) -> None:
        """Reach over these times, too."""
        self.from_us = min(self.from_us or from_us, from_us)
        self.until_us = max(self.until_us, until_us)


@dataclass
class Bucket:
    """What ended in a bucket of time in one purgatory."""

    operations: int = 0
    waited: int = 0
    expired: int = 0
    wait_max_us: int = 0


@dataclass
class Waits:
    """What ended in one purgatory, in closed windows.

    `newest_us` is the end of its newest window, in which `newest_expired` operations expired.
    """

    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    operations: int = 0
    sum_us: float = 0.0
    max_us: int = 0
    max_at: Times = field(default_factory=Times)
    expired: Times = field(default_factory=Times)
    newest_us: int = 0
    newest_expired: int = 0

    @property
    def settled(self) -> int:
        """How many ended before their run did."""
        return self.operations - self.outcomes["pending"]

    @property
    def waited(self) -> int:
        """How many were not answered at once."""
        return self.settled - self.outcomes["immediate"]


@dataclass
class Cases:
    """How many cases of an anomaly there are, of how many nobody is sure, and when they were."""

    count: int = 0
    doubtful: int = 0
    times: Times = field(default_factory=Times)


@dataclass
class Aside:
    """How many rows were set aside for a reason, and one of them."""

    rows: int = 0
    example: str = ""


class ToldSoFar:
    """The sums.

    Args:
        window_us: how long a window of waits is: the least width of a bucket.
    """

    def __init__(self, window_us: int) -> None:
        self.width_us = window_us
        self.waits: dict[str, Waits] = {}
        self.buckets: dict[int, dict[str, Bucket]] = {}
        self.anomalies: dict[tuple[str, str], Cases] = {}
        self.aside: dict[tuple[str, str], Aside] = {}
        self.newest: Mapping[str, deque[Row]] = {
            table: deque(maxlen=MOST_ROWS) for table in ("waits", "order", "aside")
        }
        self.runs: dict[str, None] = {}

    def add(self, table: str, rows: pa.Table) -> None:
        """Take rows of the results: of ``waits``, ``order`` or ``aside``. O(rows)."""
        add = {"waits": self._add_window, "order": self._add_anomaly, "aside": self._add_aside}
        for full in _with_plain_times(rows).to_pylist():
            row = {name: _cut(value) for name, value in full.items()}
            add[table](row)
            self.newest[table].append(row)
            self._add_run(row["run_id"])

    def bucket_us(self, number: int) -> int:
        """When a bucket begins."""
        return number * self.width_us

    def _add_run(self, run_id: str | None) -> None:
        if run_id:
            self.runs.pop(run_id, None)
            self.runs[run_id] = None
            if len(self.runs) > _MOST_RUNS:
                del self.runs[next(iter(self.runs))]

    def _add_window(self, row: Row) -> None:
        name = _of(self.waits, row["purgatory"], OTHERS)
        waits = self.waits.setdefault(name, Waits())
        start_us, end_us = row["window_start"], row["window_end"]
        settled = row["operations"] - row["pending"]
        waits.operations += row["operations"]
        for outcome in OUTCOMES:
            waits.outcomes[outcome] += row[outcome]
        waits.sum_us += (row["wait_mean_us"] or 0.0) * settled
        if (row["wait_max_us"] or 0) > waits.max_us:
            waits.max_us, waits.max_at = row["wait_max_us"], Times(start_us, end_us)
        if row["expired"]:
            waits.expired.take(start_us, end_us)
        if end_us > waits.newest_us:
            waits.newest_us, waits.newest_expired = end_us, 0
        waits.newest_expired += row["expired"] if end_us == waits.newest_us else 0
        self._add_to_bucket(name, row, settled - row["immediate"])

    def _add_to_bucket(self, name: str, row: Row, waited: int) -> None:
        while self.width_us < row["window_end"] - row["window_start"]:
            self._widen()
        of_time = self.buckets.setdefault(row["window_start"] // self.width_us, {})
        bucket = of_time.setdefault(name, Bucket())
        bucket.operations += row["operations"]
        bucket.waited += waited
        bucket.expired += row["expired"]
        bucket.wait_max_us = max(bucket.wait_max_us, row["wait_max_us"] or 0)
        while len(self.buckets) > MOST_BUCKETS:
            self._widen()

    def _widen(self) -> None:
        """Make buckets twice as wide, of which each takes the place of two."""
        self.width_us *= 2
        narrow, self.buckets = self.buckets, {}
        for number, of_time in narrow.items():
            wide = self.buckets.setdefault(number // 2, {})
            for name, one in of_time.items():
                bucket = wide.setdefault(name, Bucket())
                bucket.operations += one.operations
                bucket.waited += one.waited
                bucket.expired += one.expired
                bucket.wait_max_us = max(bucket.wait_max_us, one.wait_max_us)

    def _add_anomaly(self, row: Row) -> None:
        key = _of(self.anomalies, (row["anomaly"], row["group"] or "-"), (row["anomaly"], OTHERS))
        cases = self.anomalies.setdefault(key, Cases())
        cases.count += row["count"]
        cases.doubtful += row["count"] if row["doubt"] else 0
        cases.times.take(row["time"], row["time"])

    def _add_aside(self, row: Row) -> None:
        key = _of(self.aside, (row["source"], row["reason"]), (row["source"], OTHERS))
        aside = self.aside.setdefault(key, Aside())
        aside.rows += row["rows"]
        aside.example = row["example"] or ""


def _of(known: Mapping[_Name, Any], name: _Name, others: _Name) -> _Name:
    """The name under which something is counted."""
    return name if name in known or len(known) < MOST_NAMES else others


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _MOST_CHARACTERS:
        return f"{value[:_MOST_CHARACTERS]}..."
    return value


def _with_plain_times(rows: pa.Table) -> pa.Table:
    """Times as numbers of microseconds."""
    for number, one in enumerate(rows.schema):
        if pa.types.is_timestamp(one.type):
            plain = rows.column(number).cast(pa.timestamp("us", one.type.tz)).cast(pa.int64())
            rows = rows.set_column(number, one.name, plain)
    return rows


# What happened so far in a stream, in sentences: how bad, when, and why as far as rows tell.


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
