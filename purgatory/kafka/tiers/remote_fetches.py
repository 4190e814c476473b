"""Fetches of what is in the remote tier alone: they wait in the purgatory RemoteFetch.

Ground rules: those of `remote_tasks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.kafka.delayed_fetch import RespondFetch
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.hosted_partitions import HostedPartitions
from purgatory.kafka.partition_reads import isolation_of, read_partitions
from purgatory.kafka.record_batch import RecordBatch
from purgatory.kafka.requests import (
    AbortedTransaction,
    FetchIsolation,
    FetchParams,
    PartitionFetch,
    PartitionFetchResponse,
)
from purgatory.kafka.tiers.remote_tasks import DelayedRemoteTasks, RemoteRead, RemoteTier
from purgatory.kafka.topic_partition import TopicPartition

Answers = dict[TopicPartition, PartitionFetchResponse]


class DelayedRemoteFetch(DelayedRemoteTasks):
    """Waits for what is read from the remote tier.

    When the time is up, a partition that wasn't read is answered without records and without an
    error, as in Kafka: its reader asks again.

    Args:
        timeout_ms: the longest wait.
        partitions: what is here.
        params: the request's.
        fetches: what is asked of each partition.
        reads: what is read in the tier.
        answers: of the other partitions.
        respond: takes the answers.
    """

    __slots__ = ("_answers", "_fetches", "_params", "_reads", "_respond")

    def __init__(
        self,
        timeout_ms: int,
        partitions: HostedPartitions,
        params: FetchParams,
        fetches: Mapping[TopicPartition, PartitionFetch],
        reads: Mapping[TopicPartition, RemoteRead],
        answers: Answers,
        respond: RespondFetch,
    ) -> None:
        super().__init__(timeout_ms, partitions, reads, params.from_followers)
        self._params = params
        self._fetches = fetches
        self._reads = reads
        self._answers = answers
        self._respond = respond

    def on_complete(self) -> None:
        self._cancel_tasks()
        asked = {key: self._fetches[key] for key in self._reads}
        # Once more: its bounds may have moved, or this broker lead it no more.
        now = read_partitions(self._partitions, self._params, asked)[0]
        answers = {key: self._answer(self._reads[key], now[key]) for key in self._reads}
        self._answered = True
        self._respond(self._answers | answers)

    def _answer(self, read: RemoteRead, now: PartitionFetchResponse) -> PartitionFetchResponse:
        if now.error is not ErrorCode.NONE or not is_remote(now) or not read.is_done:
            return now
        return with_records(now, read, read.offset, read.max_bytes, isolation_of(self._params))

    def on_failure(self, error: BaseException) -> None:
        if self._answered:
            return
        self._answered = True
        self._cancel_tasks()
        failed = PartitionFetchResponse(
            ErrorCode.UNKNOWN_SERVER_ERROR, message=f"the wait for records failed: {error!r}"
        )
        self._respond(self._answers | dict.fromkeys(self._reads, failed))


def is_remote(answer: PartitionFetchResponse) -> bool:
    """Whether what was asked for is in the remote tier alone."""
    return answer.local_start_offset >= 0


def with_records(
    answer: PartitionFetchResponse,
    read: RemoteRead,
    offset: int,
    max_bytes: int,
    isolation: FetchIsolation,
) -> PartitionFetchResponse:
    """Return the answer with what was read, from the batch with ``offset`` on, or its error.

    At least one batch comes. O(batches).
    """
    if read.error is not ErrorCode.NONE:
        return answer._replace(error=read.error)
    batches: list[RecordBatch] = []
    size_bytes = 0
    for batch in read.batches:
        if batch.next_offset <= offset:
            continue
        if batches and size_bytes + batch.size_bytes > max_bytes:
            break
        batches.append(batch)
        size_bytes += batch.size_bytes
    aborted: tuple[AbortedTransaction, ...] = ()
    if batches and isolation is FetchIsolation.TXN_COMMITTED:
        end = batches[-1].next_offset
        aborted = tuple(
            one
            for one in read.segment.aborted
            if one.last_offset >= offset and one.first_offset < end
        )
    return answer._replace(
        batches=tuple(batches), size_bytes=size_bytes, aborted_transactions=aborted
    )


class RemoteFetches:
    """Answers fetches that need the remote tier.

    Args:
        partitions: what is here.
        purgatory: where they wait.
        tier: what is read from.
        max_wait_ms: the longest wait, whatever the request says.
    """

    def __init__(
        self,
        partitions: HostedPartitions,
        purgatory: DelayedOperationPurgatory,
        tier: RemoteTier,
        max_wait_ms: int,
    ) -> None:
        self._partitions = partitions
        self._purgatory = purgatory
        self._tier = tier
        self.max_wait_ms = max_wait_ms

    def begin_read(
        self,
        topic_partition: TopicPartition,
        offset: int,
        max_bytes: int,
        on_done: Callable[[TopicPartition], object],
    ) -> RemoteRead | None:
        """Begin to read for whoever waits elsewhere; None where no segment has the offset."""
        segment = self._tier.log_of(topic_partition).segment_of(offset)
        if segment is None:
            return None
        read = RemoteRead(topic_partition, on_done, segment, offset, max_bytes)
        self._tier.begin(read)
        return read

    def fetch(
        self,
        params: FetchParams,
        fetches: Mapping[TopicPartition, PartitionFetch],
        answers: Answers,
        respond: RespondFetch,
    ) -> None:
        """Read in the tier what ``answers`` say is there, and answer when that is done.

        Raises:
            PurgatoryClosedError: it would have to wait, but the purgatory was closed.
        """
        left = params.max_bytes - sum(answer.size_bytes for answer in answers.values())
        reads: dict[TopicPartition, RemoteRead] = {}
        for key, answer in answers.items():
            if not is_remote(answer):
                continue
            fetch = fetches[key]
            segment = self._tier.log_of(key).segment_of(fetch.fetch_offset)
            if segment is None or segment.end_offset <= answer.log_start_offset:
                answers[key] = answer._replace(error=ErrorCode.OFFSET_OUT_OF_RANGE)
                continue
            if left <= 0:
                continue  # its reader asks again
            max_bytes = min(left, fetch.max_bytes)
            left -= min(max_bytes, segment.size_bytes)
            reads[key] = RemoteRead(
                key, self._purgatory.check_and_complete, segment, fetch.fetch_offset, max_bytes
            )
        if not reads:
            respond(answers)
            return
        operation = DelayedRemoteFetch(
            self.max_wait_ms, self._partitions, params, fetches, reads, answers, respond
        )
        for read in reads.values():
            self._tier.begin(read)
        self._purgatory.try_complete_else_watch(operation, tuple(fetches))
