"""The whole analysis of traces on disk, in this process: tables and a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from purgatory.pipeline.engines.duckdb.audit import audit_tables
from purgatory.pipeline.engines.duckdb.job_sql import make_table, rows_of, write_table
from purgatory.pipeline.engines.duckdb.opened_tables import OpenedTables, opened_tables
from purgatory.pipeline.engines.duckdb.waits import (
    attempts_table,
    distribution_table,
    expiry_table,
    latencies_table,
    occupancy_table,
    waits_table,
)
from purgatory.pipeline.engines.engine import RunningAnywhere
from purgatory.pipeline.engines.results import (
    Analysis,
    run_rows,
    spans_of,
    window_us,
    write_report,
)
from purgatory.pipeline.ingest.quarantine import QUARANTINE_ORDER
from purgatory.pipeline.jobs.audit.anomalies import COUNTS_ORDER, WITNESSES_ORDER
from purgatory.pipeline.jobs.audit.client_settings import configuration_of
from purgatory.pipeline.jobs.run_spans import SPANS
from purgatory.pipeline.jobs.tables import (
    ATTEMPTS_ORDER,
    DISTRIBUTION_ORDER,
    EXPIRY_ORDER,
    LATENCIES_ORDER,
    OCCUPANCY_ORDERS,
    WAITS_ORDER,
)
from purgatory.pipeline.report.findings import Results
from purgatory.pipeline.report.report import MOST_PLOTTED_RUNS
from purgatory.trace.trace_schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import duckdb

    from purgatory.pipeline.ingest.stores import Place, Uri
    from purgatory.pipeline.result_rows import Order, Row


_OF_PLOTTED = "run_id IN (SELECT run_id FROM plotted)"


def tell_analysis(
    roots: Sequence[Place],
    out: Path | Uri,
    *,
    notes: Sequence[str] = (),
    **how: Unpack[RunningAnywhere],
) -> Analysis:
    """Analyze all traces in some folders; `write_analysis.tell_analysis` without Spark.

    Args:
        roots, out, how: as `opened_tables` takes them.
        notes: as `analyze.analyze` has them.

    Raises:
        PipelineError: one of them is not as it must be; in that case `out` is as it was.
    """
    with opened_tables(roots, out, tuple(TABLES), "analyze", **how) as run:
        assert run.folder is not None, "there is a folder to write into"
        connection, traces = run.connection, run.found.traces
        _write(run, "quarantine", QUARANTINE_ORDER)
        runs = run_rows(traces, run.read.last_ends_us(), _good(connection))
        make_table(connection, "spans", SPANS, spans_of(runs))
        plotted = [(one["run_id"], window_us(one)) for one in runs[:MOST_PLOTTED_RUNS]]
        make_table(connection, "plotted", {"run_id": "string", "window_us": "bigint"}, plotted)
        waits_table(connection)
        latencies_table(connection)
        attempts_table(connection)
        occupancy_table(connection)
        audit_tables(connection, configuration_of(traces, run.read.bad_rows()))
        results = Results(
            runs,
            waits=_told(run, "waits", WAITS_ORDER),
            latencies=_told(run, "latencies", LATENCIES_ORDER),
            attempts=_told(run, "attempts", ATTEMPTS_ORDER),
            occupancy=_told(run, "occupancy", OCCUPANCY_ORDERS["occupancy"], _OF_PLOTTED),
            audit=_told(run, "audit", COUNTS_ORDER),
            witnesses=_told_witnesses(run),
            **_told_of_plotted(run),
        )
        return write_report(results, run.folder, notes, run.read.counts(), roots)


def _told_witnesses(run: OpenedTables) -> Sequence[Row]:
    _write(run, "witnesses", WITNESSES_ORDER)
    rows = run.with_texts(rows_of(run.connection, "witnesses", WITNESSES_ORDER))
    plotted = {
        run_id for (run_id,) in run.connection.execute("FROM plotted SELECT run_id").fetchall()
    }
    return [row for row in rows if row["run_id"] in plotted]


def _good(connection: duckdb.DuckDBPyConnection) -> dict[str, dict[str, int]]:
    """The number of rows by table and run."""
    return {
        table: dict(
            connection.execute(f"SELECT run_id, count(*) FROM {table} GROUP BY run_id").fetchall()
        )
        for table in TABLES
    }


def _told_of_plotted(run: OpenedTables) -> dict[str, Sequence[Row]]:
    """The tables that only plots show, of the runs that get plots. The others' operations go."""
    connection = run.connection
    connection.execute(f"DELETE FROM operations WHERE NOT {_OF_PLOTTED}")
    distribution_table(connection)
    expiry_table(connection)
    _tell_over_time(connection)
    return {
        "distribution": _told(run, "distribution", DISTRIBUTION_ORDER),
        "expiry": _told(run, "expiry", EXPIRY_ORDER),
        "over_time": _told(run, "waits_over_time", WAITS_ORDER),
    }


def _tell_over_time(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the table `waits_over_time`: runs with windows of the same width together."""
    connection.execute("CREATE TEMP TABLE waits_over_time AS SELECT * FROM waits WHERE false")
    connection.execute("ALTER TABLE operations RENAME TO drawn")
    widths = connection.execute("SELECT DISTINCT window_us FROM plotted ORDER BY ALL").fetchall()
    for (width_us,) in widths:
        connection.execute(
            "CREATE OR REPLACE TEMP VIEW operations AS SELECT drawn.* FROM drawn "
            "JOIN plotted USING (run_id) "
            f"WHERE outcome != 'immediate' AND window_us = {width_us:d}"
        )
        waits_table(connection, window_us=width_us, percentiles="approximate")
        connection.execute("INSERT INTO waits_over_time SELECT * FROM waits")


def _told(run: OpenedTables, table: str, order: Order, condition: str = "true") -> list[Row]:
    """Write a table; its rows, or those of them for which a condition holds."""
    _write(run, table, order)
    return list(rows_of(run.connection, table, order, condition))


def _write(run: OpenedTables, table: str, order: Order) -> None:
    assert run.folder is not None, "there is a folder to write into"
    write_table(run.connection, table, order, run.folder)
