"""Writes topics, groups, transactions and faults of a cluster into its trace's table `changes`.

They are found as the live feed finds them: ten times a second what is there is compared with what
was written. What waits, and brokers that live or die, the trace is told of as it happens.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from purgatory.cluster.control.feed_turn import Change, FeedClock, FeedTurn
from purgatory.cluster.control.watched_parts import WatchedParts
from purgatory.core.recent_errors import Logger
from purgatory.trace import change_rows as rows
from purgatory.trace.change_rows import ChangeRow

if TYPE_CHECKING:
    from purgatory.cluster.cluster_metadata import ClusterMetadata

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
        self, cluster: ClusterMetadata, start_ns: int, write: Callable[[ChangeRow], object]
    ) -> None:
        self._turn = FeedTurn(FeedClock(start_ns))
        self._parts = WatchedParts(cluster, self._turn, told=False)
        self._write = write
        self._faults: set[int] = set()

    @classmethod
    def of(cls, cluster: ClusterMetadata) -> TracedParts | None:
        """What follows a cluster; None where it is not traced for the view."""
        trace = cluster.trace
        if trace is None or trace.change is None:
            return None
        return cls(cluster, trace.start_ns, trace.change)

    async def follow(self) -> None:
        """Look again and again."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

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
