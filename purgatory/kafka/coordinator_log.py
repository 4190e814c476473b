"""The log of a coordinator: an internal topic, in which the latest record of a key holds.

The leader of a partition holds the state of its records in memory. A new leader loads them.

Ground rules
------------
* One thread at a time calls it.
* No state is returned before its record is replicated: acknowledged state survives the death of a
  broker. A new leader has loaded records that may not be replicated: it returns nothing until all
  in-sync replicas have them (`is_committed`).
* Once most records of a partition are stale, its live entries are written again, and the records
  before them deleted, while no append is pending: then the entries in memory are those of the log
  up to its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from purgatory.core.errors import PurgatoryClosedError
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.log.producer_state import AppendOrigin
from purgatory.kafka.log.record_batch import RecordBatch
from purgatory.kafka.replication.replica_manager import ReplicaManager
from purgatory.kafka.replication.requests import PartitionProduceResponse
from purgatory.kafka.topic_partition import TopicPartition

_APPEND_TIMEOUT_MS = 5_000
_MIN_STALE_RECORDS = 10_000
"""Fewer stale records are not worth a compaction."""

_MAX_STALE_RATIO = 4
"""The maximal number of records per live key."""

_PER_BATCH = 1_000
_READ_BYTES = 1024 * 1024
Entry = TypeVar("Entry")
WrittenT_contra = TypeVar("WrittenT_contra", contravariant=True)
Respond = Callable[[ErrorCode], object]

_ERRORS = {
    ErrorCode.NONE: ErrorCode.NONE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,  # no retry makes it smaller
}


class Codec(Protocol[WrittenT_contra]):
    """Encodes entries as record batches."""

    def batch(self, entries: Sequence[WrittenT_contra]) -> RecordBatch:
        """Return a batch with one record for each entry, at least one."""


class CoordinatorLog(Generic[Entry]):
    """The partitions of one topic that are led here, read and written.

    Args:
        snapshot: returns the live entries of a partition; None while it can't be compacted.
            O(entries).
        errors: the error for clients by that of a failed append; by default
            COORDINATOR_NOT_AVAILABLE.
    """

    def __init__(
        self,
        topic: str,
        manager: ReplicaManager,
        codec: Codec[Entry],
        snapshot: Callable[[int], Sequence[Entry] | None],
        errors: Mapping[ErrorCode, ErrorCode] = _ERRORS,
    ) -> None:
        self.topic = topic
        self._manager = manager
        self._codec = codec
        self._snapshot = snapshot
        self._errors = errors
        self._loaded: set[int] = set()
        self._loaded_offsets: dict[int, int] = {}
        self._records: Counter[int] = Counter()
        self._checked_records: Counter[int] = Counter()
        self._pending_appends: Counter[int] = Counter()

    # Partitions.

    def load(self, partition: int) -> Iterator[RecordBatch]:
        """Load a partition that this broker now leads: yield all of its batches. O(batches)."""
        self._loaded.add(partition)
        self._pending_appends.pop(partition, None)
        self._records.pop(partition, None)
        replica = self._manager.partition(TopicPartition(self.topic, partition))
        if replica is None:
            return
        log = replica.log
        self._loaded_offsets[partition] = log.end_offset
        offset = log.start_offset
        while offset < log.end_offset:
            batches = log.read(offset, _READ_BYTES)
            if not batches:
                break
            for batch in batches:
                self._records[partition] += batch.record_count
                yield batch
            offset = batches[-1].next_offset

    def unload(self, partition: int) -> None:
        """Unload a partition that this broker no longer leads."""
        self._loaded.discard(partition)
        self._records.pop(partition, None)
        self._checked_records.pop(partition, None)
        self._loaded_offsets.pop(partition, None)

    def leads(self, partition: int) -> bool:
        """Whether this broker leads a partition, and has loaded it."""
        return partition in self._loaded

    def is_committed(self, partition: int) -> bool:
        """Whether all in-sync replicas have the loaded records of a partition.

        They may be fewer than ``min.insync.replicas``: then the high watermark doesn't advance,
        appends are rejected, and reads are served all the same.
        """
        end_offset = self._loaded_offsets.get(partition)
        if end_offset is None:
            return True
        replica = self._manager.partition(TopicPartition(self.topic, partition))
        if replica is None or replica.in_sync_end_offset < end_offset:
            return False
        del self._loaded_offsets[partition]
        return True

    # Appends.

    def append(self, partition: int, entries: Sequence[Entry], respond: Respond) -> None:
        """Write entries.

        Args:
            partition: a loaded one.
            entries: at least one.
            respond: called once they are replicated, or can't be; never, if this broker was
                killed meanwhile.
        """
        replica = self._manager.partition(TopicPartition(self.topic, partition))
        max_bytes = 0 if replica is None else replica.log.config.max_batch_bytes
        batches = [
            batch
            for start in range(0, len(entries), _PER_BATCH)
            for batch in self._encode(entries[start : start + _PER_BATCH], max_bytes)
        ]
        self.append_batches(partition, batches, respond)

    def _encode(self, entries: Sequence[Entry], max_bytes: int) -> list[RecordBatch]:
        """Return entries as batches, halved until each is as small as the log demands."""
        batch, half = self._codec.batch(entries), len(entries) // 2
        if batch.size_bytes <= max_bytes or not half:
            return [batch]
        return self._encode(entries[:half], max_bytes) + self._encode(entries[half:], max_bytes)

    def append_batches(
        self, partition: int, batches: Sequence[RecordBatch], respond: Respond
    ) -> None:
        """Write encoded batches; otherwise as ``append``."""
        topic_partition = TopicPartition(self.topic, partition)

        def stored(responses: Mapping[TopicPartition, PartitionProduceResponse]) -> None:
            self._pending_appends[partition] -= 1
            append_error = responses[topic_partition].error
            error = self._errors.get(append_error, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if error is ErrorCode.NONE and partition in self._loaded:
                self._records[partition] += sum(batch.record_count for batch in batches)
            respond(error)
            self._compact_if_stale(partition)

        self._pending_appends[partition] += 1
        try:
            self._manager.append_records(
                _APPEND_TIMEOUT_MS,
                -1,
                {topic_partition: batches},
                stored,
                AppendOrigin.COORDINATOR,
            )
        except PurgatoryClosedError:  # killed meanwhile: there are no responses any more
            self._pending_appends[partition] -= 1

    # Compaction.

    def _compact_if_stale(self, partition: int) -> None:
        records = self._records[partition]
        if (
            records <= self._checked_records[partition] + _MIN_STALE_RECORDS
            or self._pending_appends[partition]
        ):
            return
        snapshot = self._snapshot(partition)
        if snapshot is None:
            return
        if records > _MAX_STALE_RATIO * len(snapshot):
            self._compact(partition, snapshot)
        else:  # not before so many more: a snapshot takes O(entries)
            self._checked_records[partition] = records + len(snapshot)

    def _compact(self, partition: int, snapshot: Sequence[Entry]) -> None:
        """Write a snapshot; when it is replicated, delete the records before it."""
        topic_partition = TopicPartition(self.topic, partition)
        replica = self._manager.partition(topic_partition)
        if replica is None:
            return
        before = replica.log.end_offset
        self._records[partition] = 0  # not again at once, if this fails
        self._checked_records[partition] = 0

        def written(error: ErrorCode) -> None:
            if error is ErrorCode.NONE and partition in self._loaded:
                self._manager.advance_start(topic_partition, before)

        if snapshot:
            self.append(partition, snapshot, written)
        else:
            written(ErrorCode.NONE)
