"""Traces in a Spark session: how a job opens them, and reads their tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from purgatory.pipeline.engines.engine import RunOptions
from purgatory.pipeline.engines.result_folder import (
    OutputFolder,
    check_output,
    check_uri_output,
    output_folder,
    spark_output_path,
    uri_output_folder,
)
from purgatory.pipeline.engines.spark.session import spark_session
from purgatory.pipeline.engines.spark.sql_engine import SparkEngine, sql_settings
from purgatory.pipeline.engines.traces import OpenedTraces
from purgatory.pipeline.ingest.column_mapping import mapping_of
from purgatory.pipeline.ingest.hadoop_files import HadoopFiles
from purgatory.pipeline.ingest.spark_copies import with_copies
from purgatory.pipeline.ingest.spark_reader import (
    TableRows,
    check_rows,
    has_local_files,
    id_texts,
    quarantine_table,
    require_none,
)
from purgatory.pipeline.ingest.stores import Location, Uri, resolve_locations
from purgatory.pipeline.ingest.trace_files import Part
from purgatory.pipeline.ingest.trace_set import RowCheck, TraceSet, read_trace_set
from purgatory.pipeline.jobs.registry import Job
from purgatory.pipeline.signals import working_folder

_LINE_BYTES, _GZIP_LINE_BYTES = 100, 10
"""About what a line of JSON takes."""


class SparkReader:
    """`engines.engine.TraceReader` for Spark.

    Rows are looked at once. In tables without a bad row, the job then reads the columns that it
    needs from the files, and lines of JSON are kept as they were parsed.

    Args:
        engine: gets the tables.
        trace_set: the traces.
        strict: stop at a bad row or file.
        copies: an empty folder for copies of CSV, which Spark reads; None: no file may be CSV.
    """

    def __init__(
        self,
        engine: SparkEngine,
        trace_set: TraceSet,
        *,
        strict: bool = False,
        copies: Path | None = None,
    ) -> None:
        self._engine = engine
        self._copies = copies
        self._trace_set = trace_set
        self._strict = strict
        self._table_rows: dict[str, TableRows] = {}

    def read(self, tables: Sequence[str], *, count: bool = True) -> RowCheck:
        if self._copies is not None:
            self._trace_set = with_copies(self._trace_set, self._copies, tables)
        session, traces = self._engine.session, self._trace_set.traces
        table_rows = {name: TableRows(session, traces, name) for name in tables}
        self._table_rows = table_rows
        check = check_rows(session, self._trace_set, table_rows)
        if self._strict and not check.is_clean:
            require_none(quarantine_table(session, self._trace_set, table_rows))
        bad_tables = {table for _, table, _ in check.bad}
        for name, rows in table_rows.items():
            good = rows.good(is_clean=name not in bad_tables)
            kept = self._engine.keep(good) if rows.has_json else good
            kept.createOrReplaceTempView(name)
        return check

    def write_quarantine(self, folder: OutputFolder) -> None:
        """Write the bad rows and files, in no order: there may be as many as the traces have."""
        bad = quarantine_table(self._engine.session, self._trace_set, self._table_rows)
        bad.write.parquet(spark_output_path(folder / "quarantine"))

    def read_id_texts(self) -> None:
        texts = id_texts(self._table_rows.values())
        texts.createOrReplaceTempView("id_texts")


@contextmanager
def open_traces(
    roots: Sequence[Location], out: Location | None, job: Job, run_options: RunOptions
) -> Iterator[OpenedTraces]:
    """All traces in some folders, in a session of their own; the results count once all are there.

    Args:
        roots: folders that are a trace each, or contain traces; URIs of such as well.
        out: the folder to make, at a URI as well; None writes nothing.
        job: the job that reads them.
        run_options: how it runs.

    Raises:
        PipelineError: a trace, the output folder or the session is unusable, or, strict, anything
            in the traces is bad; `out` is then unchanged.
    """
    columns = mapping_of(run_options.mapping)
    strict, overwrite = run_options.strict, run_options.overwrite
    local = [root for root in roots if isinstance(root, Path)]
    if len(local) < len(roots) or isinstance(out, Uri):
        # Only a session can look at the stores that Spark reads.
        with _session(run_options, None) as session:
            trace_set = read_trace_set(
                resolve_locations(lambda: HadoopFiles(session), roots),
                columns,
                strict=strict,
                tables=job.reads,
            )
            with (
                _output(out, trace_set, overwrite, session) as folder,
                opened_in(session, trace_set, folder, strict=strict) as opened,
            ):
                yield opened
        return
    trace_set = read_trace_set(local, columns, strict=strict, tables=job.reads)
    with (
        _local_output(out, trace_set, overwrite) as folder,
        _session(run_options, _estimate_rows(trace_set, job.reads)) as session,
        opened_in(session, trace_set, folder, strict=strict) as opened,
    ):
        yield opened


def _session(run_options: RunOptions, rows: int | None) -> AbstractContextManager[SparkSession]:
    return spark_session(
        run_options.master, rows=rows, progress=run_options.progress, memory=run_options.memory
    )


@contextmanager
def opened_in(
    session: SparkSession,
    trace_set: TraceSet,
    folder: OutputFolder | None,
    *,
    strict: bool = False,
) -> Iterator[OpenedTraces]:
    """Traces in a session that is there, which has the settings of the jobs' SQL meanwhile.

    Args:
        session: computes.
        trace_set: the traces.
        folder: the folder to write into; None: nothing is written.
        strict: stop at a bad row or file.
    """
    with sql_settings(session), _shared_folder(session) as shared:
        engine = SparkEngine(session, None if shared is None else f"file:{shared}/tables")
        copies = None if shared is None else shared / "csv"
        reader = SparkReader(engine, trace_set, strict=strict, copies=copies)
        yield OpenedTraces(engine, reader, trace_set, folder)


@contextmanager
def _shared_folder(session: SparkSession) -> Iterator[Path | None]:
    """A folder that the driver and all executors share; None where none is known."""
    if not has_local_files(session):
        yield None
        return
    with working_folder("purgatory-tables-") as folder:
        (folder / "csv").mkdir()
        yield folder


def _estimate_rows(trace_set: TraceSet, tables: Sequence[str]) -> int:
    """The rows of some tables of local traces; those of lines of JSON by the size of the files."""
    return sum(
        _part_rows(part)
        for trace in trace_set.traces
        for table in tables
        for part in trace.files[table]
    )


def _part_rows(part: Part) -> int:
    if part.rows is not None:
        return part.rows
    line_bytes = _GZIP_LINE_BYTES if part.here.suffix == ".gz" else _LINE_BYTES
    try:
        return part.here.stat().st_size // line_bytes
    except OSError:
        return 0  # the reader reports what is gone


def _output(
    out: Location | None, trace_set: TraceSet, overwrite: bool, session: SparkSession
) -> AbstractContextManager[OutputFolder | None]:
    """The output folder, if any, as the session writes it."""
    if not isinstance(out, Uri):
        return _local_output(out, trace_set, overwrite)
    files = HadoopFiles(session)
    check_uri_output(files, out, [str(trace.folder) for trace in trace_set.traces], overwrite)
    return uri_output_folder(files, out)


@contextmanager
def _local_output(
    out: Location | None, trace_set: TraceSet, overwrite: bool
) -> Iterator[Path | None]:
    if isinstance(out, Path):
        check_output(out, [trace.folder for trace in trace_set.traces], overwrite)
        with output_folder(out) as folder:
            yield folder
    else:
        yield None
