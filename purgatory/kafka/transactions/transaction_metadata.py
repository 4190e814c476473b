"""The state of a transactional id, and the steps of its transactions.

    Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing, Empty, Dead
                     -> PrepareAbort  -> CompleteAbort  -> Ongoing, Empty, Dead
    Empty, CompleteCommit, CompleteAbort -> PrepareAbort   of nothing, to raise the epoch

PrepareCommit and PrepareAbort are the decision: once one of them is replicated, nothing changes it.

A data structure and functions of records alone: each returns the record that is to be written, or
refuses the step as Kafka does. The coordinator begins and ends the waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from purgatory.core.keys import TransactionKey
from purgatory.kafka.errors import ErrorCode, TransactionRefusal
from purgatory.kafka.log.producer_state import ProducerIdentity
from purgatory.kafka.log.record_batch import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    RecordBatch,
    TransactionResult,
)
from purgatory.kafka.topic_partition import TopicPartition
from purgatory.settings.typed_duration import OrTimedelta, default, timed_dataclass


class TransactionState(Enum):
    """The state of a transaction, in Kafka's words."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    """A name that filters may have; no transaction is in it: an abort raises the epoch itself."""


_EMPTY = TransactionState.EMPTY
_ONGOING = TransactionState.ONGOING
_PREPARE_COMMIT = TransactionState.PREPARE_COMMIT
_PREPARE_ABORT = TransactionState.PREPARE_ABORT
_COMPLETE_COMMIT = TransactionState.COMPLETE_COMMIT
_COMPLETE_ABORT = TransactionState.COMPLETE_ABORT
_DEAD = TransactionState.DEAD

FOLLOWERS: Mapping[TransactionState, frozenset[TransactionState]] = {
    _EMPTY: frozenset({_EMPTY, _ONGOING, _PREPARE_ABORT, _DEAD}),
    _ONGOING: frozenset({_ONGOING, _PREPARE_COMMIT, _PREPARE_ABORT}),
    _PREPARE_COMMIT: frozenset({_COMPLETE_COMMIT}),
    _PREPARE_ABORT: frozenset({_COMPLETE_ABORT}),
    _COMPLETE_COMMIT: frozenset({_EMPTY, _ONGOING, _PREPARE_ABORT, _DEAD}),
    _COMPLETE_ABORT: frozenset({_EMPTY, _ONGOING, _PREPARE_ABORT, _DEAD}),
    _DEAD: frozenset(),
}
"""The states that may follow each."""

IDLE = frozenset({_EMPTY, _COMPLETE_COMMIT, _COMPLETE_ABORT})
"""There is no transaction: the next may begin."""

DECIDED = frozenset({_PREPARE_COMMIT, _PREPARE_ABORT})
"""The end is decided, and the markers are being written."""

ENDS = DECIDED | {_COMPLETE_COMMIT, _COMPLETE_ABORT}
"""The end is decided; the markers are being written, or are there."""


# Transactional ids and their records.

TRANSACTIONS_TOPIC = "__transaction_state"
"""The topic in which coordinators store the state of transactions."""

NO_TIME = -1


class TransactionRecord(NamedTuple):
    """The record of a transactional id.

    Args:
        state: the state of its transaction.
        producer_id, producer_epoch: those of the one producer that may use it.
        timeout_ms: the longest time of a transaction, in milliseconds.
        partitions: the partitions of the transaction.
        start_ms: the begin of the transaction, or of the last one, in milliseconds since 1970; -1:
            there is none since the producer began.
        update_ms: the time of the record, likewise.
        last_producer_id, last_producer_epoch: those before the epoch was raised for the producer,
            which may not know of it yet: at its request, or with the end of a transaction; -1: they
            are of no use. The epoch is not stored.
        next_producer_id: the id after the end that is decided, if the epochs of this one are used
            up; -1: the same one.
        version: the protocol of the producer: 1: the producer adds partitions; 2: leaders do, and
            the epoch rises with each end (KIP-890); 0: not known yet.
        by_coordinator: whether the coordinator aborted on its own account. It is not stored.
    """

    state: TransactionState
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIME
    update_ms: int = NO_TIME
    last_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    next_producer_id: int = NO_PRODUCER_ID
    version: int = 0
    by_coordinator: bool = False

    @property
    def following(self) -> ProducerIdentity:
        """The producer once the end that is decided is complete."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdentity(self.next_producer_id, 0)
        return ProducerIdentity(self.producer_id, self.producer_epoch)


TransactionEntry: TypeAlias = tuple[str, TransactionRecord | None]
"""A transactional id and its record; None: the id is deleted."""


class TransactionsCodec(Protocol):
    """Encodes the records of transactional ids and markers as batches, and decodes the former."""

    def batch(self, entries: Sequence[TransactionEntry]) -> RecordBatch:
        """Return a batch with one record for each entry; there is at least one."""

    def entries(self, batch: RecordBatch) -> Iterable[TransactionEntry]:
        """Return the entries of a batch, in order."""

    def marker(
        self, producer: ProducerIdentity, result: TransactionResult, coordinator_epoch: int
    ) -> RecordBatch:
        """Return the marker that ends a producer's transaction on a partition."""


