"""Results as Parquet, each batch's rows exactly once.

A batch that is repeated after a crash has the same number and the same rows: its part is there
already, whole, or it isn't there at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from purgatory.live.outputs import ASIDE

_UNFINISHED = ".part"


class Parts:
    """A table of results: a folder with a part for each batch that gave some.

    Args:
        folder: of the table; made with its first part.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, batch: int, rows: pa.Table) -> bool:
        """Write a batch's rows, unless they are there; return whether they were written now.

        O(rows).
        """
        path = self.folder / f"part-{batch:09}.parquet"
        if path.exists() or not len(rows):
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        # Readers pass over names that begin with a dot.
        unfinished = path.with_name(f".{path.name}{_UNFINISHED}")
        with unfinished.open("wb") as file:
            pq.write_table(rows, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        return True

    def read(self) -> Iterator[pa.Table]:
        """Yield the rows of each batch, in their order; one batch's are in memory."""
        for path in sorted(self.folder.glob("part-*.parquet")):
            yield pq.read_table(path)


def split(
    rows: pa.Table, main: str, columns: list[str], aside_columns: list[str]
) -> dict[str, pa.Table]:
    """Return the tables that a job's rows are of, each with its own columns, in a fixed order."""
    tables = {}
    for name, wanted in ((main, columns), (ASIDE, aside_columns)):
        of_table = rows.filter(pc.equal(rows["table"], name)).select(wanted)
        tables[name] = of_table.sort_by([(column, "ascending") for column in wanted])
    return tables
