"""Finds duplicates, reorderings and gaps in one partition, from what is remembered of it.

* A copy is told as soon as a value is known at a second place.
* A record's order is judged when the watermark has passed its last row, and readers have passed its
  place if a copy of it may lie before that.
* A gap is told when what would fill it would be forgotten: by then nothing fills it any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from purgatory.pipeline.stream.partition_state import (
    NEVER,
    UNSENT,
    Numbers,
    PartitionMemory,
    ProducerPlace,
    ends_of,
    first_offset,
    ids_of_partition,
    note_stored,
)
from purgatory.pipeline.stream.rows import (
    ASIDE_COLUMNS,
    LATE,
    aside,
    bad_rows,
    ddl,
    frame,
    packed_by,
    time_of,
    unpacked,
    with_watermark,
)

Finding = dict[str, Any]


def copies(memory: PartitionMemory, touched: Numbers) -> Iterator[Finding]:
    """Tell of values at two or more places, once each, and of those after a lost answer.

    Those whose send is not known yet are told later: their key and producer are not known either.
    O(records read).
    """
    records = memory.records
    rows = records[records["value_id"].isin(touched) & (records["producer"] > UNSENT)]
    copied = rows[rows["most_place"] > rows["least_place"]]
    lost = copied[copied["unknown_attempt"] < copied["attempts"]]
    for anomaly, told, found in (
        ("duplicate", "told_copy", copied),
        ("lost_ack_duplicate", "told_lost_ack", lost),
    ):
        new = found[found[told] == 0]
        records.loc[new.index, told] = 1
        for row in new.itertuples():
            yield _finding(memory, anomaly, row, row.least_place, row.most_place)


def reorderings(memory: PartitionMemory, watermark_us: int, remember_us: int) -> Iterator[Finding]:
    """Tell of records that lie behind later ones of their producer, when they are to be judged.

    O(n log n) for the records that were read, and those that lie among the judged ones.
    """
    ends = _ends(memory.records[_to_be_judged(memory, watermark_us, remember_us)])
    if not ends:
        return
    memory.read_between(ends)
    records = memory.records
    due = _to_be_judged(memory, watermark_us, remember_us)
    first = first_offset(records)
    stored = (records["producer"] > UNSENT) & (first < NEVER)
    records.loc[due, "judged"] = 1
    since = records["producer"].map({producer: least for producer, (least, _) in ends.items()})
    known = records[stored & (records["sequence"] >= since.fillna(NEVER))]
    known = known.assign(first=first).sort_values(["producer", "sequence"], ascending=False)
    later = known.groupby("producer")["first"].transform(lambda one: one.cummin().shift())
    unread = {producer: memory.first_behind(producer, most) for producer, (_, most) in ends.items()}
    later = np.fmin(later, known["producer"].map(unread).astype(np.float64))
    behind = known[(later < known["first"]) & due[known.index]]
    for row in behind.sort_values("first").itertuples():
        anomaly = "retry_reorder" if row.attempts > 1 else "nonmonotonic_send"
        yield _finding(memory, anomaly, row, row.first, int(later[row.Index]))


def _to_be_judged(memory: PartitionMemory, watermark_us: int, remember_us: int) -> pd.Series[bool]:
    records = memory.records
    first = first_offset(records)
    stored = (records["producer"] > UNSENT) & (first < NEVER)
    certain = (records["unknown_attempt"] == NEVER) | (first <= memory.reached)
    old = records["last_us"] + remember_us <= watermark_us
    passed = records["last_us"] <= watermark_us
    return stored & (records["judged"] == 0) & passed & (certain | old)


def _ends(records: pd.DataFrame) -> dict[int, tuple[int, int]]:
    """The least and the most sequence number of each producer's."""
    return ends_of(records["producer"].to_numpy(), records["sequence"].to_numpy())


