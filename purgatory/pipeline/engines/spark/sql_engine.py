"""Spark as an engine of the jobs' SQL: statements, small tables and results of a session."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from graphlib import TopologicalSorter
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from purgatory.pipeline.engines.spark.connect import local_table
from purgatory.pipeline.engines.spark.job_threads import job_threads
from purgatory.pipeline.ingest.column_casts import NANOS_AS_LONG
from purgatory.pipeline.jobs.chain import Statement
from purgatory.pipeline.jobs.macros import spark_macros

_NAME = re.compile(r"\b[a-z_]\w*\b")

_MARKER = "mapreduce.fileoutputcommitter.marksuccessfuljobs"
"""An empty file beside those of a table, for which Hadoop starts `chmod` on this machine."""

SQL_SETTINGS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    NANOS_AS_LONG: "true",
}
"""The settings with which Spark reads the jobs' SQL, and Parquet, as DuckDB does."""


class SparkEngine:
    """`engines.engine.SqlEngine` on a session that has `SQL_SETTINGS`.

    A table of a chain is written as Parquet, and read from there: a plan ends where it is read, so
    that none grows with the chain, and a lost executor loses nothing of it. Without a folder that
    all executors share, the table is a checkpoint with two copies instead.

    Args:
        session: gets temporary views and functions.
        folder: a path or URI that the driver and all executors read and write; None: there is none.
    """

    def __init__(self, session: SparkSession, folder: str | None) -> None:
        self.session = session
        self._folder = folder
        self._kept = count(1)
        self._macros = spark_macros()

    def run(self, statements: Iterable[Statement]) -> None:
        """Run a chain: statements that don't read one another run at the same time."""
        chain = list(statements)
        self._define_macros(chain)
        running: dict[Future[None], int] = {}
        order = _order(chain)
        with job_threads(self.session) as submit:
            while order.is_active():
                for number in order.get_ready():
                    running[submit(self._make, chain[number])] = number
                for ended in wait(running, return_when=FIRST_COMPLETED).done:
                    ended.result()
                    order.done(running.pop(ended))

    def _define_macros(self, chain: Sequence[Statement]) -> None:
        """Define the functions that a chain names: each takes Spark a fifth of a second."""
        named = {name for one in chain for name in _NAME.findall(one.query)}
        for name in self._macros.keys() & named:
            self.session.sql(self._macros.pop(name))

    def _make(self, one: Statement) -> None:
        table = self.session.sql(one.query)
        if one.kept:
            table = self.keep(table)
        table.createOrReplaceTempView(one.name)

    def keep(self, table: DataFrame) -> DataFrame:
        """A table that is computed now, and not again.

        A table without rows becomes a local one: Spark then takes all that is joined to it out of
        later plans.
        """
        if self._folder is None:
            kept = table.localCheckpoint(True, StorageLevel.MEMORY_AND_DISK_2)
            is_empty = kept.isEmpty()
        else:
            path = f"{self._folder}/{next(self._kept)}"
            table.write.option(_MARKER, "false").parquet(path)
            kept = self.session.read.schema(table.schema).parquet(path)
            parts = Path(path.removeprefix("file:")).glob("*.parquet")
            is_empty = not any(pq.read_metadata(part).num_rows for part in parts)
        return kept.limit(0) if is_empty else kept

    def make_table(
        self, name: str, columns: Mapping[str, str], rows: Sequence[tuple[object, ...]] = ()
    ) -> None:
        schema = ", ".join(f"`{column}` {kind}" for column, kind in columns.items())
        local_table(self.session, rows, schema).createOrReplaceTempView(name)

    def query(self, query: str) -> pa.Table:
        return self.session.sql(query).toArrow()


def _order(chain: Sequence[Statement]) -> TopologicalSorter[int]:
    """The statements that each one of a chain, by its number, has to wait for.

    A statement waits for what it reads. A second one of a name also waits for all that read the
    first: from then on, the name means the second.
    """
    order: TopologicalSorter[int] = TopologicalSorter()
    latest: dict[str, int] = {}
    readers: list[set[int]] = []
    for number, one in enumerate(chain):
        read = {latest[name] for name in _NAME.findall(one.query) if name in latest}
        readers.append(set())
        for other in read:
            readers[other].add(number)
        if one.name in latest:
            read |= {latest[one.name], *readers[latest[one.name]]}
        latest[one.name] = number
        order.add(number, *(read - {number}))
    order.prepare()
    return order


@contextmanager
def sql_settings(session: SparkSession) -> Iterator[None]:
    """Let a user's session have `SQL_SETTINGS` during the `with` block."""
    before = {name: session.conf.get(name) for name in SQL_SETTINGS}
    for name, value in SQL_SETTINGS.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is not None:
                session.conf.set(name, old)
