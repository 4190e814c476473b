"""Reading several partitions for one fetch, within the request's limits. Nothing waits here.

Ground rules: each partition is read under its own lock; together the reads are no snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping

from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.hosted_partitions import HostedPartitions
from purgatory.kafka.requests import (
    FetchIsolation,
    FetchParams,
    PartitionFetch,
    PartitionFetchResponse,
)
from purgatory.kafka.topic_partition import TopicPartition

_NONE = ErrorCode.NONE


Reads = tuple[dict[TopicPartition, PartitionFetchResponse], int, bool]
"""The answers, their bytes, and whether one of them must be given now: an error or a divergence."""


def isolation_of(params: FetchParams) -> FetchIsolation:
    """Return how far a request sees: a follower always to the log's end."""
    return FetchIsolation.LOG_END if params.replica_id >= 0 else params.isolation


def read_partitions(
    partitions: HostedPartitions,
    params: FetchParams,
    fetches: Mapping[TopicPartition, PartitionFetch],
) -> Reads:
    """Read what is there now, without noting how far a follower is."""
    isolation = isolation_of(params)
    answers = {}
    size_bytes = 0
    at_once = False
    for topic_partition, fetch in fetches.items():
        partition = partitions.get(topic_partition)
        if partition is None:
            answer = absent_response(partitions, topic_partition)
        else:
            # At least one batch per request, however large: else its reader would be stuck.
            answer = partition.fetch(
                fetch,
                isolation,
                params.max_bytes - size_bytes,
                size_bytes == 0,
                params.from_followers,
            )
        answers[topic_partition] = answer
        size_bytes += answer.size_bytes
        if answer.error is not _NONE or answer.diverging_epoch is not None:
            at_once = True
    return answers, size_bytes, at_once


def absent_response(
    partitions: HostedPartitions, topic_partition: TopicPartition
) -> PartitionFetchResponse:
    """Return the answer for a partition that isn't here."""
    error, message = partitions.why_absent(topic_partition)
    return PartitionFetchResponse(error, message=message)
