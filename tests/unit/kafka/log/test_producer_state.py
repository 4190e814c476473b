from __future__ import annotations

import pytest

from purgatory.kafka import (
    AppendOrigin,
    ErrorCode,
    KafkaError,
    Log,
    ProducerStates,
    RecordBatch,
    TransactionResult,
)
from purgatory.kafka.log.producer_state import MAX_CACHED_BATCHES

PRODUCER = 7


def numbered(sequence: int, count: int = 1, epoch: int = 0, offset: int = 0) -> RecordBatch:
    return RecordBatch(
        offset, count, 100, producer_id=PRODUCER, producer_epoch=epoch, base_sequence=sequence
    )


def states_after(*batches: RecordBatch) -> ProducerStates:
    states = ProducerStates()
    for batch in batches:
        assert duplicate_of(states, batch) is None
        states.update(batch)
    states._check(1_000)
    return states


def duplicate_of(states: ProducerStates, batch: RecordBatch) -> int | None:
    known = states.find_duplicate(batch, AppendOrigin.CLIENT)
    return None if known is None else known.first_offset


def refused(states: ProducerStates, batch: RecordBatch) -> ErrorCode:
    before = states.to_json()
    with pytest.raises(KafkaError) as failure:
        states.find_duplicate(batch, AppendOrigin.CLIENT)
    assert states.to_json() == before
    return failure.value.code


def test_the_next_sequence_is_accepted() -> None:
    states = states_after(numbered(0, 3, offset=10), numbered(3, 2, offset=13))

    assert duplicate_of(states, numbered(5)) is None
    assert len(states) == 1


def test_duplicate_returns_the_first_offset() -> None:
    states = states_after(numbered(0, 3, offset=10), numbered(3, 2, offset=20))

    assert duplicate_of(states, numbered(0, 3)) == 10
    assert duplicate_of(states, numbered(3, 2)) == 20


def test_a_gap_is_refused() -> None:
    states = states_after(numbered(0, 3))

    assert refused(states, numbered(4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_error_of_a_gap_names_the_sent_and_the_expected_sequence() -> None:
    states = states_after(numbered(0, 3))

    with pytest.raises(KafkaError, match="producer 7 in epoch 0 sent sequence 9, expected was 3"):
        states.find_duplicate(numbered(9), AppendOrigin.CLIENT)


def test_the_last_five_batches_are_remembered_and_not_a_sixth() -> None:
    states = states_after(*(numbered(n, offset=n + 100) for n in range(6)))

    assert MAX_CACHED_BATCHES == 5
    for sequence in range(1, 6):
        assert duplicate_of(states, numbered(sequence)) == sequence + 100
    assert refused(states, numbered(0)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_that_overlaps_a_known_one_is_no_duplicate() -> None:
    states = states_after(numbered(0, 3))

    assert refused(states, numbered(0, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(states, numbered(1, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_old_epoch_is_refused_even_for_a_duplicate() -> None:
    states = states_after(numbered(0, epoch=3, offset=0), numbered(0, epoch=4, offset=1))

    assert refused(states, numbered(0, epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_new_epoch_begins_at_sequence_0() -> None:
    states = states_after(numbered(0), numbered(1, offset=1))

    assert refused(states, numbered(2, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert duplicate_of(states, numbered(0, epoch=1)) is None


def test_sequences_wrap_to_0() -> None:
    states = ProducerStates()
    states.update(numbered(2**31 - 1))

    assert duplicate_of(states, numbered(0)) is None
    assert refused(states, numbered(1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_unknown_producer_begins_at_any_sequence() -> None:
    assert duplicate_of(ProducerStates(), numbered(5)) is None


def in_transaction(sequence: int, epoch: int = 0) -> RecordBatch:
    return RecordBatch(0, 1, 100, -1, PRODUCER, epoch, sequence, transactional=True)


@pytest.mark.parametrize(
    ("adds", "verified", "accepted"),
    [(False, [5], [5, 4]), (False, [5, 3], [3]), (True, [5], [0]), (True, [5, 0], [0])],
)
def test_verified_transaction_begins_with_its_first_batch(
    adds: bool, verified: list[int], accepted: list[int]
) -> None:
    states = ProducerStates()
    for sequence in verified:
        assert states.begin_verification(in_transaction(sequence), adds=adds)
    for sequence in range(8):
        batch = in_transaction(sequence)
        if sequence in accepted or (not adds and sequence < min(verified)):
            assert duplicate_of(states, batch) is None
        else:
            assert refused(states, batch) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_verification_of_a_later_epoch_replaces_the_former() -> None:
    states = ProducerStates()
    for sequence, epoch in ((3, 0), (5, 1), (2, 0)):
        assert states.begin_verification(in_transaction(sequence, epoch), adds=False)
    assert duplicate_of(states, in_transaction(5, 1)) is None


def test_open_transaction_is_not_verified_again() -> None:
    states = ProducerStates()
    assert states.begin_verification(in_transaction(0), adds=False)
    states.update(in_transaction(0))
    assert not states.begin_verification(in_transaction(1), adds=False)
    assert states.begin_verification(in_transaction(0, 1), adds=False), "its next one"


@pytest.mark.parametrize("batch", [numbered(-1), numbered(0, epoch=-1)])
def test_a_producer_without_epoch_or_sequence_is_refused(batch: RecordBatch) -> None:
    assert refused(ProducerStates(), batch) is ErrorCode.INVALID_RECORD


def test_a_client_may_not_end_a_transaction_itself() -> None:
    marker = RecordBatch.end_transaction(PRODUCER, 0, TransactionResult.COMMIT)

    assert refused(ProducerStates(), marker) is ErrorCode.INVALID_RECORD


def test_a_batch_outside_of_the_open_transaction_is_refused() -> None:
    states = ProducerStates()
    states.update(
        RecordBatch(
            0,
            1,
            100,
            producer_id=PRODUCER,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
    )

    assert refused(states, numbered(1)) is ErrorCode.INVALID_TXN_STATE


def test_a_copy_is_independent() -> None:
    states = states_after(numbered(0))
    copy = states.copy()
    before = states.to_json()

    copy.update(numbered(1, offset=1))

    assert states.to_json() == before
    assert copy.to_json() != before


def test_truncation_rebuilds_the_state_of_remaining_batches() -> None:
    log = Log()
    for sequence in range(8):
        log.append(numbered(sequence, offset=sequence).with_offset(sequence, 1))

    log.truncate_to(4)

    entry = log.producers.entry(PRODUCER)
    assert entry is not None
    assert entry.last_sequence == 3
    assert duplicate_of(log.producers, numbered(0)) == 0  # a duplicate again: among the last five
    assert duplicate_of(log.producers, numbered(4)) is None
    log._check()
