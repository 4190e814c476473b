"""DuckDB as an engine: the traces in some folders, read for a job, and the job's tables."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purgatory.pipeline.engines.duckdb.audit import audit_tables
from purgatory.pipeline.engines.duckdb.connection import (
    audit_memory,
    duckdb_connection,
    known_rows,
    require_room,
)
from purgatory.pipeline.engines.duckdb.job_sql import (
    literal,
    make_table,
    run_job,
    select_rows,
    write_table,
)
from purgatory.pipeline.engines.result_folder import (
    check_output,
    check_uri_output,
    output_folder,
    uri_output_folder,
)
from purgatory.pipeline.engines.results import run_rows, spans_from_runs, window_us
from purgatory.pipeline.engines.termination import working_folder
from purgatory.pipeline.ingest.column_mapping import read_mapping
from purgatory.pipeline.ingest.duckdb_reader import read_tables, require_none
from purgatory.pipeline.ingest.store_copies import local_copies
from purgatory.pipeline.ingest.stores import Uri, resolve_locations, without_hadoop
from purgatory.pipeline.ingest.trace_set import QUARANTINE_ORDER, TraceSet, read_trace_set
from purgatory.pipeline.jobs.audit.anomalies import AUDIT_TABLES
from purgatory.pipeline.jobs.audit.client_settings import configuration_of
from purgatory.pipeline.jobs.registry import AUDIT, MOST_PLOTTED_RUNS, WAITS
from purgatory.pipeline.jobs.result_orders import MOST_KEYS, Exactness
from purgatory.pipeline.jobs.run_spans import FAULTS, SPANS, WINDOWS, fault_rows, span_rows
from purgatory.pipeline.result_rows import negative_ids, with_texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import duckdb

    from purgatory.pipeline.engines.engine import RunOptions
    from purgatory.pipeline.ingest.s3_files import S3Files
    from purgatory.pipeline.ingest.stores import Location
    from purgatory.pipeline.ingest.trace_set import RowCheck, Trace
    from purgatory.pipeline.jobs.registry import Job, View
    from purgatory.pipeline.result_rows import Order, Row


_IDS_ORDER: Order = (("number", None),)
_OF_PLOTTED = "run_id IN (SELECT run_id FROM windows)"


@dataclass
class DuckDBTraces:
    """`engines.engine.OpenedTraces`, read into the tables of a connection."""

    connection: duckdb.DuckDBPyConnection
    traces: Sequence[Trace]
    row_check: RowCheck
    folder: Path | None

    def check(self, job: Job) -> RowCheck:
        is_bad = not self.row_check.is_clean and job.quarantine == "if bad"
        if self.folder is not None and (is_bad or job.quarantine == "always"):
            self.write("quarantine", QUARANTINE_ORDER)
        if job.always_page:
            count = "SELECT run_id, count(*) FROM {} GROUP BY run_id"
            good = {
                table: dict(self.connection.execute(count.format(table)).fetchall())
                for table in ("operations", "sends", "reads")
            }
            self.row_check = replace(self.row_check, good=good)
        return self.row_check

    @contextmanager
    def compute(self, job: Job, options: Mapping[str, Any]) -> Iterator[None]:
        _COMPUTE[job.name](self, options)
        yield

    def write(self, table: str, order: Order) -> None:
        assert self.folder is not None, "there is a folder to write into"
        write_table(self.connection, table, order, self.folder)

    def rows(self, view: View, order: Order, runs: Sequence[str] | None) -> list[Row]:
        conditions = [one.sql for one in view.where]
        if runs is not None:
            conditions.append(f"run_id IN ({', '.join(map(literal, runs))})")
        condition = " AND ".join(conditions) or "true"
        most = None if view.most is None else view.most + view.is_cut
        return list(select_rows(self.connection, view.table, order, condition, most))

    def with_texts(self, witnesses: Sequence[Row]) -> Sequence[Row]:
        chosen = [(number,) for number in negative_ids(witnesses)]
        make_table(self.connection, "_chosen", {"number": "bigint"}, chosen)
        self.connection.execute(
            "CREATE OR REPLACE TEMP TABLE ids AS SELECT DISTINCT number, text FROM id_texts "
            "JOIN _chosen USING (number) WHERE CAST(number AS VARCHAR) <> text"
        )
        texts = select_rows(self.connection, "ids", _IDS_ORDER)
        if not texts:
            return witnesses
        if self.folder is not None:
            self.write("ids", _IDS_ORDER)
        return with_texts(witnesses, {row["number"]: row["text"] for row in texts})


@contextmanager
def opened_traces(
    roots: Sequence[Location], out: Location | None, job: Job, run_options: RunOptions
) -> Iterator[DuckDBTraces]:
    """Tables of all traces in some folders; the results count once all are there.

    Args:
        roots: folders that are a trace each, or contain traces; places in S3 as well.
        out: the folder to make, in S3 as well; None writes nothing.
        job: reads them.
        run_options: how.

    Raises:
        PipelineError: one of them is not as it must be; in that case `out` is as it was.
    """
    columns = None if run_options.mapping is None else read_mapping(run_options.mapping)
    locations = [without_hadoop(root) for root in roots]
    trace_set = read_trace_set(
        resolve_locations(_s3, locations), columns, strict=run_options.strict
    )
    target = None if out is None else without_hadoop(out)
    _check(target, trace_set, run_options.overwrite)
    wanted = [] if out is None else ["--out", str(out)]
    command = ["purgatory", job.name, *map(str, roots), *wanted]
    # The audit reads few columns of rows without anomalies, so large files stay where they are.
    copies = job is not AUDIT
    require_room(trace_set, job.reads, command, run_options.memory, copied=copies)
    memory, rows = run_options.memory, known_rows(trace_set, job.reads)
    if memory is None and not copies:
        memory = audit_memory(rows)
    with (
        _folder(target) as folder,
        local_copies(trace_set, job.reads, run_options.progress) as local_set,
        duckdb_connection(progress=run_options.progress, memory=memory, rows=rows) as connection,
    ):
        check = read_tables(
            connection, local_set, job.reads, in_place=() if copies else AUDIT_TABLES
        )
        if run_options.strict:
            require_none(connection)
        yield DuckDBTraces(connection, trace_set.traces, check, folder)


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


# The tables of each job.


def make_waits(
    connection: duckdb.DuckDBPyConnection,
    *,
    window_us: int | None = None,
    by_topic: bool = False,
    percentiles: Exactness = "exact",
) -> None:
    """Make `waits` from `operations`, as `jobs.old_waits.waits` computes it."""
    job = "waits" if by_topic else "waits_over_topics"
    run_job(
        connection, job if percentiles == "exact" else f"{job}_approximate", window_us=window_us
    )


def _waits(run: DuckDBTraces, options: Mapping[str, Any]) -> None:
    make_waits(
        run.connection,
        window_us=options["window_us"],
        by_topic=True,
        percentiles=options["percentiles"],
    )
    run_job(run.connection, "slowest", number=options["slowest"])
    if options["page"]:
        run_job(run.connection, "expiry", most_keys=MOST_KEYS)


def _occupancy(run: DuckDBTraces, options: Mapping[str, Any]) -> None:
    make_table(run.connection, "spans", SPANS, span_rows(run.traces, run.row_check.last_ends_us))
    make_table(run.connection, "faults", FAULTS, fault_rows(run.traces))
    run_job(run.connection, "occupancy")
    run_job(run.connection, "occupancy_causes", number=options["hot_keys"])


def _audit(run: DuckDBTraces, options: Mapping[str, Any]) -> None:
    configuration = configuration_of(run.traces, run.row_check.by_run())
    audit_tables(run.connection, configuration, options["witnesses"], expect=options["expect"])


def _analyze(run: DuckDBTraces, _options: Mapping[str, Any]) -> None:
    connection = run.connection
    runs = run_rows(run.traces, run.row_check.last_ends_us, run.row_check.good)
    make_table(connection, "spans", SPANS, spans_from_runs(runs))
    plotted = [(run["run_id"], window_us(run)) for run in runs[:MOST_PLOTTED_RUNS]]
    make_table(connection, "windows", WINDOWS, plotted)
    make_waits(connection)
    for name in ("latencies", "attempts", "occupancy"):
        run_job(connection, name)
    audit_tables(connection, configuration_of(run.traces, run.row_check.by_run()))
    # What follows is only of the runs that get plots: the others' operations go.
    connection.execute(f"DELETE FROM operations WHERE NOT {_OF_PLOTTED}")
    run_job(connection, "distribution")
    run_job(connection, "expiry", most_keys=MOST_KEYS)
    run_job(connection, "slowest", number=WAITS.options["slowest"].default)
    run_job(connection, "throughput")
    _make_waits_over_time(connection)


def _make_waits_over_time(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the table `waits_over_time`: runs with windows of the same width together."""
    connection.execute("ALTER TABLE waits RENAME TO whole_waits")
    connection.execute("CREATE TEMP TABLE waits_over_time AS FROM whole_waits WHERE false")
    connection.execute("ALTER TABLE operations RENAME TO drawn")
    widths = connection.execute("SELECT DISTINCT window_us FROM windows ORDER BY ALL").fetchall()
    for (width_us,) in widths:
        connection.execute(
            "CREATE OR REPLACE TEMP VIEW operations AS SELECT drawn.* FROM drawn "
            "JOIN windows USING (run_id) "
            f"WHERE outcome != 'immediate' AND window_us = {width_us:d}"
        )
        make_waits(connection, window_us=width_us, percentiles="approximate")
        connection.execute("INSERT INTO waits_over_time SELECT * FROM waits")
    connection.execute("DROP TABLE IF EXISTS waits")
    connection.execute("ALTER TABLE whole_waits RENAME TO waits")


_COMPUTE = {"waits": _waits, "occupancy": _occupancy, "audit": _audit, "analyze": _analyze}
