"""A change log in files: lines of JSON, one change each, as Maxwell writes them.

A file stands for a topic of one partition, `file:` and its absolute path; a line's number, from 0,
is its offset. So a file that has grown, or a run that was killed, goes on where the target is.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from purgatory.changes.apply.exactly_once import Applied
from purgatory.changes.apply.reconnecting_applier import Applier
from purgatory.changes.change import parse_change
from purgatory.changes.errors import BadChangeError, ChangesError
from purgatory.changes.record import Record

BATCH_RECORDS = 5_000
"""How many lines go into one transaction."""

BATCH_BYTES = 16 * 1024 * 1024
"""How many bytes at most, but one line at least."""


def topic_of(path: Path) -> str:
    """The name of the topic that a file stands for."""
    return f"file:{path.resolve()}"


def apply_file(
    applier: Applier,
    path: Path,
    *,
    by_transaction: bool = False,
    on_cut: Callable[[str], object] = lambda _: None,
) -> Applied:
    """Apply what of a file has not been applied. O(its length).

    A last line without its end that is no JSON is left for the next time: it is being written. So
    are the changes of a transaction whose end is missing.

    Args:
        applier: of the target.
        path: of the file.
        by_transaction: whether to apply whole transactions only.
        on_cut: called with a sentence if the file ends in the middle of a line or a transaction.

    Raises:
        ChangesError: it can't be read, or is of several partitions; or as `Applier.apply_batch`.
    """
    topic = topic_of(path)
    start = applier.next_offsets([topic]).get(topic, {}).get(0, 0)
    total = applier.settle(topic, by_transaction=by_transaction)
    try:
        for records in _batches(_records(path, topic, start, on_cut)):
            if by_transaction:
                total += applier.apply_transactions(records)
            else:
                total += applier.apply_batch(topic, 0, records)
    except (OSError, EOFError) as error:
        raise ChangesError(f"{path}: can't be read: {error}") from error
    waiting = applier.waiting_count(topic) if by_transaction else 0
    if waiting:
        on_cut(f"{path} ends in the middle of a transaction: {waiting:,} changes are not applied")
    return total


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _records(
    path: Path, topic: str, start: int, on_cut: Callable[[str], object]
) -> Iterator[Record]:
    with _open(path) as lines:
        for number, line in enumerate(lines):
            if number < start or not line.strip():
                continue
            if not line.endswith(b"\n") and not _is_whole(line):
                on_cut(f"{path} ends in the middle of line {number + 1}, which is not applied")
                return
            if b'"partitions"' in line:
                _check_only_partition(line, f"{path}, line {number + 1}")
            yield Record(topic, 0, number, None, line.rstrip(b"\r\n"))


def _check_only_partition(line: bytes, where: str) -> None:
    """Raise ChangesError at one of several copies of a change: which partition each line is of, a
    file does not say."""
    with suppress(BadChangeError):
        copies = parse_change(line).copies
        if copies > 1:
            raise ChangesError(
                f"{where}: is of a topic of {copies} partitions, whose order a file does not have: "
                "apply the topic (--topic), or capture into one partition (--partitions 1)"
            )


def _is_whole(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _batches(records: Iterator[Record]) -> Iterator[Sequence[Record]]:
    batch: list[Record] = []
    size = 0
    for record in records:
        batch.append(record)
        size += len(record.value or b"")
        if len(batch) >= BATCH_RECORDS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
