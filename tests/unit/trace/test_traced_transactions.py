"""The table of transactions: each once, even if its records come twice or not at all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from purgatory.kafka import ProducerIdentity
from purgatory.kafka.groups.offsets import CommittedOffset, OffsetKey
from purgatory.kafka.transactions.transaction_metadata import TransactionRecord, TransactionState
from purgatory.trace.table_rows import CommitRow, TransactionRow
from purgatory.trace.traced_transactions import TracedTransactions

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, COMMITTED = TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT
PREPARE_ABORT, ABORTED = TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT
DEAD = TransactionState.DEAD


class Traced:
    """One transactional id, whose records come a microsecond after each other."""

    def __init__(self) -> None:
        self.rows: list[TransactionRow] = []
        self.commits: list[CommitRow] = []
        tables: Any = SimpleNamespace(transaction=self.rows.append, commit=self.commits.append)
        self.transactions = TracedTransactions(tables, lambda: self.now_us)
        self.now_us = 0

    def note(self, *states: TransactionState, epoch: int = 0, producer_id: int = 7) -> None:
        for state in states:
            self.now_us += 1
            record = TransactionRecord(state, producer_id, epoch, timeout_ms=1000)
            self.transactions.on_record("mine", record)

    def of_marker(self, producer_id: int) -> int | None:
        """The transaction in which an offset is committed that a producer's marker ends."""
        key = OffsetKey("readers", "orders", 0)
        self.transactions.on_offset_ended(producer_id, key, CommittedOffset(3, 0, ""), True)
        return self.commits[-1].transaction

    def of_send(self, epoch: int = 0, producer_id: int = 7) -> tuple[int, int | None]:
        return self.transactions.of_send("mine", ProducerIdentity(producer_id, epoch))


@pytest.fixture(name="traced")
def fixture_traced() -> Traced:
    return Traced()


def test_one_transaction_follows_the_other(traced: Traced) -> None:
    traced.note(EMPTY, ONGOING, PREPARE_COMMIT)
    assert traced.rows == [] and traced.of_send() == (0, 1)
    traced.note(COMMITTED, ONGOING)
    assert traced.of_send() == (0, 2)
    assert traced.of_marker(7) == 2
    traced.note(ONGOING, PREPARE_ABORT, ABORTED)  # ONGOING again: a partition was added
    assert traced.rows == [
        TransactionRow(1, "mine", 0, "committed", "producer", 1, 2, 3, 4),
        TransactionRow(2, "mine", 0, "aborted", "producer", 1, 5, 7, 8),
    ]
    traced.transactions.close()
    assert len(traced.rows) == 2


def test_epoch_of_a_coordinators_abort_is_not_the_transactions(traced: Traced) -> None:
    traced.note(EMPTY, ONGOING)
    traced.note(PREPARE_ABORT, ABORTED, epoch=1)
    traced.note(EMPTY, ONGOING, epoch=2)
    assert traced.rows == [TransactionRow(1, "mine", 0, "aborted", "coordinator", 1, 2, 3, 4)]
    assert [traced.of_send(epoch) for epoch in (0, 1, 2)] == [(0, 1), (1, None), (2, 2)]


def test_end_that_bumps_the_epoch_counts_as_the_producers(traced: Traced) -> None:
    known = TransactionRecord(ONGOING, 8, 5, 1000, version=2)
    for record in (
        known,
        known._replace(state=PREPARE_COMMIT, producer_epoch=6),
        known._replace(state=COMMITTED, producer_epoch=6),
    ):
        traced.now_us += 1
        traced.transactions.on_record("mine", record)
    assert traced.rows == [TransactionRow(1, "mine", 5, "committed", "producer", None, 1, 2, 3)]


def test_abort_by_the_coordinator_counts_as_its_own(traced: Traced) -> None:
    ongoing = TransactionRecord(ONGOING, 8, 5, 1000, version=2)
    abort = ongoing._replace(state=PREPARE_ABORT, producer_epoch=6, by_coordinator=True)
    for record in (ongoing, abort, abort._replace(state=ABORTED, by_coordinator=False)):
        traced.now_us += 1
        traced.transactions.on_record("mine", record)
    assert traced.rows == [TransactionRow(1, "mine", 5, "aborted", "coordinator", None, 1, 2, 3)]


def test_record_repeated_by_a_new_coordinator_counts_once(traced: Traced) -> None:
    traced.note(EMPTY, EMPTY, ONGOING, ONGOING, PREPARE_COMMIT, PREPARE_COMMIT)
    traced.note(COMMITTED, COMMITTED)
    assert traced.rows == [TransactionRow(1, "mine", 0, "committed", "producer", 1, 3, 5, 7)]


def test_states_missed_with_a_dead_coordinator_are_inferred(traced: Traced) -> None:
    traced.note(EMPTY, PREPARE_COMMIT, COMMITTED)
    traced.note(ONGOING, ABORTED)
    traced.note(COMMITTED)
    assert traced.rows == [
        TransactionRow(1, "mine", 0, "committed", "producer", 1, 2, 2, 3),
        TransactionRow(2, "mine", 0, "aborted", "producer", 1, 4, None, 5),
    ]


def test_open_transactions_are_written_at_the_end(traced: Traced) -> None:
    traced.note(ONGOING)
    other = TransactionRecord(ONGOING, 8, 0, 1000)
    traced.now_us = 5
    traced.transactions.on_record("other", other)
    traced.now_us = 6
    traced.transactions.on_record("other", other._replace(state=PREPARE_ABORT))
    traced.transactions.close()
    traced.transactions.close()
    assert traced.rows == [
        TransactionRow(1, "mine", 0, "open", None, None, 1, None, None),
        TransactionRow(2, "other", 0, "aborted", "producer", None, 5, 6, None),
    ]


def test_epochs_continue_with_the_next_producer_id(traced: Traced) -> None:
    traced.note(EMPTY, ONGOING, PREPARE_COMMIT, COMMITTED, epoch=2**15 - 2)
    traced.note(EMPTY, ONGOING, producer_id=9)
    traced.note(DEAD, producer_id=9)
    assert traced.of_send(2**15 - 2) == (2**15 - 2, 1)
    assert traced.of_send(0, producer_id=9) == (2**15, 2)


def test_producer_without_an_id_is_in_no_transaction(traced: Traced) -> None:
    assert traced.of_send(3) == (3, None)
    traced.note(EMPTY, ONGOING)
    assert traced.of_send(3, producer_id=99) == (3, None)
    assert traced.of_send(3) == (3, None)
    assert traced.of_marker(99) is None


def test_transactions_of_recent_epochs_are_remembered(traced: Traced) -> None:
    for epoch in range(1000):
        traced.note(EMPTY, ONGOING, PREPARE_COMMIT, COMMITTED, epoch=epoch)
    assert traced.of_send(999) == (999, 1000)
    assert traced.of_send(0) == (0, None)
    assert all(row.epoch_us == row.begun_us - 1 for row in traced.rows)
