"""Produce requests: append on each partition, answer at once or wait for the replicas.

Ground rules: nothing here changes but through the partitions; no lock is held over a check of a
purgatory or ``respond``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from purgatory.kafka.delayed_produce import DelayedProduce, ProduceStatus, RespondProduce
from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.hosted_partitions import HostedPartitions
from purgatory.kafka.record_batch import RecordBatch
from purgatory.kafka.requests import AppendOrigin, PartitionProduceResponse
from purgatory.kafka.term_numbers import in_term
from purgatory.kafka.topic_partition import TopicPartition
from purgatory.kafka.waiting_requests import WaitingRequests

_ACKS_ALL = -1
_ACKS = (_ACKS_ALL, 0, 1)


def closes_connection(required_acks: int, responses: Iterable[PartitionProduceResponse]) -> bool:
    """Whether a produce ends its connection, as in Kafka: nothing else tells of an error to acks=0,
    and a client that loses a connection looks for the leader again."""
    return required_acks == 0 and any(one.error is not ErrorCode.NONE for one in responses)


class ProduceRequests:
    """Does what produce requests ask.

    Args:
        partitions: what is here.
        waiting: where the requests wait.
    """

    __slots__ = ("_partitions", "_waiting")

    def __init__(self, partitions: HostedPartitions, waiting: WaitingRequests) -> None:
        self._partitions = partitions
        self._waiting = waiting

    def append(
        self,
        timeout_ms: int,
        required_acks: int,
        entries: Mapping[TopicPartition, RecordBatch | Sequence[RecordBatch]],
        respond: RespondProduce,
        origin: AppendOrigin,
    ) -> None:
        """Serve one request, as `ReplicaManager.append_records` says."""
        if required_acks not in _ACKS:
            respond(_refused(entries, required_acks))
            return
        statuses = []
        thresholds = {}
        for topic_partition, entry in entries.items():
            status = self._append(topic_partition, entry, required_acks, origin)
            statuses.append(status)
            appended = status.appended
            if appended is None:
                continue
            if required_acks == _ACKS_ALL:
                status.begin_to_wait()
                thresholds[topic_partition] = in_term(appended.leadership, appended.required_offset)
            partition = status.partition
            assert partition is not None, "who appended has one"
            if appended.moved:
                self._waiting.after_watermark(partition)
            elif not appended.duplicate:
                self._waiting.after_append(partition)
        if thresholds:
            self._waiting.produces.try_complete_else_watch(
                DelayedProduce(timeout_ms, self._partitions, statuses, respond),
                thresholds=thresholds,
            )
        else:
            respond({status.topic_partition: status.response() for status in statuses})

    def _append(
        self,
        topic_partition: TopicPartition,
        entry: RecordBatch | Sequence[RecordBatch],
        required_acks: int,
        origin: AppendOrigin,
    ) -> ProduceStatus:
        partition = self._partitions.get(topic_partition)
        if partition is None:
            error, message = self._partitions.why_absent(topic_partition)
            return ProduceStatus(topic_partition, error=error, message=message)
        batches = (entry,) if isinstance(entry, RecordBatch) else entry
        try:
            appended = partition.append_as_leader(batches, required_acks, origin)
        except KafkaError as failure:
            return ProduceStatus(topic_partition, error=failure.code, message=failure.message)
        return ProduceStatus(topic_partition, partition, appended)


def _refused(
    entries: Mapping[TopicPartition, object], required_acks: int
) -> dict[TopicPartition, PartitionProduceResponse]:
    response = PartitionProduceResponse(
        ErrorCode.INVALID_REQUIRED_ACKS,
        message=f"required acks {required_acks!r}: 0, 1 or -1 (all) can be asked for",
    )
    return dict.fromkeys(entries, response)
