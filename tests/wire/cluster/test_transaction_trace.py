"""Transactions of real clients in a cluster's trace."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from purgatory.cluster import ClusterConfig, ThreadedCluster
from purgatory.cluster.trace import ClusterTrace
from purgatory.trace.table_rows import CommitRow, OperationRow, ReadRow, SendRow, TransactionRow
from tests.wire.cluster.transactional_run import (
    COMMITTED,
    INPUTS,
    RESULTS,
    UNCOMMITTED,
    copy_in_transactions,
    create_topics,
    producer,
    read_results,
    take_over,
)

INPUT_COUNT = 8
# Each third is aborted, and done again: 8 of 11 are committed.
ABORTED_COUNT = 3


class Rows:
    """The rows of a trace, in lists."""

    def __init__(self) -> None:
        self.operations: list[OperationRow] = []
        self.sends: list[SendRow] = []
        self.reads: list[ReadRow] = []
        self.commits: list[CommitRow] = []
        self.transactions: list[TransactionRow] = []
        self.operation, self.send = self.operations.append, self.sends.append
        self.read, self.commit = self.reads.append, self.commits.append
        self.transaction = self.transactions.append


@pytest.fixture(name="rows", scope="module")
def fixture_rows() -> Rows:
    """Of a run with commits, aborts, a producer that is fenced, and one that is still busy."""
    rows = Rows()
    trace = ClusterTrace(rows)
    with ThreadedCluster(ClusterConfig(brokers=3), trace) as cluster:
        create_topics(cluster)
        copy_in_transactions(cluster, INPUT_COUNT)
        take_over(cluster)
        for isolation in (COMMITTED, UNCOMMITTED):
            read_results(cluster, isolation)
        busy = producer(cluster, "busy", **{"transactional.id": "busy"})
        busy.begin_transaction()
        busy.produce(INPUTS, b"not yet", partition=0)
        busy.flush(10)
    trace.close()
    return rows


def test_each_transaction_is_recorded_once_with_its_end(rows: Rows) -> None:
    told = Counter((row.transactional_id, row.outcome, row.ended_by) for row in rows.transactions)
    assert told == {
        ("copier", "committed", "producer"): INPUT_COUNT,
        ("copier", "aborted", "producer"): ABORTED_COUNT,
        ("taken over", "aborted", "coordinator"): 1,
        ("taken over", "committed", "producer"): 1,
        ("busy", "open", None): 1,
    }
    numbers = [row.transaction for row in rows.transactions]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_times_of_a_transaction_are_in_order(rows: Rows) -> None:
    for row in rows.transactions:
        times = [row.epoch_us, row.begun_us, row.decided_us, row.ended_us]
        known = [time for time in times if time is not None]
        assert known == sorted(known)
        assert len(known) == (2 if row.outcome == "open" else 4)
    zombie, successor = (row for row in rows.transactions if row.transactional_id == "taken over")
    assert zombie.epoch < successor.epoch
    assert zombie.ended_us is not None and successor.epoch_us is not None
    assert zombie.ended_us <= successor.epoch_us


def test_sends_have_their_transaction(rows: Rows) -> None:
    of = {row.transaction: row for row in rows.transactions}
    records = defaultdict(set)
    for send in rows.sends:
        if send.group == "source":
            assert (send.transactional_id, send.epoch, send.transaction) == (None, None, None)
            continue
        transaction = of[send.transaction or 0]
        assert (send.transactional_id, send.epoch) == (
            transaction.transactional_id,
            transaction.epoch,
        )
        assert transaction.begun_us <= send.send_us
        assert send.outcome != "ok" or send.send_us <= (transaction.decided_us or send.send_us)
        records[transaction.transactional_id, transaction.outcome].add(send.value_id)
    assert {key: len(values) for key, values in records.items() if key[0] != "taken over"} == {
        ("copier", "committed"): 2 * INPUT_COUNT,
        ("copier", "aborted"): 2 * ABORTED_COUNT,
        ("busy", "open"): 1,
    }


def test_reads_have_their_isolation_level(rows: Rows) -> None:
    of = {send.value_id: send.transaction for send in rows.sends}
    outcomes = {row.transaction: row.outcome for row in rows.transactions}
    seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for read in rows.reads:
        if read.topic == RESULTS:
            assert read.isolation == read.group, "each reader has the name of its isolation"
            seen[read.group][outcomes[of[read.value_id] or 0]] += 1
    assert seen[COMMITTED] == {"committed": 2 * INPUT_COUNT + 1}
    assert seen[UNCOMMITTED] == {
        "committed": 2 * INPUT_COUNT + 1,
        "aborted": 2 * ABORTED_COUNT + 1,
    }


def test_offsets_hold_or_are_dropped_with_their_transactions(rows: Rows) -> None:
    outcomes = {row.transaction: row.outcome for row in rows.transactions}
    told = [
        (row.group, row.topic, row.offset, outcomes[row.transaction or 0], row.held)
        for row in rows.commits
    ]
    held = [("copies", INPUTS, offset, "committed", True) for offset in range(1, 9)]
    dropped = [("copies", INPUTS, offset, "aborted", False) for offset in (3, 5, 7)]
    assert sorted(told) == sorted(held + dropped)
