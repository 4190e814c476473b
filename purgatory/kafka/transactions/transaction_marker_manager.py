"""The ends of transactions: their records and markers.

The purgatory `TransactionMarker` has the response to the end of a transaction, until its markers
are written (`DelayedMarkers`), and a failed attempt, until the next one (`DelayedRetry`).

`MarkerChannel` sends markers to the leaders of partitions, which `write_markers`.

Ground rules: those of `transaction_coordinator`, of which this is a part. A wait is about the
record that held when it began, and ends when another record holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.core.recent_errors import Logger
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.groups.group_manager import GroupManager
from purgatory.kafka.groups.offsets import OFFSETS_TOPIC
from purgatory.kafka.log.producer_state import AppendOrigin, ProducerIdentity
from purgatory.kafka.log.record_batch import RecordBatch, TransactionResult
from purgatory.kafka.replication.partition import NO_LEADER
from purgatory.kafka.replication.replica_manager import ReplicaManager
from purgatory.kafka.replication.requests import PartitionProduceResponse
from purgatory.kafka.topic_partition import TopicPartition
from purgatory.kafka.transactions.transaction_metadata import (
    DECIDED,
    PREPARE_RESULTS,
    TV1,
    TV2,
    Codes,
    RespondCode,
    RespondCodes,
    Transaction,
    TransactionConfig,
    TransactionRecord,
    TransactionsCodec,
    TransactionState,
    completed,
    prepared_with_bump,
)
from purgatory.kafka.transactions.transaction_state_manager import TransactionStateManager
from purgatory.kafka.transactions.transaction_timeouts import (
    DelayedStep,
    DelayedTransactionRequest,
    TransactionTimeouts,
)


class MarkerChannel(Protocol):
    """Sends markers to the leaders of partitions."""

    def leader_of(self, topic_partition: TopicPartition) -> int | None:
        """Return the leader of a partition, -1 without one; None: there is no such partition."""

    def send_markers(
        self, broker_id: int, markers: Mapping[TopicPartition, RecordBatch], respond: RespondCodes
    ) -> None:
        """Send markers to a broker, which writes them by `write_markers`.

        Args:
            broker_id: the leader of the partitions.
            respond: takes the codes once the request can have no more effect: a late marker would
                end the producer's next transaction. The callback may be called within this call;
                never, if this broker was killed.
        """


class DelayedMarkers(DelayedTransactionRequest):
    """Waits until the markers of a transaction are on all its partitions, and its completion is
    written. After the timeout it responds without an error, too: the end is decided.
    """

    def __init__(
        self, transaction: Transaction, delay_ms: int, respond: Callable[[ErrorCode], object]
    ) -> None:
        super().__init__(transaction, delay_ms)
        self._respond = respond

    def on_complete(self) -> None:
        self._respond(ErrorCode.NONE)


class DelayedRetry(DelayedStep):
    """Waits for the backoff after a failed attempt."""


_FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
"""Errors of leaders that know of a later coordinator or producer."""

_log = Logger("purgatory.kafka")


class TransactionMarkerManager:
    """Ends the transactions of one coordinator.

    Args:
        state_manager: the transactions and their records.
        config, codec, channel, new_producer_id, now_ms, on_record: as the coordinator has them.
        markers, timeouts: the purgatories.
    """

    def __init__(
        self,
        state_manager: TransactionStateManager,
        config: TransactionConfig,
        codec: TransactionsCodec,
        channel: MarkerChannel,
        markers: DelayedOperationPurgatory,
        timeouts: DelayedOperationPurgatory,
        new_producer_id: Callable[[], int],
        now_ms: Callable[[], int],
        on_record: Callable[[str, TransactionRecord], object] | None,
    ) -> None:
        self._state_manager = state_manager
        self._config = config
        self._codec = codec
        self._channel = channel
        self._markers = markers
        self._timeouts = TransactionTimeouts(
            state_manager, config, timeouts, now_ms, self.fence_and_abort, self.write
        )
        self._new_producer_id = new_producer_id
        self._now_ms = now_ms
        self._on_record = on_record or _ignore_record

    def resume(self, transaction: Transaction) -> None:
        """Continue a transaction that was loaded or created."""
        self._on_record(transaction.transactional_id, transaction.record)
        if transaction.record.state in DECIDED:
            self._schedule_retry(transaction)
        else:
            self._timeouts.start(transaction)

    def forget(self, transaction: Transaction) -> None:
        """End all waits of a transactional id that this broker no longer coordinates."""
        transaction.complete_transition(transaction.record._replace(state=TransactionState.DEAD))
        self._complete_waiting(transaction)

    def _complete_waiting(self, transaction: Transaction) -> None:
        self._markers.check_and_complete(transaction.key)
        self._timeouts.check(transaction)

    # Records.

    def write(
        self, transaction: Transaction, record: TransactionRecord, respond: RespondCode
    ) -> None:
        """Write a record, which applies once it is replicated."""
        transaction.begin_transition(record.state)
        is_dead = record.state is TransactionState.DEAD

        def stored(code: ErrorCode) -> None:
            if not self._state_manager.is_known(transaction):
                respond(ErrorCode.NOT_COORDINATOR)
                return
            transaction.complete_transition(record if code is ErrorCode.NONE else None)
            if code is ErrorCode.NONE:
                self._on_record(transaction.transactional_id, record)
            self._complete_waiting(transaction)
            if code is ErrorCode.NONE and not is_dead:
                self._timeouts.start(transaction)
            respond(code)

        self._state_manager.append(transaction, None if is_dead else record, stored)

    def start_markers(
        self, transaction: Transaction, decision: TransactionRecord, respond: RespondCode
    ) -> None:
        """Write the decision on a transaction, then send its markers to the leaders.

        ``respond`` is called once the markers are written, or after `marker_wait_ms`.
        """

        def stored(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                respond(code)
                return
            waiting = DelayedMarkers(transaction, self._config.marker_wait_ms, respond)
            self._send_markers(transaction)
            self._markers.try_complete_else_watch(waiting, [transaction.key])

        self.write(transaction, decision, stored)

    def fence_and_abort(self, transaction: Transaction, respond: RespondCode) -> None:
        """Abort for the coordinator: the epoch rises, which fences the producer.

        Raises:
            ClusterError: no new producer id could be saved, where the epochs are used up.
        """
        result, now_ms = TransactionResult.ABORT, self._now_ms()
        abort = prepared_with_bump(transaction.record, result, now_ms, self._new_producer_id)
        self.start_markers(transaction, abort._replace(by_coordinator=True), respond)

    # Markers.

    def _send_markers(self, transaction: Transaction) -> None:
        record = transaction.record
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        for topic_partition in sorted(transaction.unmarked - transaction.in_flight):
            leader = self._channel.leader_of(topic_partition)
            if leader is None:
                transaction.unmarked.discard(topic_partition)  # its topic was deleted
            elif leader != NO_LEADER:
                by_leader[leader].append(topic_partition)
                transaction.in_flight.add(topic_partition)
        producer = ProducerIdentity(record.producer_id, record.producer_epoch)
        result = PREPARE_RESULTS[record.state]
        for leader, partitions in by_leader.items():
            marker = self._codec.marker(producer, result, transaction.coordinator_epoch)
            self._channel.send_markers(
                leader,
                dict.fromkeys(partitions, marker),
                partial(self._handle_marker_response, transaction),
            )
        if not by_leader:
            self._continue(transaction)

    def _handle_marker_response(self, transaction: Transaction, codes: Codes) -> None:
        if not self._state_manager.is_known(transaction):
            return
        transaction.in_flight -= codes.keys()
        fenced_by = {code.name for code in codes.values() if code in _FENCED}
        if fenced_by:
            # A later coordinator, or the producer's next epoch, will end it.
            _log.error(
                "markers_fenced",
                transactional_id=transaction.transactional_id,
                codes=sorted(fenced_by),
            )
            return
        for topic_partition, code in codes.items():
            if code is ErrorCode.NONE:
                transaction.unmarked.discard(topic_partition)
        self._continue(transaction)

    def _continue(self, transaction: Transaction) -> None:
        """Complete a transaction whose markers are all written, or schedule a retry for the
        rest."""
        if transaction.in_flight or transaction.pending is not None:
            return
        if transaction.unmarked:
            self._schedule_retry(transaction)
            return

        def stored(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE and self._state_manager.is_known(transaction):
                self._schedule_retry(transaction)

        self.write(transaction, completed(transaction.record, self._now_ms()), stored)

    def _schedule_retry(self, transaction: Transaction) -> None:
        retry = DelayedRetry(transaction, self._config.retry_ms, self._retry)
        self._markers.try_complete_else_watch(retry, [transaction.key])

    def _retry(self, transaction: Transaction) -> None:
        """Send the missing markers, once the decision is durable."""
        if not self._state_manager.is_known(transaction):
            return
        if self._state_manager.is_committed(transaction):
            self._send_markers(transaction)
        else:
            self._schedule_retry(transaction)


def _ignore_record(_: str, __: TransactionRecord) -> None:
    """Ignore a record."""


_WRITE_TIMEOUT_MS = 5_000


def write_markers(
    manager: ReplicaManager,
    groups: GroupManager,
    markers: Mapping[TopicPartition, RecordBatch],
    respond: RespondCodes,
    version: int = TV1,
) -> None:
    """Append markers, and commit or drop the transactions' pending offsets of groups.

    Args:
        manager, groups: of the leaders' broker.
        respond: takes the codes, once the markers are replicated or can't be.
        version: of the protocol of their transactions. With `TV2`, in which each end raises the
            epoch, a marker of the present epoch is late, and may not end an open transaction.

    Raises:
        PurgatoryClosedError: the broker was killed meanwhile; ``respond`` is not called then.
    """

    late = {
        topic_partition: ErrorCode.INVALID_PRODUCER_EPOCH
        for topic_partition, marker in markers.items()
        if version >= TV2 and _is_late(manager, topic_partition, marker)
    }

    def written(responses: Mapping[TopicPartition, PartitionProduceResponse]) -> None:
        codes = {topic_partition: response.error for topic_partition, response in responses.items()}
        for topic_partition, code in codes.items():
            marker = markers[topic_partition]
            if (
                code is ErrorCode.NONE
                and topic_partition.topic == OFFSETS_TOPIC
                and marker.control is not None
            ):
                groups.offset_metadata.end_transaction(
                    topic_partition.partition, marker.producer_id, marker.control
                )
        respond(codes | late)

    timely = {place: marker for place, marker in markers.items() if place not in late}
    manager.append_records(_WRITE_TIMEOUT_MS, -1, timely, written, AppendOrigin.COORDINATOR)


def _is_late(manager: ReplicaManager, topic_partition: TopicPartition, marker: RecordBatch) -> bool:
    partition = manager.partition(topic_partition)
    if partition is None or not partition.is_leader:
        return False  # that is what is answered
    producers = partition.log.producers
    entry = producers.entry(marker.producer_id)
    is_present = entry is not None and entry.producer_epoch == marker.producer_epoch
    return is_present and marker.producer_id in producers.ongoing
