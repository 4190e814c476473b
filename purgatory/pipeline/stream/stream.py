"""The queries once over, on rows that say nothing, for what Java loads on the way."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from purgatory.pipeline.stream.metrics import LiveMetrics
from purgatory.pipeline.stream.sinks import LiveJobs, open_places
from purgatory.trace.trace_schema import REQUIRED_TABLES

if TYPE_CHECKING:
    import pyarrow as pa
from collections.abc import Mapping

from pyspark.sql.streaming.query import StreamingQuery

from purgatory.pipeline.errors import FaultError, PipelineError
from purgatory.pipeline.source.errors import query_failure
from purgatory.pipeline.stream.order import order_findings
from purgatory.pipeline.stream.rows import Records, rows_of
from purgatory.pipeline.stream.sinks import ResultPlaces
from purgatory.pipeline.stream.windowed_waits import windowed_waits


def rehearse(session: SparkSession, folder: Path) -> None:
    """Run the queries of ``purgatory stream``, then one over files as an analysis has it.

    Args:
        session: to run them in; its settings are changed.
        folder: an empty one; all is written there.
    """
    for table in REQUIRED_TABLES:
        (folder / table).mkdir()
        # No row of any table: it is set aside, which takes the same way through Spark.
        (folder / table / "rows.txt").write_text("{}\n" * 10, encoding="utf-8")

    def records(*tables: str) -> DataFrame:
        text = session.readStream.text(str(folder / f"{{{','.join(tables)}}}"))
        return text.select("value", f.lit(tables[0]).alias("table"))

    jobs = LiveJobs(out=folder / "out", checkpoint=folder / "checkpoint", once=True)
    run_jobs(session, records, jobs, open_places(jobs), LiveMetrics(), threading.Event())
    aside = session.read.parquet(str(folder / "out" / "aside" / "*"))
    reasons = aside.groupBy("source", "reason").agg(f.sum("rows").alias("all"))
    whole = aside.join(reasons, ["source", "reason"]).orderBy("source")
    whole.write.parquet(str(folder / "whole"))


# How a stream gets to its first rows soon: what its session is told, and a job to warm up with.
#
# A start is mostly Java loading and compiling Spark, and a dozen of Python processes that import what
# they need, on the same processors.


JAVA_OPTIONS = (
    "-XX:+UseSerialGC -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""The costly compiler ten times later than usual: what runs for long still gets it.

With the usual thresholds it takes a fifth of the processors' time of a start.
"""

SETTINGS = {"spark.python.daemon.module": "purgatory.pipeline.stream.python_daemon"}
"""Python workers that have imported what they need when they begin."""

STREAM_SETTINGS = {
    # The other one asks the shell about links, ten times for each file.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.metricsEnabled": "false",
}
"""What any stream with a checkpoint on a disk of its own starts sooner with."""


@contextmanager
def warmed_up(session: SparkSession) -> Iterator[None]:
    """Run a job that does nothing beside the `with` block, which ends when the job has ended.

    While a query plans its first batch, the job starts the process that Python workers come from,
    and has Java load what every job needs. An error in it is not told: the jobs that are
    there for something will tell.
    """
    thread = threading.Thread(target=_run, args=(session,), name="purgatory-warm-up", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _run(session: SparkSession) -> None:
    with suppress(Exception):  # of many kinds, when Java ends
        session.range(1).mapInArrow(_same, "id bigint").toArrow()


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


# The queries of ``purgatory stream``: waits and order, each with its checkpoint and its results.
#
# Ground rules
# ------------
# * Each query has a checkpoint, and so a watermark and a state, of its own: one that has nothing to
#   read doesn't hold up the other.
# * Results are counted in the metrics when they are where they are to be, and those that were there
#   before, when the queries begin.
# * A query's batches are written one after the other, each query's in a thread of its own.


_STATE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    **STREAM_SETTINGS,
}
_LOOK_EVERY_S = 0.5
_WAITS_EVERY_US = 5_000_000
_IF_LOST = "To begin anew, give another --out (and another --to-topic)"
_NOTHING_TO_READ = "Waiting for data to arrive"


