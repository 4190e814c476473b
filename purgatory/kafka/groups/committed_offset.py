"""A committed offset, and the topic whose records it is kept in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeAlias

from purgatory.kafka.consumer_groups.group_record import GroupRecord
from purgatory.kafka.producer_identity import ProducerIdentity
from purgatory.kafka.record_batch import RecordBatch
from purgatory.kafka.topic_partition import TopicPartition

OFFSETS_TOPIC = "__consumer_offsets"
"""The topic in which groups store how far they got."""

_USUAL_CHARACTERS = 255
"""The hashes of longer names are not kept."""


class OffsetKey(NamedTuple):
    """What an offset was committed for."""

    group_id: str
    topic: str
    partition: int

    @property
    def place(self) -> TopicPartition:
        """The partition whose records are read."""
        return TopicPartition(self.topic, self.partition)


class CommittedOffset(NamedTuple):
    """A committed offset: the next one to read. ``commit_ms`` is in milliseconds since 1970, and
    set when it is committed."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int = 0


OffsetEntry: TypeAlias = tuple[OffsetKey, CommittedOffset | None]
"""What one record says: an offset is committed, or it is deleted."""

StoredEntry: TypeAlias = OffsetEntry | GroupRecord
"""What one record of the topic says: that, or what is so of a consumer group of KIP-848."""


class OffsetsCodec(Protocol):
    """Makes record batches of what is so and what is deleted, and reads it back."""

    def batch(
        self, entries: Sequence[StoredEntry], producer: ProducerIdentity | None = None
    ) -> RecordBatch:
        """Return a batch with one record for each entry; there is at least one.

        With a producer they are part of its transaction.
        """

    def entries(self, batch: RecordBatch) -> Iterable[StoredEntry]:
        """Return what a batch says, in its order."""


def partition_of(group_id: str, partitions: int) -> int:
    """Return the partition that a group's offsets are in: Java's hash of the name, as in Kafka."""
    hashed = _usual_hash if len(group_id) <= _USUAL_CHARACTERS else _java_hash
    return (hashed(group_id) & 0x7FFFFFFF) % partitions


def _java_hash(text: str) -> int:
    number = 0
    encoded = text.encode("utf-16-be")
    for at in range(0, len(encoded), 2):
        number = (31 * number + (encoded[at] << 8 | encoded[at + 1])) & 0xFFFFFFFF
    return number


_usual_hash = lru_cache(maxsize=10_000)(_java_hash)
