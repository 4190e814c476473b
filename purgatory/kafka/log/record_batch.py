"""A record batch: the header of Kafka's format 2, and the records as bytes or as a mere size.

The model never decodes the records. A server passes the bytes of a batch, whose header is read
here; a simulation passes a size and, to recognize a batch again, a tag. An append gives a batch its
offset: that makes a new ``RecordBatch`` with the same payload, and the bytes are stamped only on
request, so an append copies nothing.

Ground rules
------------
* A batch is never changed once made: leader, followers and readers share the object.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from enum import Enum

from purgatory.kafka.errors import ErrorCode, KafkaError

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
MAX_SEQUENCE = 2**31 - 1

# base offset, length, leader epoch, magic, crc, attributes, last offset delta, first and max
# timestamp, producer id, producer epoch, base sequence, record count
_HEADER = struct.Struct(">qiibIhiqqqhii")
_BATCH_PREFIX = struct.Struct(">qii")  # base offset, length, leader epoch: how a header begins
_CHECKSUM = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_TIME = struct.Struct(">q")
CHECKSUM_OFFSET = 21
"""The position of the checksummed part of a batch, which begins with the attributes."""

MAX_TIMESTAMP_AT = 35
"""The position of the latest time of a batch's records."""

APPEND_TIME_BIT = 0x08
"""The attribute that says that all records have the batch's latest time."""

_LENGTH_END = 12
_TRANSACTIONAL_BIT = 0x10
_CONTROL_BIT = 0x20
_MAGIC = 2
HEADER_BYTES = _HEADER.size
"""The length of a batch's header: 61 bytes."""


class TransactionResult(Enum):
    """The end of a transaction. The marker's type is the number in Kafka's control record."""

    ABORT = 0
    COMMIT = 1


