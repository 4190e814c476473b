"""How it stands with share partitions as records, in Kafka's own layout of `__share_group_state`.

Each record is a snapshot: it says all that is so. Kafka has updates between them, which say what
has changed: they can't be read here, since nobody else writes into the topic.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from uuid import UUID

from kio.records.readers import read_batch

from purgatory.cluster.group_records import NO_TAGS, Reader, Writer
from purgatory.cluster.records import new_batch
from purgatory.kafka import RecordBatch
from purgatory.kafka.share_groups.share_state import (
    RecordState,
    ShareKey,
    ShareState,
    ShareStateEntry,
    StateBatch,
)

_SNAPSHOT = 0
_SHORT = struct.Struct(">h")
_PLACE = struct.Struct(">16si")
_HEAD = ">hHiiq"  # version, snapshot epoch, state epoch, leader epoch, start offset
_BATCH = ">qqbh"


class ShareStateRecords:
    """The codec of share partitions, for `ShareCoordinator`."""

    def batch(self, entries: Sequence[ShareStateEntry]) -> RecordBatch:
        """Return a batch that says how it stands; share partitions that are None are forgotten."""
        return new_batch(
            [
                (_encode_key(key), None if state is None else _encode_value(state))
                for key, state in entries
            ]
        )

    def entries(self, batch: RecordBatch) -> Iterator[ShareStateEntry]:
        """Yield what a batch says, in its order."""
        for record in read_batch(batch.to_bytes(), 0)[0].records:
            if record.key is not None and _SHORT.unpack_from(record.key)[0] == _SNAPSHOT:
                value = None if record.value is None else _decode_value(record.value)
                yield _decode_key(record.key), value


def _encode_key(key: ShareKey) -> bytes:
    group_id = key.group_id.encode()
    place = _PLACE.pack(key.topic_id.bytes, key.partition)
    return _SHORT.pack(_SNAPSHOT) + _SHORT.pack(len(group_id)) + group_id + place


def _decode_key(data: bytes) -> ShareKey:
    reader = Reader(data, _SHORT.size)
    group_id = reader.old_string()
    topic_id, partition = _PLACE.unpack(reader.raw(_PLACE.size))
    return ShareKey(group_id, UUID(bytes=topic_id), partition)


def _encode_value(state: ShareState) -> bytes:
    writer = Writer()
    writer.number(_HEAD, 0, 0, state.state_epoch, state.leader_epoch, state.start_offset)
    writer.length(len(state.batches))
    for batch in state.batches:
        writer.number(_BATCH, *batch)
        writer.data += NO_TAGS
    writer.data += NO_TAGS
    return bytes(writer.data)


def _decode_value(data: bytes) -> ShareState:
    reader = Reader(data, 0)
    _, _, state_epoch, leader_epoch, start_offset = reader.numbers(_HEAD)
    batches = []
    for _ in range(reader.length()):
        first, last, state, deliveries = reader.numbers(_BATCH)
        batches.append(StateBatch(first, last, RecordState(state), deliveries))
        reader.skip_tags()
    return ShareState(state_epoch, leader_epoch, start_offset, tuple(batches))
