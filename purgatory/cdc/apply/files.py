"""Applies files: lines of JSON, one change each (`formats`).

A file stands for a topic of one partition: `file:`, its absolute path, `#` and a hash of its first
line; a line's number, from 0, is its offset. A run on a file that has grown, or after a kill,
resumes from the target's offset. Another file of the same name has another first line.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from purgatory.cdc.apply.applier import Applier
from purgatory.cdc.apply.exactly_once import Applied
from purgatory.cdc.change import Record, parse_change
from purgatory.cdc.errors import ChangesError
from purgatory.cdc.quarantine import InvalidChangeError

_DIGEST_DIGITS = 12

BATCH_RECORDS = 5_000
"""Lines per transaction, at most."""

BATCH_BYTES = 16 * 1024 * 1024
"""Bytes per transaction, at most; but at least one line."""


def file_topic(path: Path) -> str:
    """The name of the topic that a file stands for.

    Raises:
        ChangesError: it can't be read, or no database stores that name.
    """
    topic = f"file:{path.resolve()}"
    try:
        topic.encode()
    except UnicodeEncodeError:
        raise ChangesError(
            f"{os.fsencode(path)!r}: the path of a file must be UTF-8; rename it"
        ) from None
    try:
        with _open(path) as lines:
            first = next((line for line in lines if line.strip()), b"")
    except (OSError, EOFError, zlib.error) as error:
        raise ChangesError(f"{path}: can't be read: {error}") from error
    digest = hashlib.sha256(first.removeprefix(codecs.BOM_UTF8).strip()).hexdigest()
    return f"{topic}#{digest[:_DIGEST_DIGITS]}"


def _open(path: Path) -> gzip.GzipFile | IO[bytes]:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def apply_file(
    applier: Applier,
    path: Path,
    *,
    by_transaction: bool = False,
    on_truncated: Callable[[str], object] = lambda _: None,
) -> Applied:
    """Apply the lines of a file that are not applied yet. O(lines).

    A last line that has no line feed and is no JSON is left for the next run: it is being written.
    The changes of a transaction whose end is missing are left, too.

    Args:
        by_transaction: apply whole transactions of the source only.
        on_truncated: called with a message if the file ends within a line or a transaction.

    Raises:
        ChangesError: it can't be read, or is of several partitions; or as `Applier.apply_batch`.
    """
    topic = file_topic(path)
    start = applier.next_offsets([topic]).get(topic, {}).get(0, 0)
    total = applier.drain_pending(topic, by_transaction=by_transaction)
    try:
        for records in _batches(_records(path, topic, start, on_truncated)):
            if by_transaction:
                total += applier.apply_transactions(records)
            else:
                total += applier.apply_batch(topic, 0, records)
    except (OSError, EOFError, zlib.error) as error:
        raise ChangesError(f"{path}: can't be read: {error}") from error
    pending_count = applier.pending_count(topic) if by_transaction else 0
    if pending_count:
        on_truncated(
            f"{path} ends in the middle of a transaction: {pending_count:,} changes are not applied"
        )
    return total


def _records(
    path: Path, topic: str, start: int, on_truncated: Callable[[str], object]
) -> Iterator[Record]:
    with _open(path) as lines:
        for number, read_line in enumerate(lines):
            line = read_line if number else read_line.removeprefix(codecs.BOM_UTF8)
            if number < start or not line.strip():
                continue
            if not line.endswith(b"\n"):
                try:
                    json.loads(line)
                except ValueError:
                    on_truncated(
                        f"{path} ends in the middle of line {number + 1}, which is not applied"
                    )
                    return
            if b'"partitions"' in line:
                _check_only_partition(line, f"{path}, line {number + 1}")
            yield Record(topic, 0, number, None, line.rstrip(b"\r\n"))


def _check_only_partition(line: bytes, location: str) -> None:
    """Raise ChangesError at a copy of a schema change: lines of a file have no partition."""
    with suppress(InvalidChangeError):
        copies = parse_change(line).copies
        if copies > 1:
            raise ChangesError(
                f"{location}: the topic has {copies} partitions, whose order a file does not have: "
                "apply the topic (--topic), or capture into one partition (--partitions 1)"
            )


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
