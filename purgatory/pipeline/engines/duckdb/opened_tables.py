"""The traces in some folders, read for a job: a connection, and a folder to write into."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from purgatory.pipeline.engines.duckdb.connection import (
    audit_memory,
    duckdb_connection,
    require_room,
)
from purgatory.pipeline.engines.duckdb.job_sql import make_table, rows_of, write_table
from purgatory.pipeline.engines.result_folder import (
    check_output,
    check_uri_output,
    output_folder,
    uri_output,
)
from purgatory.pipeline.engines.termination import working_folder
from purgatory.pipeline.ingest.column_mapping import read_mapping
from purgatory.pipeline.ingest.duckdb_reader import ReadTables, read_tables
from purgatory.pipeline.ingest.store_copies import local_copies
from purgatory.pipeline.ingest.stores import Uri, reached, without_spark
from purgatory.pipeline.ingest.trace_set import Survey, survey
from purgatory.pipeline.jobs.audit.anomalies import AUDITED
from purgatory.pipeline.result_rows import Row, negative_ids, with_texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import duckdb

    from purgatory.pipeline.ingest.s3_files import S3Files
    from purgatory.pipeline.ingest.stores import Place
    from purgatory.pipeline.result_rows import Order


_IDS_ORDER: Order = (("number", None),)


@dataclass(frozen=True)
class OpenedTables:
    """What a job works on: the folder is None where nothing is written."""

    connection: duckdb.DuckDBPyConnection
    found: Survey
    read: ReadTables
    folder: Path | None

    def with_texts(self, witnesses: Sequence[Row]) -> Sequence[Row]:
        """Rows of `witnesses` with the ids that are texts; these go into the table `ids`, too."""
        chosen = [(number,) for number in negative_ids(witnesses)]
        make_table(self.connection, "_chosen", {"number": "bigint"}, chosen)
        self.connection.execute(
            "CREATE OR REPLACE TEMP TABLE ids AS SELECT DISTINCT number, text FROM id_texts "
            "JOIN _chosen USING (number) WHERE CAST(number AS VARCHAR) <> text"
        )
        texts = rows_of(self.connection, "ids", _IDS_ORDER)
        if not texts:
            return witnesses
        if self.folder is not None:
            write_table(self.connection, "ids", _IDS_ORDER, self.folder)
        return with_texts(witnesses, {row["number"]: row["text"] for row in texts})


@contextmanager
def opened_tables(
    roots: Sequence[Place],
    out: Place | None,
    tables: Sequence[str],
    job: str,
    *,
    overwrite: bool = False,
    progress: bool | None = False,
    mapping: Path | None = None,
    strict: bool = False,
    memory: int | None = None,
) -> Iterator[OpenedTables]:
    """Tables of all traces in some folders; the results count once all are there.

    Args:
        roots: folders that are a trace each, or contain traces; places in S3 as well.
        out: the folder to make, in S3 as well; None writes nothing.
        tables: which are read.
        job: the command that does the same, for who has to be sent to Spark.
        overwrite: replace earlier results in `out`.
        progress: show on standard error how far it is; None does so on a terminal only.
        mapping: the file that says where columns of other names are.
        strict: stop at a bad row or file; otherwise it is set aside and counted.
        memory: as `duckdb_connection` has it.

    Raises:
        PipelineError: one of them is not as it must be; in that case `out` is as it was.
    """
    columns = None if mapping is None else read_mapping(mapping)
    found = survey(reached(_s3, [without_spark(one) for one in roots]), columns, strict=strict)
    place = None if out is None else without_spark(out)
    _check(place, found, overwrite)
    wanted = [] if out is None else ["--out", str(out)]
    copied = job != "audit"
    command = ["purgatory", job, *map(str, roots), *wanted]
    require_room(found, tables, command, memory, copied=copied)
    if memory is None and not copied:
        memory = audit_memory(found, tables)
    with (
        _folder(place) as folder,
        local_copies(found, tables, progress) as here,
        duckdb_connection(progress=progress, memory=memory) as connection,
    ):
        read = read_tables(connection, here, tables, in_place=() if copied else AUDITED)
        if strict:
            read.require_none()
        yield OpenedTables(connection, found, read, folder)


def _check(out: Path | Uri | None, found: Survey, overwrite: bool) -> None:
    folders = [trace.folder for trace in found.traces]
    if isinstance(out, Uri):
        check_uri_output(_s3(), out, list(map(str, folders)), overwrite)
    elif out is not None:
        check_output(out, folders, overwrite)


@contextmanager
def _folder(out: Path | Uri | None) -> Iterator[Path | None]:
    """A folder of this machine to write into; what is in it takes its place at the end."""
    if out is None:
        yield None
    elif isinstance(out, Path):
        with output_folder(out) as folder:
            yield folder
    else:
        with working_folder("purgatory-results-") as made, uri_output(_s3(), out) as results:
            yield made
            for file in sorted(made.rglob("*")):
                if file.is_file():
                    (results / file.relative_to(made).as_posix()).write_bytes(file.read_bytes())


def _s3() -> S3Files:
    from purgatory.pipeline.ingest.s3_files import S3Files  # only where there is a URI

    return S3Files()