def run_jobs(
    session: SparkSession,
    records: Records,
    jobs: LiveJobs,
    places: Mapping[str, ResultPlaces],
    metrics: LiveMetrics,
    stop: threading.Event,
) -> None:
    """Run both queries until ``stop`` is set, or until all is read that is there now.

    Args:
        session: which gets the settings that the queries need.
        records: gives the streams to read.
        jobs: what to do.
        places: of `open_places`, for these jobs.
        metrics: get all results, and how far the queries are.
        stop: ends the queries.

    Raises:
        OutputError: a place for results can't be used.
        PipelineError: a query failed.
        FaultError: a query failed, and may not when it's started again.
    """
    _configure(session)
    for of_query in places.values():
        for table, rows in of_query.earlier():
            metrics.add(table, rows)
    queries: list[_Query] = []
    try:
        # The one that has more to read first, and alone: each start takes all processors.
        order = _order(records, jobs)
        with warmed_up(session):
            queries.append(_Query(order, places["order"], metrics, jobs, every_us=0))
            while not queries[0].has_begun():
                if stop.wait(_LOOK_EVERY_S):
                    return
        queries[0].raise_failure()
        waits, every_us = _waits(records, jobs), _waits_every_us(jobs)
        queries.append(_Query(waits, places["waits"], metrics, jobs, every_us=every_us))
        while any(query.is_active() for query in queries) and not stop.wait(_LOOK_EVERY_S):
            for query in queries:
                query.raise_failure()
        for query in queries:
            query.raise_failure()
    finally:
        for query in queries:
            query.stop()


def _configure(session: SparkSession) -> None:
    for name, value in _STATE.items():
        session.conf.set(name, value)
    # Each task of a batch opens a state of its own: more of them than cores only cost time.
    tasks = min(
        int(session.conf.get("spark.sql.shuffle.partitions") or 1),
        session.sparkContext.defaultParallelism,
    )
    session.conf.set("spark.sql.shuffle.partitions", str(tasks))


def _waits(records: Records, jobs: LiveJobs) -> DataFrame:
    operations = rows_of(records("operations"), "operations")
    return windowed_waits(operations, window_us=jobs.window_us, late_us=jobs.late_us)


def _order(records: Records, jobs: LiveJobs) -> DataFrame:
    # One stream for both: each costs seconds when a query starts.
    rows = rows_of(records("sends", "reads"), "sends", "reads")
    return order_findings(rows, late_us=jobs.late_us, remember_us=jobs.remember_us)


class _Query:
    """A query that runs, from when this is made to `stop` or until all is read.

    Args:
        results: what it gives, with a column `table`.
        places: where that goes.
        metrics: count it.
        jobs: what to do.
        every_us: how often to look for rows, in microseconds; 0: when the last batch is done.
    """

    def __init__(
        self,
        results: DataFrame,
        places: ResultPlaces,
        metrics: LiveMetrics,
        jobs: LiveJobs,
        *,
        every_us: int,
    ) -> None:
        self._places = places
        self._metrics = metrics
        self._reads = threading.Event()
        self._query: StreamingQuery | None = None
        writer = (
            results.writeStream.outputMode("append")
            .queryName(places.query)
            .option("checkpointLocation", str((jobs.checkpoint / places.query).resolve()))
            .foreachBatch(self._write)
        )
        if jobs.once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{every_us // 1_000} milliseconds")
        self._query = writer.start()

    def is_active(self) -> bool:
        """Tell whether it has not ended."""
        return self._query is not None and self._query.isActive

    def has_begun(self) -> bool:
        """Tell whether it is reading, or has nothing to read."""
        if self._reads.is_set() or self._query is None or not self._query.isActive:
            return True
        return bool(self._query.status["message"] == _NOTHING_TO_READ)

    def raise_failure(self) -> None:
        """Raise what it has failed with, if it has."""
        failure = None if self._query is None else self._query.exception()
        if failure is not None:
            reason, passes = query_failure(failure, _IF_LOST)
            kind = FaultError if passes else PipelineError
            raise kind(f"the query {self._places.query} failed: {reason}") from failure

    def stop(self) -> None:
        """End it; a batch that is under way is cut off."""
        if self._query is not None:
            self._query.stop()

    def _write(self, batch: DataFrame, number: int) -> None:
        self._reads.set()
        for table, rows in self._places.write(batch.toArrow(), number).items():
            self._metrics.add(table, rows)
        # The first batch may be here before the query is known by a name.
        progress = None if self._query is None else self._query.lastProgress
        self._metrics.batch_done(self._places.query, progress or {}, number)


def _waits_every_us(jobs: LiveJobs) -> int:
    """How often to look at waits: a window is told once, when it is closed, and not before."""
    return min(jobs.window_us // 2, _WAITS_EVERY_US)
