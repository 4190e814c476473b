"""What each step makes of what is known of a transactional id: functions of records alone.

Each returns the record that is to be written, or refuses the step as Kafka does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from purgatory.kafka.errors import ErrorCode, TransactionRefusal
from purgatory.kafka.producer_identity import ProducerIdentity
from purgatory.kafka.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, EndTransaction
from purgatory.kafka.topic_partition import TopicPartition
from purgatory.kafka.transactions.transaction_record import (
    NO_TIME,
    TransactionRecord,
)
from purgatory.kafka.transactions.transaction_state import DECIDED, IDLE, TransactionState

BY_PRODUCERS, BY_LEADERS = 1, 2
"""The versions of the protocol: who takes partitions into a transaction."""
LAST_EPOCH = 2**15 - 2
"""The greatest epoch that a producer is given. The one above it fences it, when that is due."""

_COMPLETE_OF = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}
_PREPARE_OF = {
    EndTransaction.COMMIT: TransactionState.PREPARE_COMMIT,
    EndTransaction.ABORT: TransactionState.PREPARE_ABORT,
}
HOW_OF = {state: how for how, state in _PREPARE_OF.items()}
"""What the markers say of a transaction that is decided so."""


def new_record(producer_id: int, timeout_ms: int) -> TransactionRecord:
    """Return what is known of a transactional id that nobody had before: it has no epoch yet."""
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
    # It may repeat a request whose answer, a new id, it didn't get.
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
        record: of an idle transactional id.
        expected: who the producer is, if it knows; what it repeats changes nothing.
        timeout_ms: how long its transactions may last, in milliseconds.
        now_ms: the time, in milliseconds since 1970.
        new_producer_id: makes an id that no producer had before.

    Raises:
        TransactionRefusal: PRODUCER_FENCED.
    """
    assert record.state in IDLE, record
    producer_id, epoch = record.producer_id, record.producer_epoch
    asked = None if expected is None else expected.producer_epoch
    last_id, last_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
    if epoch >= LAST_EPOCH and asked in (None, epoch):
        if expected is not None:
            last_id, last_epoch = producer_id, epoch
        producer_id, epoch = new_producer_id(), 0
    elif asked is None or epoch == NO_PRODUCER_EPOCH:
        epoch += 1
    elif asked == epoch:
        last_id, last_epoch, epoch = producer_id, epoch, epoch + 1
    elif asked == record.last_producer_epoch:
        last_id, last_epoch = record.last_producer_id, asked
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
    version: int = BY_PRODUCERS,
) -> TransactionRecord:
    """Return the record of a transaction that concerns these partitions, too; it begins, if none
    was going on. The same record, where nothing changes.

    Args:
        record: of the transactional id.
        partitions: which.
        now_ms: the time, in milliseconds since 1970.
        version: of the protocol: who takes them in.

    Raises:
        TransactionRefusal: CONCURRENT_TRANSACTIONS: the one before is still being ended.
    """
    if record.state in DECIDED or record.state is TransactionState.PREPARE_EPOCH_FENCE:
        raise TransactionRefusal(ErrorCode.CONCURRENT_TRANSACTIONS)
    begun = record.state is TransactionState.ONGOING
    together = record.partitions.union(partitions) if begun else frozenset(partitions)
    if begun and together == record.partitions:
        return record
    return record._replace(
        state=TransactionState.ONGOING,
        partitions=together,
        start_ms=record.start_ms if begun else now_ms,
        update_ms=now_ms,
        version=version,
    )


def is_ended(record: TransactionRecord, how: EndTransaction) -> bool:
    """Whether a transaction was ended so already; False, if it may be now.

    Raises:
        TransactionRefusal: INVALID_TXN_STATE: there is none, or it ends the other way;
            CONCURRENT_TRANSACTIONS: that is under way.
    """
    if record.state in (TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE):
        return False
    prepare = _PREPARE_OF[how]
    if record.state is prepare:
        raise TransactionRefusal(ErrorCode.CONCURRENT_TRANSACTIONS)
    if record.state is not _COMPLETE_OF[prepare]:
        raise TransactionRefusal(ErrorCode.INVALID_TXN_STATE)
    return True


def is_ended_anew(
    record: TransactionRecord, producer: ProducerIdentity, how: EndTransaction
) -> bool:
    """As ``is_ended``, of a producer whose epoch rises with each end, and who may ask once more
    because it wasn't told its new one. It may abort though there is no transaction: it doesn't know
    whether a leader has begun one.

    Raises:
        TransactionRefusal: INVALID_PRODUCER_ID_MAPPING or PRODUCER_FENCED besides.
    """
    if _was_raised(record, producer):
        return is_ended(record, how)
    check_producer(record, producer)
    if record.state not in IDLE:
        return is_ended(record, how)
    if how is EndTransaction.COMMIT:
        raise TransactionRefusal(ErrorCode.INVALID_TXN_STATE)
    return False


def _was_raised(record: TransactionRecord, producer: ProducerIdentity) -> bool:
    """Whether the end of a producer's last transaction made of it who may use the id now."""
    if record.version != BY_LEADERS or record.state not in (*HOW_OF, *_COMPLETE_OF.values()):
        return False
    if record.producer_id == producer.producer_id:
        return record.producer_epoch == producer.producer_epoch + 1
    is_first = record.producer_epoch == 0
    is_last = record.last_producer_id == producer.producer_id
    return is_first and is_last and producer.producer_epoch >= LAST_EPOCH


def fenced(record: TransactionRecord) -> TransactionRecord:
    """Return the record of a transaction whose producer may do nothing more. It is not written."""
    return record._replace(
        state=TransactionState.PREPARE_EPOCH_FENCE,
        producer_epoch=record.producer_epoch + 1,
        last_producer_id=NO_PRODUCER_ID,
        last_producer_epoch=NO_PRODUCER_EPOCH,
        version=0,
    )


def storable(record: TransactionRecord) -> TransactionRecord:
    """Return what is written of a record when all are written anew."""
    if record.state is TransactionState.PREPARE_EPOCH_FENCE:
        return record._replace(state=TransactionState.ONGOING)
    return record


def prepared(record: TransactionRecord, how: EndTransaction, now_ms: int) -> TransactionRecord:
    """Return the record that decides how a transaction ends."""
    return record._replace(state=_PREPARE_OF[how], update_ms=now_ms)


def prepared_anew(
    record: TransactionRecord,
    how: EndTransaction,
    now_ms: int,
    new_producer_id: Callable[[], int],
) -> TransactionRecord:
    """As ``prepared``, with the next epoch, or, where these are used up, a new id to follow.

    The markers have that epoch: whatever comes late of the transaction is refused by all of its
    partitions' leaders.
    """
    is_used_up = record.producer_epoch >= LAST_EPOCH
    return prepared(record, how, now_ms)._replace(
        producer_epoch=record.producer_epoch + 1,
        next_producer_id=new_producer_id() if is_used_up else NO_PRODUCER_ID,
        last_producer_id=NO_PRODUCER_ID,
        last_producer_epoch=NO_PRODUCER_EPOCH,
        version=BY_LEADERS,
    )


def completed(record: TransactionRecord, now_ms: int) -> TransactionRecord:
    """Return the record of a transaction all of whose markers are written."""
    complete = record._replace(
        state=_COMPLETE_OF[record.state],
        partitions=frozenset(),
        start_ms=NO_TIME,
        update_ms=now_ms,
    )
    if record.next_producer_id == NO_PRODUCER_ID:
        return complete
    producer_id, epoch = record.following
    return complete._replace(
        producer_id=producer_id,
        producer_epoch=epoch,
        last_producer_id=record.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )
