"""A DuckDB of one's own for one job: in memory, with a bound, and a folder for what goes beyond."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from purgatory.analysis.duckdb_engine.duckdb_types import literal
from purgatory.analysis.duckdb_engine.stop_signals import stop_signals
from purgatory.analysis.errors import SessionError
from purgatory.analysis.progress_display import HowFar, displayed
from purgatory.analysis.working_folder import working_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb

MEMORY_SHARE = 0.6
"""How much of the machine's memory a job may take."""
_WHOLE = 100


@contextmanager
def duckdb_connection(
    *, progress: bool | None = False, memory: int | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with nothing in it; what it spilled is removed at the end of the block.

    Args:
        progress: show on standard error how far the statement at hand is; None does so on a
            terminal only.
        memory: how many bytes it may take before it uses the disk; None: `memory_bytes`.

    Raises:
        SessionError: DuckDB is not installed, or has no place or memory left.
    """
    try:
        import duckdb
    except ImportError:
        raise SessionError(
            "DuckDB is not installed: pip install 'kafka-purgatory[analysis]'"
        ) from None
    with (
        working_folder("purgatory-duckdb-") as folder,
        stop_signals(),
        duckdb.connect() as connection,
    ):
        connection.execute(f"SET memory_limit = '{(memory or memory_bytes()) >> 20}MiB'")
        connection.execute(f"SET temp_directory = {literal(str(folder))}")
        connection.execute("SET preserve_insertion_order = true")
        connection.execute("SET TimeZone = 'UTC'")
        # The bar of its own would go to standard output, between the results.
        connection.execute("SET enable_progress_bar = true")
        connection.execute("SET enable_progress_bar_print = false")
        try:
            with displayed("DuckDB", lambda: _far(connection), progress):
                yield connection
        except duckdb.OutOfMemoryException as error:
            mib = (memory or memory_bytes()) >> 20
            raise SessionError(
                f"DuckDB could not go on with {mib:,} MiB of memory and the disk: give it more "
                f"(--memory; TMPDIR), or use Spark ({_first_line(error)})"
            ) from error
        except duckdb.IOException as error:
            raise SessionError(f"DuckDB could not go on: {_first_line(error)}") from error


def _far(connection: duckdb.DuckDBPyConnection) -> HowFar:
    done = connection.query_progress()  # negative where nothing runs, or nothing can be said
    return HowFar(f"{done:.0f} % of this step done", done, _WHOLE) if done > 0 else HowFar()


def memory_bytes() -> int:
    """What a job may take: a share of what this machine, or this container, has."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no container, or one without a bound
        whole = min(whole, int(Path("/sys/fs/cgroup/memory.max").read_text("ascii")))
    return int(whole * MEMORY_SHARE)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
