"""Traces in a DuckDB connection: how a job opens them, and reads their tables."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from purgatory.pipeline.engines.duckdb.connection import (
    duckdb_connection,
    known_rows,
    require_room,
)
from purgatory.pipeline.engines.duckdb.sql_engine import DuckDBEngine
from purgatory.pipeline.engines.memory import duckdb_memory_bytes
from purgatory.pipeline.engines.result_folder import (
    PARQUET_FILE,
    check_output,
    check_uri_output,
    output_folder,
    uri_output_folder,
)
from purgatory.pipeline.engines.traces import OpenedTraces
from purgatory.pipeline.ingest.column_mapping import mapping_of
from purgatory.pipeline.ingest.duckdb_reader import read_tables, require_none
from purgatory.pipeline.ingest.store_copies import local_copies
from purgatory.pipeline.ingest.stores import Uri, resolve_locations, without_hadoop
from purgatory.pipeline.ingest.trace_set import QUARANTINE_ORDER, TraceSet, read_trace_set
from purgatory.pipeline.jobs.chain import literal, order_by
from purgatory.pipeline.signals import working_folder
from purgatory.trace.effects import effects_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from purgatory.pipeline.engines.engine import RunOptions
    from purgatory.pipeline.engines.result_folder import OutputFolder
    from purgatory.pipeline.ingest.s3_files import S3Files
    from purgatory.pipeline.ingest.stores import Location
    from purgatory.pipeline.ingest.trace_set import RowCheck
    from purgatory.pipeline.jobs.registry import Job
    from purgatory.trace.effects import GivenEffect


class DuckDBReader:
    """`engines.engine.TraceReader` for DuckDB.

    Args:
        engine: gets the tables.
        trace_set: the traces, all on this machine.
        strict: stop at a bad row or file.
        effects: more rows of the table `effects`.
    """

    def __init__(
        self,
        engine: DuckDBEngine,
        trace_set: TraceSet,
        *,
        strict: bool = False,
        effects: Iterable[GivenEffect] | None = None,
    ) -> None:
        self._engine = engine
        self._trace_set = trace_set
        self._strict = strict
        self._effects = effects

    def read(self, tables: Sequence[str], *, count: bool) -> RowCheck:
        connection = self._engine.connection
        # A job reads few columns: large files without a bad row stay where they are.
        check = read_tables(connection, self._trace_set, tables, in_place=tables)
        if self._strict:
            require_none(connection)
        if count:
            good = {
                table: dict(
                    connection.execute(
                        f"SELECT run_id, count(*) FROM {table} GROUP BY run_id"
                    ).fetchall()
                )
                for table in tables
            }
            check = replace(check, good=good)
        if self._effects is not None:
            self._add_effects(self._effects)
        return check

    def _add_effects(self, given: Iterable[GivenEffect]) -> None:
        runs = [trace.run_id for trace in self._trace_set.traces]
        if len(runs) != 1:
            raise ValueError(f"effects are of one run, and there are {len(runs)}")
        query = self._engine.query
        reads = query('select topic, "group", consumer_group from reads group by all')
        commits = query('select topic, "group" from commits group by all')
        connection = self._engine.connection
        connection.register("given_effects", effects_table(runs[0], given, reads, commits))
        connection.execute(
            "CREATE TEMP TABLE all_effects AS FROM effects UNION ALL BY NAME FROM given_effects"
        )
        [(kind,)] = connection.execute(
            "SELECT table_type FROM information_schema.tables WHERE table_name = 'effects'"
        ).fetchall()
        connection.execute(f"DROP {'VIEW' if kind == 'VIEW' else 'TABLE'} effects")
        connection.execute("ALTER TABLE all_effects RENAME TO effects")

    def write_quarantine(self, folder: OutputFolder) -> None:
        assert isinstance(folder, Path), "DuckDB writes on this machine"
        (folder / "quarantine").mkdir()
        path = literal(str(folder / "quarantine" / PARQUET_FILE))
        self._engine.connection.execute(
            f"COPY (SELECT * FROM quarantine ORDER BY {order_by(QUARANTINE_ORDER)}) "
            f"TO {path} (FORMAT parquet, COMPRESSION zstd)"
        )

    def read_id_texts(self) -> None:
        """The table was made with the others."""


@contextmanager
def open_traces(
    roots: Sequence[Location],
    out: Location | None,
    job: Job,
    run_options: RunOptions,
    effects: Iterable[GivenEffect] | None = None,
) -> Iterator[OpenedTraces]:
    """All traces in some folders, in a connection of their own; results count once all are there.

    Args:
        roots: folders that are a trace each, or contain traces; places in S3 as well.
        out: the folder to make, in S3 as well; None writes nothing.
        job: the job that reads them.
        run_options: how it runs.
        effects: of the service in the one run, beside its table `effects`.

    Raises:
        PipelineError: a trace, the output folder or the room is not as it must be, or, strict,
            anything in the traces is bad; `out` is then unchanged.
    """
    columns = mapping_of(run_options.mapping)
    locations = [without_hadoop(root) for root in roots]
    trace_set = read_trace_set(
        resolve_locations(_s3, locations), columns, strict=run_options.strict, tables=job.reads
    )
    target = None if out is None else without_hadoop(out)
    _check(target, trace_set, run_options.overwrite)
    wanted = [] if out is None else ["--out", str(out)]
    command = ["purgatory", job.name, *map(str, roots), *wanted]
    require_room(trace_set, job.reads, command, run_options.memory)
    rows = known_rows(trace_set, job.reads)
    memory = run_options.memory or duckdb_memory_bytes(rows)
    with (
        _folder(target) as folder,
        local_copies(trace_set, job.reads, run_options.progress) as local_set,
        duckdb_connection(progress=run_options.progress, memory=memory, rows=rows) as connection,
    ):
        engine = DuckDBEngine(connection)
        reader = DuckDBReader(engine, local_set, strict=run_options.strict, effects=effects)
        yield OpenedTraces(engine, reader, trace_set, folder)


def _check(out: Path | Uri | None, trace_set: TraceSet, overwrite: bool) -> None:
    folders = [trace.folder for trace in trace_set.traces]
    if isinstance(out, Uri):
        check_uri_output(_s3(), out, list(map(str, folders)), overwrite)
    elif out is not None:
        check_output(out, folders, overwrite)


@contextmanager
def _folder(out: Path | Uri | None) -> Iterator[Path | None]:
    """A local folder to write into, which is moved or copied to the output at the end."""
    if out is None:
        yield None
    elif isinstance(out, Path):
        with output_folder(out) as folder:
            yield folder
    else:
        with working_folder("purgatory-results-") as made, uri_output_folder(_s3(), out) as results:
            yield made
            for file in sorted(made.rglob("*")):
                if file.is_file():
                    (results / file.relative_to(made).as_posix()).write_bytes(file.read_bytes())


def _s3() -> S3Files:
    from purgatory.pipeline.ingest.s3_files import S3Files  # only where there is a URI

    return S3Files()
