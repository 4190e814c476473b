"""The committed offsets of the groups that a broker coordinates.

Ground rules
------------
* Everything happens on the event loop's thread.
* An offset is told to nobody before its record is replicated: what was acknowledged, or shown,
  survives the death of a broker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from crc32c import crc32c

from purgatory.broker.groups.errors import GroupError
from purgatory.broker.groups.offsets_log import (
    OFFSETS_TOPIC,
    CommittedOffset,
    OffsetKey,
    decode_offsets,
    encode_offsets,
)
from purgatory.errors import PurgatoryClosedError
from purgatory.kafka import (
    ErrorCode,
    PartitionProduceResponse,
    RecordBatch,
    ReplicaManager,
    TopicPartition,
)

_COMMIT_TIMEOUT_MS = 5_000

_ERRORS = {
    ErrorCode.NONE: GroupError.NONE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: GroupError.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: GroupError.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: GroupError.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: GroupError.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: GroupError.REQUEST_TIMED_OUT,
}


class GroupOffsets:
    """Commits and tells offsets.

    Args:
        manager: where the records are.
    """

    def __init__(self, manager: ReplicaManager) -> None:
        self._manager = manager
        self._by_group: dict[str, dict[tuple[str, int], CommittedOffset]] = {}
        self._loaded: dict[int, set[str]] = {}

    # Which partitions of the offsets' topic are led here.

    def load(self, partition: int) -> None:
        """Read all offsets of a partition that is led here from now on. O(its records)."""
        groups = self._loaded[partition] = set[str]()
        replica = self._manager.partition(TopicPartition(OFFSETS_TOPIC, partition))
        if replica is None:
            return
        log = replica.log
        offset = log.start_offset
        while offset < log.end_offset:
            batches = log.read(offset, 1024 * 1024)
            if not batches:
                break
            for batch in batches:
                for key, committed in decode_offsets(batch.to_bytes()):
                    self._apply(key, committed)
                    groups.add(key.group_id)
            offset = batches[-1].next_offset

    def unload(self, partition: int) -> list[str]:
        """Forget what another broker leads now; return the groups."""
        groups = self._loaded.pop(partition, set())
        for group_id in groups:
            self._by_group.pop(group_id, None)
        return list(groups)

    def leads(self, partition: int) -> bool:
        """Whether a partition of the offsets' topic is led, and read, here."""
        return partition in self._loaded

    # Committing and telling.

    async def commit(
        self,
        partition: int,
        group_id: str,
        offsets: Mapping[tuple[str, int], tuple[int, int, str]],
    ) -> GroupError:
        """Commit offsets; answer once they are replicated.

        Args:
            partition: of the offsets' topic, that the group belongs to.
            group_id: whose.
            offsets: by topic and partition: the offset, its leader epoch, metadata.
        """
        commit_ms = time.time_ns() // 1_000_000
        entries = [
            (OffsetKey(group_id, *of), CommittedOffset(offset, epoch, metadata, commit_ms))
            for of, (offset, epoch, metadata) in offsets.items()
        ]
        return await self._store(partition, entries)

    async def delete(self, partition: int, group_id: str) -> GroupError:
        """Delete all offsets of a group."""
        entries = [(OffsetKey(group_id, *of), None) for of in self._by_group.get(group_id, ())]
        return await self._store(partition, entries) if entries else GroupError.NONE

    def of_group(self, group_id: str) -> Mapping[tuple[str, int], CommittedOffset]:
        """Return what a group has committed, by topic and partition."""
        return self._by_group.get(group_id, {})

    def groups(self) -> list[str]:
        """Return the groups that have committed anything."""
        return [group_id for group_id, offsets in self._by_group.items() if offsets]

    async def _store(
        self,
        partition: int,
        entries: list[tuple[OffsetKey, CommittedOffset]] | list[tuple[OffsetKey, None]],
    ) -> GroupError:
        topic_partition = TopicPartition(OFFSETS_TOPIC, partition)
        data = encode_offsets(entries, datetime.now(UTC))
        batch = RecordBatch.from_bytes(data, checksum=crc32c)
        stored: asyncio.Future[Mapping[TopicPartition, PartitionProduceResponse]]
        stored = asyncio.get_running_loop().create_future()
        try:
            self._manager.append_records(
                _COMMIT_TIMEOUT_MS, -1, {topic_partition: batch}, stored.set_result
            )
        except PurgatoryClosedError:
            await asyncio.Future()  # this broker was killed just now: nobody is answered any more
        answer = (await stored)[topic_partition]
        error = _ERRORS.get(answer.error, GroupError.COORDINATOR_NOT_AVAILABLE)
        if error is GroupError.NONE and partition in self._loaded:
            for key, committed in entries:
                self._apply(key, committed)
                self._loaded[partition].add(key.group_id)
        return error

    def _apply(self, key: OffsetKey, committed: CommittedOffset | None) -> None:
        offsets = self._by_group.setdefault(key.group_id, {})
        if committed is None:
            offsets.pop((key.topic, key.partition), None)
        else:
            offsets[key.topic, key.partition] = committed
