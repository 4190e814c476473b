"""Spark as an engine: the traces in some folders, opened for a job, and the job's tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from purgatory.pipeline.engines.engine import RunOptions
from purgatory.pipeline.engines.result_folder import (
    OutputFolder,
    check_output,
    check_uri_output,
    output_folder,
    sorted_rows,
    uri_output_folder,
    write_table,
)
from purgatory.pipeline.engines.results import run_rows, spans_from_runs, window_us
from purgatory.pipeline.engines.spark.connect import local_table
from purgatory.pipeline.engines.spark.session import MOST_SMALL_ROWS, spark_session
from purgatory.pipeline.ingest.column_mapping import read_mapping
from purgatory.pipeline.ingest.hadoop_files import HadoopFiles
from purgatory.pipeline.ingest.spark_quarantine import check_traces, write_none
from purgatory.pipeline.ingest.spark_reader import TableRows, id_texts, spark_columns
from purgatory.pipeline.ingest.stores import Location, Uri, resolve_locations
from purgatory.pipeline.ingest.trace_files import Part
from purgatory.pipeline.ingest.trace_set import RowCheck, Trace, TraceSet, read_trace_set
from purgatory.pipeline.jobs.audit.anomalies import AUDIT_TABLES, OPTIONAL
from purgatory.pipeline.jobs.audit.audit_job import Audit, audit
from purgatory.pipeline.jobs.audit.client_settings import configuration_of
from purgatory.pipeline.jobs.expressions import has_few_rows, persist, sort_columns
from purgatory.pipeline.jobs.latencies import attempts, latencies, throughput
from purgatory.pipeline.jobs.old_occupancy import (
    hot_keys,
    littles_law,
    occupancy,
    occupancy_of_keys,
)
from purgatory.pipeline.jobs.old_waits import distribution, expiry, slowest, waits
from purgatory.pipeline.jobs.peaks import peaks
from purgatory.pipeline.jobs.registry import MOST_PLOTTED_RUNS, Is, Job, View
from purgatory.pipeline.jobs.run_spans import FAULTS, SPANS, WINDOWS, fault_rows, span_rows
from purgatory.pipeline.result_rows import Order, Row, group_by, negative_ids, with_texts

_LINE_BYTES, _GZIP_LINE_BYTES = 100, 10
"""About what a line of JSON takes."""


class SparkTraces:
    """`engines.engine.OpenedTraces`, as data frames of a session.

    What is written, or shown whole, is collected once: it is small beside the traces. In a session
    for few rows all is, and the traces' tables are read once, and kept.
    """

    def __init__(
        self,
        session: SparkSession,
        trace_set: TraceSet,
        folder: OutputFolder | None,
        *,
        strict: bool = False,
    ) -> None:
        self.session = session
        self.traces = trace_set.traces
        self.folder = folder
        self._trace_set = trace_set
        self._strict = strict
        self.row_check = RowCheck({}, {}, (), {})
        self._tables: Mapping[str, DataFrame] = {}
        self._collected: dict[str, pa.Table] = {}
        self._has_few_rows = has_few_rows(session)
        self._read: dict[str, TableRows] = {}

    def check(self, job: Job) -> RowCheck:
        folder = None if job.quarantine == "never" else self.folder
        self.row_check = check_traces(
            self.session,
            self._trace_set,
            {name: self._table_rows(name) for name in job.reads},
            folder=folder,
            strict=self._strict,
        )
        if folder is not None and job.quarantine == "always" and self.row_check.is_clean:
            write_none(folder)
        return self.row_check

    @contextmanager
    def compute(self, job: Job, options: Mapping[str, Any]) -> Iterator[None]:
        with _COMPUTE[job.name](self, options) as self._tables:
            yield

    def table(self, name: str) -> DataFrame:
        """The good rows of a table of the traces."""
        return self._table_rows(name).good()

    def _table_rows(self, name: str) -> TableRows:
        if name not in self._read:
            self._read[name] = TableRows(self.session, self.traces, name)
            if self._has_few_rows:
                self._read[name].keep()
        return self._read[name]

    def persist_result(self, table: DataFrame) -> DataFrame:
        """A table of results that is written and asked for parts."""
        return table if self._has_few_rows else table.persist()

    def write(self, table: str, order: Order) -> None:
        assert self.folder is not None, "there is a folder to write into"
        write_table(self._collect(table, order), self.folder / table)

    def rows(self, view: View, order: Order, runs: Sequence[str] | None) -> list[Row]:
        most = None if view.most is None else view.most + view.is_cut
        is_small = self._has_few_rows or view.table in self._collected
        if is_small or (most is None and not view.where):
            selected = self._collect(view.table, order)
            if runs is not None:
                selected = selected.filter(pc.field("run_id").isin(list(runs)))
            for one in view.where:
                selected = selected.filter(_mask(selected[one.column], one))
            return _rows(selected.slice(0, most))
        chosen = self._tables[view.table]
        for one in view.where:
            chosen = chosen.where(one.sql)
        if runs is not None:
            chosen = chosen.where(f.col("run_id").isin(list(runs)))
        chosen = chosen.orderBy(*sort_columns(order))
        return _rows((chosen if most is None else chosen.limit(most)).toArrow())

    def with_texts(self, witnesses: Sequence[Row]) -> Sequence[Row]:
        if not self.row_check.has_texts:
            return witnesses
        session = self.session
        numbers = local_table(
            session, [(number,) for number in negative_ids(witnesses)], "number bigint"
        )
        texts_table = id_texts(session, self.traces, AUDIT_TABLES).join(
            f.broadcast(numbers), "number"
        )
        texts = sorted_rows(
            texts_table.distinct().where("cast(number AS string) <> text"), ["number"]
        )
        if not texts.num_rows:
            return witnesses
        if self.folder is not None:
            write_table(texts, self.folder / "ids")
        return with_texts(witnesses, {row["number"]: row["text"] for row in texts.to_pylist()})

    def _collect(self, table: str, order: Order) -> pa.Table:
        if table not in self._collected:
            self._collected[table] = sorted_rows(self._tables[table], sort_columns(order))
        return self._collected[table]


def _mask(column: pa.ChunkedArray, condition: Is) -> pa.ChunkedArray:
    if condition.value is None:
        found = column.is_null()
    else:
        found = pc.fill_null(pc.equal(column, condition.value), False)
    return pc.invert(found) if condition.negated else found


def _rows(table: pa.Table) -> list[Row]:
    rows: list[Row] = table.to_pylist()
    return rows


@contextmanager
def opened_traces(
    roots: Sequence[Location], out: Location | None, job: Job, run_options: RunOptions
) -> Iterator[SparkTraces]:
    """All traces in some folders, in a session of their own; the results count once all are there.

    Args:
        roots: folders that are a trace each, or contain traces; URIs of such as well.
        out: the folder to make, at a URI as well; None writes nothing.
        job: reads them.
        run_options: how.

    Raises:
        PipelineError: one of them is not as it must be, or, strict, anything in the traces isn't;
            in that case `out` is as it was.
    """
    columns = None if run_options.mapping is None else read_mapping(run_options.mapping)
    strict, overwrite = run_options.strict, run_options.overwrite
    local = [root for root in roots if isinstance(root, Path)]
    if len(local) < len(roots) or isinstance(out, Uri):
        # What is to be done can be told only by Spark's session.
        with spark_session(
            run_options.master, progress=run_options.progress, memory=run_options.memory
        ) as session:
            trace_set = read_trace_set(
                resolve_locations(lambda: HadoopFiles(session), roots), columns, strict=strict
            )
            with _output(out, trace_set, overwrite, session) as folder:
                yield SparkTraces(session, trace_set, folder, strict=strict)
        return
    trace_set = read_trace_set(local, columns, strict=strict)
    with (
        _local_output(out, trace_set, overwrite) as folder,
        spark_session(
            run_options.master,
            small=_estimate_rows(trace_set, job.reads) <= MOST_SMALL_ROWS,
            progress=run_options.progress,
            memory=run_options.memory,
        ) as session,
    ):
        yield SparkTraces(session, trace_set, folder, strict=strict)


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


# When runs end and faults are at work, as tables that the jobs on occupancy take.


def run_spans(session: SparkSession, traces: Sequence[Trace], operations: DataFrame) -> DataFrame:
    """The spans of runs, as `occupancy` takes them: `run_id`, `end_us` and `width_us`.

    A run ends where its head says, or where its last operation ends if that came later; this is
    looked up at once.
    """
    last = operations.groupBy("run_id").agg(f.max("end_us").alias("end_us")).toArrow()
    ends_us = dict(zip(last["run_id"].to_pylist(), last["end_us"].to_pylist(), strict=True))
    return local_table(session, span_rows(traces, ends_us), spark_columns(SPANS))


def run_faults(session: SparkSession, traces: Sequence[Trace]) -> DataFrame:
    """The faults of all runs, as `peaks` takes them."""
    return local_table(session, fault_rows(traces), spark_columns(FAULTS))


# The tables of each job. Those that are both written and asked for a part are persisted.


_Tables = Iterator[Mapping[str, DataFrame]]


@contextmanager
def _waits(run: SparkTraces, options: Mapping[str, Any]) -> _Tables:
    operations = run.table("operations")
    tables = {
        "waits": waits(
            operations,
            window_us=options["window_us"],
            by_topic=True,
            percentiles=options["percentiles"],
        ),
        "slowest": slowest(operations, options["slowest"]),
    }
    if options["page"]:
        tables["expiry"] = expiry(operations)
    yield {name: run.persist_result(table) for name, table in tables.items()}


@contextmanager
def _occupancy(run: SparkTraces, options: Mapping[str, Any]) -> _Tables:
    session, traces, operations = run.session, run.traces, run.table("operations")
    spans = local_table(
        session, span_rows(traces, run.row_check.last_ends_us), spark_columns(SPANS)
    )
    sizes = persist(occupancy(operations, spans))
    hot = persist(hot_keys(operations, spans, options["hot_keys"]))
    yield {
        "occupancy": sizes,
        "littles_law": run.persist_result(littles_law(operations, sizes, spans)),
        "peaks": run.persist_result(peaks(operations, sizes, spans, run_faults(session, traces))),
        "hot_keys": hot,
        "key_occupancy": occupancy_of_keys(operations, spans, hot),
    }


@contextmanager
def _audit(run: SparkTraces, options: Mapping[str, Any]) -> _Tables:
    with trace_audit(run, **{name: options[name] for name in ("expect", "witnesses")}) as audited:
        yield _AuditTables(audited)


class _AuditTables(Mapping[str, DataFrame]):
    """The tables of an audit; its witnesses are planned only where somebody takes them."""

    def __init__(self, audited: Audit) -> None:
        self._audited = audited

    def __getitem__(self, name: str) -> DataFrame:
        table: DataFrame = getattr(self._audited, name)
        return table

    def __iter__(self) -> Iterator[str]:
        return iter(("audit", "witnesses"))

    def __len__(self) -> int:
        return 2


def trace_audit(run: SparkTraces, **options: Any) -> Audit:
    """The audit of traces, by the configuration in their heads.

    Runs of which rows were left out count as incomplete.

    Args:
        run: the traces, which were checked.
        options: `expect` and `witnesses`, as `audit` has them.

    Raises:
        TraceError: a configuration that contradicts itself.
    """
    tables = {name: run.table(name) for name in ("sends", "reads")}
    for name in OPTIONAL:
        if any(part.rows != 0 for trace in run.traces for part in trace.files[name]):
            tables[name] = run.table(name)
    return audit(
        tables["sends"],
        tables["reads"],
        tables.get("effects"),
        tables.get("commits"),
        transactions=tables.get("transactions"),
        configuration=configuration_of(run.traces, run.row_check.by_run()),
        **options,
    )


@contextmanager
def _analyze(run: SparkTraces, _options: Mapping[str, Any]) -> _Tables:
    runs = run_rows(run.traces, run.row_check.last_ends_us, run.row_check.good)
    sends, reads, operations = (run.table(name) for name in ("sends", "reads", "operations"))
    spans = local_table(run.session, spans_from_runs(runs), spark_columns(SPANS))
    plotted = runs[:MOST_PLOTTED_RUNS]
    widths = [(run["run_id"], window_us(run)) for run in plotted]
    windows = local_table(run.session, widths, spark_columns(WINDOWS))
    drawn = operations.where(f.col("run_id").isin([run["run_id"] for run in plotted]))
    with trace_audit(run) as audited:
        yield {
            "waits": waits(operations),
            "latencies": latencies(sends),
            "attempts": attempts(sends, reads),
            "occupancy": occupancy(operations, spans),
            **_AuditTables(audited),
            "distribution": distribution(drawn),
            "expiry": expiry(drawn),
            "waits_over_time": _waits_over_time(drawn, plotted),
            "slowest": slowest(drawn),
            "throughput": throughput(sends, reads, windows),
        }


def _waits_over_time(drawn: DataFrame, plotted: Sequence[Row]) -> DataFrame:
    """Waits by windows of time: runs with windows of the same width together."""
    waited = drawn.where("outcome != 'immediate'")
    windows = [{**run, "window_us": window_us(run)} for run in plotted]
    return reduce(
        DataFrame.unionByName,
        [
            waits(
                waited.where(f.col("run_id").isin([run["run_id"] for run in of_width])),
                window_us=width_us,
                percentiles="approximate",
            )
            for width_us, of_width in group_by(windows, "window_us").items()
        ],
    )


_COMPUTE = {"waits": _waits, "occupancy": _occupancy, "audit": _audit, "analyze": _analyze}