def gaps(memory: PartitionMemory, watermark_us: int, remember_us: int) -> Iterator[Finding]:
    """Tell of sequence numbers that are missing between stored ones, and forget what is old.

    O(n log n) for the records that were read, and those whose numbers are below an old one's.
    """
    old = memory.records["last_us"] + remember_us <= watermark_us
    if not old.any():
        return
    ends = _ends(memory.records[old & (memory.records["producer"] > UNSENT)])
    memory.read_between({producer: (0, most) for producer, (_, most) in ends.items()})
    records = memory.records
    old = records["last_us"] + remember_us <= watermark_us
    sent = records["producer"] > UNSENT
    to = records["producer"].map({producer: most for producer, (_, most) in ends.items()})
    near = records[sent & (records["sequence"] <= to)]
    for producer, of_one in near.groupby("producer"):
        in_order = of_one.sort_values("sequence")
        # One that may still come keeps the later ones waiting.
        ready = in_order[old[in_order.index].cummin()]
        if not ready.empty:
            yield from _gaps_of(memory, memory.producers[int(producer)], ready)
    checked_to = {number: place.checked_to for number, place in memory.producers.items()}
    done = old & (~sent | (records["sequence"] <= records["producer"].map(checked_to)))
    for row in records[done & ~sent].itertuples():
        if row.most_place > row.least_place:
            yield _finding(memory, "duplicate", row, row.least_place, row.most_place)
    memory.records = records[~done].reset_index(drop=True)


def _gaps_of(
    memory: PartitionMemory, place: ProducerPlace, ready: pd.DataFrame
) -> Iterator[Finding]:
    sequence = ready["sequence"]
    before = sequence.shift(fill_value=place.checked_to).clip(lower=place.checked_to)
    missing = sequence - before - 1
    never_sent = (missing > 0) & (before >= max(0, place.stored_from)) & place.by_partition
    never_sent &= (sequence <= place.stored_to) & (place.stored_from >= 0)
    unstored = (first_offset(ready) == NEVER) & (sequence < place.stored_to)
    unstored &= (sequence > place.stored_from) & (place.stored_from >= 0)
    for row in ready[never_sent | unstored].itertuples():
        if never_sent[row.Index]:
            finding = _finding(memory, "sequence_gap", row, None, None)
            first = {"sequence": before[row.Index] + 1, "count": missing[row.Index]}
            yield {**finding, "key": None, "value_id": None, "attempts": 0, **first}
        if unstored[row.Index]:
            finding = _finding(memory, "sequence_gap", row, None, None)
            if row.unknown_attempt < NEVER and not _readers_passed(memory, row):
                finding["doubt"] = "readers did not get there"
            yield finding
    place.checked_to = max(place.checked_to, int(sequence.max()))


def _readers_passed(memory: PartitionMemory, row: Any) -> bool:
    """Whether readers saw what is stored behind it, so that they would have seen it too."""
    records = memory.records
    later = (records["producer"] == row.producer) & (records["sequence"] > row.sequence)
    if (first_offset(records[later]) <= memory.reached).any():
        return True
    return memory.first_behind(row.producer, row.sequence) <= memory.reached


def _finding(
    memory: PartitionMemory, anomaly: str, row: Any, offset: int | None, other: int | None
) -> Finding:
    is_sent = row.producer > UNSENT
    return {
        "anomaly": anomaly,
        "group": memory.producers[row.producer].group if is_sent else None,
        "producer": row.producer if is_sent else None,
        "key": row.key if is_sent else None,
        "value_id": row.value_id,
        "sequence": row.sequence if is_sent else None,
        "attempts": row.attempts if is_sent else None,
        "offset": offset,
        "other_offset": other,
        "event_us": row.last_us,
        "count": 1,
        "doubt": None,
    }


# The live audit: duplicates, reorderings and gaps, per producer, partition and key.
#
# State: what `partition_memory` remembers of each partition, in the state store: a head, and records
# in buckets, of which a batch reads and writes those that it concerns. A timer comes when the
# watermark lets the next record be judged or forgotten, whether or not rows come.


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
