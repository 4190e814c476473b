"""What is applied while Spark starts: the same, by the same code, in the driver's own process.

A start of Spark takes longer than some runs last. So that each of them comes further, a thread
reads and applies with the source's reader and the tasks' code until the query begins, which then
goes on behind it: how far it came is in the target, in the transactions of the changes themselves,
as always.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from purgatory.changes.apply.exactly_once import Applied
from purgatory.changes.apply.streaming import COLUMNS, StreamSettings, Task, begin
from purgatory.changes.targets import Target, open_target
from purgatory.pipeline.source.options import OffsetRange, options_of
from purgatory.pipeline.source.stream_reader import PurgatoryStreamReader

if TYPE_CHECKING:
    import pyarrow as pa

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
