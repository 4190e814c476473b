"""A process that applies a log and is killed at a chosen point: by SIGKILL, its own.

    python -m tests.databases.cdc.killed_apply MODE URL LOG OFFSETS KILL_AT

MODE is `together` (as the product does), `transactions` (the same, by transaction, with the changes
of each in two partitions), `whole` (by transaction, in one partition), `offset-first` or
`results-first` (offsets apart, in the file OFFSETS: what one is warned of). KILL_AT is `POINT:N`:
at the N-th transaction with changes of this process, `before` it, `within` it, at its `commit` (not
done yet), or `after` it; `never`. Of the other modes `between` is the point between results and
offset.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from purgatory.cdc import ApplyOptions, Record, Target
from purgatory.cdc.apply.exactly_once import Writer
from purgatory.cdc.apply.files import file_topic
from purgatory.cdc.apply.transactions import apply_rows, apply_transactions
from purgatory.cdc.column_types import Value
from purgatory.cdc.targets.postgres import PostgresTarget
from purgatory.cdc.targets.sqlite import SqliteTarget

BATCH_RECORDS = 20


class KillPoint:
    """The point at which this process is killed."""

    def __init__(self, text: str) -> None:
        self.point, _, number = text.partition(":")
        self._left = int(number or 0)

    def reached(self, point: str) -> None:
        """Kill the process if this is the kill point."""
        if point == self.point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class _Killed:
    """Makes a target kill its process; precedes it in the bases."""

    kill_point: KillPoint
    _in_batch = False
    _is_within_another = False

    def lock_offset(self, topic: str, partition: int) -> int:
        self._in_batch = True
        return super().lock_offset(topic, partition)  # type: ignore[misc,no-any-return]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self._is_within_another:
            with super().transaction():  # type: ignore[misc]
                yield
            return
        self._is_within_another, self._in_batch = True, False
        try:
            with super().transaction():  # type: ignore[misc]
                yield
                if self._in_batch:
                    self.kill_point.reached("commit")
        finally:
            self._is_within_another = False
        if self._in_batch:
            self._in_batch = False
            self.kill_point.reached("after")

    def _run(self, sql: str, values: Sequence[Value] = ()) -> Any:
        if sql.startswith("BEGIN"):
            self.kill_point.reached("before")
        return super()._run(sql, values)  # type: ignore[misc]

    def _run_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        super()._run_many(sql, rows)  # type: ignore[misc]
        if "orders" in sql:
            self.kill_point.reached("within")


class KilledSqliteTarget(_Killed, SqliteTarget):
    pass


class KilledPostgresTarget(_Killed, PostgresTarget):
    pass


def open_killed(url: str, kill_at: str) -> Target:
    """A target that kills its process at the kill point."""
    target: KilledSqliteTarget | KilledPostgresTarget
    if url.startswith("sqlite:///"):
        target = KilledSqliteTarget(url.removeprefix("sqlite:///"))
    else:
        target = KilledPostgresTarget(url)
    target.kill_point = KillPoint(kill_at)
    return target


class _NoOffsets:
    """A target without offsets, for ways that store them elsewhere."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def lock_offset(self, topic: str, partition: int) -> int:
        return 0

    def store_offset(self, topic: str, partition: int, next_offset: int) -> None:
        pass


def records_of(log: Path) -> list[Record]:
    """The records of a file of lines."""
    topic = file_topic(log)
    return [
        Record(topic, 0, number, None, line)
        for number, line in enumerate(log.read_bytes().splitlines())
    ]


def spread(records: Sequence[Record]) -> list[Record]:
    """The same in two partitions by turns, each with offsets of its own."""
    return [
        record._replace(partition=number % 2, offset=number // 2)
        for number, record in enumerate(records)
    ]


def apply_by_transaction(target: Target, records: Sequence[Record]) -> None:
    """Apply as the product does with `--atomicity transaction`."""
    writer = Writer(target, ApplyOptions(audit_log=True))
    for batch in _batches(records, target.select_own("purgatory_offsets")):
        apply_transactions(writer, batch)


def apply_together(target: Target, records: Sequence[Record]) -> None:
    """Apply as the product does."""
    writer = Writer(target, ApplyOptions(audit_log=True))
    for batch in _batches(records, target.select_own("purgatory_offsets")):
        apply_rows(writer, *batch[0].topic_partition, batch)


def apply_apart(
    target: Target, offsets: Target, records: Sequence[Record], kill: KillPoint, first: bool
) -> None:
    """With the offsets in another database, stored before (`first`) or after the results."""
    writer = Writer(cast(Target, _NoOffsets(target)), ApplyOptions(audit_log=True))
    # This way ignores the offsets in the database of the results.
    writer.audit_log.log_commits = lambda ends: None  # type: ignore[method-assign]
    store = Writer(offsets, ApplyOptions(audit_log=True))
    for batch in _batches(records, offsets.select_own("purgatory_offsets")):
        place, end = batch[0].topic_partition, batch[-1].offset + 1

        def store_offset(place: tuple[str, int] = place, end: int = end) -> None:
            with offsets.transaction():
                offsets.lock_offset(*place)
                offsets.store_offset(*place, end)
                store.audit_log.log_commits([(*place, end)])

        parsed = writer.parse(batch)
        writer.plan_rows(parsed)
        writer.audit_log.log_reads(parsed.items)
        if first:
            store_offset()
            kill.reached("between")
        writer.commit(*place, parsed)
        if not first:
            kill.reached("between")
            store_offset()


def _batches(
    records: Sequence[Record], stored: Sequence[tuple[Any, ...]]
) -> Iterator[Sequence[Record]]:
    ends = {int(row[1]): int(row[2]) for row in stored}
    left = [record for record in records if record.offset >= ends.get(record.partition, 0)]
    for at in range(0, len(left), BATCH_RECORDS):
        yield left[at : at + BATCH_RECORDS]


def main(mode: str, url: str, log: str, offsets_path: str, kill_at: str) -> None:
    records = records_of(Path(log))
    as_the_product_does = mode in ("together", "transactions", "whole")
    target = open_killed(url, kill_at if as_the_product_does else "never")
    target.prepare()
    if mode in ("transactions", "whole"):
        apply_by_transaction(target, spread(records) if mode == "transactions" else records)
        return
    if mode == "together":
        apply_together(target, records)
        return
    offsets = SqliteTarget(offsets_path)
    offsets.prepare()
    apply_apart(target, offsets, records, KillPoint(kill_at), mode == "offset-first")


if __name__ == "__main__":
    main(*sys.argv[1:])
