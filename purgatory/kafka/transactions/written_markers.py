"""What the leaders of partitions do with the markers that coordinators send them."""

from __future__ import annotations

from collections.abc import Mapping

from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.groups.broker_groups import BrokerGroups
from purgatory.kafka.groups.committed_offset import OFFSETS_TOPIC
from purgatory.kafka.record_batch import RecordBatch
from purgatory.kafka.replica_manager import ReplicaManager
from purgatory.kafka.requests import AppendOrigin, PartitionProduceResponse
from purgatory.kafka.topic_partition import TopicPartition
from purgatory.kafka.transactions.transaction_answers import RespondCodes

_WRITE_TIMEOUT_MS = 5_000


def write_markers(
    manager: ReplicaManager,
    groups: BrokerGroups,
    markers: Mapping[TopicPartition, RecordBatch],
    respond: RespondCodes,
) -> None:
    """Append markers; what was committed for groups holds with theirs, or is dropped.

    Args:
        manager: of the broker that leads.
        groups: likewise.
        markers: by partition.
        respond: takes what became of each, once they are replicated or can't be.

    Raises:
        PurgatoryClosedError: the broker was killed just now; ``respond`` is not called then.
    """

    def written(answers: Mapping[TopicPartition, PartitionProduceResponse]) -> None:
        codes = {one: answer.error for one, answer in answers.items()}
        for one, code in codes.items():
            marker = markers[one]
            if code is ErrorCode.NONE and one.topic == OFFSETS_TOPIC and marker.control is not None:
                groups.end_transaction(one.partition, marker.producer_id, marker.control)
        respond(codes)

    manager.append_records(_WRITE_TIMEOUT_MS, -1, markers, written, AppendOrigin.COORDINATOR)
