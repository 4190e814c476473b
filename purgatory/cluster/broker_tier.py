"""A broker's part in the remote tier: it copies there what it leads, and reads what it is asked.

Ground rules
------------
* Everything happens on the event loop's thread, but what the folder does: that is awaited.
* What was true before a wait is looked at once more after it: another may lead meanwhile, records
  and topics may be deleted.
* Nothing of a broker that was killed goes on: a copy that it had begun is never finished.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from purgatory.cluster.remote_storage import RemoteStorage
from purgatory.cluster.storage.remote_folder import RemoteFolder, RemotePlace
from purgatory.cluster.storage.retention import drop_old_segments
from purgatory.core.recent_errors import Logger
from purgatory.kafka import (
    ErrorCode,
    KafkaError,
    Partition,
    RecordBatch,
    ReplicaManager,
    TopicPartition,
)
from purgatory.kafka.tiers.remote_log import RemoteLog, RemoteSegment
from purgatory.kafka.tiers.remote_tasks import RemoteLookup, RemoteRead, RemoteTask

_log = Logger("purgatory.cluster")


class TieringBroker(Protocol):
    """A broker, as far as its part in the tier is concerned."""

    broker_id: int
    manager: ReplicaManager

    def now_ms(self) -> int:
        """Return the time of day that its clock tells, in milliseconds since 1970."""


class BrokerTier:
    """What one process of a broker does with the remote tier.

    Args:
        broker: whose.
        storage: the tier.
    """

    def __init__(self, broker: TieringBroker, storage: RemoteStorage) -> None:
        self._broker = broker
        self._storage = storage
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: set[TopicPartition] = set()

    def start(self) -> None:
        """Begin to copy, from time to time."""
        if self._storage.folder is not None:
            self._keep(asyncio.get_running_loop().create_task(self._work(self._storage.folder)))

    async def stop(self) -> None:
        """Do nothing more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- reading

    def log_of(self, topic_partition: TopicPartition) -> RemoteLog:
        """Return what the tier has of a partition."""
        return self._storage.log_at(self._storage.place_of(topic_partition))

    def begin(self, task: RemoteTask) -> None:
        """Begin to read; the task is told when that is done."""
        self._keep(asyncio.get_running_loop().create_task(self._read(task)))

    async def _read(self, task: RemoteTask) -> None:
        place, folder = self._storage.place_of(task.topic_partition), self._storage.folder
        if place is None or folder is None:
            task.done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return
        error = ErrorCode.NONE
        try:
            if isinstance(task, RemoteRead):
                task.batches = await self._storage.do(
                    self._broker.broker_id,
                    "read",
                    folder.read,
                    place,
                    task.segment,
                    task.offset,
                    task.max_bytes,
                )
            elif isinstance(task, RemoteLookup):
                await self._look_up(task, folder, place)
            self._failed.discard(task.topic_partition)
        except (OSError, ValueError, KafkaError) as failure:
            error = getattr(failure, "code", ErrorCode.KAFKA_STORAGE_ERROR)
            self._tell_failed(task.topic_partition, failure)
        task.done(error)

    async def _look_up(self, task: RemoteLookup, folder: RemoteFolder, place: RemotePlace) -> None:
        for segment in task.segments:
            found = await self._storage.do(
                self._broker.broker_id,
                "read",
                folder.first_at_or_after,
                place,
                segment,
                task.timestamp_ms,
                task.from_offset,
            )
            if found is not None:
                record, task.leader_epoch = found
                task.offset, task.found_ms = record.offset, record.timestamp_ms
                return

    # ---- copying and deleting

    async def _work(self, folder: RemoteFolder) -> None:
        while True:
            await asyncio.sleep(self._storage.config.copy_interval_ms / 1_000)
            await self._storage.pass_pause(self._broker.broker_id)
            for partition in self._broker.manager.partitions():
                place = self._storage.place_of(partition.topic_partition)
                if place is not None and self._concerns(partition, place):
                    await self._look_after(partition, place, folder)

    def _concerns(self, partition: Partition, place: RemotePlace) -> bool:
        return partition.log.config.is_tiered or bool(self._storage.log_at(place).segments)

    async def _look_after(
        self, partition: Partition, place: RemotePlace, folder: RemoteFolder
    ) -> None:
        key = partition.topic_partition
        try:
            if partition.is_leader:
                async with self._storage.lock_of(place):
                    await self._lead(partition, place, folder)
            self._failed.discard(key)
        except (OSError, KafkaError) as error:
            self._tell_failed(key, error)
        self._broker.manager.note_tiered(key, self._storage.log_at(place).end_offset)
        if partition.log.config.is_tiered:
            drop_old_segments(partition.log, self._broker.now_ms())

    async def _lead(self, partition: Partition, place: RemotePlace, folder: RemoteFolder) -> None:
        """Copy what is to be copied of a partition, and delete what is to go."""
        log, key, term = partition.log, partition.topic_partition, partition.leadership
        remote = self._storage.log_to_change(place)
        for segment in remote.not_of(log):
            await self._delete(place, folder, remote, segment)
        while batches := remote.to_copy(log):
            if not self._leads(partition, place, term):
                return
            await self._copy(partition, place, folder, batches)
        if not self._leads(partition, place, term):
            return
        if log.config.is_tiered:
            start_offset = remote.start_after_retention(log, self._broker.now_ms())
        else:  # it was, and what it has there is to be deleted
            start_offset = log.local_start_offset
        if start_offset > log.start_offset:
            self._broker.manager.advance_start(key, start_offset)
        for segment in remote.to_delete(log):
            await self._delete(place, folder, remote, segment)

    def _leads(self, partition: Partition, place: RemotePlace, term: int) -> bool:
        """Whether it still does, in the same term; of a deleted topic nobody leads anything."""
        known = self._storage.place_of(partition.topic_partition) == place
        return known and partition.is_leader and partition.leadership == term

    async def _copy(
        self,
        partition: Partition,
        place: RemotePlace,
        folder: RemoteFolder,
        batches: list[RecordBatch],
    ) -> None:
        broker_id, remote = self._broker.broker_id, self._storage.log_to_change(place)
        segment: RemoteSegment = await self._storage.do(
            broker_id, "copy", folder.put, place, batches
        )
        segment = segment._replace(
            aborted=partition.log.producers.aborted_between(segment.base_offset, segment.end_offset)
        )
        loop = asyncio.get_running_loop()
        # What is committed stays so, whoever leads meanwhile; but the topic may be deleted.
        if self._storage.place_of(partition.topic_partition) != place:
            await loop.run_in_executor(None, folder.delete, place, segment)
            return
        try:
            await loop.run_in_executor(None, folder.finish, place, segment)
        except OSError:
            await loop.run_in_executor(None, folder.delete, place, segment)
            raise
        remote.add(segment)
        _log.info(
            "segment_copied",
            broker=broker_id,
            partition=str(partition.topic_partition),
            from_offset=segment.base_offset,
            to_offset=segment.end_offset,
            size_bytes=segment.size_bytes,
        )

    async def _delete(
        self, place: RemotePlace, folder: RemoteFolder, remote: RemoteLog, segment: RemoteSegment
    ) -> None:
        await self._storage.do(self._broker.broker_id, "delete", folder.delete, place, segment)
        remote.remove(segment)

    def _tell_failed(self, topic_partition: TopicPartition, error: Exception) -> None:
        """Log what failed: once, until something of that partition doesn't."""
        if topic_partition not in self._failed:
            self._failed.add(topic_partition)
            _log.error(
                "remote_failed",
                broker=self._broker.broker_id,
                partition=str(topic_partition),
                reason=str(error),
            )
