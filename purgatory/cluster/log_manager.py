"""A broker's logs: loaded at its start, and compacted while it lives.

Ground rules
------------
* Only the broker's loop touches this and the logs. A thread of the executor reads the disk at the
  start: it gets values, touches nothing else, and returns logs that nobody else has yet.
* While the broker is alive its logs belong to the replica manager; ``offline_logs`` is stale then.
* Compaction works a few milliseconds at a time; other tasks run between two slices. A log that
  can't be read or written stays as it is, with one line in the log until it can.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from purgatory.cluster.metadata import ClusterMetadata
from purgatory.cluster.records import StoredContents
from purgatory.cluster.storage import (
    LogCheckpoint,
    LogRequest,
    MemoryLog,
    StoredLog,
    load_logs,
    replica_folders,
)
from purgatory.cluster.storage.disk import remove_folder
from purgatory.core.recent_errors import Logger
from purgatory.kafka import Log, LogConfig, Partition, TopicPartition
from purgatory.kafka.log.log_cleaner import LogCleaning, cleanable_segments, compact
from purgatory.kafka.settings.topic_settings import log_config
from timer.machine_time import time


class BrokerLogs:
    """The logs of one broker.

    Args:
        setting: returns the broker's value for a setting of topics, if any.
    """

    def __init__(
        self,
        cluster: ClusterMetadata,
        broker_id: int,
        setting: Callable[[str], str | None],
    ) -> None:
        self._cluster = cluster
        self._broker_id = broker_id
        self._setting = setting
        data_dir = cluster.config.data_dir
        self.folder = None if data_dir is None else data_dir / f"broker-{broker_id}"
        self._disk = cluster.data_disk
        self.offline_logs: Mapping[TopicPartition, Log] = {}
        self._deleted_topics: set[str] = set()  # since it died

    async def load(self, max_epoch_gap: int, lost_records: int) -> None:
        """Load the logs from disk, without blocking; remove moved or deleted ones.

        Args:
            max_epoch_gap: by how much a log's leader epoch may exceed the controller's.
            lost_records: how many of the last records of each log are lost.
        """
        if self.folder is not None:
            await self._read(self.folder, max_epoch_gap)
        else:
            self._remove_moved()
        for log in self.offline_logs.values() if lost_records else ():
            log.truncate_to(max(log.start_offset, log.end_offset - lost_records))

    async def _read(self, folder: Path, max_epoch_gap: int) -> None:
        requests = []
        for topic_partition, replica_folder in replica_folders(folder, self._disk):
            if self._is_assigned(topic_partition):
                config = self.config_of(topic_partition)
                checkpoint = self._checkpoint_of(topic_partition, max_epoch_gap)
                requests.append(LogRequest(topic_partition, replica_folder, config, checkpoint))
            else:
                remove_folder(self._disk, replica_folder)
        self._deleted_topics.clear()
        logs: Mapping[TopicPartition, Log] = await asyncio.get_running_loop().run_in_executor(
            None, load_logs, requests, self._cluster.config.fsync, self._disk
        )
        for topic in self._deleted_topics:  # while they were read
            self._remove_folders(topic)
        self.offline_logs = {
            key: log for key, log in logs.items() if key.topic not in self._deleted_topics
        }

    def _is_assigned(self, topic_partition: TopicPartition) -> bool:
        """Whether a partition is assigned to this broker: it may have been moved meanwhile."""
        state = self._cluster.controller.state_of(topic_partition)
        return state is not None and self._broker_id in state.replicas

    def _remove_moved(self) -> None:
        for topic_partition, log in self.offline_logs.items():
            if isinstance(log, MemoryLog) and not self._is_assigned(topic_partition):
                log.remove()
        self.offline_logs = {
            key: log for key, log in self.offline_logs.items() if self._is_assigned(key)
        }

    def _checkpoint_of(self, topic_partition: TopicPartition, max_epoch_gap: int) -> LogCheckpoint:
        state = self._cluster.controller.state_of(topic_partition)
        if state is None:
            return LogCheckpoint()
        # A replica out of sync may have other records at these offsets, until it has copied the
        # leader's.
        committed = state.committed_offset if self._broker_id in state.isr else 0
        return LogCheckpoint(state.start_offset, state.leader_epoch + max_epoch_gap, committed)

    def configure(self) -> None:
        """Apply settings that may have changed while the broker was stopped."""
        for topic_partition, log in self.offline_logs.items():
            log.configure(self.config_of(topic_partition))

    def reattach(self, logs: Mapping[TopicPartition, Log]) -> None:
        """Keep the logs of a broker that died. Stored ones will be loaded again: the disk may be
        damaged meanwhile."""
        self.offline_logs = logs if self.folder is None else {}

    def forget_topic(self, topic: str) -> None:
        """Remove a topic that is deleted while the broker is dead."""
        self._deleted_topics.add(topic)
        self._remove_folders(topic)
        for topic_partition, log in self.offline_logs.items():
            if topic_partition.topic == topic and isinstance(log, MemoryLog):
                log.remove()
        self.offline_logs = {
            key: log for key, log in self.offline_logs.items() if key.topic != topic
        }

    def _remove_folders(self, topic: str) -> None:
        if self.folder is None:
            return
        for topic_partition, folder in replica_folders(self.folder, self._disk):
            if topic_partition.topic == topic:
                remove_folder(self._disk, folder)

    def config_of(self, topic_partition: TopicPartition) -> LogConfig:
        """Return the configuration of a partition's log on this broker."""
        config = log_config(self._cluster.settings_of(topic_partition.topic), self._setting)
        if self.folder is not None:
            return config
        # Memory is freed by whole segments: they are smaller here.
        most = self._cluster.log_config.segment_bytes
        return replace(config, segment_bytes=min(config.segment_bytes, most))

    def new_log(self, topic_partition: TopicPartition) -> Log:
        """Return an empty log for a partition."""
        config = self.config_of(topic_partition)
        if self.folder is None:
            return MemoryLog(config, self._cluster.memory)
        folder, fsync = self.folder / str(topic_partition), self._cluster.config.fsync
        return StoredLog(folder, config, fsync, disk=self._disk)


