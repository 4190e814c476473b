"""Transactions beyond the memory limit: whole or not at all, under kills."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from purgatory.cdc import Record, Target, open_target
from purgatory.cdc.apply import transactions as module
from purgatory.cdc.apply.exactly_once import Writer
from purgatory.cdc.apply.transactions import apply_transactions, drain_pending
from purgatory.cdc.column_types import Value
from tests.databases.cdc.change_log import TOPIC, record, rows_of
from tests.databases.cdc.large_transaction import PARTITIONS, changes

LARGE = 600
_ROOT = Path(__file__).parents[4]


class KilledError(BaseException):
    """Ends the work as a kill does: never caught."""


def killing(target: Target, after: int) -> Target:
    """Make a target fail for good at one of its statements; its transaction is never committed."""
    left = after

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(sql: str, *values: Sequence[Value]) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise KilledError
            return method(sql, *values)

        return run

    for name in ("_run", "_run_many"):
        setattr(target, name, counted(getattr(target, name)))
    return target


def log_of(seed: int) -> list[Record]:
    """A small transaction, a large one, and small ones behind it, in six partitions."""
    records = list(changes(LARGE))
    offsets = dict.fromkeys(range(PARTITIONS), LARGE // PARTITIONS)
    for number in range(40):
        partition = number % PARTITIONS
        records.append(
            record(
                offsets[partition],
                partition=partition,
                type="delete" if number % 3 == 0 else "update",
                xid=8 + number,
                xoffset=0,
                commit=True,
                position=f"binlog.000001:{(8 + number) * 100}",
                data={"id": number, "name": "late", "n": number},
            )
        )
        offsets[partition] += 1
        if number % 10 == 0:
            mark = b'{"type": "heartbeat", "database": "purgatory"}'
            records.append(Record(TOPIC, partition, offsets[partition], None, mark))
            offsets[partition] += 1
    return shuffled(records, random.Random(seed))


def shuffled(records: Sequence[Record], chance: random.Random) -> list[Record]:
    """Partitions at different paces, each in its own order."""
    queues = [[one for one in records if one.partition == p] for p in range(PARTITIONS)]
    found = []
    while any(queues):
        queue = chance.choice([queue for queue in queues if queue])
        count = chance.randrange(1, 30)
        found += queue[:count]
        del queue[:count]
    return found


def batches(records: Sequence[Record], size: int) -> list[Sequence[Record]]:
    return [records[at : at + size] for at in range(0, len(records), size)]


def expected() -> list[dict[str, Any]]:
    rows = {n: {"id": n, "name": f"name {n}", "n": n % 1000} for n in range(LARGE)}
    for number in range(40):
        if number % 3 == 0:
            del rows[number]
        else:
            rows[number] = {"id": number, "name": "late", "n": number}
    return [dict(sorted(row.items())) for row in rows.values()]


@pytest.fixture(autouse=True)
def low_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_RECORDS", 50)


@pytest.mark.parametrize("seed", range(3))
def test_transaction_larger_than_a_chunk_is_atomic(target: Target, url: str, seed: int) -> None:
    writer = Writer(target)
    reader = open_target(url)
    seen = set()
    for batch in batches(log_of(seed), 37):
        apply_transactions(writer, batch)
        table = reader.table("orders")
        seen.add(0 if table is None else len(rows_of(reader)))
    reader.close()
    assert min(count for count in seen if count) > LARGE - 40
    assert rows_of(target) == expected()
    assert target.select_own("purgatory_pending") == []


def test_open_transaction_is_not_read_again_for_each_batch(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_rows = []
    pending = target.pending

    def counted(*arguments: Any, **more: Any) -> list[tuple[Any, ...]]:
        found = pending(*arguments, **more)
        read_rows.append(len(found))
        return found

    monkeypatch.setattr(target, "pending", counted)
    writer = Writer(target)
    log = batches(list(changes(LARGE)), 20)
    for batch in log[:-1]:
        apply_transactions(writer, batch)
    # Without a memory of what is incomplete, it was up to 101 rows for each of 29 batches.
    assert sum(read_rows) < 400
    apply_transactions(writer, log[-1])
    assert len(rows_of(target)) == LARGE


@pytest.mark.parametrize("late", ["the rest", "an earlier one"])
def test_open_transaction_ends_by_records_of_another_writer(target: Target, late: str) -> None:
    log = list(changes(LARGE))
    first, other = Writer(target), Writer(target)
    for batch in batches(log[:300], 20):
        apply_transactions(first, batch)
    for batch in batches(log[300:-20], 20):
        apply_transactions(other, batch)
    if late == "an earlier one":
        earlier = {"id": 10_000, "name": "earlier", "n": 1}
        position = "binlog.000001:1"
        before = record(
            0, partition=7, xid=1, xoffset=0, commit=True, position=position, data=earlier
        )
        assert apply_transactions(other, [before]).applied == 1
    assert apply_transactions(first, log[-20:]).applied == LARGE
    assert target.select_own("purgatory_pending") == []


def test_apply_killed_at_any_statement_has_each_change_once(url: str) -> None:
    chance = random.Random(11)
    log = batches(log_of(5), 120)
    opened = open_target(url)
    opened.prepare()
    opened.close()
    kills = 0
    for batch in log:
        for attempt in itertools.count(1):
            # Later ones get further, so that one comes to its end.
            target = killing(open_target(url), chance.randrange(20 * attempt))
            try:
                drain_pending(Writer(target), TOPIC, by_transaction=True)
                apply_transactions(Writer(target), batch)
                break
            except KilledError:
                kills += 1
                assert len(_rows(url)) in (0, *range(LARGE - 40, LARGE + 1))
            finally:
                target.close()
    assert kills > 10
    assert _rows(url) == expected()


def _rows(url: str) -> list[dict[str, Any]]:
    reader = open_target(url)
    try:
        return [] if reader.table("orders") is None else rows_of(reader)
    finally:
        reader.close()


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
def test_transaction_of_a_million_changes_needs_little_memory(url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.databases.cdc.large_transaction", "1000000", url],
        capture_output=True,
        text=True,
        cwd=_ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["applied"] == 1_000_000
    assert told["peak_mib"] < 400
