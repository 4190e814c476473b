"""What a follower requests of a leader next, and how it applies the responses: without a network.

There is one `FollowerFetching` for each broker that leads partitions which this one follows. Its
driver sends its requests, and brings back the responses:

    (elsewhere)  ->  changed    its role changed, or the session with its leader begins again
    changed      ->  requested  the next fetch requests it, from its log end
    requested    ->  changed    the response moved its log, or its log start
    requested    ->  waiting    the response was an error, or can't be appended
    waiting      ->  changed    the backoff is over

A driver with a fetch session (`fetch_session`) sends only what changed; one without sends all of
``asked``.

Ground rules
------------
* One thread at a time calls it.
* A role that changed meanwhile makes a response stale, which the replica notices by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from purgatory.core.recent_errors import Logger
from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.replication.fetch_session import Fetches, must_ask_anew
from purgatory.kafka.replication.replica_manager import ReplicaManager
from purgatory.kafka.replication.requests import PartitionFetchResponse
from purgatory.kafka.topic_partition import TopicPartition

BACKOFF_MS = 50
"""How long a partition is left alone after an error, and a leader that can't be reached."""

_log = Logger("purgatory.kafka")


class FollowerFetching:
    """How one broker copies from one leader.

    Args:
        manager: of the broker that follows.
        leader_id: whom it follows.
        partition_max_bytes: the most bytes of one partition in one response.
    """

    def __init__(
        self,
        manager: ReplicaManager,
        leader_id: int,
        partition_max_bytes: int = 1024 * 1024,
    ) -> None:
        self.leader_id = leader_id
        self.asked: Fetches = {}
        """What is asked of the leader, by partition."""
        self._manager = manager
        self._partition_max_bytes = partition_max_bytes
        self._changed: dict[TopicPartition, None] = {}
        self._not_before_ms: dict[TopicPartition, int] = {}
        self._refused: set[TopicPartition] = set()

    def look_at(self, topic_partition: TopicPartition) -> None:
        """Record that a partition's role changed: it may be followed here now, or no more. O(1)."""
        self._not_before_ms.pop(topic_partition, None)
        self._changed[topic_partition] = None

    def start_anew(self) -> None:
        """Ask for everything again: the leader knows nothing of what was asked. O(partitions)."""
        self.asked.clear()
        self._not_before_ms.clear()
        for partition in self._manager.partitions():
            if partition.leader_id == self.leader_id:
                self._changed[partition.topic_partition] = None

    @property
    def backs_off(self) -> bool:
        """Whether any partition met an error, and is left alone for a while. O(1)."""
        return bool(self._not_before_ms)

    def next_fetches(self) -> Fetches:
        """Return what changed since the last call, and is to be asked now. O(that).

        All that is to be asked is in ``asked`` then.
        """
        if self._not_before_ms:
            self._end_backoffs()
        fetches: Fetches = {}
        if not self._changed:
            return fetches
        changed, self._changed = self._changed, {}
        for topic_partition in changed:
            partition = self._manager.partition(topic_partition)
            fetch = None
            if partition is not None and partition.leader_id == self.leader_id:
                fetch = partition.next_fetch(self._partition_max_bytes)
            if fetch is None:
                self.asked.pop(topic_partition, None)
            else:
                fetches[topic_partition] = fetch
        self.asked.update(fetches)
        return fetches

    def take(self, answers: Mapping[TopicPartition, PartitionFetchResponse]) -> None:
        """Append what came, cut what the leader hasn't got, and note what to ask next."""
        for topic_partition, answer in answers.items():
            fetch = self.asked.get(topic_partition)
            if fetch is None:
                continue  # it is followed here no more
            # Nothing but the watermark and the start were told else; the start may have moved here.
            if must_ask_anew(answer) or answer.log_start_offset != fetch.log_start_offset:
                self._changed[topic_partition] = None
            else:
                partition = self._manager.partition(topic_partition)
                if partition is None or partition.log.high_watermark >= answer.high_watermark:
                    continue  # most often: nothing is told that isn't known here
            try:
                used = self._manager.append_as_follower(topic_partition, fetch, answer)
            except KafkaError as error:
                self._log_refused(topic_partition, error)
                self._leave_alone(topic_partition)
                continue
            if used:
                self._refused.discard(topic_partition)
                if answer.diverging_epoch is not None or answer.error is not ErrorCode.NONE:
                    self._log_cut(topic_partition, fetch.fetch_offset)
            elif answer.error is not ErrorCode.NONE:
                self._leave_alone(topic_partition)

    def _leave_alone(self, topic_partition: TopicPartition) -> None:
        self._changed.pop(topic_partition, None)
        self._not_before_ms[topic_partition] = self._manager.clock.now_ms() + BACKOFF_MS
        self.asked.pop(topic_partition, None)

    def _end_backoffs(self) -> None:
        now_ms = self._manager.clock.now_ms()
        over = [key for key, not_before in self._not_before_ms.items() if not_before <= now_ms]
        for topic_partition in over:
            del self._not_before_ms[topic_partition]
            self._changed[topic_partition] = None

    def _log_refused(self, topic_partition: TopicPartition, error: KafkaError) -> None:
        """Log that what came can't be appended: once, until something of that partition can."""
        if topic_partition not in self._refused:
            self._refused.add(topic_partition)
            _log.error(
                "replica_refused",
                broker=self._manager.broker_id,
                partition=str(topic_partition),
                leader=self.leader_id,
                reason=str(error),
            )

    def _log_cut(self, topic_partition: TopicPartition, fetch_offset: int) -> None:
        """Log what was cut off this follower's log because its leader hasn't got it."""
        partition = self._manager.partition(topic_partition)
        if partition is not None and partition.log_end_offset < fetch_offset:
            _log.warning(
                "replica_cut",
                broker=self._manager.broker_id,
                partition=str(topic_partition),
                from_offset=partition.log_end_offset,
                to_offset=fetch_offset,
                leader=self.leader_id,
                leader_epoch=partition.leader_epoch,
            )
