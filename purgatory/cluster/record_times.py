"""When records were made: looked up in batches, for clients that seek by time."""

from __future__ import annotations

from collections.abc import Iterator

from purgatory.cluster.record_contents import Record, records_of
from purgatory.core.recent_errors import Logger
from purgatory.kafka import Log, Partition, RecordBatch
from purgatory.kafka.log.record_batch import MAX_TIMESTAMP_AT
from purgatory.kafka.replication.requests import UNKNOWN_OFFSET

_READ_BYTES = 1024 * 1024

_log = Logger("purgatory.cluster")


def max_timestamp_ms(batch: RecordBatch) -> int:
    """Return the latest time in a batch, from its header; -1 where it has none."""
    payload = batch.payload
    if payload is None:
        return -1
    return int.from_bytes(payload[MAX_TIMESTAMP_AT : MAX_TIMESTAMP_AT + 8], "big", signed=True)


def first_at_or_after(log: Log, timestamp_ms: int, upto_offset: int) -> Record | None:
    """Return the first record, below ``upto_offset``, that is not older. O(batches).

    Raises:
        ValueError: a batch can't be looked into.
    """
    for batch in _batches(log, upto_offset):
        if max_timestamp_ms(batch) >= timestamp_ms:
            for record in records_of(batch):
                if record.timestamp_ms >= timestamp_ms and record.offset >= log.start_offset:
                    return record
    return None


def first_offset_since(partition: Partition, since_ms: int) -> int:
    """Return the offset of the first committed record that is not older; -1: there is none.

    Where a batch can't be looked into, it is the log's start. O(batches).
    """
    try:
        found = first_at_or_after(partition.log, since_ms, partition.high_watermark)
    except ValueError as error:
        key = str(partition.topic_partition)
        _log.warning("times_unreadable", partition=key, reason=str(error))
        return partition.log_start_offset
    return UNKNOWN_OFFSET if found is None else found.offset


def latest(log: Log, upto_offset: int) -> Record | None:
    """Return the record with the latest time; the first of them, where several have it.

    Raises:
        ValueError: a batch can't be looked into.
    """
    newest = max(_batches(log, upto_offset), key=max_timestamp_ms, default=None)
    if newest is None:
        return None
    return max(records_of(newest), key=lambda record: record.timestamp_ms, default=None)


def _batches(log: Log, upto_offset: int) -> Iterator[RecordBatch]:
    offset = log.start_offset
    while offset < upto_offset:
        batches = log.read(offset, _READ_BYTES, upto_offset)
        if not batches:
            return
        yield from batches
        offset = batches[-1].next_offset
