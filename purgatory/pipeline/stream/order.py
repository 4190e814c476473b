"""The audit of a stream: duplicates, reorderings and gaps, per producer, partition and key.

* A duplicate is reported as soon as a value is known at a second offset.
* The order of a record is judged when the watermark has passed its last row and, if an attempt has
  an unknown outcome, readers have passed its offset: a duplicate may lie before it.
* A gap is reported when the state of the records that could fill it expires.

State: a `PartitionState` for each partition, in the state store: a head, and records in buckets, of
which a batch reads and writes those that it concerns. A timer fires when the watermark lets the
next record be judged or expire, whether or not rows come.
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
    PartitionState,
    ProducerState,
    first_offset,
    get_id_cache,
    number_ranges,
    update_stored,
)
from purgatory.pipeline.stream.rows import (
    LATE,
    QUARANTINE_COLUMNS,
    bad_rows,
    ddl,
    frame,
    pack_by,
    quarantine_row,
    time_of,
    unpack_rows,
    with_watermark,
)

Finding = dict[str, Any]

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

_OUT = {"table": "string", **ORDER_COLUMNS, **QUARANTINE_COLUMNS}
_KEYS = ["run_id", "topic", "partition"]
_BUCKETS = 64
"""How many buckets of the state the time to live of a record is divided into."""
_OF_SEND = ("producer", "sequence", "attempt", "acks", "key")
"""Integer columns that reads do not have."""

# Anomalies in one partition


def duplicates(state: PartitionState, touched: Numbers) -> Iterator[Finding]:
    """Yield values at two or more offsets, and those sent again after a lost response, once each.

    A value whose send has not been read yet waits for it: its key and producer are unknown.
    O(records read).
    """
    records = state.records
    rows = records[records["value_id"].isin(touched) & (records["producer"] > UNSENT)]
    duplicated = rows[rows["greatest_offset"] > rows["least_offset"]]
    lost = duplicated[duplicated["unknown_attempt"] < duplicated["attempts"]]
    for anomaly, reported, cases in (
        ("duplicate", "reported_duplicate", duplicated),
        ("lost_ack_duplicate", "reported_lost_ack", lost),
    ):
        new = cases[cases[reported] == 0]
        records.loc[new.index, reported] = 1
        for row in new.itertuples():
            yield _finding(state, anomaly, row, row.least_offset, row.greatest_offset)


def reorderings(state: PartitionState, watermark_us: int, state_ttl_us: int) -> Iterator[Finding]:
    """Yield records that lie behind later ones of their producer, when they are due.

    O(n log n) for the records that were read, and those between the due ones.
    """
    ends = _ends(state.records[_is_due(state, watermark_us, state_ttl_us)])
    if not ends:
        return
    state.read_between(ends)
    records = state.records
    due = _is_due(state, watermark_us, state_ttl_us)
    first = first_offset(records)
    stored = (records["producer"] > UNSENT) & (first < NEVER)
    records.loc[due, "judged"] = 1
    since = records["producer"].map({producer: least for producer, (least, _) in ends.items()})
    known = records[stored & (records["sequence"] >= since.fillna(NEVER))]
    known = known.assign(first=first).sort_values(["producer", "sequence"], ascending=False)
    later = known.groupby("producer")["first"].transform(lambda one: one.cummin().shift())
    unread = {producer: state.first_behind(producer, most) for producer, (_, most) in ends.items()}
    later = np.fmin(later, known["producer"].map(unread).astype(np.float64))
    behind = known[(later < known["first"]) & due[known.index]]
    for row in behind.sort_values("first").itertuples():
        anomaly = "retry_reorder" if row.attempts > 1 else "nonmonotonic_send"
        yield _finding(state, anomaly, row, row.first, int(later[row.Index]))


def _is_due(state: PartitionState, watermark_us: int, state_ttl_us: int) -> pd.Series[bool]:
    records = state.records
    first = first_offset(records)
    stored = (records["producer"] > UNSENT) & (first < NEVER)
    certain = (records["unknown_attempt"] == NEVER) | (first <= state.reached)
    old = records["last_us"] + state_ttl_us <= watermark_us
    passed = records["last_us"] <= watermark_us
    return stored & (records["judged"] == 0) & passed & (certain | old)


def _ends(records: pd.DataFrame) -> dict[int, tuple[int, int]]:
    """The least and the greatest sequence number of each producer."""
    return number_ranges(records["producer"].to_numpy(), records["sequence"].to_numpy())


def gaps(state: PartitionState, watermark_us: int, state_ttl_us: int) -> Iterator[Finding]:
    """Yield sequence numbers that are missing between stored ones, and drop expired records.

    O(n log n) for the records that were read, and those with a number below an expired one.
    """
    old = state.records["last_us"] + state_ttl_us <= watermark_us
    if not old.any():
        return
    ends = _ends(state.records[old & (state.records["producer"] > UNSENT)])
    state.read_between({producer: (0, most) for producer, (_, most) in ends.items()})
    records = state.records
    old = records["last_us"] + state_ttl_us <= watermark_us
    sent = records["producer"] > UNSENT
    to = records["producer"].map({producer: most for producer, (_, most) in ends.items()})
    near = records[sent & (records["sequence"] <= to)]
    for producer, producer_records in near.groupby("producer"):
        in_order = producer_records.sort_values("sequence")
        # One that may still come keeps the later ones waiting.
        ready = in_order[old[in_order.index].cummin()]
        if not ready.empty:
            yield from _producer_gaps(state, state.producers[int(producer)], ready)
    checked_to = {
        number: producer_state.checked_to for number, producer_state in state.producers.items()
    }
    done = old & (~sent | (records["sequence"] <= records["producer"].map(checked_to)))
    for row in records[done & ~sent].itertuples():
        if row.greatest_offset > row.least_offset:
            yield _finding(state, "duplicate", row, row.least_offset, row.greatest_offset)
    state.records = records[~done].reset_index(drop=True)


def _producer_gaps(
    state: PartitionState, producer_state: ProducerState, ready: pd.DataFrame
) -> Iterator[Finding]:
    sequence = ready["sequence"]
    before = sequence.shift(fill_value=producer_state.checked_to).clip(
        lower=producer_state.checked_to
    )
    missing = sequence - before - 1
    never_sent = (
        (missing > 0) & (before >= max(0, producer_state.stored_from)) & producer_state.by_partition
    )
    never_sent &= (sequence <= producer_state.stored_to) & (producer_state.stored_from >= 0)
    unstored = (first_offset(ready) == NEVER) & (sequence < producer_state.stored_to)
    unstored &= (sequence > producer_state.stored_from) & (producer_state.stored_from >= 0)
    for row in ready[never_sent | unstored].itertuples():
        if never_sent[row.Index]:
            finding = _finding(state, "sequence_gap", row, None, None)
            first = {"sequence": before[row.Index] + 1, "count": missing[row.Index]}
            yield {**finding, "key": None, "value_id": None, "attempts": 0, **first}
        if unstored[row.Index]:
            finding = _finding(state, "sequence_gap", row, None, None)
            if row.unknown_attempt < NEVER and not _readers_passed(state, row):
                finding["doubt"] = "readers did not get there"
            yield finding
    producer_state.checked_to = max(producer_state.checked_to, int(sequence.max()))


def _readers_passed(state: PartitionState, row: Any) -> bool:
    """Whether readers have read what is stored behind it, and so would have read it too."""
    records = state.records
    later = (records["producer"] == row.producer) & (records["sequence"] > row.sequence)
    if (first_offset(records[later]) <= state.reached).any():
        return True
    return state.first_behind(row.producer, row.sequence) <= state.reached


def _finding(
    state: PartitionState, anomaly: str, row: Any, offset: int | None, other: int | None
) -> Finding:
    is_sent = row.producer > UNSENT
    return {
        "anomaly": anomaly,
        "group": state.producers[row.producer].group if is_sent else None,
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


# The stateful processor


def order_findings(rows: DataFrame, *, watermark_delay_us: int, state_ttl_us: int) -> DataFrame:
    """Return duplicates, reorderings and gaps, each once.

    Shuffles sends and reads by run, topic and partition; one partition is the work of one task.

    Args:
        rows: sends and reads, of `rows.rows_of`.
        watermark_delay_us: the distance of the watermark from the newest row, in microseconds.
        state_ttl_us: how long a record stays in the state after that, in microseconds: longer than
            producers retry.

    Returns:
        A stream in append mode, of two tables by its column `table`: `order`, with `ORDER_COLUMNS`,
        and `quarantine`, with `QUARANTINE_COLUMNS`.
    """
    good = f.col("problem").isNull()
    is_send = f.col("table") == "sends"
    marked = with_watermark(rows, watermark_delay_us).select(
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
        pack_by(marked, _KEYS)
        .groupBy(*_KEYS)
        .transformWithStateInPandas(
            _Order(watermark_delay_us, state_ttl_us),
            ddl(_OUT),
            outputMode="append",
            timeMode="eventTime",
        )
    )


class _SparkStateStore:
    """The buckets of the current partition in Spark's state store."""

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
    assert value is not None, "a bucket in the head is in the store"
    return bytes(value[0])


