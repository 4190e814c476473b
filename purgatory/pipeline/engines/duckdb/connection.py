"""A DuckDB connection for one job: in memory, with a memory limit, and a folder to spill to."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

from purgatory.pipeline.engines.memory import MEMORY_PER_ROW, duckdb_memory_bytes
from purgatory.pipeline.engines.progress import EngineProgress, show_progress
from purgatory.pipeline.errors import SessionError
from purgatory.pipeline.jobs.chain import literal
from purgatory.pipeline.signals import stop_computation, working_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import duckdb

    from purgatory.pipeline.ingest.trace_set import TraceSet


FEW_ROWS = 50_000
"""The rows below which a second thread costs more than it saves."""
_WHOLE = 100


@contextmanager
def duckdb_connection(
    *, progress: bool | None = False, memory: int | None = None, rows: int | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty connection, whose spilled files are removed at the end of the block.

    Args:
        progress: show the progress of the current statement on standard error; None: only on a
            terminal.
        memory: bytes that DuckDB may use before it spills to disk; None: `memory_bytes`.
        rows: the number of rows to read; None: unknown.

    Raises:
        SessionError: DuckDB is not installed, or has no place or memory left.
    """
    try:
        import duckdb
    except ImportError:
        raise SessionError(
            "DuckDB is not installed: pip install 'kafka-purgatory[analysis]'"
        ) from None
    few = rows is not None and rows < FEW_ROWS
    with (
        working_folder("purgatory-duckdb-") as folder,
        stop_computation(),
        duckdb.connect(config={"threads": "1"} if few else {}) as connection,
    ):
        connection.execute(f"SET memory_limit = '{(memory or duckdb_memory_bytes()) >> 20}MiB'")
        connection.execute(f"SET temp_directory = {literal(str(folder))}")
        connection.execute("SET preserve_insertion_order = true")
        connection.execute("SET TimeZone = 'UTC'")
        # The bar of its own would go to standard output, between the results.
        connection.execute("SET enable_progress_bar = true")
        connection.execute("SET enable_progress_bar_print = false")
        try:
            with show_progress("DuckDB", lambda: _query_progress(connection), progress):
                yield connection
        except duckdb.OutOfMemoryException as error:
            mib = (memory or duckdb_memory_bytes()) >> 20
            raise SessionError(
                f"DuckDB could not go on with {mib:,} MiB of memory and the disk: give it more "
                f"(--memory; TMPDIR), or use Spark ({_first_line(error)})"
            ) from error
        except duckdb.IOException as error:
            raise SessionError(f"DuckDB could not go on: {_first_line(error)}") from error


def _query_progress(connection: duckdb.DuckDBPyConnection) -> EngineProgress | None:
    import duckdb

    try:
        done = connection.query_progress()  # negative where nothing runs, or it is unknown
    except duckdb.ConnectionException:  # closed by a signal before the progress thread ended
        return None
    return (
        EngineProgress(f"{done:.0f} % of this step done", done, _WHOLE)
        if done > 0
        else EngineProgress()
    )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


# The number of rows that fit this machine: a job with more is refused before it starts.


BYTES_PER_ROW = 1200
"""The size of a row, in memory and on disk together (measured: `docs/audit.md`)."""


def known_rows(trace_set: TraceSet, tables: Iterable[str]) -> int | None:
    """The number of rows of some tables, by the footers of the parts; None if some are of JSON."""
    names = tuple(tables)
    parts = (part for trace in trace_set.traces for name in names for part in trace.files[name])
    return None if any(part.kinds is None for part in parts) else _rows(trace_set, names)


def _rows(trace_set: TraceSet, tables: Iterable[str]) -> int:
    return sum(trace.rows[table] for table in tables for trace in trace_set.traces)


def require_room(
    trace_set: TraceSet,
    tables: Iterable[str],
    command: Sequence[str],
    memory: int | None = None,
) -> None:
    """Check that the rows, by the footers of the parts, fit memory and disk.

    Lines of JSON count nothing: their number is unknown until they are read.

    Args:
        trace_set: the traces.
        tables: those that are read.
        command: the command line, without its engine.
        memory: bytes that DuckDB may use; None: `memory_bytes`.

    Raises:
        SessionError: they don't fit; the message has the number that does, and the command for
            Spark.
    """
    rows = _rows(trace_set, tables)
    folder = tempfile.gettempdir()
    memory, disk = memory or duckdb_memory_bytes(), shutil.disk_usage(folder).free
    most = min((memory + disk) // BYTES_PER_ROW, memory // MEMORY_PER_ROW)
    if rows > most:
        raise SessionError(
            f"the traces have {rows:,} rows, and about {most:,} fit here: "
            f"{memory / 2**30:,.1f} GiB of memory (--memory), and {disk / 2**30:,.1f} GiB free in "
            f"{folder}. Use Spark: {shlex.join([*command, '--engine', 'spark'])}"
        )