class RecordBatch:
    """Consecutive records that are appended, replicated and fetched together.

    Args:
        base_offset: the offset of the first record; ignored before an append.
        record_count: how many records, at least 1; 0 where compaction removed all.
        size_bytes: the size with its header, in bytes, at least 1.
        leader_epoch: the epoch of the leader that appended it, stamped at the append.
        producer_id, producer_epoch, base_sequence: of an idempotent producer, else -1.
        payload: the whole batch as bytes, header included, or None.
        tag: anything by which the maker of the batch recognizes it; the model passes it on.
        transactional: the records belong to an open transaction of ``producer_id``.
        control: set on an end-transaction marker.
        coordinator_epoch: of the coordinator that wrote the marker; -1: unknown.
        offset_count: how many offsets it spans; None: one for each record. Compaction leaves the
            offsets of the records that it removes.

    Raises:
        ValueError: a count or size below 1, or more records than offsets.
    """

    __slots__ = (
        "base_offset",
        "base_sequence",
        "control",
        "coordinator_epoch",
        "leader_epoch",
        "next_offset",
        "payload",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size_bytes",
        "tag",
        "transactional",
    )

    def __init__(
        self,
        base_offset: int,
        record_count: int,
        size_bytes: int,
        leader_epoch: int = NO_LEADER_EPOCH,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        payload: bytes | None = None,
        tag: object = None,
        transactional: bool = False,
        control: TransactionResult | None = None,
        coordinator_epoch: int = NO_LEADER_EPOCH,
        offset_count: int | None = None,
    ) -> None:
        if offset_count is None:
            offset_count = record_count
        if offset_count < 1 or not 0 <= record_count <= offset_count or size_bytes < 1:
            raise ValueError(
                "a batch has at least one record and one byte: "
                f"record_count={record_count!r}, size_bytes={size_bytes!r}, "
                f"offset_count={offset_count!r}"
            )
        self.base_offset = base_offset
        self.next_offset = base_offset + offset_count
        self.record_count = record_count
        self.size_bytes = size_bytes
        self.leader_epoch = leader_epoch
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.payload = payload
        self.tag = tag
        self.transactional = transactional
        self.control = control
        self.coordinator_epoch = coordinator_epoch

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        return self.next_offset - 1

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record; they wrap from 2**31 - 1 to 0."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.next_offset - self.base_offset - 1) & MAX_SEQUENCE

    @property
    def offset_count(self) -> int:
        """The number of offsets that the batch spans: its record count, unless it is compacted."""
        return self.next_offset - self.base_offset

    @property
    def is_placeholder(self) -> bool:
        """Whether the batch only holds the offsets of records that compaction removed."""
        return not self.record_count and self.producer_id == NO_PRODUCER_ID

    @property
    def max_timestamp_ms(self) -> int:
        """The latest time of the records, in milliseconds since 1970; -1 where none is known."""
        payload = self.payload
        if payload is None:
            return -1
        time_ms: int = _TIME.unpack_from(payload, MAX_TIMESTAMP_AT)[0]
        return time_ms

    def with_offset(self, base_offset: int, leader_epoch: int) -> RecordBatch:
        """Return the same batch at another offset and epoch, in O(1): the payload is shared."""
        other = RecordBatch.__new__(RecordBatch)  # the copied values were checked before
        other.base_offset = base_offset
        other.next_offset = base_offset + self.next_offset - self.base_offset
        other.record_count = self.record_count
        other.size_bytes = self.size_bytes
        other.leader_epoch = leader_epoch
        other.producer_id = self.producer_id
        other.producer_epoch = self.producer_epoch
        other.base_sequence = self.base_sequence
        other.payload = self.payload
        other.tag = self.tag
        other.transactional = self.transactional
        other.control = self.control
        other.coordinator_epoch = self.coordinator_epoch
        return other

    def with_append_time(self, now_ms: int, checksum: Callable[[bytes], int]) -> RecordBatch:
        """Return the same batch with the leader's time as that of all its records. O(bytes).

        Args:
            now_ms: in milliseconds since 1970.
            checksum: CRC-32C.

        Raises:
            ValueError: the batch carries no bytes, only a size.
        """
        return self._with_time(now_ms, checksum, APPEND_TIME_BIT)

    def with_max_timestamp(self, time_ms: int, checksum: Callable[[bytes], int]) -> RecordBatch:
        """Return the same batch with another latest time, and its records' own times. O(bytes).

        Args and errors are those of ``with_append_time``.
        """
        return self._with_time(time_ms, checksum, 0)

    def _with_time(
        self, time_ms: int, checksum: Callable[[bytes], int], added_attributes: int
    ) -> RecordBatch:
        data = bytearray(self.to_bytes())
        (attributes,) = _ATTRIBUTES.unpack_from(data, CHECKSUM_OFFSET)
        attributes = attributes & ~APPEND_TIME_BIT | added_attributes
        _ATTRIBUTES.pack_into(data, CHECKSUM_OFFSET, attributes)
        _TIME.pack_into(data, MAX_TIMESTAMP_AT, time_ms)
        crc = checksum(bytes(data[CHECKSUM_OFFSET:]))
        _CHECKSUM.pack_into(data, CHECKSUM_OFFSET - _CHECKSUM.size, crc)
        stamped = self.with_offset(self.base_offset, self.leader_epoch)
        stamped.payload = bytes(data)
        return stamped

    @classmethod
    def end_transaction(
        cls,
        producer_id: int,
        producer_epoch: int,
        result: TransactionResult,
        size_bytes: int = 78,
        coordinator_epoch: int = NO_LEADER_EPOCH,
    ) -> RecordBatch:
        """Return the marker that ends the transaction of a producer on one partition."""
        return cls(
            0,
            1,
            size_bytes,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=True,
            control=result,
            coordinator_epoch=coordinator_epoch,
        )

    @classmethod
    def from_bytes(
        cls,
        data: bytes,
        checksum: Callable[[bytes], int] | None = None,
        tag: object = None,
        may_be_compacted: bool = False,
    ) -> RecordBatch:
        """Read the header of one whole batch in Kafka's format 2.

        Args:
            data: exactly one batch.
            checksum: CRC-32C; when given, the batch's own is compared with it.
            tag: as above.
            may_be_compacted: whether there may be fewer records than offsets, as in a compacted
                log; never in a client's batch.

        Raises:
            KafkaError: CORRUPT_MESSAGE, when it isn't such a batch; INVALID_RECORD, when it is a
                client's batch whose header contradicts itself.
        """
        if len(data) < HEADER_BYTES:
            raise _corrupt(f"{len(data)} bytes are fewer than a header's {HEADER_BYTES}")
        (
            base_offset,
            length,
            leader_epoch,
            magic,
            crc,
            attributes,
            last_delta,
            _first_timestamp,
            _max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        ) = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise _corrupt(f"magic is {magic}, only format {_MAGIC} is known")
        if length + _LENGTH_END != len(data):
            raise _corrupt(f"the header tells {length + _LENGTH_END} bytes, there are {len(data)}")
        invalid = ErrorCode.CORRUPT_MESSAGE if may_be_compacted else ErrorCode.INVALID_RECORD
        fewest = 0 if may_be_compacted else last_delta + 1
        if checksum is not None and checksum(data[CHECKSUM_OFFSET:]) != crc:
            raise _corrupt(f"the checksum is not the {crc:#010x} that the header tells")
        if last_delta < 0 or not fewest <= record_count <= last_delta + 1:
            raise KafkaError(invalid, f"{record_count} records cannot end at offset {last_delta}")
        control, coordinator_epoch = None, NO_LEADER_EPOCH
        if attributes & _CONTROL_BIT:
            try:
                control, coordinator_epoch = _control_of(data)
            except ValueError as error:
                raise KafkaError(invalid, str(error)) from error
        return cls(
            base_offset,
            record_count,
            len(data),
            leader_epoch,
            producer_id,
            producer_epoch,
            base_sequence,
            bytes(data),
            tag,
            attributes & _TRANSACTIONAL_BIT != 0,
            control,
            coordinator_epoch,
            last_delta + 1,
        )

    def to_bytes(self) -> bytes:
        """Return the bytes with this base offset and leader epoch written into the header.

        Neither is covered by the checksum, which therefore stays right.

        Raises:
            ValueError: the batch carries no bytes, only a size.
        """
        return encode_batches([self])

    def __repr__(self) -> str:
        parts = [f"offsets {self.base_offset}..{self.last_offset}", f"{self.size_bytes} bytes"]
        parts.append(f"epoch {self.leader_epoch}")
        if self.producer_id != NO_PRODUCER_ID:
            parts.append(
                f"producer {self.producer_id}/{self.producer_epoch} from {self.base_sequence}"
            )
        if self.control is not None:
            parts.append(self.control.name)
        return f"<RecordBatch {', '.join(parts)}>"