_TIME_SLICE_S = 0.005
_log = Logger("purgatory.cluster")


class LogCompaction:
    """Compacts the logs of one process of a broker."""

    def __init__(self) -> None:
        self._contents = StoredContents()
        self._cleanings: dict[TopicPartition, tuple[Log, LogCleaning]] = {}
        self._failed: set[str] = set()
        self._is_running = False

    async def compact(self, partitions: Sequence[Partition], now_ms: int) -> None:
        """Compact logs that are dirty enough. No effect while a compaction is under way.

        Args:
            now_ms: in milliseconds since 1970.
        """
        if self._is_running:
            return
        self._is_running = True
        try:
            current = {partition.topic_partition for partition in partitions}
            for gone in self._cleanings.keys() - current:
                del self._cleanings[gone]
            for partition in partitions:
                await self._compact(partition, now_ms)
        finally:
            self._is_running = False

    async def _compact(self, partition: Partition, now_ms: int) -> None:
        log = partition.log
        if not log.config.compacts:
            return
        name = str(partition.topic_partition)
        known, cleaning = self._cleanings.get(partition.topic_partition, (None, LogCleaning()))
        if known is not log:
            cleaning = LogCleaning()
            self._cleanings[partition.topic_partition] = (log, cleaning)
        try:
            segments = cleanable_segments(log, cleaning, now_ms)
            if not segments:
                return
            before_bytes = sum(segment.size_bytes for segment in segments)
            slice_end_s = time.monotonic() + _TIME_SLICE_S
            for _ in compact(log, segments, cleaning, self._contents, now_ms):
                if time.monotonic() >= slice_end_s:
                    await asyncio.sleep(0)
                    slice_end_s = time.monotonic() + _TIME_SLICE_S
        except (OSError, ValueError) as error:
            if name not in self._failed:
                self._failed.add(name)
                _log.error("not_compacted", partition=name, reason=str(error))
            return
        self._failed.discard(name)
        _log.info("compacted", partition=name, from_bytes=before_bytes, log_bytes=log.size_bytes)
