"""Applies topics and files in this process, without Spark's Java.

A file stands for a topic of one partition, `file:` and its absolute path; a line's number, from 0,
is its offset. So a run on a file that has grown, or after a kill, resumes from the target's offset.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from purgatory.cdc.apply.spark_engine import COLUMNS, StreamSettings, Task, begin
from purgatory.cdc.apply.writer import Applied
from purgatory.cdc.targets import Target, open_target
from purgatory.source.partition_offsets import OffsetRange
from purgatory.source.source_options import options_of
from purgatory.source.stream_reader import PurgatoryStreamReader

if TYPE_CHECKING:
    import pyarrow as pa
import gzip
import json
from pathlib import Path
from typing import IO

from purgatory.cdc.apply.applier import Applier
from purgatory.cdc.change import Record, parse_change
from purgatory.cdc.errors import BadChangeError, ChangesError

_MOST_RECORDS = 10_000
"""How many records a batch has at most: the query waits for the end of the last one."""

_PATIENCE = {"kafkaConsumer.pollTimeoutMs": "2000"}
_LOOK_AGAIN_S = 0.2
_LEAVE_TIMEOUT_S = 5.0


class CatchUp:
    """Applies topics, batch by batch, until it is told to end.

    What goes wrong is not told: the query meets it again, and tells. Nor is anything waited for
    that is away.

    Args:
        settings: as of the query.
        connect: opens a target by its URL.
        progress: is told what became of each batch.
    """

    def __init__(
        self,
        settings: StreamSettings,
        *,
        connect: Callable[[str], Target] = open_target,
        progress: Callable[[Applied], None] = lambda applied: None,
    ) -> None:
        self._settings = replace(
            settings, most_records=min(settings.most_records, _MOST_RECORDS), retry_for_s=0
        )
        self._connect = connect
        self._progress = progress
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="purgatory-catch-up", daemon=True)
        self.total = Applied()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Run beside the `with` block, but for what is behind `end`."""
        self._thread.start()
        try:
            yield
        finally:
            self._ending.set()
            # A run that ends by a fault or an interrupt does not wait for brokers.
            self._thread.join(_LEAVE_TIMEOUT_S)

    def end(self) -> None:
        """End with the batch at hand, and wait for that."""
        self._ending.set()
        if self._thread.ident is not None:  # it was begun
            self._thread.join()

    def _run(self) -> None:
        # Of any kind: left alone, it would be a traceback beside the one line of the query.
        with suppress(Exception):
            source, self.total = begin(self._settings, self._connect)
            self._read(PurgatoryStreamReader(options_of({**source, **_PATIENCE})))

    def _read(self, reader: PurgatoryStreamReader) -> None:
        try:
            at = reader.initialOffset()
            while not self._ending.is_set():
                upto = reader.latestOffset(at, reader.getDefaultReadLimit())
                if ranges := reader.partitions(at, upto):
                    self._apply(reader, ranges)
                else:
                    self._ending.wait(_LOOK_AGAIN_S)
                at = upto
        finally:
            reader.stop()

    def _apply(self, reader: PurgatoryStreamReader, ranges: Sequence[OffsetRange]) -> None:
        became = Applied()
        for one in Task(self._settings, self._connect).applied(_batches(reader, ranges)):
            became += one
        self.total += became
        self._progress(became)


def _batches(
    reader: PurgatoryStreamReader, ranges: Sequence[OffsetRange]
) -> Iterator[pa.RecordBatch]:
    for found in ranges:
        for batch in reader.read(found):
            yield batch.select(COLUMNS)


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
        for records in _file_batches(_records(path, topic, start, on_cut)):
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


def _file_batches(records: Iterator[Record]) -> Iterator[Sequence[Record]]:
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
