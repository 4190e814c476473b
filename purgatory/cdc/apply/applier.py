"""Applies batches to a target, and reconnects if the target was unreachable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from purgatory.cdc.apply.audit_log import write_trace
from purgatory.cdc.apply.exactly_once import Applied, Writer
from purgatory.cdc.apply.options import RETRY_FOR_S, ApplyOptions
from purgatory.cdc.apply.transactions import apply_rows, apply_transactions, drain_pending
from purgatory.cdc.change import Record
from purgatory.cdc.errors import TargetError, TargetUnavailableError
from purgatory.cdc.targets.target import Target

T = TypeVar("T")

_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 2.0
_DEFAULTS = ApplyOptions()


class Applier:
    """Applies batches; retries over a new connection if one is lost. One thread at a time.

    Use it as a context manager, or close it.

    Args:
        connect: opens a target.
        retry_for_s: how long a batch is retried while the target is unreachable.
        prepare: create the target's own tables if needed.

    Raises:
        TargetError: the target is unreachable now.
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
        self._retry(lambda writer: None, 0)

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
        """See `apply.apply_batch`. If the response to a commit is lost, the retry skips the batch.

        Raises:
            TargetError: the target does not come back, or lacks what it needs.
            QuarantineStopError: as there.
        """
        return self._retry(lambda writer: apply_rows(writer, topic, partition, records))

    def apply_transactions(self, records: Sequence[Record]) -> Applied:
        """See `transactions.apply_transactions`; raises the same as `apply_batch`."""
        return self._retry(lambda writer: apply_transactions(writer, records))

    def drain_pending(self, topic: str, *, by_transaction: bool) -> Applied:
        """Apply records that a killed run left pending; see `transactions.drain_pending`."""
        return self._retry(
            lambda writer: drain_pending(writer, topic, by_transaction=by_transaction)
        )

    def next_offsets(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        """The next offsets of partitions by topic."""
        rows = self._retry(lambda writer: writer.target.select_own("purgatory_offsets"))
        offsets: dict[str, dict[int, int]] = {}
        for topic, partition, next_offset in rows:
            if topic in topics:
                offsets.setdefault(topic, {})[int(partition)] = int(next_offset)
        return offsets

    def pending_count(self, topic: str) -> int:
        """The number of pending records of ``topic``."""
        return self._retry(lambda writer: writer.target.pending_count(topic, 2**31))

    def write_trace(self, folder: Path, run_id: str) -> None:
        """See `audit_log.write_trace`."""
        self._retry(lambda writer: write_trace(writer.target, folder, run_id))

    def _retry(self, work: Callable[[Writer], T], retry_for_s: float | None = None) -> T:
        until_s = time.monotonic() + (self._retry_for_s if retry_for_s is None else retry_for_s)
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return work(self._get_writer())
            except TargetError:
                if time.monotonic() >= until_s:
                    raise
            except Exception as error:
                if not self._is_retriable(error, until_s):
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def _get_writer(self) -> Writer:
        if self._writer is None:
            target = self._connect()
            self._writer = Writer(target, self._options)
            if self._prepare:
                target.prepare()
        return self._writer

    def _is_retriable(self, error: Exception, until_s: float) -> bool:
        """Whether to retry on a new connection; raises TargetError for other driver errors."""
        if self._writer is None:
            return False
        target = self._writer.target
        is_connection_lost, is_driver_error = (
            target.is_connection_error(error),
            isinstance(error, target.driver_error),
        )
        if not is_connection_lost and not is_driver_error:
            return False
        self.close()
        if is_connection_lost and time.monotonic() < until_s:
            return True
        reason = " ".join(str(error).split())
        kind = TargetUnavailableError if is_connection_lost else TargetError
        raise kind(f"the target failed: {reason}") from error


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
        records: by rising offsets; those that were applied before are skipped.

    Raises:
        QuarantineStopError: a change can't be applied and stops the run; the changes before it are
            committed.
        Exception: of the target's driver; then nothing has happened.
    """
    return apply_rows(Writer(target, options), topic, partition, records)