def encode_batches(batches: Sequence[RecordBatch]) -> bytes:
    """Return the bytes of several batches, concatenated. O(bytes).

    Raises:
        ValueError: a batch carries no bytes, only a size.
    """
    payloads = [batch.payload for batch in batches if batch.payload is not None]
    if len(payloads) < len(batches):
        sized = next(batch for batch in batches if batch.payload is None)
        raise ValueError(f"{sized!r} was made without a payload: it has a size, no bytes")
    joined = bytearray().join(payloads)
    position = 0
    for batch in batches:
        size_bytes = batch.size_bytes
        _BATCH_PREFIX.pack_into(
            joined, position, batch.base_offset, size_bytes - _LENGTH_END, batch.leader_epoch
        )
        position += size_bytes
    return bytes(joined)


def _corrupt(message: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"not a record batch: {message}")


def _control_of(data: bytes) -> tuple[TransactionResult, int]:
    """Read the type and the coordinator's epoch from a control batch's only record.

    Version and type are its 4-byte key; its value is a version and the epoch, or is missing.
    """
    # A record: length, attributes (one byte), timestamp delta, offset delta, key length, key.
    position = _after_varint(data, HEADER_BYTES) + 1
    for _ in ("timestamp delta", "offset delta", "key length"):
        position = _after_varint(data, position)
    kind = int.from_bytes(data[position + 2 : position + 4], "big")
    if len(data) < position + 4 or kind not in (0, 1):
        raise ValueError("its control record is no end-transaction marker")
    epoch_at = _after_varint(data, position + 4) + 2
    if len(data) < epoch_at + 4:
        return TransactionResult(kind), NO_LEADER_EPOCH
    return TransactionResult(kind), int.from_bytes(
        data[epoch_at : epoch_at + 4], "big", signed=True
    )


def _after_varint(data: bytes, position: int) -> int:
    while position < len(data) and data[position] & 0x80:
        position += 1
    return position + 1
