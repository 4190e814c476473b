"""The rows of a transaction, kept until its end is there: on disk when they are many."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from typing import IO

from purgatory.changes.capture.captured_records import RowChange

MOST_ROWS_IN_MEMORY = 20_000


class TransactionRows:
    """Rows in order, written once and then read once. Appending takes amortized O(1).

    Args:
        most_in_memory: beyond this many, earlier ones go to a temporary file.
    """

    def __init__(self, most_in_memory: int = MOST_ROWS_IN_MEMORY) -> None:
        self._most_in_memory = most_in_memory
        self._rows: list[RowChange] = []
        self._file: IO[bytes] | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, row: RowChange) -> None:
        """Take the next row."""
        self._rows.append(row)
        self._count += 1
        if len(self._rows) >= self._most_in_memory:
            self._spill()

    def __iter__(self) -> Iterator[RowChange]:
        if self._file is not None:
            self._file.seek(0)
            while True:
                try:
                    yield from pickle.load(self._file)
                except EOFError:
                    break
        yield from self._rows

    def clear(self) -> None:
        """Forget all rows, and give back the file."""
        self._rows = []
        self._count = 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed in clear
        pickle.dump(self._rows, self._file, pickle.HIGHEST_PROTOCOL)
        self._rows = []
