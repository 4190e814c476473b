"""What is known of transactional ids as records, in Kafka's own layout of `__transaction_state`.

The key is the id; the value is how it stands with it, or null where it is forgotten. What only
producers have whose epoch rises with each transaction is in tagged fields of a newer version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from kio.records.readers import read_batch

from purgatory.cluster.records import new_batch, new_marker
from purgatory.kafka import (
    EndTransaction,
    ProducerIdentity,
    RecordBatch,
    TopicPartition,
    TransactionEntry,
    TransactionRecord,
    TransactionState,
)

_VERSION = 0
_TAGGED_VERSION = 1
_TAGS = (("last_producer_id", "q", -1), ("next_producer_id", "q", -1), ("version", "h", 0))
"""The tagged fields by their number: what they are called here, their format and default."""

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_HEAD = struct.Struct(">hqhib")  # version, producer id and epoch, timeout, state
_TIMES = struct.Struct(">qq")  # written at, begun at
_NULL = -1

# Kafka's numbers of the states; the one that isn't here is never written.
_STATES = (
    TransactionState.EMPTY,
    TransactionState.ONGOING,
    TransactionState.PREPARE_COMMIT,
    TransactionState.PREPARE_ABORT,
    TransactionState.COMPLETE_COMMIT,
    TransactionState.COMPLETE_ABORT,
    TransactionState.DEAD,
)


class TransactionsRecords:
    """The codec of transactional ids and markers, for `TransactionCoordinator`."""

    def batch(self, entries: Sequence[TransactionEntry]) -> RecordBatch:
        """Return a batch that says how it stands with ids, and forgets those that are None."""
        return new_batch(
            [
                (
                    _SHORT.pack(_VERSION) + _string(transactional_id),
                    None if record is None else _encode_value(record),
                )
                for transactional_id, record in entries
            ]
        )

    def entries(self, batch: RecordBatch) -> Iterator[TransactionEntry]:
        """Yield what a batch says, in its order."""
        for record in read_batch(batch.to_bytes(), 0)[0].records:
            if record.key is not None and _SHORT.unpack_from(record.key)[0] == _VERSION:
                transactional_id, _ = _read_string(record.key, _SHORT.size)
                value = None if record.value is None else _decode_value(record.value)
                yield transactional_id, value

    def marker(
        self, producer: ProducerIdentity, how: EndTransaction, coordinator_epoch: int
    ) -> RecordBatch:
        """Return the marker that ends a producer's transaction on a partition."""
        return new_marker(producer, how, coordinator_epoch)


def _encode_value(record: TransactionRecord) -> bytes:
    tags = [
        (tag, struct.pack(f">{kind}", getattr(record, name)))
        for tag, (name, kind, default) in enumerate(_TAGS)
        if getattr(record, name) != default
    ]
    parts = [
        _HEAD.pack(
            _TAGGED_VERSION if tags else _VERSION,
            record.producer_id,
            record.producer_epoch,
            record.timeout_ms,
            _STATES.index(record.state),
        )
    ]
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(record.partitions):
        topics.setdefault(topic, []).append(partition)
    if tags:
        parts.append(_varint(len(topics) + 1 if topics else 0))
        for topic, partitions in topics.items():
            name = topic.encode()
            parts += _varint(len(name) + 1), name, _varint(len(partitions) + 1)
            parts.append(struct.pack(f">{len(partitions)}ix", *partitions))
        parts += _TIMES.pack(record.update_ms, record.start_ms), _varint(len(tags))
        for tag, data in tags:
            parts += _varint(tag), _varint(len(data)), data
        return b"".join(parts)
    parts.append(_INT.pack(len(topics) if topics else _NULL))
    for topic, partitions in topics.items():
        parts.append(_string(topic))
        parts.append(struct.pack(f">i{len(partitions)}i", len(partitions), *partitions))
    parts.append(_TIMES.pack(record.update_ms, record.start_ms))
    return b"".join(parts)


def _decode_value(data: bytes) -> TransactionRecord:
    version, producer_id, producer_epoch, timeout_ms, state = _HEAD.unpack_from(data)
    known = TransactionRecord(_STATES[state], producer_id, producer_epoch, timeout_ms)
    if version == _TAGGED_VERSION:
        return _decode_tagged(data, known)
    (topics,) = _INT.unpack_from(data, _HEAD.size)
    at = _HEAD.size + _INT.size
    found = []
    for _ in range(topics):
        topic, at = _read_string(data, at)
        (count,) = _INT.unpack_from(data, at)
        numbers = struct.unpack_from(f">{count}i", data, at + _INT.size)
        found += [TopicPartition(topic, number) for number in numbers]
        at += _INT.size * (count + 1)
    update_ms, start_ms = _TIMES.unpack_from(data, at)
    return known._replace(partitions=frozenset(found), start_ms=start_ms, update_ms=update_ms)


def _decode_tagged(data: bytes, known: TransactionRecord) -> TransactionRecord:
    topics, at = _read_varint(data, _HEAD.size)
    found = []
    for _ in range(topics - 1):
        size, at = _read_varint(data, at)
        topic = data[at : at + size - 1].decode()
        count, at = _read_varint(data, at + size - 1)
        numbers = struct.unpack_from(f">{count - 1}i", data, at)
        found += [TopicPartition(topic, number) for number in numbers]
        at += _INT.size * (count - 1) + 1  # no tags
    update_ms, start_ms = _TIMES.unpack_from(data, at)
    tags, at = _read_varint(data, at + _TIMES.size)
    more = {}
    for _ in range(tags):
        tag, at = _read_varint(data, at)
        size, at = _read_varint(data, at)
        if tag < len(_TAGS):
            name, kind, _ = _TAGS[tag]
            (more[name],) = struct.unpack_from(f">{kind}", data, at)
        at += size
    return known._replace(
        partitions=frozenset(found), start_ms=start_ms, update_ms=update_ms, **more
    )


def _varint(number: int) -> bytes:
    """Return a number, not below 0, seven bits to a byte, the lowest first."""
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while data[at] & 0x80:
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return number | data[at] << shift, at + 1


def _string(text: str) -> bytes:
    encoded = text.encode()
    return _SHORT.pack(len(encoded)) + encoded


def _read_string(data: bytes, at: int) -> tuple[str, int]:
    end = at + _SHORT.size + _SHORT.unpack_from(data, at)[0]
    return data[at + _SHORT.size : end].decode(), end
