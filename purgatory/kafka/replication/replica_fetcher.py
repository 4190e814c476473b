"""The next fetch of a follower from a leader, and how its response is applied: without a network.

There is one `FollowerFetching` for each broker that leads partitions which this one follows. Its
driver sends its requests, and passes the responses back, or reports that one is lost:

    (elsewhere)  ->  changed    its role changed
    changed      ->  requested  the next fetch requests it, from its log end
    requested    ->  changed    the response moved its log, or its log start
    requested    ->  waiting    the response was an error, or can't be appended
    waiting      ->  changed    the backoff is over

The follower keeps a fetch session with the leader (`fetch_session`), so a request names only the
partitions that changed. The first request names all that are ``requested``; so does the one after a
lost response, or after an error of the session: a leader that was restarted has no sessions.

Ground rules
------------
* Only the broker's loop touches it.
* A role that changed meanwhile makes a response stale, which the replica notices by itself.
"""

from __future__ import annotations

from purgatory.core.recent_errors import Logger
from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.replication.fetch_session import (
    FIRST_EPOCH,
    Fetches,
    FetchSessionHandler,
    requires_refetch,
)
from purgatory.kafka.replication.replica_manager import ReplicaManager
from purgatory.kafka.replication.requests import SessionFetchRequest, SessionFetchResponse
from purgatory.kafka.topic_partition import TopicPartition

BACKOFF_MS = 50
"""The pause after an error of a partition, and after a leader can't be reached."""

_NONE = ErrorCode.NONE
_log = Logger("purgatory.kafka")


class FollowerFetching:
    """The fetches of one broker from one leader.

    Args:
        manager: of the broker that follows.
        leader_id: the leader's broker id.
        partition_max_bytes: the most bytes of one partition in one response.
    """

    def __init__(
        self,
        manager: ReplicaManager,
        leader_id: int,
        partition_max_bytes: int = 1024 * 1024,
    ) -> None:
        self.leader_id = leader_id
        self.requested: Fetches = {}
        """The partitions of the session."""
        self._session = FetchSessionHandler()
        self._forgotten: dict[TopicPartition, None] = {}
        self._manager = manager
        self._partition_max_bytes = partition_max_bytes
        self._changed_partitions: dict[TopicPartition, None] = {}
        self._retry_ms: dict[TopicPartition, int] = {}
        self._errors: set[TopicPartition] = set()

    def update_partition(self, topic_partition: TopicPartition) -> None:
        """Record that a partition's role changed: it may be followed here now, or not. O(1)."""
        self._retry_ms.pop(topic_partition, None)
        self._changed_partitions[topic_partition] = None

    @property
    def is_backing_off(self) -> bool:
        """Whether any partition pauses after an error. O(1)."""
        return bool(self._retry_ms)

    def next_request(self) -> SessionFetchRequest | None:
        """Return the next request to the leader, or None. O(changed partitions)."""
        if self._retry_ms:
            now_ms = self._manager.clock.now_ms()
            elapsed = [key for key, retry_ms in self._retry_ms.items() if retry_ms <= now_ms]
            for topic_partition in elapsed:
                del self._retry_ms[topic_partition]
                self._changed_partitions[topic_partition] = None
        fetches: Fetches = {}
        changed, self._changed_partitions = self._changed_partitions, {}
        for topic_partition in changed:
            partition = self._manager.partition(topic_partition)
            fetch = None
            if partition is not None and partition.leader_id == self.leader_id:
                fetch = partition.next_fetch(self._partition_max_bytes)
            if fetch is None:
                self._remove(topic_partition)
            else:
                fetches[topic_partition] = self.requested[topic_partition] = fetch
                self._forgotten.pop(topic_partition, None)
        if not self.requested:
            return None
        session = self._session
        forgotten, self._forgotten = self._forgotten, {}
        if session.epoch == FIRST_EPOCH:
            return SessionFetchRequest(session.session_id, FIRST_EPOCH, dict(self.requested))
        return SessionFetchRequest(session.session_id, session.epoch, fetches, tuple(forgotten))

    def handle_error(self) -> None:
        """Begin another session: the response to the last request is lost."""
        self._session.handle_error()

    def handle_response(self, response: SessionFetchResponse) -> None:
        """Append the records, truncate diverging logs, and update the next request."""
        if not self._session.handle_response(response.error, response.session_id):
            return
        for topic_partition, partition_response in response.partitions.items():
            fetch = self.requested.get(topic_partition)
            if fetch is None:
                continue  # it is no longer followed here
            # Another response has only a watermark and a start; the start may have moved here.
            if (
                requires_refetch(partition_response)
                or partition_response.log_start_offset != fetch.log_start_offset
            ):
                self._changed_partitions[topic_partition] = None
            else:
                partition = self._manager.partition(topic_partition)
                if (
                    partition is None
                    or partition.log.high_watermark >= partition_response.high_watermark
                ):
                    continue  # most often: it has no news
            try:
                used = self._manager.append_as_follower(topic_partition, fetch, partition_response)
            except KafkaError as error:
                self._log_error(topic_partition, error)
                self._start_backoff(topic_partition)
                continue
            if used:
                self._errors.discard(topic_partition)
                if (
                    partition_response.diverging_epoch is not None
                    or partition_response.error is not _NONE
                ):
                    self._log_truncation(topic_partition, fetch.fetch_offset)
            elif partition_response.error is not _NONE:
                self._start_backoff(topic_partition)

    def _start_backoff(self, topic_partition: TopicPartition) -> None:
        self._changed_partitions.pop(topic_partition, None)
        self._retry_ms[topic_partition] = self._manager.clock.now_ms() + BACKOFF_MS
        self._remove(topic_partition)

    def _remove(self, topic_partition: TopicPartition) -> None:
        if self.requested.pop(topic_partition, None) is not None:
            self._forgotten[topic_partition] = None

    def _log_error(self, topic_partition: TopicPartition, error: KafkaError) -> None:
        """Log that records can't be appended: once, until some of the partition can."""
        if topic_partition not in self._errors:
            self._errors.add(topic_partition)
            _log.error(
                "replica_refused",
                broker=self._manager.broker_id,
                partition=str(topic_partition),
                leader=self.leader_id,
                reason=str(error),
            )

    def _log_truncation(self, topic_partition: TopicPartition, fetch_offset: int) -> None:
        """Log the records that this follower lost because its leader lacks them."""
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
