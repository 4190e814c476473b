"""A fetch that waits until there are enough bytes.

On any of its partitions one of these ends the wait:

    A  this broker leads the partition no more; or it began to, where a consumer reads from a
       follower
    B  the replica is gone from here
    C  the partition is unknown: its topic was deleted
    D  the partition is offline: its disk failed
    E  the request's leader epoch isn't the partition's
    F  the fetch offset is on an older segment than the end, or past the end after a truncation
    H  the follower's log diverges from the leader's

and over all partitions together:

    G  the bytes available reach ``min_bytes``

The fetch then responds with the available records, or with errors. At the timeout the fetch does
the same: a response without records is no error.

Ground rules
------------
* Only the broker's loop touches an operation.
* A partition that has not changed since the last check is recognized by its epoch, leader and ends.
* ``respond`` is called once, but for operations that are cancelled: their canceller responds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from purgatory.core.operation import DelayedOperation
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.log.fetch_thresholds import NEVER, EndKey, FetchIsolation
from purgatory.kafka.log.leader_epoch_cache import UNKNOWN_OFFSET
from purgatory.kafka.log.record_batch import NO_LEADER_EPOCH
from purgatory.kafka.replication.partition import (
    DIVERGED,
    FENCED,
    NO_LEADER,
    NOT_LEADER,
    OUT_OF_RANGE,
    HostedPartitions,
    Partition,
)
from purgatory.kafka.replication.requests import FetchParams, PartitionFetch, PartitionFetchResponse
from purgatory.kafka.topic_partition import TopicPartition

_NONE = ErrorCode.NONE
_LOG_END = FetchIsolation.LOG_END
Reads = tuple[dict[TopicPartition, PartitionFetchResponse], int, bool]
"""The responses, their bytes, and whether one must be sent now: an error or a divergence."""


def fetch_isolation(params: FetchParams) -> FetchIsolation:
    """Return how far a request sees: a follower always to the log's end."""
    return _LOG_END if params.replica_id >= 0 else params.isolation


def read_partitions(
    partitions: HostedPartitions,
    params: FetchParams,
    fetches: Mapping[TopicPartition, PartitionFetch],
) -> Reads:
    """Read available records, without recording a follower's fetch."""
    isolation = fetch_isolation(params)
    responses = {}
    size_bytes = 0
    is_immediate = False
    for topic_partition, fetch in fetches.items():
        partition = partitions.partition(topic_partition)
        if partition is None:
            response = absent_response(partitions, topic_partition)
        else:
            # At least one batch per request, however large: else its reader would be stuck.
            response = partition.fetch(
                fetch,
                isolation,
                params.max_bytes - size_bytes,
                size_bytes == 0,
                params.from_followers,
            )
        responses[topic_partition] = response
        size_bytes += response.size_bytes
        if response.error is not _NONE or response.diverging_epoch is not None:
            is_immediate = True
    return responses, size_bytes, is_immediate


def absent_response(
    partitions: HostedPartitions, topic_partition: TopicPartition
) -> PartitionFetchResponse:
    """Return the response for a partition that isn't here."""
    error, message = partitions.absence_error(topic_partition)
    return PartitionFetchResponse(error, message=message)


RespondFetch = Callable[[dict[TopicPartition, PartitionFetchResponse]], object]


class FetchPartitionStatus:
    """A requested partition, and its state when the fetch began to wait.

    ``begun`` is the position of the fetch then. The fetch is watched under ``end_key``
    while it waits for bytes of this partition. ``available`` bytes were there at the last check,
    under ``leader_id`` in ``leader_epoch``, up to ``end_offset``, the log's last segment beginning
    at ``active_base_offset``.
    """

    __slots__ = (
        "active_base_offset",
        "available",
        "begun",
        "end_key",
        "end_offset",
        "fetch",
        "leader_epoch",
        "leader_id",
        "partition",
    )

    def __init__(
        self, partition: Partition, fetch: PartitionFetch, isolation: FetchIsolation
    ) -> None:
        self.partition = partition
        self.fetch = fetch
        self.end_key = partition.end_keys.key(isolation)
        self.begun = partition.fetch_position(fetch.fetch_offset, isolation)
        self.leader_id = NO_LEADER
        self.leader_epoch = NO_LEADER_EPOCH
        self.end_offset = self.active_base_offset = UNKNOWN_OFFSET
        self.available = 0


class FetchCase(Enum):
    """The event that ended the wait."""

    NOT_LEADER = "A"
    REPLICA_GONE = "B"
    UNKNOWN_PARTITION = "C"
    OFFLINE = "D"
    FENCED = "E"
    OFFSET_OUT_OF_RANGE = "F"
    ENOUGH_BYTES = "G"
    DIVERGED = "H"


