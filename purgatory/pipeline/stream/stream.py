"""The queries of `purgatory stream`: waits and order, each with its checkpoint and its sinks.

Ground rules
------------
* Each query has a checkpoint, and so a watermark and a state, of its own: a query without input
  does not hold up the other.
* Results are counted in the metrics after they are written. Results of earlier runs are counted
  before the queries start.
* Each query runs in a thread of its own, which writes its batches one after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from purgatory.pipeline.errors import FaultError, PipelineError
from purgatory.pipeline.source.errors import query_failure
from purgatory.pipeline.stream.metrics import StreamMetrics
from purgatory.pipeline.stream.order import order_findings
from purgatory.pipeline.stream.rows import RecordStreams, rows_of
from purgatory.pipeline.stream.sinks import Sinks, StreamConfig, open_sinks
from purgatory.pipeline.stream.windowed_waits import windowed_waits
from purgatory.trace.trace_schema import REQUIRED_TABLES

if TYPE_CHECKING:
    import pyarrow as pa

STREAM_SETTINGS = {
    # Spark's default starts a shell for links, ten times per file.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.metricsEnabled": "false",
}
"""Settings with which a stream whose checkpoint is on a local disk starts sooner."""

_STATE_STORE_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
_POLL_INTERVAL_S = 0.5
_MAX_WAITS_TRIGGER_US = 5_000_000
_IF_LOST = "To begin anew, give another --out (and another --to-topic)"
_NO_DATA_MESSAGE = "Waiting for data to arrive"


def run_queries(
    session: SparkSession,
    records: RecordStreams,
    config: StreamConfig,
    sinks: Mapping[str, Sinks],
    metrics: StreamMetrics,
    stop: threading.Event,
) -> None:
    """Run both queries until `stop` is set or, with `config.once`, until all input is read.

    Args:
        session: gets the settings that the queries need.
        records: returns the streams to read.
        config: of the queries.
        sinks: those of `open_sinks` for this config.
        metrics: count all results, and the progress of the queries.
        stop: stops the queries.

    Raises:
        OutputError: a sink can't be used.
        PipelineError: a query failed.
        FaultError: a query failed, and a restart may succeed.
    """
    _configure(session)
    for of_query in sinks.values():
        for table, rows in of_query.read_existing():
            metrics.add(table, rows)
    queries: list[_Query] = []
    try:
        # The query with more input first, and alone: each start takes all processors.
        # One stream for both tables: each stream costs seconds at the start of a query.
        order = order_findings(
            rows_of(records("sends", "reads"), "sends", "reads"),
            watermark_delay_us=config.watermark_delay_us,
            state_ttl_us=config.state_ttl_us,
        )
        with warm_up(session):
            queries.append(_Query(order, sinks["order"], metrics, config, trigger_us=0))
            while not queries[0].has_begun():
                if stop.wait(_POLL_INTERVAL_S):
                    return
        queries[0].raise_failure()
        # A window gives its row when it is closed: more frequent triggers would find nothing.
        trigger_us = min(config.window_us // 2, _MAX_WAITS_TRIGGER_US)
        waits = windowed_waits(
            rows_of(records("operations"), "operations"),
            window_us=config.window_us,
            watermark_delay_us=config.watermark_delay_us,
        )
        queries.append(_Query(waits, sinks["waits"], metrics, config, trigger_us=trigger_us))
        while any(query.is_active() for query in queries) and not stop.wait(_POLL_INTERVAL_S):
            for query in queries:
                query.raise_failure()
        for query in queries:
            query.raise_failure()
    finally:
        for query in queries:
            query.stop()


def _configure(session: SparkSession) -> None:
    for name, value in {**_STATE_STORE_SETTINGS, **STREAM_SETTINGS}.items():
        session.conf.set(name, value)
    # Each task of a batch opens a state store of its own: more tasks than cores only cost time.
    tasks = min(
        int(session.conf.get("spark.sql.shuffle.partitions") or 1),
        session.sparkContext.defaultParallelism,
    )
    session.conf.set("spark.sql.shuffle.partitions", str(tasks))


class _Query:
    """A running query, until `stop` is called or all input is read.

    Args:
        results: its output, with a column `table`.
        sinks: where the output is written.
        metrics: count it.
        config: of the queries.
        trigger_us: the interval of its trigger, in microseconds; 0: as soon as a batch is done.
    """

    def __init__(
        self,
        results: DataFrame,
        sinks: Sinks,
        metrics: StreamMetrics,
        config: StreamConfig,
        *,
        trigger_us: int,
    ) -> None:
        self._sinks = sinks
        self._metrics = metrics
        self._has_batch = threading.Event()
        self._query: StreamingQuery | None = None
        writer = (
            results.writeStream.outputMode("append")
            .queryName(sinks.query)
            .option("checkpointLocation", str((config.checkpoint / sinks.query).resolve()))
            .foreachBatch(self._write)
        )
        if config.once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{trigger_us // 1_000} milliseconds")
        self._query = writer.start()

    def is_active(self) -> bool:
        """Return whether it has not ended."""
        return self._query is not None and self._query.isActive

    def has_begun(self) -> bool:
        """Return whether it has read input, has ended, or has nothing to read."""
        if self._has_batch.is_set() or self._query is None or not self._query.isActive:
            return True
        return bool(self._query.status["message"] == _NO_DATA_MESSAGE)

    def raise_failure(self) -> None:
        """Raise the failure of the query, if it failed."""
        failure = None if self._query is None else self._query.exception()
        if failure is not None:
            reason, is_transient = query_failure(failure, _IF_LOST)
            kind = FaultError if is_transient else PipelineError
            raise kind(f"the query {self._sinks.query} failed: {reason}") from failure

    def stop(self) -> None:
        """Stop it; the current batch is interrupted."""
        if self._query is not None:
            self._query.stop()

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        self._has_batch.set()
        for table, rows in self._sinks.write(batch.toArrow(), batch_id).items():
            self._metrics.add(table, rows)
        # The first batch may run before `start` has returned the query.
        progress = None if self._query is None else self._query.lastProgress
        self._metrics.batch_done(self._sinks.query, progress or {}, batch_id)


# A quick start
#
# A start consists mostly of Java loading and compiling Spark, and of a dozen Python processes that
# import their modules, all on the same processors.

JAVA_OPTIONS = (
    "-XX:+UseSerialGC -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""The optimizing compiler starts ten times later than by default; long runs still get it.

With the default thresholds it takes a fifth of the processor time of a start.
"""

