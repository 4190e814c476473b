"""The coordinator of the transactional ids whose partition of `__transaction_state` a broker leads.

A producer gets its id and epoch here, adds partitions to its transaction, and ends it. A record
decides the end; then markers are written on all partitions, and when the last one is there, that is
recorded, and the next transaction may begin (`transaction_marker_manager`). Operations wait in two
purgatories on a `TransactionKey`.

Ground rules
------------
* One thread at a time calls it, and the timer of its purgatories is moved on that thread.
* Nothing holds before its record is replicated. While it is being replicated, every other step of
  that transactional id is refused with CONCURRENT_TRANSACTIONS.
* No marker is sent before the decision is replicated, and the next transaction doesn't begin before
  each leader has responded for its marker.
* ``respond`` is called once; never, if the broker was killed just now. The callback sends a
  response, and calls nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.kafka.errors import ErrorCode, TransactionRefusal
from purgatory.kafka.log.producer_state import ProducerIdentity
from purgatory.kafka.log.record_batch import TransactionResult
from purgatory.kafka.replication.replica_manager import ReplicaManager
from purgatory.kafka.topic_partition import TopicPartition
from purgatory.kafka.transactions.transaction_marker_manager import (
    MarkerChannel,
    TransactionMarkerManager,
)
from purgatory.kafka.transactions.transaction_metadata import (
    DECIDED,
    TRANSACTIONS_TOPIC,
    TV1,
    Codes,
    InitProducerIdResult,
    RespondCode,
    RespondCodes,
    RespondInit,
    Transaction,
    TransactionConfig,
    TransactionListing,
    TransactionRecord,
    TransactionsCodec,
    TransactionState,
    check_expected,
    check_producer,
    initialized,
    is_ended,
    is_ended_with_bump,
    new_record,
    prepared,
    prepared_with_bump,
    with_partitions,
)
from purgatory.kafka.transactions.transaction_state_manager import TransactionStateManager


class TransactionCoordinator:
    """Coordinates the transactional ids of one broker.

    Args:
        manager: the replicas of the topic `__transaction_state`.
        config: the limits of transactional ids.
        codec: encodes and decodes its records, and makes markers.
        channel: sends markers to the leaders.
        new_purgatory: makes a purgatory of this name; the caller closes it.
        new_producer_id: makes an id that no producer had before.
        now_ms: returns the time, in milliseconds since 1970.
        state_partitions: returns the topic's partition count, and creates the topic if needed.
        on_record: called with the record of a transactional id once it is replicated, and again
            when another broker's coordinator loads it.
    """

    def __init__(
        self,
        manager: ReplicaManager,
        config: TransactionConfig,
        codec: TransactionsCodec,
        channel: MarkerChannel,
        new_purgatory: Callable[[str], DelayedOperationPurgatory],
        new_producer_id: Callable[[], int],
        now_ms: Callable[[], int],
        state_partitions: Callable[[], int],
        on_record: Callable[[str, TransactionRecord], object] | None = None,
    ) -> None:
        self.config = config
        self.markers = new_purgatory("TransactionMarker")
        self.timeouts = new_purgatory("TransactionTimeout")
        self._channel = channel
        self._new_producer_id = new_producer_id
        self._now_ms = now_ms
        self._state_manager = TransactionStateManager(manager, codec, state_partitions)
        self._marker_manager = TransactionMarkerManager(
            self._state_manager,
            config,
            codec,
            channel,
            self.markers,
            self.timeouts,
            new_producer_id,
            now_ms,
            on_record,
        )

    @property
    def purgatories(self) -> list[DelayedOperationPurgatory]:
        """The purgatories in which transactions wait."""
        return [self.markers, self.timeouts]

    # Roles of this broker.

    def coordinator_partition(self, transactional_id: str) -> TopicPartition:
        """Return the partition whose leader coordinates a transactional id."""
        return self._state_manager.coordinator_partition(transactional_id)

    def update_role(self, topic_partition: TopicPartition, leads: bool, leader_epoch: int) -> None:
        """Load the transactional ids of a partition that this broker now leads, or unload them.

        Call this after the broker has become a partition's leader and before it becomes a
        follower. Idempotent; other topics are ignored. Unfinished ends are resumed. Loading is
        O(records of the partition).
        """
        topic, partition = topic_partition
        if topic != TRANSACTIONS_TOPIC:
            return
        known_epoch = self._state_manager.epoch_of(partition)
        if leads and known_epoch == leader_epoch:
            return
        if known_epoch is not None:
            for transaction in self._state_manager.unload(partition):
                self._marker_manager.forget(transaction)
        if leads:
            for transaction in self._state_manager.load(partition, leader_epoch):
                self._marker_manager.resume(transaction)

    def _producer_transaction(
        self, transactional_id: str, producer: ProducerIdentity
    ) -> Transaction:
        """Return a transactional id, for the one producer that may use it.

        Raises:
            TransactionRefusal: another producer may.
        """
        transaction = self._existing_transaction(transactional_id)
        check_producer(transaction.record, producer)
        return transaction

    def _existing_transaction(self, transactional_id: str) -> Transaction:
        transaction = self._state_manager.find(transactional_id)
        if transaction is None:
            raise TransactionRefusal(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return transaction

    def _completed_transaction(
        self, transactional_id: str, producer: ProducerIdentity
    ) -> Transaction:
        """As ``_producer_transaction``, where nothing is being replicated; else
        CONCURRENT_TRANSACTIONS."""
        transaction = self._producer_transaction(transactional_id, producer)
        if transaction.pending is not None:
            raise TransactionRefusal(ErrorCode.CONCURRENT_TRANSACTIONS)
        return transaction

    # Requests of producers.

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdentity | None,
        respond: RespondInit,
    ) -> None:
        """Give a producer its id and the next epoch, which fences former producers of the id.

        Args:
            timeout_ms: the longest time of its transactions, in milliseconds.
            expected: the producer's present id and epoch, if it wants its epoch raised.
            respond: takes the response. An ongoing transaction is aborted first, and the response
                is CONCURRENT_TRANSACTIONS: the producer is to retry.
        """
        try:
            if not 0 < timeout_ms <= self.config.max_timeout_ms:
                raise TransactionRefusal(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
            transaction = self._state_manager.find(transactional_id)
            if transaction is None:
                record = new_record(self._new_producer_id(), timeout_ms)
                transaction = self._state_manager.add(transactional_id, record)
            if transaction.pending is not None:
                raise TransactionRefusal(ErrorCode.CONCURRENT_TRANSACTIONS)
            if expected is not None:
                check_expected(transaction.record, expected)
            state = transaction.record.state
            if state in DECIDED:
                raise TransactionRefusal(ErrorCode.CONCURRENT_TRANSACTIONS)
            if state is TransactionState.ONGOING:
                self._marker_manager.fence_and_abort(
                    transaction,
                    lambda code: respond(
                        InitProducerIdResult(code or ErrorCode.CONCURRENT_TRANSACTIONS)
                    ),
                )
                return
            initial = initialized(
                transaction.record, expected, timeout_ms, self._now_ms(), self._new_producer_id
            )

            def stored(code: ErrorCode) -> None:
                if code is ErrorCode.NONE:
                    respond(InitProducerIdResult(code, initial.producer_id, initial.producer_epoch))
                else:
                    respond(InitProducerIdResult(code))

            self._marker_manager.write(transaction, initial, stored)
        except TransactionRefusal as refusal:
            respond(InitProducerIdResult(refusal.code))

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[TopicPartition],
        respond: RespondCodes,
        version: int = TV1,
    ) -> None:
        """Add partitions to a producer's transaction, all or none; the first ones begin it.

        Args:
            respond: takes the error code of each, once the record is replicated.
            version: `TV1`, or `TV2` for leaders, which add the partitions of batches (KIP-890).
        """
        unknown = {
            topic_partition
            for topic_partition in partitions
            if self._channel.leader_of(topic_partition) is None
        }
        if unknown:
            respond(
                {
                    topic_partition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    if topic_partition in unknown
                    else ErrorCode.OPERATION_NOT_ATTEMPTED
                    for topic_partition in partitions
                }
            )
            return

        def stored(code: ErrorCode) -> None:
            respond(dict.fromkeys(partitions, code))

        try:
            transaction = self._completed_transaction(transactional_id, producer)
            record = with_partitions(transaction.record, partitions, self._now_ms(), version)
        except TransactionRefusal as refusal:
            stored(refusal.code)
            return
        if record is transaction.record:
            stored(ErrorCode.NONE)
        else:
            self._marker_manager.write(transaction, record, stored)

    def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[TopicPartition],
    ) -> Codes:
        """Return whether partitions are in a producer's transaction, for a leader that appends;
        others get TRANSACTION_ABORTABLE.
        """
        try:
            record = self._producer_transaction(transactional_id, producer).record
            if record.state in DECIDED:
                raise TransactionRefusal(ErrorCode.CONCURRENT_TRANSACTIONS)
        except TransactionRefusal as refusal:
            return dict.fromkeys(partitions, refusal.code)
        return {
            topic_partition: ErrorCode.NONE
            if topic_partition in record.partitions
            else ErrorCode.TRANSACTION_ABORTABLE
            for topic_partition in partitions
        }

    def end(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        result: TransactionResult,
        respond: RespondCode,
    ) -> None:
        """Commit or abort a producer's transaction.

        Args:
            respond: called once the markers are on all its partitions, or after a timeout, as the
                end is decided.
        """
        try:
            transaction = self._completed_transaction(transactional_id, producer)
            ended = is_ended(transaction.record, result)
        except TransactionRefusal as refusal:
            respond(refusal.code)
            return
        if ended:
            respond(ErrorCode.NONE)
        else:
            self._marker_manager.start_markers(
                transaction, prepared(transaction.record, result, self._now_ms()), respond
            )

    def end_and_bump_epoch(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        result: TransactionResult,
        respond: RespondInit,
    ) -> None:
        """Commit or abort, and raise the producer's epoch, which fences late records (KIP-890).

        Args:
            producer: the same one again, if it didn't get the response.
            result: commit, or abort; the latter also without a transaction.
            respond: called as that of ``end``, with the producer's next id and epoch.
        """
        try:
            transaction = self._existing_transaction(transactional_id)
            if transaction.pending is not None:
                raise TransactionRefusal(ErrorCode.CONCURRENT_TRANSACTIONS)
            ended = is_ended_with_bump(transaction.record, producer, result)
        except TransactionRefusal as refusal:
            respond(InitProducerIdResult(refusal.code))
            return
        record = transaction.record
        if not ended:
            record = prepared_with_bump(record, result, self._now_ms(), self._new_producer_id)

        def respond_code(code: ErrorCode) -> None:
            is_done = code is ErrorCode.NONE
            respond(
                InitProducerIdResult(code, *record.following)
                if is_done
                else InitProducerIdResult(code)
            )

        if ended:
            respond_code(ErrorCode.NONE)
        else:
            self._marker_manager.start_markers(transaction, record, respond_code)

    # Descriptions.

    def describe(self, transactional_id: str) -> TransactionRecord:
        """Return the state of a transactional id.

        Raises:
            TransactionRefusal: another broker coordinates it, or it is unknown
                (TRANSACTIONAL_ID_NOT_FOUND).
        """
        transaction = self._state_manager.find(transactional_id)
        if transaction is None:
            raise TransactionRefusal(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return transaction.record

    def all_transactions(self) -> list[TransactionListing]:
        """Return the transactional ids that are coordinated here."""
        return [
            TransactionListing(transactional_id, transaction.record)
            for transactional_id, transaction in self._state_manager.transactions.items()
        ]

    def _check(self) -> None:
        """Assert every invariant. O(transactional ids)."""
        self._state_manager._check()