_PROGRESS_CASES = {
    NOT_LEADER: FetchCase.NOT_LEADER,
    FENCED: FetchCase.FENCED,
    OUT_OF_RANGE: FetchCase.OFFSET_OUT_OF_RANGE,
    DIVERGED: FetchCase.DIVERGED,
}

_ABSENCE_CASES = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: FetchCase.REPLICA_GONE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: FetchCase.UNKNOWN_PARTITION,
    ErrorCode.KAFKA_STORAGE_ERROR: FetchCase.OFFLINE,
}


class DelayedFetch(DelayedOperation):
    """Waits for bytes, or for a reason not to.

    Args:
        params: the request's; ``max_wait_ms`` is the timeout.
        isolation: how far it sees.
        partitions: of this broker.
        fetches: the requested position of each partition.
        statuses: of the same partitions.
        respond: called with the responses.
    """

    __slots__ = (
        "_fetches",
        "_isolation",
        "_partitions",
        "_respond",
        "_responded",
        "_statuses",
        "case",
        "params",
    )

    def __init__(
        self,
        params: FetchParams,
        isolation: FetchIsolation,
        partitions: HostedPartitions,
        fetches: Mapping[TopicPartition, PartitionFetch],
        statuses: list[FetchPartitionStatus],
        respond: Callable[..., object],
    ) -> None:
        DelayedOperation.__init__(self, params.max_wait_ms)  # quicker than by super()
        self.params = params
        self.case: FetchCase | None = None
        self._isolation = isolation
        self._partitions = partitions
        self._fetches = fetches
        self._statuses = statuses
        self._respond = respond
        self._responded = False

    @property
    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        """Return the requested partitions. O(partitions)."""
        return tuple(status.partition.topic_partition for status in self._statuses)

    def thresholds(self) -> dict[EndKey, int] | None:
        """Return the end offsets to wait for, or None if the wait has none. O(partitions).

        A fetch of one partition has a threshold. One of several partitions has thresholds only if
        a single byte satisfies it. Otherwise their bytes add up, and any event on any partition
        may satisfy it.
        """
        min_bytes = self.params.min_bytes
        if min_bytes > 1 and len(self._statuses) > 1:
            return None
        return {
            # A partition counts for no more than is taken from it.
            status.end_key: status.begun.position + min_bytes
            if min_bytes <= status.fetch.max_bytes
            else NEVER
            for status in self._statuses
        }

    @property
    def is_from_follower(self) -> bool:
        """Whether a follower fetches, not a consumer."""
        return self.params.replica_id >= 0

    def try_complete(self) -> bool:
        isolation = self._isolation
        available = 0
        for status in self._statuses:
            partition = status.partition
            if (
                partition.visible_end(isolation) != status.end_offset
                or partition.log.active_base_offset != status.active_base_offset
                or partition.leader_id != status.leader_id
                or partition.leader_epoch != status.leader_epoch
            ):
                self.case = self._check_status(status)
                if self.case is not None:
                    return self.force_complete()
            available += status.available
        if available >= self.params.min_bytes:
            self.case = FetchCase.ENOUGH_BYTES
            return self.force_complete()
        return False

    def _check_status(self, status: FetchPartitionStatus) -> FetchCase | None:
        """Record the available bytes; or return why the wait is over."""
        fetch, topic_partition = status.fetch, status.partition.topic_partition
        partition = self._partitions.partition(topic_partition)
        if partition is None:
            return _ABSENCE_CASES[self._partitions.absence_error(topic_partition)[0]]
        progress = partition.fetch_progress(
            fetch, self._isolation, status.begun, self.params.from_followers
        )
        if progress < 0:
            return _PROGRESS_CASES[progress]
        status.available = progress
        # Records of an earlier epoch may diverge as soon as the leader has forgotten that epoch.
        if fetch.last_fetched_epoch is None or fetch.last_fetched_epoch == partition.leader_epoch:
            status.leader_id, status.leader_epoch = partition.leader_id, partition.leader_epoch
            status.end_offset = partition.visible_end(self._isolation)
            status.active_base_offset = partition.log.active_base_offset
        return None

    def on_complete(self) -> None:
        # Read first: if that raises, no response is sent yet.
        responses = read_partitions(self._partitions, self.params, self._fetches)[0]
        self._responded = True
        self._respond(responses)

    def on_failure(self, error: BaseException) -> None:
        if self._responded:
            return
        self._responded = True
        failed = PartitionFetchResponse(
            ErrorCode.UNKNOWN_SERVER_ERROR, message=f"the wait for records failed: {error!r}"
        )
        self._respond(dict.fromkeys(self._fetches, failed))
