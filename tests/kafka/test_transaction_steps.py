"""The states of a transaction by table, and what each step makes of each state."""

from __future__ import annotations

from itertools import count

import pytest

from purgatory.kafka import (
    EndTransaction,
    ErrorCode,
    ProducerIdentity,
    TopicPartition,
    TransactionRecord,
    TransactionRefusal,
    TransactionState,
)
from purgatory.kafka.transactions.transaction import Transaction
from purgatory.kafka.transactions.transaction_state import FOLLOWERS
from purgatory.kafka.transactions.transaction_steps import (
    LAST_EPOCH,
    check_expected,
    fenced,
    initialized,
    is_ended,
    storable,
    with_partitions,
)

COMMIT, ABORT = EndTransaction.COMMIT, EndTransaction.ABORT
TP, OTHER = TopicPartition("out", 0), TopicPartition("out", 1)

# Kafka's table, read from its documentation: a row for each state, what may follow it.
KAFKA = {
    "Empty": "Empty Ongoing Dead",
    "Ongoing": "Ongoing PrepareCommit PrepareAbort PrepareEpochFence",
    "PrepareCommit": "CompleteCommit",
    "PrepareAbort": "CompleteAbort",
    "CompleteCommit": "Empty Ongoing Dead",
    "CompleteAbort": "Empty Ongoing Dead",
    "Dead": "",
    "PrepareEpochFence": "PrepareAbort",
}


def record(state: str, epoch: int = 3, **fields: object) -> TransactionRecord:
    made = TransactionRecord(
        TransactionState(state), 7, epoch, 1_000, frozenset({TP}), start_ms=5, update_ms=6
    )
    return made._replace(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("state", KAFKA)
@pytest.mark.parametrize("following", KAFKA)
def test_states_follow_one_another_as_in_kafka(state: str, following: str) -> None:
    allowed = following in KAFKA[state].split()
    assert (TransactionState(following) in FOLLOWERS[TransactionState(state)]) is allowed
    transaction = Transaction("t", record(state), 1)
    if allowed:
        transaction.begin(TransactionState(following))
        assert transaction.pending is TransactionState(following)
    else:
        with pytest.raises(AssertionError):
            transaction.begin(TransactionState(following))


@pytest.mark.parametrize(
    ("state", "how", "answer"),
    [
        ("Empty", COMMIT, ErrorCode.INVALID_TXN_STATE),
        ("Empty", ABORT, ErrorCode.INVALID_TXN_STATE),
        ("Ongoing", COMMIT, False),
        ("Ongoing", ABORT, False),
        ("PrepareEpochFence", ABORT, False),
        ("PrepareCommit", COMMIT, ErrorCode.CONCURRENT_TRANSACTIONS),
        ("PrepareCommit", ABORT, ErrorCode.INVALID_TXN_STATE),
        ("PrepareAbort", COMMIT, ErrorCode.INVALID_TXN_STATE),
        ("PrepareAbort", ABORT, ErrorCode.CONCURRENT_TRANSACTIONS),
        ("CompleteCommit", COMMIT, True),
        ("CompleteCommit", ABORT, ErrorCode.INVALID_TXN_STATE),
        ("CompleteAbort", COMMIT, ErrorCode.INVALID_TXN_STATE),
        ("CompleteAbort", ABORT, True),
    ],
)
def test_what_may_be_ended(state: str, how: EndTransaction, answer: object) -> None:
    try:
        found: object = is_ended(record(state), how)
    except TransactionRefusal as refusal:
        found = refusal.code
    assert found == answer


@pytest.mark.parametrize(
    ("state", "partitions", "start_ms"),
    [
        ("Empty", {OTHER}, 50),
        ("CompleteCommit", {OTHER}, 50),
        ("CompleteAbort", {OTHER}, 50),
        ("Ongoing", {TP, OTHER}, 5),
    ],
)
def test_partitions_come_into_a_transaction(
    state: str, partitions: set[TopicPartition], start_ms: int
) -> None:
    changed = with_partitions(record(state), [OTHER], 50)
    assert changed.state is TransactionState.ONGOING
    assert changed.partitions == partitions
    assert changed.start_ms == start_ms


@pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort", "PrepareEpochFence"])
def test_no_partition_comes_into_one_that_ends(state: str) -> None:
    with pytest.raises(TransactionRefusal, match="CONCURRENT_TRANSACTIONS"):
        with_partitions(record(state), [OTHER], 50)


# By epoch and last epoch: what a producer that says that it has `asked` is given.
@pytest.mark.parametrize(
    ("epoch", "last", "asked", "given"),
    [
        (-1, -1, None, (7, 0)),
        (-1, -1, 4, (7, 0)),
        (3, -1, None, (7, 4)),
        (3, 2, None, (7, 4)),
        (3, 2, 3, (7, 4)),
        (3, 2, 2, (7, 3)),
        (3, 2, 1, None),
        (3, -1, 2, None),
        (3, -1, 4, None),
        (LAST_EPOCH - 1, -1, None, (7, LAST_EPOCH)),
        (LAST_EPOCH, -1, None, (100, 0)),
        (LAST_EPOCH, -1, LAST_EPOCH, (100, 0)),
        (LAST_EPOCH, LAST_EPOCH - 1, LAST_EPOCH - 1, (7, LAST_EPOCH)),
        (LAST_EPOCH, -1, LAST_EPOCH - 1, None),
        (LAST_EPOCH + 1, -1, None, (100, 0)),
    ],
)
def test_epochs_rise(
    epoch: int, last: int, asked: int | None, given: tuple[int, int] | None
) -> None:
    before = record("Empty", epoch, last_producer_id=7, last_producer_epoch=last)
    expected = None if asked is None else ProducerIdentity(7, asked)
    ids = count(100)

    def initial() -> TransactionRecord:
        return initialized(before, expected, 2_000, 50, lambda: next(ids))

    if given is None:
        with pytest.raises(TransactionRefusal, match="PRODUCER_FENCED"):
            initial()
        return
    made = initial()
    assert (made.producer_id, made.producer_epoch) == given
    assert (made.timeout_ms, made.update_ms, made.partitions) == (2_000, 50, frozenset())


def test_only_who_has_the_id_or_had_it_until_its_epochs_were_used_up_is_expected() -> None:
    known = record("Empty", 0, producer_id=8, last_producer_id=7, last_producer_epoch=LAST_EPOCH)
    check_expected(known, ProducerIdentity(8, 0))
    check_expected(known, ProducerIdentity(7, LAST_EPOCH))
    check_expected(record("Empty", -1), ProducerIdentity(99, 0))
    for other in (ProducerIdentity(7, 5), ProducerIdentity(9, LAST_EPOCH)):
        with pytest.raises(TransactionRefusal, match="PRODUCER_FENCED"):
            check_expected(known, other)


def test_a_fence_is_written_as_the_transaction_that_goes_on() -> None:
    fence = fenced(record("Ongoing"))
    assert fence.state is TransactionState.PREPARE_EPOCH_FENCE
    assert fence.producer_epoch == 4
    assert storable(fence) == fence._replace(state=TransactionState.ONGOING)
    assert storable(record("Empty")) == record("Empty")
