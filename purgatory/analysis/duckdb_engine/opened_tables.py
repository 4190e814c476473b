"""The traces in some folders, read for a job: a connection, and a folder to write into."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from purgatory.analysis.duckdb_engine.duckdb_connection import duckdb_connection
from purgatory.analysis.duckdb_engine.read_tables import ReadTables, read_tables
from purgatory.analysis.duckdb_engine.row_bound import require_room
from purgatory.analysis.result_folder import check_output, output_folder
from purgatory.analysis.traces.column_mapping import read_mapping
from purgatory.analysis.traces.survey import Survey, survey

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import duckdb


@dataclass(frozen=True)
class OpenedTables:
    """What a job works on: the folder is None where nothing is written."""

    connection: duckdb.DuckDBPyConnection
    found: Survey
    read: ReadTables
    folder: Path | None


@contextmanager
def opened_tables(
    roots: Sequence[Path],
    out: Path | None,
    tables: Sequence[str],
    job: str,
    *,
    overwrite: bool = False,
    progress: bool | None = False,
    mapping: Path | None = None,
    strict: bool = False,
) -> Iterator[OpenedTables]:
    """Tables of all traces in some folders; the results count once all are there.

    Args:
        roots: folders that are a trace each, or contain traces.
        out: the folder to make; None writes nothing.
        tables: which are read.
        job: the command that does the same, for who has to be sent to Spark.
        overwrite: replace earlier results in `out`.
        progress: show on standard error how far it is; None does so on a terminal only.
        mapping: the file that says where columns of other names are.
        strict: stop at a bad row or file; otherwise it is set aside and counted.

    Raises:
        PipelineError: one of them is not as it must be; in that case `out` is as it was.
    """
    found = surveyed(roots, mapping, strict)
    if out is not None:
        check_output(out, [trace.folder for trace in found.traces], overwrite)
    wanted = [] if out is None else ["--out", str(out)]
    require_room(found, tables, ["purgatory", job, *map(str, roots), *wanted])
    with (
        nullcontext() if out is None else output_folder(out) as folder,
        duckdb_connection(progress=progress) as connection,
    ):
        read = read_tables(connection, found, tables)
        if strict:
            read.require_none()
        yield OpenedTables(connection, found, read, folder)


def surveyed(roots: Sequence[Path], mapping: Path | None, strict: bool) -> Survey:
    """What there is in some folders, where columns of other names are as a file says."""
    return survey(roots, None if mapping is None else read_mapping(mapping), strict=strict)