class Transaction:
    """One transactional id.

    ``record`` is replicated, ``pending`` is the state whose record is being replicated. Once the
    end is decided, ``unmarked`` are the partitions without a marker, and ``in_flight`` those of
    them whose marker is being sent. The operations of the transaction are watched on ``key``.
    """

    __slots__ = (
        "coordinator_epoch",
        "in_flight",
        "key",
        "pending",
        "record",
        "transactional_id",
        "unmarked",
    )

    def __init__(
        self, transactional_id: str, record: TransactionRecord, coordinator_epoch: int
    ) -> None:
        self.transactional_id = transactional_id
        self.record = record
        self.coordinator_epoch = coordinator_epoch
        self.key = TransactionKey(transactional_id)
        self.pending: TransactionState | None = None
        self.unmarked: set[TopicPartition] = set(record.partitions)
        self.in_flight: set[TopicPartition] = set()

    def begin_transition(self, state: TransactionState) -> None:
        """Record that the record of a state is being replicated."""
        assert self.pending is None, (self.transactional_id, self.pending, state)
        assert state in FOLLOWERS[self.record.state], (self.record.state, state)
        self.pending = state

    def complete_transition(self, record: TransactionRecord | None) -> None:
        """Record that it is replicated, or, with None, that it can't be."""
        self.pending = None
        if record is not None:
            self.record = record
            self.unmarked = set(record.partitions)

    def _check(self) -> None:
        """Assert every invariant."""
        assert self.in_flight <= self.unmarked <= self.record.partitions
        assert self.pending is None or self.pending in FOLLOWERS[self.record.state]


# Steps: each returns the record that is to be written.

TV1, TV2 = 1, 2
"""The versions of the protocol: in 1, producers add partitions; in 2, leaders do."""

LAST_EPOCH = 2**15 - 2
"""The greatest epoch of a producer. The epoch above it is used to fence the producer."""

_COMPLETE_STATES = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}

_PREPARE_STATES = {
    TransactionResult.COMMIT: TransactionState.PREPARE_COMMIT,
    TransactionResult.ABORT: TransactionState.PREPARE_ABORT,
}

PREPARE_RESULTS = {state: result for result, state in _PREPARE_STATES.items()}
"""The result in the markers, by the state that decides it."""


def new_record(producer_id: int, timeout_ms: int) -> TransactionRecord:
    """Return the record of a new transactional id, which has no epoch yet."""
    return TransactionRecord(TransactionState.EMPTY, producer_id, NO_PRODUCER_EPOCH, timeout_ms)


