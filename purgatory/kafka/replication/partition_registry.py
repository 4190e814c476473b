"""The partitions with a replica on this broker, and the purgatories of the requests on them.

    records appended                 fetches: those whose bytes are there
    high watermark moved             produces whose records are below it, fetches as above
    high or low watermark moved      deletions on the partition
    leader changed, replica stopped,
    topic deleted, ISR changed       all that wait on the partition
    another broker died or lives     deletions on the partition

Operations are watched so:

    produces     until the high watermark is there: a threshold on the partition
    fetches      until bytes are there: a threshold on the end of the log that the fetch sees
                 (`log_offsets`); if they are counted over several partitions, for any event on
                 each of them; a follower's, for what becomes pending in its session
    deletions,
    share fetches for any event on the partition

A stopped replica leaves its log behind, and finds it again when it comes back. A replica whose disk
failed is offline for good.

Ground rules
------------
* ``_lock`` guards which partitions are here. It is taken before a partition's lock, never after,
  and not at all to look one up: a dict's ``get`` is atomic.
* Operations are checked without any lock of the manager or a partition held.
* Events are announced after they happened, and an operation is checked once more after it was put
  on the lists. So an event need not be announced while no operation is on a list.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.log.log import Log, LogConfig
from purgatory.kafka.log.log_offsets import UNCHANGED, encode, end_keys
from purgatory.kafka.replication.partition import Partition
from purgatory.kafka.topic_partition import TopicPartition

if TYPE_CHECKING:
    from purgatory.kafka.replication.fetch_session import FollowerSession


class PartitionRegistry:
    """The replicas of one broker.

    Args:
        min_insync_replicas: that of new replicas, for acks=all.
        log_config: the settings of new logs.
        logs: those that a former process of this broker left on its disks.
        new_log: makes the log of a new replica, in place of ``log_config``.
        min_insync_of: returns that of a new replica, in place of ``min_insync_replicas``.
        is_on_other_broker: whether other brokers have a partition; None: it is unknown.
    """

    def __init__(
        self,
        broker_id: int,
        min_insync_replicas: int,
        log_config: LogConfig | None,
        logs: Mapping[TopicPartition, Log] | None,
        new_log: Callable[[TopicPartition], Log] | None = None,
        min_insync_of: Callable[[TopicPartition], int] | None = None,
        is_on_other_broker: Callable[[TopicPartition], bool] | None = None,
    ) -> None:
        self.broker_id = broker_id
        self._new_log = new_log or (lambda _: Log(log_config))
        self._min_insync_of = min_insync_of or (lambda _: min_insync_replicas)
        self._is_on_other_broker = is_on_other_broker or (lambda _: False)
        self._lock = threading.Lock()
        self._terms = count(1)
        self._partitions: dict[TopicPartition, Partition] = {}
        # Reads and delayed operations call this often: the dict's own method spares a call.
        self.get: Callable[[TopicPartition], Partition | None] = self._partitions.get
        """Returns the replica here, or None. O(1)."""
        self._logs: dict[TopicPartition, Log] = dict(logs or {})
        # Partitions that were here: stopped, or on a disk that failed.
        self._stopped: set[TopicPartition] = set(self._logs)
        self._offline: set[TopicPartition] = set()

    # ---- queries

    def all(self) -> list[Partition]:
        """Return all replicas here."""
        return list(self._partitions.values())

    def logs(self) -> dict[TopicPartition, Log]:
        """Return all logs, including those of stopped replicas."""
        with self._lock:
            return dict(self._logs)

    def absence_error(self, topic_partition: TopicPartition) -> tuple[ErrorCode, str]:
        """Return the error, and the sentence, for a partition that isn't here."""
        if topic_partition in self._offline:
            return (
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{topic_partition} is offline on broker {self.broker_id}: its disk failed",
            )
        if topic_partition in self._stopped:
            return (
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {self.broker_id} has no replica of {topic_partition} any more",
            )
        if self._is_on_other_broker(topic_partition):
            return (
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {self.broker_id} has no replica of {topic_partition}",
            )
        return (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"broker {self.broker_id} doesn't know {topic_partition}",
        )

    # ---- changes

    def change_role(
        self, topic_partition: TopicPartition, change: Callable[[Partition], bool]
    ) -> bool:
        """Apply ``change`` to the replica, a new one if there is none; return its result.

        If it is False, or ``change`` raises, a new replica is discarded. Also False if the disk
        failed.
        """
        with self._lock:
            if topic_partition in self._offline:
                return False
            partition = self._partitions.get(topic_partition)
            if partition is None:
                partition = self._new_partition(topic_partition)
            changed = change(partition)
            if changed:
                self._partitions[topic_partition] = partition
                self._logs[topic_partition] = partition.log
                self._stopped.discard(topic_partition)
            return changed

    def _new_partition(self, topic_partition: TopicPartition) -> Partition:
        log = self._logs.get(topic_partition)
        return Partition(
            topic_partition,
            self.broker_id,
            self._new_log(topic_partition) if log is None else log,
            self._min_insync_of(topic_partition),
            self._terms,
        )

    def stop(self, topic_partition: TopicPartition, delete: bool) -> bool:
        """Stop a replica, and optionally delete its log; return whether it was here."""
        with self._lock:
            partition = self._partitions.pop(topic_partition, None)
            if partition is not None:
                partition.resign()
                self._stopped.add(topic_partition)
            if delete:
                self._logs.pop(topic_partition, None)
            return partition is not None

    def delete_topic(self, topic: str) -> list[TopicPartition]:
        """Delete a topic with its logs; return the partitions that were here."""
        with self._lock:
            here = [key for key in self._partitions if key.topic == topic]
            for topic_partition in here:
                self._partitions.pop(topic_partition).resign()
            self._logs = {key: log for key, log in self._logs.items() if key.topic != topic}
            self._stopped = {key for key in self._stopped if key.topic != topic}
            self._offline = {key for key in self._offline if key.topic != topic}
            return here

    def mark_offline(self, topic_partition: TopicPartition) -> bool:
        """Take a replica offline after a disk failure; return whether it existed."""
        with self._lock:
            partition = self._partitions.pop(topic_partition, None)
            self._logs.pop(topic_partition, None)
            self._stopped.discard(topic_partition)
            self._offline.add(topic_partition)
            if partition is not None:
                partition.resign()
            return partition is not None

    def detach_logs(self) -> dict[TopicPartition, Log]:
        """Stop all replicas, and return their logs."""
        with self._lock:
            for partition in self._partitions.values():
                partition.resign()
            self._stopped.update(self._partitions)
            self._partitions.clear()
            logs, self._logs = self._logs, {}
            return logs

    def _check(self) -> None:
        """Assert all invariants of the partitions and their logs. O(records)."""
        with self._lock:
            for topic_partition, partition in self._partitions.items():
                assert partition.topic_partition == topic_partition
                assert self._logs[topic_partition] is partition.log
            assert not self._stopped & self._partitions.keys()
            assert not self._offline & self._partitions.keys()
            assert not self._offline & self._logs.keys()
            for partition in self._partitions.values():
                partition._check()


