"""The committed offsets of the groups that a broker coordinates, and the records of those groups.

Offsets that are committed in a transaction are pending (`PendingOffsets`) until it ends. They hold
once it is committed, unless a later offset was committed for the same key by then: as in Kafka, the
last written record holds. Until the end, the key has no stable offset either way.

A group with offsets is there until it is deleted, though it lose all of them, as in Kafka: the
manager looks for such groups, and for offsets that have expired.

Ground rules
------------
* One thread at a time calls it.
* No offset is returned before its record is replicated: what was acknowledged, or returned,
  survives the death of a broker.
* `CoordinatorLog` keeps the records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from purgatory.kafka.coordinator_log import CoordinatorLog, Respond
from purgatory.kafka.errors import ErrorCode, GroupRefusal
from purgatory.kafka.groups.group_records import GroupRecord, GroupRecordKey, GroupRecordValue
from purgatory.kafka.log.producer_state import ProducerIdentity
from purgatory.kafka.log.record_batch import RecordBatch, TransactionResult
from purgatory.kafka.replication.replica_manager import ReplicaManager
from purgatory.kafka.topic_partition import TopicPartition

OFFSETS_TOPIC = "__consumer_offsets"
"""The topic of committed offsets and of consumer groups' records."""

_MAX_CACHED_LENGTH = 255
"""The hashes of longer names are not kept."""


NO_EXPIRY_MS = -1
"""An offset without a time of its own expires by the retention of the cluster."""


class OffsetKey(NamedTuple):
    """A group and a partition, for which an offset is committed."""

    group_id: str
    topic: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition whose records are read."""
        return TopicPartition(self.topic, self.partition)


class CommittedOffset(NamedTuple):
    """A committed offset: the next one to read.

    ``commit_ms`` is set on commit, in milliseconds since 1970; ``expire_ms``, when it expires, by
    clients of old versions alone.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int = 0
    expire_ms: int = NO_EXPIRY_MS


OffsetEntry: TypeAlias = tuple[OffsetKey, CommittedOffset | None]
"""A record of the log: a committed offset; None: the offset is deleted."""

StoredEntry: TypeAlias = OffsetEntry | GroupRecord
"""One record of the topic: an offset, or a record of a consumer group of KIP-848."""


class OffsetsCodec(Protocol):
    """Encodes entries and tombstones as record batches, and decodes them."""

    def batch(
        self, entries: Sequence[StoredEntry], producer: ProducerIdentity | None = None
    ) -> RecordBatch:
        """Return a batch with one record for each entry; there is at least one.

        With a producer they are part of its transaction.
        """

    def entries(self, batch: RecordBatch) -> Iterable[StoredEntry]:
        """Return the entries of a batch, in order."""


def group_partition(group_id: str, partitions: int) -> int:
    """Return the partition that a group's offsets are in: Java's hash of the name, as in Kafka."""
    hashed = _cached_hash if len(group_id) <= _MAX_CACHED_LENGTH else _java_hash
    number = hashed(group_id)
    # Its absolute value; Java has none of the least number, for which Kafka takes 0.
    positive = number if number < _SIGN else (2 * _SIGN - number) % _SIGN
    return positive % partitions


_SIGN = 1 << 31


def _java_hash(text: str) -> int:
    number = 0
    encoded = text.encode("utf-16-be")
    for at in range(0, len(encoded), 2):
        number = (31 * number + (encoded[at] << 8 | encoded[at + 1])) & 0xFFFFFFFF
    return number


_cached_hash = lru_cache(maxsize=10_000)(_java_hash)