def check_producer(record: TransactionRecord, producer: ProducerIdentity) -> None:
    """Refuse a producer that is not, or no more, the one that may use a transactional id.

    Raises:
        TransactionRefusal: INVALID_PRODUCER_ID_MAPPING or PRODUCER_FENCED.
    """
    if record.producer_id != producer.producer_id:
        raise TransactionRefusal(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if record.producer_epoch != producer.producer_epoch:
        raise TransactionRefusal(ErrorCode.PRODUCER_FENCED)


def check_expected(record: TransactionRecord, expected: ProducerIdentity) -> None:
    """Refuse a producer that wants its epoch raised and isn't, or wasn't just now, the one.

    Raises:
        TransactionRefusal: PRODUCER_FENCED.
    """
    if record.producer_epoch == NO_PRODUCER_EPOCH or expected.producer_id == record.producer_id:
        return
    # The producer may repeat a request whose response, with a new id, was lost.
    if expected.producer_id != record.last_producer_id or expected.producer_epoch < LAST_EPOCH:
        raise TransactionRefusal(ErrorCode.PRODUCER_FENCED)


def initialized(
    record: TransactionRecord,
    expected: ProducerIdentity | None,
    timeout_ms: int,
    now_ms: int,
    new_producer_id: Callable[[], int],
) -> TransactionRecord:
    """Return the record with the next epoch, or with a new id where the epochs are used up.

    Args:
        record: that of an idle transactional id.
        expected: the producer's present id and epoch, if it knows them; a repeated request changes
            nothing.
        timeout_ms: the longest time of its transactions, in milliseconds.
        now_ms: the time, in milliseconds since 1970.
        new_producer_id: makes an id that no producer had before.

    Raises:
        TransactionRefusal: PRODUCER_FENCED.
    """
    assert record.state in IDLE, record
    producer_id, epoch = record.producer_id, record.producer_epoch
    expected_epoch = None if expected is None else expected.producer_epoch
    last_id, last_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
    if epoch >= LAST_EPOCH and expected_epoch in (None, epoch):
        if expected is not None:
            last_id, last_epoch = producer_id, epoch
        producer_id, epoch = new_producer_id(), 0
    elif expected_epoch is None or epoch == NO_PRODUCER_EPOCH:
        epoch += 1
    elif expected_epoch == epoch:
        last_id, last_epoch, epoch = producer_id, epoch, epoch + 1
    elif expected_epoch == record.last_producer_epoch:
        last_id, last_epoch = record.last_producer_id, expected_epoch
    else:
        raise TransactionRefusal(ErrorCode.PRODUCER_FENCED)
    return TransactionRecord(
        TransactionState.EMPTY,
        producer_id,
        epoch,
        timeout_ms,
        update_ms=now_ms,
        last_producer_id=last_id,
        last_producer_epoch=last_epoch,
    )


def with_partitions(
    record: TransactionRecord,
    partitions: Iterable[TopicPartition],
    now_ms: int,
    version: int = TV1,
) -> TransactionRecord:
    """Return the record of a transaction with these partitions, too; without an ongoing one, a
    transaction begins. Without a change, the same record.

    Args:
        now_ms: the time, in milliseconds since 1970.
        version: `TV1` or `TV2`.

    Raises:
        TransactionRefusal: CONCURRENT_TRANSACTIONS: the transaction before is still being ended.
    """
    if record.state in DECIDED:
        raise TransactionRefusal(ErrorCode.CONCURRENT_TRANSACTIONS)
    is_ongoing = record.state is TransactionState.ONGOING
    partitions_union = record.partitions.union(partitions) if is_ongoing else frozenset(partitions)
    if is_ongoing and partitions_union == record.partitions:
        return record
    return record._replace(
        state=TransactionState.ONGOING,
        partitions=partitions_union,
        start_ms=record.start_ms if is_ongoing else now_ms,
        update_ms=now_ms,
        last_producer_id=NO_PRODUCER_ID,  # the producer knows its present one
        version=version,
    )


def is_ended(record: TransactionRecord, result: TransactionResult) -> bool:
    """Whether a transaction has already ended with this result; False, if it may be ended now.

    Raises:
        TransactionRefusal: INVALID_TXN_STATE: there is none, or it ends the other way;
            CONCURRENT_TRANSACTIONS: the end is under way.
    """
    if record.state is TransactionState.ONGOING:
        return False
    prepare = _PREPARE_STATES[result]
    if record.state is prepare:
        raise TransactionRefusal(ErrorCode.CONCURRENT_TRANSACTIONS)
    if record.state is not _COMPLETE_STATES[prepare]:
        raise TransactionRefusal(ErrorCode.INVALID_TXN_STATE)
    return True


def is_ended_with_bump(
    record: TransactionRecord, producer: ProducerIdentity, result: TransactionResult
) -> bool:
    """As ``is_ended``, for a producer whose epoch rises with each end.

    The producer repeats its request if it did not get its new epoch, or doesn't know that the
    coordinator has aborted the transaction; and may abort without a transaction, as it doesn't know
    whether a leader has begun one.

    Raises:
        TransactionRefusal: INVALID_PRODUCER_ID_MAPPING or PRODUCER_FENCED besides.
    """
    epoch, state = producer.producer_epoch, record.state
    # As in Kafka: whichever protocol the last end was by.
    is_repeated = record.version in (TV1, TV2) and record.producer_epoch == epoch + 1
    if record.producer_id != producer.producer_id:
        is_repeated = record.last_producer_id == producer.producer_id and epoch == LAST_EPOCH
        if not is_repeated or record.producer_epoch != 0:
            raise TransactionRefusal(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if state in ENDS and is_repeated:
        return is_ended(record, result)
    if state in DECIDED or record.producer_epoch != epoch:
        raise TransactionRefusal(ErrorCode.PRODUCER_FENCED)
    if state in IDLE and result is TransactionResult.COMMIT:
        raise TransactionRefusal(ErrorCode.INVALID_TXN_STATE)
    return False


def prepared(
    record: TransactionRecord, result: TransactionResult, now_ms: int
) -> TransactionRecord:
    """Return the record that decides how a transaction ends."""
    return record._replace(state=_PREPARE_STATES[result], update_ms=now_ms, by_coordinator=False)


def prepared_with_bump(
    record: TransactionRecord,
    result: TransactionResult,
    now_ms: int,
    new_producer_id: Callable[[], int],
) -> TransactionRecord:
    """As ``prepared``, with the next epoch, or, where these are used up, a new id to follow.

    The markers have that epoch: late records of the transaction are refused by all of its
    partitions' leaders. The producer may go on with it, though the coordinator aborted.
    """
    is_exhausted = record.producer_epoch >= LAST_EPOCH
    return prepared(record, result, now_ms)._replace(
        producer_epoch=min(record.producer_epoch, LAST_EPOCH) + 1,
        start_ms=now_ms if record.state in IDLE else record.start_ms,
        next_producer_id=new_producer_id() if is_exhausted else NO_PRODUCER_ID,
        last_producer_id=record.producer_id,
        last_producer_epoch=record.producer_epoch,
        version=TV2,
    )


def completed(record: TransactionRecord, now_ms: int) -> TransactionRecord:
    """Return the record of a transaction whose markers are all written."""
    complete = record._replace(
        state=_COMPLETE_STATES[record.state],
        partitions=frozenset(),
        update_ms=now_ms,
    )
    if record.next_producer_id == NO_PRODUCER_ID:
        return complete
    producer_id, epoch = record.following
    return complete._replace(
        producer_id=producer_id, producer_epoch=epoch, next_producer_id=NO_PRODUCER_ID
    )


# Results, and what transactional ids are allowed.


class InitProducerIdResult(NamedTuple):
    """A producer's new id and epoch, or the error."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class TransactionListing(NamedTuple):
    """A transactional id that is coordinated here, and the state of it."""

    transactional_id: str
    record: TransactionRecord


Codes = Mapping[TopicPartition, ErrorCode]
RespondInit = Callable[[InitProducerIdResult], object]
RespondCode = Callable[[ErrorCode], object]
RespondCodes = Callable[[Codes], object]


@timed_dataclass
class TransactionConfig:
    """The limits of transactional ids. Times are in milliseconds, or timedeltas.

    Args:
        max_timeout_ms: the longest timeout that a producer may ask for; Kafka's
            ``transaction.max.timeout.ms``.
        id_expiration_ms: a transactional id that isn't used for so long is forgotten; Kafka's
            ``transactional.id.expiration.ms``.
        marker_wait_ms: how long the response to the end of a transaction waits for its markers.
            Then it is given without them: the end is decided, and they follow.
        retry_ms: when a marker that couldn't be written is tried again.
    """

    max_timeout_ms: OrTimedelta[int] = default(900_000)
    id_expiration_ms: OrTimedelta[int] = default(604_800_000)
    marker_wait_ms: OrTimedelta[int] = default(5_000)
    retry_ms: OrTimedelta[int] = default(50)
