"""The states of a transaction by table, and the effect of each step on each state."""

from __future__ import annotations

from itertools import count

import pytest

from purgatory.kafka import (
    ErrorCode,
    ProducerIdentity,
    TopicPartition,
    TransactionRecord,
    TransactionRefusal,
    TransactionResult,
    TransactionState,
)
from purgatory.kafka.transactions.transaction_metadata import (
    FOLLOWERS,
    LAST_EPOCH,
    TV2,
    Transaction,
    check_expected,
    completed,
    initialized,
    is_ended,
    is_ended_with_bump,
    prepared,
    prepared_with_bump,
    with_partitions,
)

COMMIT, ABORT = TransactionResult.COMMIT, TransactionResult.ABORT
TP, OTHER = TopicPartition("out", 0), TopicPartition("out", 1)

# Kafka's table, read from its documentation: a row for each state, with its possible successors. It
# has PrepareEpochFence besides, between Ongoing and PrepareAbort, which is one step here.
KAFKA = {
    "Empty": "Empty Ongoing PrepareAbort Dead",
    "Ongoing": "Ongoing PrepareCommit PrepareAbort",
    "PrepareCommit": "CompleteCommit",
    "PrepareAbort": "CompleteAbort",
    "CompleteCommit": "Empty Ongoing PrepareAbort Dead",
    "CompleteAbort": "Empty Ongoing PrepareAbort Dead",
    "Dead": "",
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
        transaction.begin_transition(TransactionState(following))
        assert transaction.pending is TransactionState(following)
    else:
        with pytest.raises(AssertionError):
            transaction.begin_transition(TransactionState(following))


@pytest.mark.parametrize(
    ("state", "how", "answer"),
    [
        ("Empty", COMMIT, ErrorCode.INVALID_TXN_STATE),
        ("Empty", ABORT, ErrorCode.INVALID_TXN_STATE),
        ("Ongoing", COMMIT, False),
        ("Ongoing", ABORT, False),
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
def test_ends_are_accepted_by_state(state: str, how: TransactionResult, answer: object) -> None:
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
def test_partitions_are_added_to_a_transaction(
    state: str, partitions: set[TopicPartition], start_ms: int
) -> None:
    changed = with_partitions(record(state), [OTHER], 50)
    assert changed.state is TransactionState.ONGOING
    assert changed.partitions == partitions
    assert changed.start_ms == start_ms


@pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort"])
def test_ending_transaction_refuses_partitions(state: str) -> None:
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
def test_epochs_rise_with_each_initialization(
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


def test_expected_producer_is_the_present_or_the_exhausted_one() -> None:
    known = record("Empty", 0, producer_id=8, last_producer_id=7, last_producer_epoch=LAST_EPOCH)
    check_expected(known, ProducerIdentity(8, 0))
    check_expected(known, ProducerIdentity(7, LAST_EPOCH))
    check_expected(record("Empty", -1), ProducerIdentity(99, 0))
    for other in (ProducerIdentity(7, 5), ProducerIdentity(9, LAST_EPOCH)):
        with pytest.raises(TransactionRefusal, match="PRODUCER_FENCED"):
            check_expected(known, other)


# By state, version and the requester's epoch, if 3 is known: the result.
@pytest.mark.parametrize(
    ("state", "version", "epoch", "how", "answer"),
    [
        ("Ongoing", 2, 3, COMMIT, False),
        ("Ongoing", 2, 2, COMMIT, ErrorCode.PRODUCER_FENCED),
        ("Ongoing", 2, 4, COMMIT, ErrorCode.PRODUCER_FENCED),
        ("Empty", 0, 3, ABORT, False),
        ("Empty", 0, 3, COMMIT, ErrorCode.INVALID_TXN_STATE),
        ("Empty", 2, 2, ABORT, ErrorCode.PRODUCER_FENCED),
        ("PrepareCommit", 2, 2, COMMIT, ErrorCode.CONCURRENT_TRANSACTIONS),
        ("PrepareCommit", 2, 2, ABORT, ErrorCode.INVALID_TXN_STATE),
        ("PrepareCommit", 1, 2, COMMIT, ErrorCode.CONCURRENT_TRANSACTIONS),
        ("PrepareCommit", 2, 3, COMMIT, ErrorCode.PRODUCER_FENCED),
        ("CompleteCommit", 2, 2, COMMIT, True),
        ("CompleteCommit", 2, 2, ABORT, ErrorCode.INVALID_TXN_STATE),
        ("CompleteCommit", 2, 1, COMMIT, ErrorCode.PRODUCER_FENCED),
        ("CompleteCommit", 1, 2, COMMIT, True),
        ("CompleteCommit", 2, 3, COMMIT, ErrorCode.INVALID_TXN_STATE),
        ("CompleteCommit", 2, 3, ABORT, False),
        ("CompleteAbort", 2, 2, ABORT, True),
        ("CompleteAbort", 0, 2, ABORT, ErrorCode.PRODUCER_FENCED),
        ("CompleteAbort", 2, 2, COMMIT, ErrorCode.INVALID_TXN_STATE),
    ],
)
def test_ends_with_an_epoch_bump_are_accepted_by_state(
    state: str, version: int, epoch: int, how: TransactionResult, answer: object
) -> None:
    try:
        found: object = is_ended_with_bump(
            record(state, version=version), ProducerIdentity(7, epoch), how
        )
    except TransactionRefusal as refusal:
        found = refusal.code
    assert found == answer


@pytest.mark.parametrize(
    ("epoch", "marked", "following"),
    [
        (3, 4, (7, 4)),
        (LAST_EPOCH - 1, LAST_EPOCH, (7, LAST_EPOCH)),
        (LAST_EPOCH, LAST_EPOCH + 1, (100, 0)),
    ],
)
def test_last_epoch_is_followed_by_a_new_producer_id(
    epoch: int, marked: int, following: tuple[int, int]
) -> None:
    ids = count(100)
    decided = prepared_with_bump(record("Ongoing", epoch), COMMIT, 50, lambda: next(ids))
    assert (decided.producer_id, decided.producer_epoch) == (7, marked)
    assert decided.following == following
    assert (decided.version, decided.partitions) == (TV2, frozenset({TP}))
    complete = completed(decided, 60)
    assert (complete.producer_id, complete.producer_epoch) == complete.following == following
    # A producer without the response retries, and is known.
    assert is_ended_with_bump(complete, ProducerIdentity(7, epoch), COMMIT)
    with pytest.raises(TransactionRefusal, match=r"PRODUCER_FENCED|INVALID_PRODUCER_ID_MAPPING"):
        is_ended_with_bump(complete, ProducerIdentity(7, epoch - 1), COMMIT)


def test_end_of_version_1_keeps_the_epoch() -> None:
    decided = prepared(record("Ongoing"), ABORT, 50)
    assert decided.producer_epoch == completed(decided, 60).producer_epoch == 3
    assert decided.version == 0


def test_abort_lets_its_producer_go_on_with_the_next_epoch() -> None:
    aborted = completed(prepared_with_bump(record("Ongoing"), ABORT, 50, lambda: 100), 60)
    known = ProducerIdentity(7, 3)
    check_expected(aborted, known)
    following = initialized(aborted, known, 1_000, 70, lambda: 100)
    assert (following.producer_id, following.producer_epoch) == (7, 4)
    repeated = initialized(following, known, 1_000, 80, lambda: 100)
    assert (repeated.producer_id, repeated.producer_epoch) == (7, 4)
    begun = with_partitions(aborted, [TP], 70, TV2)
    with pytest.raises(TransactionRefusal, match="PRODUCER_FENCED"):
        is_ended_with_bump(begun, known, ABORT)


def test_epoch_above_the_last_one_stays() -> None:
    decided = prepared_with_bump(record("Ongoing", LAST_EPOCH + 1), ABORT, 50, lambda: 100)
    assert decided.producer_epoch == LAST_EPOCH + 1
    assert decided.following == ProducerIdentity(100, 0)
