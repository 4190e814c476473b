"""How many rows fit this machine: what is beyond is said before a job starts, not when it fails."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from typing import TYPE_CHECKING

from purgatory.analysis.duckdb_engine.duckdb_connection import memory_bytes
from purgatory.analysis.errors import SessionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from purgatory.analysis.traces.survey import Survey

BYTES_PER_ROW = 1200
"""What a row takes in an audit, in memory and on disk together (measured: `docs/audit.md`)."""

MEMORY_PER_ROW = 400
"""How many of these have to be in memory: not all of what DuckDB keeps goes to disk."""


def require_room(
    found: Survey, tables: Iterable[str], command: Sequence[str], memory: int | None = None
) -> None:
    """Be content only if the rows that the footers of the parts tell of fit memory and disk.

    Lines of JSON count nothing: nobody knows how many there are before they are read.

    Args:
        found: the traces.
        tables: those that are read.
        command: what does the same, without its engine.
        memory: how many bytes DuckDB may take; None: `memory_bytes`.

    Raises:
        SessionError: they don't fit; it names how many do, and the command for Spark.
    """
    rows = sum(trace.rows[table] for trace in found.traces for table in tables)
    folder = tempfile.gettempdir()
    memory, disk = memory or memory_bytes(), shutil.disk_usage(folder).free
    most = min((memory + disk) // BYTES_PER_ROW, memory // MEMORY_PER_ROW)
    if rows > most:
        raise SessionError(
            f"the traces have {rows:,} rows, and about {most:,} fit here: "
            f"{memory / 2**30:,.1f} GiB of memory (--memory), and {disk / 2**30:,.1f} GiB free in "
            f"{folder}. Use Spark: {shlex.join([*command, '--engine', 'spark'])}"
        )
