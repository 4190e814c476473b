"""The rows of a transaction that is being read, and its savepoints."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from typing import IO

from purgatory.cdc.capture.records import RowChange

MAX_ROWS_IN_MEMORY = 20_000


class TransactionRows:
    """The rows of a transaction, in order; many of them in a temporary file. O(1) amortized."""

    def __init__(self, max_in_memory: int = MAX_ROWS_IN_MEMORY) -> None:
        self._max_in_memory = max_in_memory
        self._rows: list[RowChange] = []
        self._file: IO[bytes] | None = None
        # Where each part of the file begins, and the number of rows before it.
        self._parts: list[tuple[int, int]] = []
        self._count = 0
        self._savepoints: dict[str, int] = {}

    def __len__(self) -> int:
        return self._count

    def append(self, row: RowChange) -> None:
        self._rows.append(row)
        self._count += 1
        if len(self._rows) >= self._max_in_memory:
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

    def set_savepoint(self, name: str) -> None:
        """Begin a savepoint, and forget another one of this name."""
        self._savepoints.pop(name, None)
        self._savepoints[name] = self._count

    def rollback_to(self, name: str) -> bool:
        """Delete the rows and savepoints behind a savepoint; false if there is none."""
        count = self._savepoints.get(name)
        if count is None:
            return False
        names = list(self._savepoints)
        for later in names[names.index(name) + 1 :]:
            del self._savepoints[later]
        self._truncate(count)
        return True

    def _truncate(self, count: int) -> None:
        kept_in_file = self._count - len(self._rows)
        if self._file is not None and count < kept_in_file:
            while self._parts[-1][1] > count:
                self._parts.pop()
            start, kept_in_file = self._parts.pop()
            self._file.seek(start)
            self._rows = pickle.load(self._file)
            self._file.seek(start)
            self._file.truncate()
        del self._rows[count - kept_in_file :]
        self._count = count

    def clear(self) -> None:
        """Delete all rows, the savepoints and the file."""
        self._rows = []
        self._count = 0
        self._parts = []
        self._savepoints = {}
        if self._file is not None:
            self._file.close()
            self._file = None

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed in clear
        self._file.seek(0, 2)
        self._parts.append((self._file.tell(), self._count - len(self._rows)))
        pickle.dump(self._rows, self._file, pickle.HIGHEST_PROTOCOL)
        self._rows = []