SETTINGS = {"spark.python.daemon.module": "purgatory.pipeline.stream.python_daemon"}
"""Python workers fork from a process that has imported their modules."""


@contextmanager
def warm_up(session: SparkSession) -> Iterator[None]:
    """Run an empty job beside the `with` block, which ends when the job has ended.

    While a query plans its first batch, the job starts the process from which Python workers fork,
    and has Java load the classes that every job needs. A failure of the job is ignored: the queries
    would fail in the same way, and report it.
    """

    def run_empty_job() -> None:
        with suppress(Exception):  # of many kinds, when Java ends
            session.range(1).mapInArrow(_identity, "id bigint").toArrow()

    thread = threading.Thread(target=run_empty_job, name="purgatory-warm-up", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _identity(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def rehearse(session: SparkSession, folder: Path) -> None:
    """Run the queries on rows without content, then one over files as `purgatory waits` does.

    `purgatory prepare` archives the classes that Java loads on the way.

    Args:
        session: to run them in; its settings are changed.
        folder: an empty one; everything is written there.
    """
    for table in REQUIRED_TABLES:
        (folder / table).mkdir()
        # An invalid row goes into quarantine, and takes the same way through Spark.
        (folder / table / "rows.txt").write_text("{}\n" * 10, encoding="utf-8")

    def records(*tables: str) -> DataFrame:
        text = session.readStream.text(str(folder / f"{{{','.join(tables)}}}"))
        return text.select("value", f.lit(tables[0]).alias("table"))

    config = StreamConfig(out=folder / "out", checkpoint=folder / "checkpoint", once=True)
    run_queries(session, records, config, open_sinks(config), StreamMetrics(), threading.Event())
    quarantine = session.read.parquet(str(folder / "out" / "quarantine" / "*"))
    reasons = quarantine.groupBy("source", "reason").agg(f.sum("rows").alias("all"))
    whole = quarantine.join(reasons, ["source", "reason"]).orderBy("source")
    whole.write.parquet(str(folder / "whole"))