class _Order(StatefulProcessor):
    def __init__(self, watermark_delay_us: int, state_ttl_us: int) -> None:
        self._state_ttl_us = state_ttl_us
        self._width_us = max(1, (watermark_delay_us + state_ttl_us) // _BUCKETS)
        self._query = uuid4().hex

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._head = handle.getValueState("head", "head binary")
        self._store = _SparkStateStore(handle)
        self._clock = handle.getValueState("clock", "judged_to_ms bigint, timer_ms bigint")

    def handleInputRows(  # noqa: N802 (the name is Spark's)
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        all_rows = unpack_rows(rows)
        results = []
        for is_send, part in all_rows.groupby("is_send"):
            results += bad_rows("sends" if is_send else "reads", part)
        good = all_rows[all_rows["problem"].isna()]
        over = good["event_us"] + self._state_ttl_us <= watermark_ms * 1_000
        results += _late(key, good[over])
        good = good[~over]
        if len(good):
            state = self._load(key)
            touched = state.take(good)
            update_stored(state, touched)
            results += [_row(key, finding) for finding in duplicates(state, touched)]
            results += self._judge(key, state, watermark_ms)
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

    def _judge(self, key: Any, state: PartitionState, watermark_ms: int) -> list[dict[str, Any]]:
        """Judge and drop the due records, and set the timer for the next ones."""
        watermark_us = watermark_ms * 1_000
        state.read_due(watermark_us)
        findings = list(reorderings(state, watermark_us, self._state_ttl_us))
        findings += gaps(state, watermark_us, self._state_ttl_us)
        self._head.update((state.flush(watermark_us, self._state_ttl_us),))
        timer_ms = self._read_clock()[1]
        due_ms = state.next_due_us(watermark_us) // 1_000 + 1
        if due_ms > watermark_ms and not watermark_ms < timer_ms <= due_ms:
            timer_ms = due_ms
            self._handle.registerTimer(timer_ms)
        self._clock.update((watermark_ms, timer_ms))
        return [_row(key, finding) for finding in findings]

    def _read_clock(self) -> tuple[int, int]:
        """Return the watermark of the last judgement, and the next timer, in milliseconds."""
        clock = self._clock.get() if self._clock.exists() else None
        return (-1, 0) if clock is None else (clock[0], clock[1])

    def _load(self, key: Any) -> PartitionState:
        head = _binary(self._head.get()) if self._head.exists() else None
        ids = get_id_cache((self._query, *key))
        return PartitionState(self._store, head, self._width_us, ids)


def _row(key: Any, finding: dict[str, Any]) -> dict[str, Any]:
    time = time_of(finding.pop("event_us"))
    return {"table": "order", **dict(zip(_KEYS, key, strict=True)), **finding, "time": time}


def _late(key: Any, late: pd.DataFrame) -> list[dict[str, Any]]:
    run_id, topic, partition = key
    return [
        quarantine_row(
            "sends" if is_send else "reads", LATE, len(rows), f"{topic}-{partition}", run_id
        )
        for is_send, rows in late.groupby("is_send")
    ]
