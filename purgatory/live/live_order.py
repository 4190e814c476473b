"""The live audit: duplicates, reorderings and gaps, per producer, partition and key.

State: what `partition_memory` remembers of each partition, in the state store: a head, and records
in buckets, of which a batch reads and writes those that it concerns. A timer comes when the
watermark lets the next record be judged or forgotten, whether or not rows come.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from purgatory.live.live_rows import LATE, with_watermark
from purgatory.live.memory_buckets import ids_of_partition
from purgatory.live.outputs import ASIDE_COLUMNS, aside, bad_rows, ddl, frame, time_of
from purgatory.live.packed_rows import packed_by, unpacked
from purgatory.live.partition_memory import NEVER, PartitionMemory, note_stored
from purgatory.live.partition_order import copies, gaps, reorderings

ORDER_COLUMNS = {
    "run_id": "string",
    "topic": "string",
    "partition": "int",
    "anomaly": "string",
    "group": "string",
    "producer": "bigint",
    "key": "bigint",
    "value_id": "bigint",
    "sequence": "bigint",
    "attempts": "bigint",
    "offset": "bigint",
    "other_offset": "bigint",
    "time": "timestamp",
    "count": "bigint",
    "doubt": "string",
}
"""The columns of the table `order`."""

_OUT = {"table": "string", **ORDER_COLUMNS, **ASIDE_COLUMNS}
_KEYS = ["run_id", "topic", "partition"]
_BUCKETS = 64
"""In how many parts the time is cut for which a record is remembered."""
_OF_SEND = ("producer", "sequence", "attempt", "acks", "key")
"""Whole numbers that reads don't have."""


def order_findings(rows: DataFrame, *, late_us: int, remember_us: int) -> DataFrame:
    """Duplicates, reorderings and gaps, each once.

    Shuffles sends and reads by run, topic and partition; a partition is one task's work.

    Args:
        rows: sends and reads, of `rows.rows_of`.
        late_us: how much later than others a row may come, in microseconds.
        remember_us: for how long after that a record is remembered, in microseconds: longer than
            producers go on trying to deliver it.

    Returns:
        A stream in append mode. Its column `table` tells what a row is: of ``order``, with
        `ORDER_COLUMNS`; or of ``aside``, with `ASIDE_COLUMNS`.
    """
    good = f.col("problem").isNull()
    is_send = f.col("table") == "sends"
    marked = with_watermark(rows, late_us).select(
        f.when(good, f.col("run_id")).otherwise("").alias("run_id"),
        f.when(good, f.col("topic")).otherwise("").alias("topic"),
        f.when(good, f.col("partition")).otherwise(-1).alias("partition"),
        is_send.alias("is_send"),
        f.when(is_send, f.col("group")).alias("group"),
        *(f.coalesce(name, f.lit(0)).alias(name) for name in _OF_SEND),
        "value_id",
        "outcome",
        f.coalesce("offset", f.lit(NEVER)).alias("offset"),
        (is_send & (f.coalesce("numbered_by", f.lit("producer")) == "partition")).alias(
            "by_partition"
        ),
        "event_us",
        "problem",
        "example",
    )
    return (
        packed_by(marked, _KEYS)
        .groupBy(*_KEYS)
        .transformWithStateInPandas(
            _Order(late_us, remember_us), ddl(_OUT), outputMode="append", timeMode="eventTime"
        )
    )


class _StateShelf:
    """The buckets of the partition that is being worked on, in the state store."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._records = handle.getMapState("records", "bucket bigint", "records binary")
        self._ids = handle.getMapState("ids", "bucket bigint", "ids binary")

    def records(self, bucket: int) -> bytes:
        return _binary(self._records.getValue((bucket,)))

    def ids(self, bucket: int) -> bytes:
        return _binary(self._ids.getValue((bucket,)))

    def put(self, bucket: int, records: bytes, ids: bytes) -> None:
        self._records.updateValue((bucket,), (records,))
        self._ids.updateValue((bucket,), (ids,))

    def remove(self, bucket: int) -> None:
        self._records.removeKey((bucket,))
        self._ids.removeKey((bucket,))


def _binary(value: tuple[Any, ...] | None) -> bytes:
    assert value is not None, "what was put there is there"
    return bytes(value[0])


class _Order(StatefulProcessor):
    def __init__(self, late_us: int, remember_us: int) -> None:
        self._remember_us = remember_us
        self._width_us = max(1, (late_us + remember_us) // _BUCKETS)
        self._query = uuid4().hex

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._head = handle.getValueState("head", "head binary")
        self._shelf = _StateShelf(handle)
        self._clock = handle.getValueState("clock", "judged_to_ms bigint, timer_ms bigint")

    def handleInputRows(  # noqa: N802 (the name is Spark's)
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        all_rows = unpacked(rows)
        results = []
        for is_send, part in all_rows.groupby("is_send"):
            results += bad_rows("sends" if is_send else "reads", part)
        good = all_rows[all_rows["problem"].isna()]
        over = good["event_us"] + self._remember_us <= watermark_ms * 1_000
        results += _late(key, good[over])
        good = good[~over]
        if len(good):
            memory = self._load(key)
            touched = memory.take(good)
            note_stored(memory, touched)
            results += [_row(key, found) for found in copies(memory, touched)]
            results += self._judge(key, memory, watermark_ms)
        if results:
            yield frame(results, _OUT)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        if self._read_clock()[0] >= watermark_ms:
            return  # judged with the rows of this batch
        results = self._judge(key, self._load(key), watermark_ms)
        if results:
            yield frame(results, _OUT)

    def close(self) -> None:
        pass

    def _judge(self, key: Any, memory: PartitionMemory, watermark_ms: int) -> list[dict[str, Any]]:
        """Judge and forget what the watermark allows, and come again when it allows more."""
        watermark_us = watermark_ms * 1_000
        memory.read_due(watermark_us)
        found = list(reorderings(memory, watermark_us, self._remember_us))
        found += gaps(memory, watermark_us, self._remember_us)
        self._head.update((memory.put_away(watermark_us, self._remember_us),))
        timer_ms = self._read_clock()[1]
        due_ms = memory.next_due_us(watermark_us) // 1_000 + 1
        if due_ms > watermark_ms and not watermark_ms < timer_ms <= due_ms:
            timer_ms = due_ms
            self._handle.registerTimer(timer_ms)
        self._clock.update((watermark_ms, timer_ms))
        return [_row(key, one) for one in found]

    def _read_clock(self) -> tuple[int, int]:
        """Return up to when all was judged, and when the next timer comes, in milliseconds."""
        clock = self._clock.get() if self._clock.exists() else None
        return (-1, 0) if clock is None else (clock[0], clock[1])

    def _load(self, key: Any) -> PartitionMemory:
        head = _binary(self._head.get()) if self._head.exists() else None
        ids = ids_of_partition((self._query, *key))
        return PartitionMemory(self._shelf, head, self._width_us, ids)


def _row(key: Any, finding: dict[str, Any]) -> dict[str, Any]:
    time = time_of(finding.pop("event_us"))
    return {"table": "order", **dict(zip(_KEYS, key, strict=True)), **finding, "time": time}


def _late(key: Any, late: pd.DataFrame) -> list[dict[str, Any]]:
    run_id, topic, partition = key
    return [
        aside("sends" if is_send else "reads", LATE, len(rows), f"{topic}-{partition}", run_id)
        for is_send, rows in late.groupby("is_send")
    ]
