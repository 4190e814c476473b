"""What the results of a stream add up to, for its page: as much memory however long it runs.

Times are in microseconds since 1970. What would grow is cut: buckets of time get twice as wide when
there are many, and names after the first `MOST_NAMES` are one, `OTHERS`.

Ground rules: not for several threads; `StreamReport` has the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from purgatory.analysis.result_rows import Row
from purgatory.live.window import OUTCOMES

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
