"""The query of `purgatory stream`: waits and occupancy by window, with a checkpoint and sinks.

Ground rules
------------
* The query's thread processes its batches one after the other: it counts a batch, keeps the state
  behind it in the checkpoint, and writes the results. Each of these has no effect when the batch
  is repeated after a crash.
* Results are counted in the metrics after they are written. Results of earlier runs are counted
  before the query starts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from purgatory.pipeline.engines.spark.sql_engine import SQL_SETTINGS
from purgatory.pipeline.errors import FaultError, PipelineError
from purgatory.source.errors import query_failure
from purgatory.stream.checkpoint import QUERY
from purgatory.stream.metrics import StreamMetrics
from purgatory.stream.sinks import Sinks, StreamConfig
from purgatory.stream.source import RecordSource
from purgatory.stream.windowed_occupancy import close_occupancy, closed_until, parked_waits
from purgatory.stream.windowed_waits import close_windows, count_batch, operations_of

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

_POLL_INTERVAL_S = 0.5
_MAX_TRIGGER_US = 5_000_000
_IF_LOST = "To begin anew, give another --out (and another --to-topic)"


def run_query(
    session: SparkSession,
    source: RecordSource,
    config: StreamConfig,
    sinks: Sinks,
    metrics: StreamMetrics,
    stop: threading.Event,
) -> None:
    """Run the query until `stop` is set or, with `config.once`, until all input is read.

    Args:
        session: gets the settings that the query needs.
        source: the records to read.
        config: of the query.
        sinks: those of `open_sinks` for this config.
        metrics: count all results, and the progress of the query.
        stop: stops the query.

    Raises:
        OutputError: a sink can't be used.
        PipelineError: the query failed.
        FaultError: the query failed, and a restart may succeed.
    """
    for table, rows in sinks.read_existing():
        metrics.add(table, rows)
    _configure(session)
    batches = _Batches(source, config, sinks, metrics)
    with warm_up(session):
        operations = operations_of(source.records(session))
        # A window gives its rows when it is closed: more frequent triggers would find nothing.
        trigger_us = min(config.window_us // 2, _MAX_TRIGGER_US)
        writer = (
            operations.writeStream.outputMode("append")
            .queryName(QUERY)
            .option("checkpointLocation", str(config.checkpoint.folder.resolve()))
            .foreachBatch(batches.process)
        )
        if config.once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{trigger_us // 1_000} milliseconds")
        query = batches.query = writer.start()
    try:
        while query.isActive and not stop.wait(_POLL_INTERVAL_S):
            pass
        failure = query.exception()
        if failure is not None:
            reason, is_transient = query_failure(failure, _IF_LOST)
            kind = FaultError if is_transient else PipelineError
            raise kind(f"the query {QUERY} failed: {reason}") from failure
    finally:
        query.stop()


def _configure(session: SparkSession) -> None:
    for name, value in {**SQL_SETTINGS, **STREAM_SETTINGS}.items():
        session.conf.set(name, value)
    # The counts of a batch are few: more tasks than cores only cost time.
    tasks = min(
        int(session.conf.get("spark.sql.shuffle.partitions") or 1),
        session.sparkContext.defaultParallelism,
    )
    session.conf.set("spark.sql.shuffle.partitions", str(tasks))


class _Batches:
    """Processes the batches of the query.

    Args:
        source: finds which partitions have unread records.
        config: of the query.
        sinks: where results are written.
        metrics: count the results.
    """

    def __init__(
        self, source: RecordSource, config: StreamConfig, sinks: Sinks, metrics: StreamMetrics
    ) -> None:
        self._source = source
        self._config = config
        self._checkpoint = config.checkpoint
        self._sinks = sinks
        self._metrics = metrics
        self.query: StreamingQuery | None = None

    def process(self, batch: DataFrame, number: int) -> None:
        """Process a batch, for the first time or again."""
        window_us = self._config.window_us
        before, kept = self._checkpoint.state_before(number), self._checkpoint.state_after(number)
        longest_us = self._config.longest_wait_us
        batch.persist()  # read once, and used twice
        try:
            counts, newest_us = count_batch(batch, window_us=window_us, longest_wait_us=longest_us)
            parked = parked_waits(
                batch,
                watermark_us=before.watermark.us,
                window_us=window_us,
                longest_wait_us=longest_us,
            )
        finally:
            batch.unpersist()
        if kept is None:
            unread = self._source.unread(self._checkpoint.folder, number)
            watermark = before.watermark.advance(newest_us, unread, self._config.watermark_delay_us)
        else:
            watermark = kept.watermark
        state, results = close_windows(
            batch.sparkSession, counts, before, watermark, window_us=window_us
        )
        self._checkpoint.keep_parked(number, parked)
        from_us, until_us = (
            closed_until(us, window_us=window_us, longest_wait_us=longest_us)
            for us in (before.watermark.us, watermark.us)
        )
        if from_us < until_us:
            results["occupancy"] = close_occupancy(
                batch.sparkSession,
                self._checkpoint.parked(from_us, until_us),
                from_us=from_us,
                until_us=until_us,
                window_us=window_us,
            )
        if kept is None:
            self._checkpoint.keep_state(number, state)
        self._checkpoint.drop_parked(from_us)
        for table, rows in self._sinks.write(results, number).items():
            self._metrics.add(table, rows)
        # The first batch may run before `start` has returned the query.
        progress = None if self.query is None else self.query.lastProgress
        self._metrics.batch_done(progress or {}, number, watermark.us, until_us)


# A quick start
#
# A start consists mostly of Java loading and compiling Spark, and of Python processes that import
# their modules, all on the same processors.

JAVA_OPTIONS = (
    "-XX:+UseSerialGC -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""The optimizing compiler starts ten times later than by default; long runs still get it.

With the default thresholds it takes a fifth of the processor time of a start.
"""


@contextmanager
def warm_up(session: SparkSession) -> Iterator[None]:
    """Run an empty job beside the `with` block, which ends when the job has ended.

    While a query plans its first batch, the job starts the process from which Python workers fork,
    and has Java load the classes that every job needs. A failure of the job is ignored: the query
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
