"""All records of a share partition's window, as few runs as possible, one after the other.

Ground rules
------------
* From ``start`` to ``end`` each offset is in one run; neighbours that stand alike are one run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

from purgatory.kafka.share_groups.record_run import RecordRun

_FIRST = attrgetter("first")


class RecordRuns:
    """The runs from ``start`` on.

    Args:
        start: the first offset of the window.
    """

    def __init__(self, start: int) -> None:
        self.start = start
        self._runs: list[RecordRun] = []

    def __iter__(self) -> Iterator[RecordRun]:
        return iter(self._runs)

    @property
    def end(self) -> int:
        """The first offset behind the window. O(1)."""
        return self._runs[-1].last + 1 if self._runs else self.start

    def between(self, first: int, last: int) -> list[RecordRun]:
        """Return the runs of these offsets, cut to them. O(log runs + those)."""
        place = max(0, self._place(first + 1) - 1)
        found = []
        for run in self._runs[place:]:
            if run.first > last:
                break
            if run.last >= first:
                found.append(run._replace(first=max(first, run.first), last=min(last, run.last)))
        return found

    def extend_to(self, last: int) -> None:
        """Have all offsets up to ``last`` in the window; those that were not are available."""
        if last >= self.end:
            self._replace(len(self._runs), len(self._runs), [RecordRun(self.end, last)])

    def change(self, first: int, last: int, change: Callable[[RecordRun], RecordRun]) -> None:
        """Change how it stands with these offsets. O(runs)."""
        self._split(first)
        self._split(last + 1)
        begin, end = self._place(first), self._place(last + 1)
        self._replace(begin, end, map(change, self._runs[begin:end]))

    def change_all(self, change: Callable[[RecordRun], RecordRun]) -> None:
        """Change how it stands with all. O(runs)."""
        self._replace(0, len(self._runs), map(change, self._runs))

    def drop_before(self, start: int) -> None:
        """Begin the window later. O(runs)."""
        if start <= self.start:
            return
        self._split(start)
        del self._runs[: self._place(start)]
        self.start = start

    def _place(self, offset: int) -> int:
        """Return the number of runs that begin before an offset."""
        return bisect_left(self._runs, offset, key=_FIRST)

    def _split(self, offset: int) -> None:
        place = self._place(offset) - 1
        if place < 0:
            return
        run = self._runs[place]
        if run.first < offset <= run.last:
            halves = [run._replace(last=offset - 1), run._replace(first=offset)]
            self._runs[place : place + 1] = halves

    def _replace(self, begin: int, end: int, runs: Iterable[RecordRun]) -> None:
        """Put others in the place of runs, and join those that stand alike."""
        begin, end, middle = max(0, begin - 1), end + 1, (begin, end)
        joined: list[RecordRun] = []
        for run in (*self._runs[begin : middle[0]], *runs, *self._runs[middle[1] : end]):
            if joined and joined[-1][2:] == run[2:]:
                joined[-1] = joined[-1]._replace(last=run.last)
            else:
                joined.append(run)
        self._runs[begin:end] = joined

    def _check(self) -> None:
        """Assert all invariants. O(runs)."""
        expected = self.start
        former: RecordRun | None = None
        for run in self._runs:
            assert run.first == expected <= run.last, "each offset is in one run"
            assert former is None or former[2:] != run[2:], "runs that stand alike are joined"
            expected, former = run.last + 1, run
