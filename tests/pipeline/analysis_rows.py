"""The tables that only a whole analysis has, by either engine, of rows in memory, in order."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from purgatory.pipeline.engines.duckdb.job_sql import order_by, run_job
from purgatory.pipeline.engines.result_folder import REPORT, TABLES
from purgatory.pipeline.jobs.expressions import sort_columns
from purgatory.pipeline.jobs.latencies import attempts, latencies
from purgatory.pipeline.jobs.old_waits import distribution, expiry
from purgatory.pipeline.jobs.result_orders import (
    ATTEMPTS_ORDER,
    DISTRIBUTION_ORDER,
    EXPIRY_ORDER,
    LATENCIES_ORDER,
    MOST_KEYS,
)
from purgatory.pipeline.result_rows import Order
from tests.pipeline.audit_rows import Engine
from tests.pipeline.operation_rows import assert_same, given


def assert_same_results(one: Path, other: Path) -> None:
    """Two folders of results have the same tables, bad rows in any order, and the same page.

    But for the page's last line, which repeats a command, with its engine and folders.
    """
    names = {entry.name for entry in one.iterdir()}
    assert names == {entry.name for entry in other.iterdir()}
    assert names | {"ids"} == {*TABLES, REPORT}  # which is there where ids are texts
    for name in names - {REPORT}:
        tables = [pq.read_table(folder / name) for folder in (one, other)]
        if name == "quarantine":
            tables = [
                table.sort_by([("file", "ascending"), ("line", "ascending")]) for table in tables
            ]
        assert_same(*tables)
    pages = [(folder / REPORT).read_text(encoding="utf-8") for folder in (one, other)]
    one_page, other_page = (
        re.sub(r" Again: <code>.*?</code>", "", page, flags=re.DOTALL) for page in pages
    )
    assert one_page == other_page


def latencies_of(engine: Engine, sends: pa.Table) -> pa.Table:
    """The table `latencies`."""
    return _table(engine, latencies, LATENCIES_ORDER, sends, "sends")


def attempts_of(engine: Engine, sends: pa.Table, reads: pa.Table) -> pa.Table:
    """The table `attempts`."""
    if isinstance(engine, SparkSession):
        made = attempts(engine.createDataFrame(sends), engine.createDataFrame(reads))
        return made.orderBy(*sort_columns(ATTEMPTS_ORDER)).toArrow()
    given(engine, sends, "sends")
    given(engine, reads, "reads")
    run_job(engine, "attempts")
    chosen = engine.execute(f"SELECT * FROM attempts ORDER BY {order_by(ATTEMPTS_ORDER)}")
    return chosen.to_arrow_table()


def distribution_of(engine: Engine, operations: pa.Table) -> pa.Table:
    """The table `distribution`."""
    return _table(engine, distribution, DISTRIBUTION_ORDER, operations)


def expiry_of(engine: Engine, operations: pa.Table, most_keys: int = MOST_KEYS) -> pa.Table:
    """The table `expiry`."""
    return _table(engine, expiry, EXPIRY_ORDER, operations, most_keys=most_keys)


def _table(
    engine: Engine,
    job: Callable[..., Any],
    order: Order,
    rows: pa.Table,
    table: str = "operations",
    **options: int,
) -> pa.Table:
    if isinstance(engine, SparkSession):
        made: pa.Table = (
            job(engine.createDataFrame(rows), **options).orderBy(*sort_columns(order)).toArrow()
        )
        return made
    given(engine, rows, table)
    run_job(engine, job.__name__, **options)
    chosen = engine.execute(f"SELECT * FROM {job.__name__} ORDER BY {order_by(order)}")
    return chosen.to_arrow_table()
