"""Applies batches to a target, and reconnects when the target was away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from purgatory.cdc.apply.audit_log import write_trace
from purgatory.cdc.apply.options import ApplyOptions
from purgatory.cdc.apply.tables import SchemaMovedError
from purgatory.cdc.apply.transactions import apply_transactions, settle
from purgatory.cdc.apply.writer import Applied, BadChangeMetError, Writer, stopped
from purgatory.cdc.change import Record
from purgatory.cdc.errors import Quarantined, StoppedOnBadError, TargetError, TargetGoneError
from purgatory.cdc.targets.target import Target

T = TypeVar("T")

RETRY_FOR_S = 60.0
"""How long a target may be away."""

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_MOST_COUNTED = 1_000_000_000


class Applier:
    """Applies batches, over a new connection where the old one is lost. One thread at a time.

    Use it as a context manager, or close it.

    Args:
        connect: opens a target.
        options: how to apply.
        retry_for_s: for how many seconds a batch is tried again when the target is away.
        prepare: make the own tables that are missing.

    Raises:
        TargetError: the target can't be reached now.
    """

    def __init__(
        self,
        connect: Callable[[], Target],
        options: ApplyOptions,
        *,
        retry_for_s: float = RETRY_FOR_S,
        prepare: bool = True,
    ) -> None:
        self._connect = connect
        self._options = options
        self._retry_for_s = retry_for_s
        self._prepare = prepare
        self._writer: Writer | None = None
        self._retried(lambda writer: None, 0)

    def __enter__(self) -> Applier:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._writer is not None:
            self._writer.target.close()
            self._writer = None

    def apply_batch(self, topic: str, partition: int, records: Sequence[Record]) -> Applied:
        """See `apply.apply_batch`. A batch whose commit got no answer is skipped if it is there.

        Raises:
            TargetError: the target does not come back, or can't do what it must.
            StoppedOnBadError: as there.
        """
        return self._retried(
            lambda writer: apply_rows(writer, topic, partition, records), self._retry_for_s
        )

    def apply_transactions(self, records: Sequence[Record]) -> Applied:
        """See `transactions.apply_transactions`; raises the same as `apply_batch`."""
        return self._retried(lambda writer: apply_transactions(writer, records), self._retry_for_s)

    def settle(self, topic: str, *, by_transaction: bool) -> Applied:
        """See `transactions.settle`: what a run that was killed has left waiting."""
        return self._retried(
            lambda writer: settle(writer, topic, by_transaction=by_transaction), self._retry_for_s
        )

    def next_offsets(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        """The next offset of each partition of which something was applied, by topic."""
        wanted = set(topics)
        rows = self._retried(
            lambda writer: writer.target.select_own("purgatory_offsets"), self._retry_for_s
        )
        found: dict[str, dict[int, int]] = {}
        for topic, partition, next_offset in rows:
            if topic in wanted:
                found.setdefault(topic, {})[int(partition)] = int(next_offset)
        return found

    def waiting_count(self, topic: str) -> int:
        """How many records of ``topic`` wait for the rest of their transaction."""
        return self._retried(
            lambda writer: writer.target.waiting_count(topic, _MOST_COUNTED), self._retry_for_s
        )

    def write_trace(self, folder: Path, run_id: str) -> None:
        """See `trace.write_trace`."""
        self._retried(lambda writer: write_trace(writer.target, folder, run_id), self._retry_for_s)

    def _retried(self, work: Callable[[Writer], T], retry_for_s: float) -> T:
        until_s = time.monotonic() + retry_for_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return work(self._connected())
            except TargetError:
                if time.monotonic() >= until_s:
                    raise
            except Exception as error:
                if not self._is_to_retry(error, until_s):
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _connected(self) -> Writer:
        if self._writer is None:
            target = self._connect()
            self._writer = Writer(target, self._options)
            if self._prepare:
                target.prepare()
        return self._writer

    def _is_to_retry(self, error: Exception, until_s: float) -> bool:
        """Whether to try again, on a new connection; raises what is to be told instead."""
        if self._writer is None:
            return False
        target = self._writer.target
        lost, of_driver = target.is_lost(error), isinstance(error, target.driver_error)
        if not lost and not of_driver:
            return False
        self.close()
        if lost and time.monotonic() < until_s:
            return True
        reason = " ".join(str(error).split())
        kind = TargetGoneError if lost else TargetError
        raise kind(f"the target failed: {reason}") from error


_DEFAULTS = ApplyOptions()


def apply_batch(
    target: Target,
    topic: str,
    partition: int,
    records: Iterable[Record],
    options: ApplyOptions = _DEFAULTS,
) -> Applied:
    """Apply consecutive records of one partition in one transaction of the target.

    Args:
        target: prepared (`Target.prepare`).
        topic, partition: which all the records are of.
        records: by rising offsets; those that were applied before are skipped.
        options: how.

    Returns:
        What became of them.

    Raises:
        StoppedOnBadError: asked to stop, it met a change that can't be applied; what is before it
            has been committed.
        Exception: what the target's driver raises; then nothing has happened.
    """
    return apply_rows(Writer(target, options), topic, partition, records)


def apply_rows(writer: Writer, topic: str, partition: int, records: Iterable[Record]) -> Applied:
    """Do as `apply_batch` over a connection that is there."""
    batch = writer.parse(records)
    writer.note_reads(batch)
    bad: Quarantined | None = None
    while True:
        try:
            writer.plan_rows(batch)
            applied = writer.commit(topic, partition, batch)
            break
        except BadChangeMetError as met:
            bad = met.bad
            batch.items = [item for item in batch.items if item.record.offset < bad.offset]
        except SchemaMovedError:
            continue
    if bad is not None:
        raise StoppedOnBadError(stopped(bad))
    if applied.pending:
        applied += settle(writer, topic, by_transaction=False)
    return applied
