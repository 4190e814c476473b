"""The stages of a produce request, from its client through leader and followers to the response.

A replica has a record once its log end passes the offset; the record is committed once the high
watermark does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from purgatory.trace import change_rows as rows
from purgatory.trace.trace_writer import arrow_schema
from purgatory.view.errors import ViewError
from purgatory.view.timeline import Timeline
from purgatory.view.trace_columns import TraceFolder, ints

_COMMITTED = -1
"""The key of the high watermark among the brokers' log ends."""
_COLUMNS = (
    "producer",
    "sequence",
    "attempt",
    "value_id",
    "outcome",
    "error",
    "send_us",
    "answer_us",
    "topic",
    "partition",
    "offset",
    "created_us",
    "arrived_us",
    "served_us",
    "settled_us",
)

_Series = tuple[list[int], list[int]]
"""Times, and the offsets from each on."""


class RequestTraces:
    """The produces of a run, by the times when they were sent."""

    def __init__(self, trace: TraceFolder, timeline: Timeline) -> None:
        sends = trace.table("sends")
        if sends is None:
            sends = arrow_schema("sends").empty_table()
        sends = sends.select(list(_COLUMNS))
        self._sends = sends.take(pc.sort_indices(sends, [("send_us", "ascending")]))
        self._send_us = ints(self._sends.column("send_us"))
        self._timeline = timeline
        self._folder = trace

    def latest(self, at_us: int, limit: int) -> list[dict[str, Any]]:
        """Return the last produces sent before a time, the newest first."""
        end = bisect_right(self._send_us, at_us)
        return [self._describe(row, at_us) for row in range(end - 1, max(-1, end - 1 - limit), -1)]

    def find_by_record(self, topic: str, partition: int, offset: int) -> dict[str, Any]:
        """Return the trace of the produce that stored a record.

        Raises:
            ViewError: there is none.
        """
        sends = self._sends
        mask = pc.and_(
            pc.and_(
                pc.equal(sends.column("topic"), topic),
                pc.equal(sends.column("partition"), partition),
            ),
            pc.equal(sends.column("offset"), offset),
        )
        result = pc.indices_nonzero(mask)
        row = result[0].as_py() if len(result) else self._find_read(topic, partition, offset)
        if row is None:
            raise ViewError(self._missing_reason(topic, partition, offset))
        return self._describe(row, None, offset)

    def _find_read(self, topic: str, partition: int, offset: int) -> int | None:
        """Return the send that stored a record which a consumer read, though no response has it.

        Of several attempts the last one that was sent before the log had the offset is returned.
        """
        if self._reads is None:
            return None
        mask = pc.equal(self._reads.column("offset"), offset)
        for name, value in (("topic", topic), ("partition", partition)):
            mask = pc.and_(mask, pc.equal(self._reads.column(name), value))
        values = self._reads.filter(mask).column("value_id")
        if not len(values):
            return None
        sent = pc.and_(
            pc.equal(self._sends.column("value_id"), values[0]),
            pc.and_(
                pc.equal(self._sends.column("topic"), topic),
                pc.equal(self._sends.column("partition"), partition),
            ),
        )
        attempts: list[int] = [
            row
            for row in pc.indices_nonzero(sent).to_pylist()
            if not self._sends.column("offset")[row].is_valid
        ]
        stored_us = min(
            (
                at_us
                for (name, number, _), series in self._end_offsets.items()
                if (name, number) == (topic, partition)
                and (at_us := _time_reached(series, offset, 0)) is not None
            ),
            default=0,
        )
        earlier = [row for row in attempts if self._send_us[row] <= stored_us]
        if earlier:
            return earlier[-1]
        return attempts[0] if attempts else None

    @cached_property
    def _reads(self) -> pa.Table | None:
        return self._folder.table("reads")

    def _missing_reason(self, topic: str, partition: int, offset: int) -> str:
        sends = self._sends
        topics = sorted(filter(None, sends.column("topic").unique().to_pylist()))
        if topic not in topics:
            return f"no record was sent to {topic!r}; to these: {', '.join(topics) or 'none'}"
        topic_sends = sends.filter(pc.equal(sends.column("topic"), topic))
        numbers = sorted(topic_sends.column("partition").unique().to_pylist())
        if partition not in numbers:
            return f"no record was sent to partition {partition}; to {numbers}"
        offsets = topic_sends.filter(pc.equal(topic_sends.column("partition"), partition))
        bounds = pc.min_max(offsets.column("offset")).as_py()
        return (
            f"no response has offset {offset} of {topic}-{partition}, and nobody read it: "
            f"responses have offsets from {bounds['min']} to {bounds['max']}"
        )

    def _describe(
        self, row: int, at_us: int | None, stored_row: int | None = None
    ) -> dict[str, Any]:
        """Describe a send; ``stored_row`` is its offset where its response doesn't have it."""
        send = {name: self._sends.column(name)[row].as_py() for name in _COLUMNS}
        if stored_row is not None:
            send["offset"] = stored_row
        topic, partition, offset = send["topic"], send["partition"], send["offset"]
        leader = self._leader(topic, partition, send["send_us"])
        stages = [
            {"name": "created", "broker": None, "at_us": send["created_us"]},
            {"name": "sent", "broker": None, "at_us": send["send_us"]},
            {"name": "arrived", "broker": leader, "at_us": send["arrived_us"]},
            {"name": "served", "broker": leader, "at_us": send["served_us"]},
            {"name": "completed", "broker": leader, "at_us": send["settled_us"]},
            {"name": "answered", "broker": None, "at_us": send["answer_us"]},
        ]
        if offset is not None:
            stages += self._copies(topic, partition, offset, leader, send["send_us"])
        open_at = at_us is not None and (send["answer_us"] is None or send["answer_us"] > at_us)
        reached_stages = [stage for stage in stages if stage["at_us"] is not None]
        if at_us is not None:
            reached_stages = [stage for stage in reached_stages if stage["at_us"] <= at_us]
        attempt = f", attempt {send['attempt']}" if send["attempt"] != 1 else ""
        return {
            "title": f"producer {send['producer']}, record {send['sequence']} to "
            f"{topic}-{partition}{attempt}",
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "outcome": "open" if open_at else send["outcome"],
            "error": None if open_at else send["error"],
            # Stages of one moment are in their only possible order.
            "stages": sorted(
                reached_stages, key=lambda stage: (stage["at_us"], _ORDER.index(stage["name"]))
            ),
        }

    def _copies(
        self, topic: str, partition: int, offset: int, leader: int | None, since_us: int
    ) -> list[dict[str, Any]]:
        stages: list[dict[str, Any]] = []
        for (name, number, broker), series in self._end_offsets.items():
            if (name, number) == (topic, partition):
                at_us = _time_reached(series, offset, since_us)
                stage = "copied" if broker != leader else "appended"
                at_broker: int | None = broker
                if broker == _COMMITTED:
                    stage, at_broker = "committed", leader
                stages.append({"name": stage, "broker": at_broker, "at_us": at_us})
        return stages

    def _leader(self, topic: str, partition: int, at_us: int) -> int | None:
        times, leaders = self._leaders.get((topic, partition), ([], []))
        index = bisect_right(times, at_us)
        return leaders[index - 1] if index else None

    @cached_property
    def _end_offsets(self) -> dict[tuple[str, int, int], _Series]:
        """Log ends by replica, and high watermarks. O(rows of `changes`)."""
        return self._series({rows.LOG_END, rows.HIGH_WATERMARK})

    @cached_property
    def _leaders(self) -> dict[tuple[str, int], _Series]:
        series: dict[tuple[str, int], _Series] = {}
        table = self._timeline.changes
        for row in self._rows({rows.PARTITION}):
            broker, name, partition, _, _ = self._timeline.change_row(row)
            times, leaders = series.setdefault((name, partition), ([], []))
            times.append(table.time_us[row])
            leaders.append(broker)
        return series

    def _rows(self, kinds: set[str]) -> list[int]:
        table = self._timeline.changes
        codes = {code for code, value in enumerate(table.change.values) if value in kinds}
        return [row for row, code in enumerate(table.change.codes) if code in codes]

    def _series(self, kinds: set[str]) -> dict[tuple[str, int, int], _Series]:
        series: dict[tuple[str, int, int], _Series] = {}
        table = self._timeline.changes
        for row in self._rows(kinds):
            broker, name, partition, offset, _ = self._timeline.change_row(row)
            if table.change.at(row) == rows.HIGH_WATERMARK:
                broker = _COMMITTED
            times, offsets = series.setdefault((name, partition, broker), ([], []))
            times.append(table.time_us[row])
            offsets.append(offset)
        return series


_ORDER = ["created", "sent", "arrived", "served", "appended", "copied", "committed"]
_ORDER += ["completed", "answered"]


def _time_reached(series: _Series, offset: int, since_us: int) -> int | None:
    """Return the first time from ``since_us`` on at which a log end is beyond an offset."""
    times, offsets = series
    for index in range(bisect_left(times, since_us), len(times)):
        if offsets[index] > offset:
            return times[index]
    return None