class PendingOffsets:
    """Those of one partition of the offsets' topic, in the order of their records."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        # None: a newer commit of the key holds, however the transaction ends.
        self._held: dict[tuple[int, OffsetKey], OffsetEntry | None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, producer_id: int, entry: OffsetEntry) -> None:
        """Keep the offsets of an open transaction. O(1)."""
        at = producer_id, entry[0]
        self._held.pop(at, None)
        self._held[at] = entry

    def supersede(self, key: OffsetKey) -> None:
        """Record a newer commit of a key: its pending offsets won't hold. O(pending offsets)."""
        for at in self._held:
            if at[1] == key:
                self._held[at] = None

    def discard(self, key: OffsetKey) -> None:
        """Drop the pending offsets of a key that is deleted. O(pending offsets)."""
        for at in [at for at in self._held if at[1] == key]:
            del self._held[at]

    def end(self, producer_id: int, result: TransactionResult) -> list[OffsetEntry]:
        """Return the offsets that a producer's transaction commits. O(pending offsets)."""
        ended = [at for at in self._held if at[0] == producer_id]
        entries = []
        for at in ended if result is TransactionResult.COMMIT else ():
            entry = self._held[at]
            if entry is None:
                continue
            entries.append(entry)
            for older in self._held:
                if older == at:
                    break
                if older[1] == at[1]:  # what another transaction wrote before it
                    self._held[older] = None
        for at in ended:
            del self._held[at]
        return entries

    def producer_offsets(self, producer_id: int) -> list[OffsetEntry]:
        """Return the pending offsets of a producer that may hold. O(pending offsets)."""
        return [entry for at, entry in self._held.items() if entry and at[0] == producer_id]

    def group_offsets(self, group_id: str) -> set[TopicPartition]:
        """Return what a group's offsets may yet change of. O(what is held)."""
        return {key.topic_partition for _, key in self._held if key.group_id == group_id}

    def by_group(self) -> Mapping[str, set[TopicPartition]]:
        """Return the partitions with pending offsets, by group. O(pending offsets)."""
        found: dict[str, set[TopicPartition]] = {}
        for _, key in self._held:
            found.setdefault(key.group_id, set()).add(key.topic_partition)
        return found

    def topic_offsets(self, topic: str) -> list[OffsetKey]:
        """Return the keys of a topic's pending offsets. O(pending offsets)."""
        return [key for _, key in self._held if key.topic == topic]


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_ERRORS = {
    ErrorCode.NONE: ErrorCode.NONE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""The error for clients when an append fails with this one; any other becomes
COORDINATOR_NOT_AVAILABLE."""


class GroupOffsets:
    """Commits and returns offsets.

    Args:
        manager: the replicas of the offsets topic.
        codec: encodes and decodes its records.
        now_ms: returns the time, in milliseconds since 1970.
    """

    def __init__(
        self, manager: ReplicaManager, codec: OffsetsCodec, now_ms: Callable[[], int]
    ) -> None:
        self._records: CoordinatorLog[StoredEntry] = CoordinatorLog(
            OFFSETS_TOPIC, manager, codec, self._snapshot, _ERRORS
        )
        self._codec = codec
        self._now_ms = now_ms
        self._by_group: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._group_records: dict[str, dict[GroupRecordKey, GroupRecordValue]] = {}
        self._loaded: dict[int, dict[str, None]] = {}  # the groups, in the order of their records
        self._pending: dict[int, PendingOffsets] = {}

    # Partitions of the offsets topic.

    def load(self, partition: int) -> Iterable[str]:
        """Read all records of a partition that this broker now leads; return its groups.

        O(its records).
        """
        self._loaded[partition] = {}
        self._pending[partition] = PendingOffsets()
        for batch in self._records.load(partition):
            self._load_batch(partition, batch)
        return list(self._loaded[partition])

    def _load_batch(self, partition: int, batch: RecordBatch) -> None:
        if batch.control is not None:
            self.end_transaction(partition, batch.producer_id, batch.control)
            return
        entries = list(self._codec.entries(batch))
        if batch.transactional:
            self._add_pending(partition, batch.producer_id, entries)
        else:
            self._commit(partition, entries)

    def unload(self, partition: int) -> list[str]:
        """Remove the groups of a partition that another broker leads; return them."""
        self._records.unload(partition)
        groups = self._loaded.pop(partition, {})
        self._pending.pop(partition, None)
        for group_id in groups:
            self._by_group.pop(group_id, None)
            self._group_records.pop(group_id, None)
        return list(groups)

    def leads(self, partition: int) -> bool:
        """Whether a partition of the offsets' topic is led, and read, here."""
        return self._records.leads(partition)

    def is_committed(self, partition: int) -> bool:
        """Whether all in-sync replicas have the loaded records of a partition."""
        return self._records.is_committed(partition)

    def check_committed(self, partition: int) -> None:
        """Refuse a request while loaded records may not be replicated yet.

        Raises:
            GroupRefusal: COORDINATOR_LOAD_IN_PROGRESS.
        """
        if not self.is_committed(partition):
            raise GroupRefusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    # Commits and fetches.

    def commit(
        self,
        partition: int,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        respond: Respond,
    ) -> None:
        """Commit offsets.

        Args:
            partition: the partition of the offsets topic that the group belongs to.
            respond: called with the error code once they are replicated, or can't be; never, if
                this broker is killed meanwhile.
        """
        self._append(partition, self._entries(group_id, offsets), respond)

    def commit_in_transaction(
        self,
        partition: int,
        group_id: str,
        producer: ProducerIdentity,
        offsets: Mapping[TopicPartition, CommittedOffset],
        respond: Respond,
    ) -> None:
        """Commit offsets that hold once the producer's transaction is committed; otherwise as
        ``commit``."""
        self._append(partition, self._entries(group_id, offsets), respond, producer)

    def _entries(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> list[OffsetEntry]:
        commit_ms = self._now_ms()
        return [
            (OffsetKey(group_id, *topic_partition), committed._replace(commit_ms=commit_ms))
            for topic_partition, committed in offsets.items()
        ]

    def end_transaction(self, partition: int, producer_id: int, result: TransactionResult) -> None:
        """Let what was committed in a producer's transaction hold, or drop it: its marker is
        written. O(what is pending)."""
        pending = self._pending.get(partition)
        if pending:
            self._apply(partition, pending.end(producer_id, result))

    def pending_offsets(self, partition: int, producer_id: int) -> list[OffsetEntry]:
        """Return the offsets of a producer's open transaction."""
        pending = self._pending.get(partition)
        return pending.producer_offsets(producer_id) if pending else []

    def pending(self, partition: int, group_id: str) -> set[TopicPartition]:
        """Return of what a group's offsets may change by a transaction that isn't ended."""
        pending = self._pending.get(partition)
        return pending.group_offsets(group_id) if pending else set()

    def pending_by_group(self, partition: int) -> Mapping[str, set[TopicPartition]]:
        """Return the partitions of all groups with offsets in open transactions. O(those)."""
        pending = self._pending.get(partition)
        return pending.by_group() if pending else {}

    def delete(
        self, partition: int, group_id: str, records: Sequence[GroupRecord], respond: Respond
    ) -> None:
        """Delete all offsets of a group, and its records by these tombstones, of which there is at
        least one; ``respond`` is called as by ``commit``."""
        topic_partitions = self.group_offsets(group_id).keys() | self.pending(partition, group_id)
        entries: list[StoredEntry] = [
            (OffsetKey(group_id, *topic_partition), None)
            for topic_partition in sorted(topic_partitions)
        ]
        self._append(partition, [*entries, *records], respond)

    def delete_some(
        self,
        partition: int,
        group_id: str,
        topic_partitions: Collection[TopicPartition],
        respond: Respond,
    ) -> None:
        """Delete committed offsets of a group; ``respond`` is called as by ``commit``."""
        stored = self.group_offsets(group_id).keys() | self.pending(partition, group_id)
        entries: list[StoredEntry] = [
            (OffsetKey(group_id, *topic_partition), None)
            for topic_partition in topic_partitions
            if topic_partition in stored
        ]
        if entries:
            self._append(partition, entries, respond)
        else:
            respond(ErrorCode.NONE)

    def write(self, partition: int, entries: Sequence[StoredEntry], respond: Respond) -> None:
        """Keep records of groups, at least one; ``respond`` is called as by ``commit``."""
        self._append(partition, entries, respond)

    def records_of(self, group_id: str) -> Mapping[GroupRecordKey, GroupRecordValue]:
        """Return the stored records of a consumer group; none for other groups."""
        return self._group_records.get(group_id, {})

    def group_offsets(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Return what a group has committed, by topic and partition."""
        return self._by_group.get(group_id, {})

    def has_group(self, partition: int, group_id: str) -> bool:
        """Whether a group has records here, or had offsets, and was not deleted."""
        return group_id in self._loaded.get(partition, ())

    def groups(self, partition: int | None = None) -> list[str]:
        """Return the groups that have records, or had offsets, and were not deleted.

        Args:
            partition: the partition that has them; None: any.
        """
        if partition is not None:
            return list(self._loaded.get(partition, ()))
        return [group_id for groups in self._loaded.values() for group_id in groups]

    def delete_topic(self, topic: str) -> None:
        """Delete all groups' offsets of a deleted topic, in the background. O(their offsets)."""
        for partition, groups in self._loaded.items():
            keys = [
                OffsetKey(group_id, *topic_partition)
                for group_id in groups
                for topic_partition in self._by_group.get(group_id, ())
                if topic_partition[0] == topic
            ]
            keys += self._pending[partition].topic_offsets(topic)
            if keys:
                entries: list[OffsetEntry] = [(key, None) for key in dict.fromkeys(keys)]
                self._append(partition, entries, _ignore)

    def _append(
        self,
        partition: int,
        entries: Sequence[StoredEntry],
        respond: Respond,
        producer: ProducerIdentity | None = None,
    ) -> None:
        def stored(code: ErrorCode) -> None:
            if code is ErrorCode.NONE and partition in self._loaded:
                if producer is None:
                    self._commit(partition, entries)
                else:
                    self._add_pending(partition, producer.producer_id, entries)
            respond(code)

        if producer is None:
            self._records.append(partition, entries, stored)
        else:  # its records are appended in one batch alone
            batch = self._codec.batch(entries, producer)
            self._records.append_batches(partition, [batch], stored)

    def _snapshot(self, partition: int) -> Sequence[StoredEntry] | None:
        """Return what all groups of a partition have committed, and their records. O(that)."""
        if self._pending.get(partition):
            return None  # pending offsets can't be written again: their transaction may end now
        snapshot: list[StoredEntry] = []
        for group_id in self._loaded.get(partition, ()):
            committed = self._by_group.get(group_id, {})
            snapshot += [
                (OffsetKey(group_id, *topic_partition), offset)
                for topic_partition, offset in committed.items()
            ]
            snapshot += self.records_of(group_id).items()
        return snapshot

    def _commit(self, partition: int, entries: Sequence[StoredEntry]) -> None:
        pending = self._pending[partition]
        for key, value in entries if pending else ():
            if isinstance(key, OffsetKey):
                if value is None:
                    pending.discard(key)
                else:
                    pending.supersede(key)
        self._apply(partition, entries)

    def _apply(self, partition: int, entries: Sequence[StoredEntry]) -> None:
        loaded = self._loaded[partition]
        for key, value in entries:
            group_id = key.group_id
            if isinstance(key, OffsetKey):
                assert value is None or isinstance(value, CommittedOffset)
                _store(self._by_group, group_id, key.topic_partition, value)
            else:
                assert not isinstance(value, CommittedOffset)
                _store(self._group_records, group_id, key, value)
            if value is not None:
                loaded[group_id] = None
            elif isinstance(key, GroupRecordKey) and not (
                group_id in self._by_group or group_id in self._group_records
            ):
                loaded.pop(group_id, None)

    def _add_pending(
        self, partition: int, producer_id: int, entries: Sequence[StoredEntry]
    ) -> None:
        pending = self._pending[partition]
        for key, value in entries:
            assert isinstance(key, OffsetKey), "offsets alone are committed in transactions"
            assert value is None or isinstance(value, CommittedOffset)
            pending.hold(producer_id, (key, value))
            self._loaded[partition][key.group_id] = None


def _store(
    groups: dict[str, dict[_Key, _Value]], group_id: str, key: _Key, value: _Value | None
) -> None:
    """Have a key of a group stand for a value; None: for nothing."""
    if value is not None:
        groups.setdefault(group_id, {})[key] = value
    elif group_id in groups:
        groups[group_id].pop(key, None)
        if not groups[group_id]:
            del groups[group_id]


def _ignore(_: object) -> None:
    """Ignore a response."""
