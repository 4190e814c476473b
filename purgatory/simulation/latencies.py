"""The latencies of clients, by attempt and by record, in bounded memory.

An attempt lasts from when a record is sent to when its response comes, or its connection breaks.
The wait that a purgatory counts is shorter, and begins when the broker handles the request; a
broker handles one request of a connection at a time, so the next one queues until the response is
sent. An attempt with a response is the sum of network, queue and wait; a broker's own work, storage
included, takes no time here.

A wait is counted under its value as `rounded_waits` has it: a percentile is exact up to 10 ms and
at most 0.1 % too small above; the longest wait is exact.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from purgatory.simulation.engine import NS_PER_US
from purgatory.simulation.messages import Batch, Message
from purgatory.simulation.network import Request
from purgatory.trace.percentiles import percentiles
from purgatory.trace.rounded_waits import EXACT_BELOW_US, round_us


class Waits:
    """A histogram of waits."""

    __slots__ = ("_counts", "max_us", "sum_us")

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.max_us = 0
        self.sum_us = 0

    def add(self, wait_us: int) -> None:
        """Count a wait. O(1)."""
        self._counts[wait_us if wait_us < EXACT_BELOW_US else round_us(wait_us)] += 1
        self.sum_us += wait_us
        if wait_us > self.max_us:
            self.max_us = wait_us

    def add_all(self, waits_us: Sequence[int]) -> None:
        """Count several waits, faster than repeated calls of `add`. O(waits)."""
        longest_us = max(waits_us, default=0)
        is_exact = longest_us < EXACT_BELOW_US
        self._counts.update(waits_us if is_exact else map(round_us, waits_us))
        self.sum_us += sum(waits_us)
        self.max_us = max(self.max_us, longest_us)

    def update(self, other: Waits) -> None:
        """Add all of another's waits. O(its different values)."""
        self._counts.update(other._counts)
        self.sum_us += other.sum_us
        self.max_us = max(self.max_us, other.max_us)

    @property
    def count(self) -> int:
        """The number of waits."""
        return self._counts.total()

    @property
    def mean_us(self) -> float | None:
        """The exact mean, in microseconds; None without waits."""
        count = self.count
        return self.sum_us / count if count else None

    def percentiles(self, *shares: float) -> list[float | None]:
        """The waits below which the given shares lie, in microseconds; None if there are none.

        O(c log c), c = different values.
        """
        if not self._counts:
            return [None] * len(shares)
        return [*percentiles(self._counts, self.max_us, shares)]


SPANS = ("record", "attempt", "network", "queue", "wait", "broken")
"""The spans. `record`: from arrival at the producer until it's acknowledged. `attempt`: from send
to response or disconnect. An attempt with a response is the sum of `network` (both ways), `queue`
(behind other requests of its connection) and `wait` (at the broker, until its response); one
without a response is `broken`."""

_BATCH_SIZE = 4_096
"""The number of times counted at once, which costs a fraction of counting each on arrival."""


class Latencies:
    """Times of one group of producers, by span. An attempt counts for each record in it."""

    __slots__ = ("_by_span", "_completed", "_disconnected_us", "_records_us")

    def __init__(self) -> None:
        self._by_span = {span: Waits() for span in SPANS}
        # Attempt, network, queue and wait of each response that is not counted yet.
        self._completed: list[tuple[int, int, int, int]] = []
        self._disconnected_us: list[int] = []
        self._records_us: list[int] = []

    def add_response(self, request: Request, batch: Batch, now_ns: int) -> None:
        """Add an attempt with a response. O(records)."""
        sent_us, now_us = batch.sent_ns // NS_PER_US, now_ns // NS_PER_US
        served_us = request.received_ns // NS_PER_US
        attempt_us = now_us - sent_us
        queue_us = served_us - request.arrived_ns // NS_PER_US
        wait_us = request.response_ns // NS_PER_US - served_us
        times_us = (attempt_us, attempt_us - queue_us - wait_us, queue_us, wait_us)
        self._completed += [times_us] * len(batch.messages)
        if len(self._completed) >= _BATCH_SIZE:
            self._count()

    def add_disconnect(self, batch: Batch, now_ns: int) -> None:
        """Add an attempt without a response. O(records)."""
        disconnected_us = now_ns // NS_PER_US - batch.sent_ns // NS_PER_US
        self._disconnected_us += [disconnected_us] * len(batch.messages)

    def add_acknowledged(self, messages: Iterable[Message], now_ns: int) -> None:
        """Add records that were acknowledged for the first time. O(records)."""
        now_us = now_ns // NS_PER_US
        self._records_us += [now_us - message.created_ns // NS_PER_US for message in messages]

    def waits_by_span(self) -> dict[str, Waits]:
        """All times so far, by span, in the order of `SPANS`."""
        self._count()
        return self._by_span

    def _count(self) -> None:
        spans = self._by_span
        names = ("attempt", "network", "queue", "wait")
        for span, times_us in zip(names, zip(*self._completed, strict=True), strict=False):
            spans[span].add_all(times_us)
        spans["attempt"].add_all(self._disconnected_us)
        spans["broken"].add_all(self._disconnected_us)
        spans["record"].add_all(self._records_us)
        self._completed.clear()
        self._disconnected_us.clear()
        self._records_us.clear()
