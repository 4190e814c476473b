"""By transaction: a reader of the target sees whole transactions of the source only."""

from __future__ import annotations

import random

import pytest

from purgatory.cdc import Applied, ApplyOptions, QuarantineStopError, Record, Target
from purgatory.cdc.apply import transactions as module
from purgatory.cdc.apply.exactly_once import Writer
from purgatory.cdc.apply.transactions import apply_transactions
from purgatory.cdc.errors import ChangesError
from tests.databases.cdc.change_log import (
    as_list,
    cut,
    quarantined,
    random_log,
    raw,
    record,
    rows_of,
)


def change(offset: int, xid: int, xoffset: int, key: int, last: bool = False, n: int = 0) -> Record:
    """An upsert of a row; keys up to 9 are in partition 0, others in 1."""
    return record(
        offset,
        partition=int(key > 9),
        xid=xid,
        xoffset=xoffset,
        commit=last,
        position=f"binlog.000001:{xid * 100}",
        data={"id": key, "n": n},
    )


def test_transaction_waits_for_its_last_change(target: Target) -> None:
    writer = Writer(target)
    assert apply_transactions(writer, [change(0, 1, 0, 1), change(1, 1, 1, 2)]) == Applied(
        pending=2
    )
    assert target.table("orders") is None or rows_of(target) == []
    assert apply_transactions(writer, [change(2, 1, 2, 3, last=True)]) == Applied(
        applied=3, pending=-2
    )
    assert [row["id"] for row in rows_of(target)] == [1, 2, 3]
    assert target.select_own("purgatory_pending") == []


def test_a_transaction_waits_for_its_changes_in_other_partitions(target: Target) -> None:
    writer = Writer(target)
    apply_transactions(writer, [change(0, 1, 0, 1), change(1, 1, 2, 2, last=True)])
    assert target.table("orders") is None
    apply_transactions(writer, [change(0, 1, 1, 11)])
    assert [row["id"] for row in rows_of(target)] == [1, 2, 11]


def test_unfinished_transaction_blocks_later_records_everywhere(
    target: Target,
) -> None:
    writer = Writer(target)
    log = [
        change(0, 1, 0, 1, n=1),
        change(1, 2, 0, 1, last=True, n=2),
        change(0, 3, 0, 11, last=True),
    ]
    assert apply_transactions(writer, log) == Applied(pending=3)
    assert target.table("orders") is None
    apply_transactions(writer, [change(1, 1, 1, 12, last=True)])
    assert rows_of(target) == [{"id": 1, "n": 2}, {"id": 11, "n": 0}, {"id": 12, "n": 0}]


def test_transactions_take_effect_in_the_order_of_the_binlog(target: Target) -> None:
    # The row's key moved from one partition's to the other's, as Maxwell itself writes it.
    moved = record(
        0,
        partition=1,
        type="update",
        xid=2,
        xoffset=0,
        commit=True,
        position="binlog.000001:200",
        data={"id": 11, "n": 1},
        old={"id": 1},
    )
    apply_transactions(Writer(target), [moved, change(0, 1, 0, 1, last=True, n=1)])
    assert rows_of(target) == [{"id": 11, "n": 1}]


def test_effects_have_times_in_the_order_of_application(target: Target) -> None:
    writer = Writer(target, ApplyOptions(audit_log=True))
    # Partition 1 has the first changes.
    log = [change(0, 2, 0, 1), change(1, 2, 2, 2, last=True), change(0, 1, 0, 10, last=True)]
    apply_transactions(writer, [*log, change(1, 2, 1, 11)])
    effects = sorted(target.select_own("purgatory_effects"), key=lambda row: row[5])
    assert [row[1:3] for row in effects] == [(1, 0), (0, 0), (1, 1), (0, 1)]
    assert len({row[5] for row in effects}) == len(effects)


@pytest.mark.parametrize("seed", range(4))
def test_random_batches_with_replays_give_the_sources_table(target: Target, seed: int) -> None:
    log, rows = random_log(seed, 240, keys=12)
    writer = Writer(target)
    for batch in cut(log, random.Random(seed)):
        apply_transactions(writer, batch)
        # Transactions have three changes: the waiting changes are part of one.
        assert len(target.select_own("purgatory_pending")) < 3
    assert rows_of(target) == as_list(rows)


def test_last_change_of_maxwell_may_lack_its_number(target: Target) -> None:
    last = record(1, xid=1, commit=True, data={"id": 2, "n": 0})
    assert apply_transactions(Writer(target), [change(0, 1, 0, 1), last]) == Applied(applied=2)


def test_bad_change_does_not_stop_its_transaction(
    target: Target,
) -> None:
    no_key = record(1, xid=1, xoffset=1, data={"n": 0})
    log = [change(0, 1, 0, 1), no_key, change(2, 1, 2, 2, last=True), raw(3, b"{")]
    assert apply_transactions(Writer(target), log) == Applied(applied=2, quarantined=2)
    assert quarantined(target) == [(1, "missing key"), (3, "malformed")]


def test_stop_at_a_bad_change_keeps_earlier_transactions(target: Target) -> None:
    writer = Writer(target, ApplyOptions(stop_on_quarantine=True))
    no_key = record(2, xid=2, xoffset=1, commit=True, data={"n": 0}, position="b.000001:200")
    log = [change(0, 1, 0, 1, last=True), change(1, 2, 0, 2), no_key, change(3, 3, 0, 3, last=True)]
    for _ in range(2):
        with pytest.raises(QuarantineStopError, match="offset 2: missing key"):
            apply_transactions(writer, log)
        assert [row["id"] for row in rows_of(target)] == [1]
    became = apply_transactions(Writer(target), log)
    assert became == Applied(applied=2, skipped=1, quarantined=1)
    assert [row["id"] for row in rows_of(target)] == [1, 2, 3]


def test_gap_in_the_log_is_reported_before_applying_more(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING_BEHIND", 3)
    # Number 0 of the first transaction is missing, and others come behind it.
    log = [change(0, 7, 1, 1, last=True)]
    log += [change(offset, 7 + offset, 0, 1, last=True) for offset in range(1, 5)]
    with pytest.raises(ChangesError, match="more than 3 records wait for the rest of transaction"):
        apply_transactions(Writer(target), log)
    assert target.select_own("purgatory_pending") == []


def test_growing_transaction_is_not_reported_as_incomplete(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING_BEHIND", 3)
    writer = Writer(target)
    # The other partition is far behind it, and this one still has changes of it.
    log = [change(offset, 7, offset, offset) for offset in range(8)]
    log += [change(offset, 8 + offset, 0, 11, last=True) for offset in range(8)]
    assert apply_transactions(writer, log) == Applied(pending=16)
    rest = [change(8, 7, 8, 8, last=True)]
    assert apply_transactions(writer, rest) == Applied(applied=17, pending=-16)
