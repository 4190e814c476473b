"""The requests that a broker serves on its replicas, and what completes those that wait.

(Interface first: the methods below keep these signatures.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from purgatory.kafka.requests import (
    AppendOrigin,
    EpochEndOffset,
    FetchParams,
    PartitionDeleteRecordsResponse,
    PartitionFetch,
    PartitionFetchResponse,
    PartitionProduceResponse,
)
from purgatory.kafka.record_batch import RecordBatch
from purgatory.kafka.topic_partition import TopicPartition

if TYPE_CHECKING:
    from purgatory import DelayedOperationPurgatory
    from purgatory.kafka.log import Log, LogConfig
    from purgatory.kafka.partition import Partition
    from timer import Clock

RespondProduce = Callable[[dict[TopicPartition, PartitionProduceResponse]], None]
RespondFetch = Callable[[dict[TopicPartition, PartitionFetchResponse]], None]
RespondDeleteRecords = Callable[[dict[TopicPartition, PartitionDeleteRecordsResponse]], None]
OnIsrChange = Callable[[TopicPartition, int, tuple[int, ...]], "bool | None"]


class ReplicaManager:
    """The replicas of one broker and the requests on them."""

    def __init__(
        self,
        broker_id: int,
        *,
        clock: Clock,
        produce_purgatory: DelayedOperationPurgatory,
        fetch_purgatory: DelayedOperationPurgatory,
        delete_records_purgatory: DelayedOperationPurgatory,
        min_insync_replicas: int = 1,
        max_lag_ms: int = 30_000,
        log_config: LogConfig | None = None,
        logs: Mapping[TopicPartition, Log] | None = None,
        on_isr_change: OnIsrChange | None = None,
    ) -> None:
        """
        Args:
            logs: what a former run of this broker left on its disks (``take_logs``).
            on_isr_change: the controller: called with (partition, leader epoch, wanted ISR in
                assignment order), outside every lock. False refuses the change; True or None
                accepts it, and it is in force when the call that caused it returns.
        """
        raise NotImplementedError

    # requests; `respond` is called exactly once, from inside or later

    def append_records(
        self,
        timeout_ms: int,
        required_acks: int,
        entries: Mapping[TopicPartition, RecordBatch | Sequence[RecordBatch]],
        respond: RespondProduce,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> None:
        raise NotImplementedError

    def fetch_records(
        self,
        params: FetchParams,
        fetches: Mapping[TopicPartition, PartitionFetch],
        respond: RespondFetch,
    ) -> None:
        raise NotImplementedError

    def delete_records(
        self,
        timeout_ms: int,
        offsets: Mapping[TopicPartition, int],
        respond: RespondDeleteRecords,
    ) -> None:
        raise NotImplementedError

    # leadership and liveness

    def become_leader(
        self,
        topic_partition: TopicPartition,
        leader_epoch: int,
        isr: Collection[int],
        replicas: Collection[int],
    ) -> bool:
        """False: stale, the epoch is below the known one. Makes the replica if there is none."""
        raise NotImplementedError

    def become_follower(
        self,
        topic_partition: TopicPartition,
        leader_id: int,
        leader_epoch: int,
        replicas: Collection[int] = (),
    ) -> bool:
        """`leader_id` -1: there is no leader now."""
        raise NotImplementedError

    def stop_replica(self, topic_partition: TopicPartition, delete: bool = False) -> None:
        raise NotImplementedError

    def delete_topic(self, topic: str) -> None:
        raise NotImplementedError

    def mark_offline(self, topic_partition: TopicPartition) -> None:
        """The disk failed: KAFKA_STORAGE_ERROR from now on."""
        raise NotImplementedError

    def maybe_shrink_isr(self, now_ms: int | None = None) -> None:
        """Call it every max_lag_ms / 2."""
        raise NotImplementedError

    def set_live_brokers(self, broker_ids: Collection[int] | None) -> None:
        """Who counts for the low watermark; None (as at the start): all replicas."""
        raise NotImplementedError

    def take_logs(self) -> dict[TopicPartition, Log]:
        """The logs that survive this broker's process: hand them to its successor."""
        raise NotImplementedError

    # the follower's side

    def follower_fetch(
        self, topic_partition: TopicPartition, max_bytes: int = 1024 * 1024
    ) -> PartitionFetch | None:
        """The next fetch to send to the leader; None when not a follower here."""
        raise NotImplementedError

    def append_as_follower(
        self,
        topic_partition: TopicPartition,
        fetch: PartitionFetch,
        response: PartitionFetchResponse,
    ) -> bool:
        """Take the leader's answer to `fetch`: append, move the HW, or truncate.

        False: nothing was changed (an error to try again after, or the answer is stale since the
        replica's epoch or log end is no longer that of `fetch`).
        """
        raise NotImplementedError

    # looking

    def partition(self, topic_partition: TopicPartition) -> Partition | None:
        """The hosted replica: high_watermark, log_end_offset, leader_epoch, isr, is_leader..."""
        raise NotImplementedError

    def offset_for_leader_epoch(
        self, topic_partition: TopicPartition, leader_epoch: int
    ) -> EpochEndOffset:
        raise NotImplementedError