class RequestPurgatories(NamedTuple):
    """The purgatories of requests, and the fetch sessions of followers by id."""

    produces: DelayedOperationPurgatory
    fetches: DelayedOperationPurgatory
    deletions: DelayedOperationPurgatory
    sessions: dict[int, FollowerSession]
    share_fetches: DelayedOperationPurgatory | None = None

    def after_append(self, partition: Partition) -> None:
        """Complete the fetches with enough bytes. O(completed + log n), or more at a new segment.

        A fetch of several partitions is checked at each append.
        """
        fetches = self.fetches
        leads = partition.leader_id == partition.broker_id  # else no follower fetches it here
        pending = []
        waiting_sessions = 0
        for session in tuple(self.sessions.values()):
            if leads and session.notify_moved(partition):
                pending.append(session)
            if session.operation is not None:
                waiting_sessions += 1
        if self.share_fetches is not None and self.share_fetches.watched:
            self.share_fetches.check_and_complete(partition.topic_partition)
        has_other_waiters = fetches.watched > waiting_sessions
        if has_other_waiters:
            fetches.check_and_complete(partition.topic_partition)
        for session in pending:
            fetches.check_and_complete(session)
        if not has_other_waiters:
            return
        positions = partition.drain_end_changes()
        if positions is None:
            for key in partition.end_keys:
                fetches.check_and_complete(key)
            return
        for key, position in zip(partition.end_keys, positions, strict=True):
            if position != UNCHANGED:
                fetches.advance(key, position)

    def complete_after_high_watermark(self, partition: Partition) -> None:
        """Complete operations that waited for the high or low watermark. O(those + log n), except
        for a new segment, deletions, and fetches of several partitions."""
        if self.produces.watched:
            # The term first: if another begins in between, its high watermark counts for the former
            # term, whose operations have nothing to wait for any more.
            term = partition.leader_term
            self.produces.advance(partition.topic_partition, encode(term, partition.high_watermark))
        self.after_append(partition)
        if self.deletions.watched:
            self.deletions.check_and_complete(partition.topic_partition)

    def check_all(self, topic_partition: TopicPartition, partition: Partition | None) -> None:
        """Complete operations on a partition whose leader, epoch or ISR changed, or which is gone
        (None), if they can be. O(operations)."""
        self.produces.check_and_complete(topic_partition)
        for session in tuple(self.sessions.values()):
            if session.notify_changed(topic_partition, partition):
                self.fetches.check_and_complete(session)
        self.fetches.check_and_complete(topic_partition)
        for key in end_keys(topic_partition):
            self.fetches.check_and_complete(key)
        self.deletions.check_and_complete(topic_partition)
        if self.share_fetches is not None:
            self.share_fetches.check_and_complete(topic_partition)

    def check_all_and_forget(self, topic_partition: TopicPartition) -> None:
        """As `check_all`, for a removed partition, whose thresholds are removed."""
        self.check_all(topic_partition, None)
        self.produces.forget(topic_partition)
        for key in end_keys(topic_partition):
            self.fetches.forget(key)

    def _check(self) -> None:
        """Assert that each session's fetch waits, as appends assume. O(sessions)."""
        waiting = [
            session.operation for session in self.sessions.values() if session.operation is not None
        ]
        assert not any(operation.is_completed for operation in waiting)
        assert len(waiting) <= self.fetches.watched
