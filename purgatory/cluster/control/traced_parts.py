"""Writes topics, groups, transactions and faults of a cluster into its trace's table `changes`.

They are found as the live feed finds them: ten times a second what is there is compared with what
was written. What waits, and brokers that live or die, the trace is told of as it happens.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from purgatory.cluster.control.feed_turn import Change, FeedClock, FeedTurn
from purgatory.cluster.control.watched_parts import WatchedParts
from purgatory.core.fault_log import Logger
from purgatory.trace import change_rows as rows
from purgatory.trace.change_rows import ChangeRow

if TYPE_CHECKING:
    from purgatory.cluster.cluster import Cluster

LOOK_S = 0.1

_log = Logger("purgatory.cluster")


class TracedParts:
    """Follows a cluster.

    Args:
        cluster: which.
        start_ns: when its trace began, by the monotonic clock.
        write: takes the rows.
    """

    def __init__(
        self, cluster: Cluster, start_ns: int, write: Callable[[ChangeRow], object]
    ) -> None:
        self._turn = FeedTurn(FeedClock(start_ns))
        self._parts = WatchedParts(cluster, self._turn, told=False)
        self._write = write
        self._faults: set[int] = set()

    async def _follow(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    @classmethod
    @asynccontextmanager
    async def of(cls, cluster: Cluster) -> AsyncIterator[None]:
        """Follow a cluster that was started, and is stopped after; if it is traced for the view."""
        trace = cluster.trace
        if trace is None or trace.change is None:
            yield
            return
        parts = cls(cluster, trace.start_ns, trace.change)
        following = asyncio.get_running_loop().create_task(parts._follow(), name="TracedParts")
        try:
            yield
        finally:
            following.cancel()
            parts.look()

    def look(self) -> None:
        """Write what has changed; that it could not be found is logged.

        O(200 partitions * replicas + groups + transactions).
        """
        try:
            self._parts.look()
        except Exception as error:
            _log.error("trace_failed", exc_info=error)
        for topic, partition in self._parts.forget_gone():
            place = {"topic": topic, "partition": partition, "isr": [], "replicas": []}
            now_us = self._turn.clock.now_us()
            self._turn.add(now_us, "partition", **place, leader=-1, leader_epoch=0, state=rows.GONE)
        for change in self._turn.end()[2]:
            for row in self._rows(change):
                self._write(row)

    def _rows(self, change: Change) -> Iterator[ChangeRow]:
        at_us, what = change["at_us"], change["what"]
        row = ChangeRow(at_us, what, change.get("broker"), state=change.get("state"))
        if what == rows.FAULT:
            yield from self._fault(row, change)
        elif what == rows.GROUP:
            number, names = change["generation"], tuple(change["members"])
            yield row._replace(name=change["name"], number=number, names=names)
        elif what == rows.TRANSACTION:
            yield row._replace(name=change["id"], number=change["epoch"])
        elif what in (rows.LOG_END, rows.HIGH_WATERMARK, rows.PARTITION):
            row = row._replace(name=change["topic"], partition=change["partition"])
            if what == rows.PARTITION:
                yield row._replace(
                    broker=change["leader"],
                    number=change["leader_epoch"],
                    names=tuple(change["replicas"]),
                    in_sync=tuple(change["isr"]),
                )
            else:
                yield row._replace(number=change["offset"])

    def _fault(self, row: ChangeRow, fault: dict[str, Any]) -> Iterator[ChangeRow]:
        until_us = fault["until_us"]
        begun = row._replace(
            name=fault["text"],
            number=fault["number"],
            state=fault["kind"],
            due_ms=None if until_us is None else max(0, until_us // 1_000),
            names=tuple(fault["brokers"]),
        )
        if fault["active"] or fault["number"] not in self._faults:
            self._faults.add(fault["number"])
            yield begun
        if not fault["active"]:
            yield begun._replace(state=rows.ENDED, due_ms=None)
