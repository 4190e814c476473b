"""The tables that only a whole analysis has, by either engine, of rows in memory, in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from purgatory.pipeline.engines.duckdb.sql_engine import DuckDBEngine
from purgatory.pipeline.engines.result_folder import REPORT, TABLES
from purgatory.pipeline.engines.spark.frames import attempts, distribution, expiry, latencies
from purgatory.pipeline.jobs.chain import Statement
from purgatory.pipeline.jobs.clients import attempts_chain, latencies_chain
from purgatory.pipeline.jobs.result_orders import (
    ATTEMPTS_ORDER,
    DISTRIBUTION_ORDER,
    EXPIRY_ORDER,
    LATENCIES_ORDER,
    MOST_KEYS,
)
from purgatory.pipeline.jobs.waits import distribution_chain, expiry_chain
from purgatory.pipeline.result_rows import Order
from tests.spark.pipeline.audit_rows import Engine, given, in_order
from tests.spark.pipeline.operation_rows import assert_same


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
    inputs = {"sends": sends}
    return _table(engine, latencies, latencies_chain(), LATENCIES_ORDER, inputs)


def attempts_of(engine: Engine, sends: pa.Table, reads: pa.Table) -> pa.Table:
    """The table `attempts`."""
    inputs = {"sends": sends, "reads": reads}
    return _table(engine, attempts, attempts_chain(), ATTEMPTS_ORDER, inputs)


def distribution_of(engine: Engine, operations: pa.Table) -> pa.Table:
    """The table `distribution`."""
    inputs = {"operations": operations}
    return _table(engine, distribution, distribution_chain(), DISTRIBUTION_ORDER, inputs)


def expiry_of(engine: Engine, operations: pa.Table, most_keys: int = MOST_KEYS) -> pa.Table:
    """The table `expiry`."""
    inputs = {"operations": operations}
    chain = expiry_chain(most_keys)
    return _table(engine, expiry, chain, EXPIRY_ORDER, inputs, most_keys=most_keys)


def _table(
    engine: Engine,
    job: Callable[..., DataFrame],
    chain: Sequence[Statement],
    order: Order,
    inputs: Mapping[str, pa.Table],
    **options: int,
) -> pa.Table:
    if isinstance(engine, SparkSession):
        return in_order(job(*map(engine.createDataFrame, inputs.values()), **options), order)
    for name, rows in inputs.items():
        given(engine, rows, name)
    computing = DuckDBEngine(engine)
    computing.run(chain)
    return in_order(computing, order, job.__name__)
