"""The queries of ``purgatory stream``: waits and order, each with its checkpoint and its results.

Ground rules
------------
* Each query has a checkpoint, and so a watermark and a state, of its own: one that has nothing to
  read doesn't hold up the other.
* Results are counted in the metrics, and on the page, when they are where they are to be, and those
  that were there before, when the queries begin.
* A query's batches are written one after the other, each query's in a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from purgatory.analysis.errors import FaultError, PipelineError
from purgatory.live.live_jobs import LiveJobs
from purgatory.live.live_metrics import LiveMetrics
from purgatory.live.live_order import order_findings
from purgatory.live.live_rows import rows_of
from purgatory.live.live_waits import windowed_waits
from purgatory.live.quick_start import STREAM_SETTINGS, warmed_up
from purgatory.live.result_places import ResultPlaces
from purgatory.live.stream_report import StreamReport
from purgatory.live.topic_records import Records
from purgatory.source.query_failure import query_failure

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

Takers = Sequence[LiveMetrics | StreamReport]
"""Who is told of results, and of how far the queries are."""


def run_jobs(
    session: SparkSession,
    records: Records,
    jobs: LiveJobs,
    places: Mapping[str, ResultPlaces],
    metrics: LiveMetrics,
    stop: threading.Event,
    report: StreamReport | None = None,
) -> None:
    """Run both queries until ``stop`` is set, or until all is read that is there now.

    Args:
        session: which gets the settings that the queries need.
        records: gives the streams to read.
        jobs: what to do.
        places: of `open_places`, for these jobs.
        metrics: get all results, and how far the queries are.
        stop: ends the queries.
        report: the page that is to be kept up to date, if there is one.

    Raises:
        OutputError: a place for results can't be used.
        PipelineError: a query failed.
        FaultError: a query failed, and may not when it's started again.
    """
    _configure(session)
    takers: list[LiveMetrics | StreamReport] = [metrics, *([report] if report else [])]
    for of_query in places.values():
        for table, rows in of_query.earlier():
            for taker in takers:
                taker.add(table, rows)
    with report.kept(stop) if report else nullcontext():
        _run(session, records, jobs, places, takers, stop, report)


def _run(
    session: SparkSession,
    records: Records,
    jobs: LiveJobs,
    places: Mapping[str, ResultPlaces],
    takers: Takers,
    stop: threading.Event,
    report: StreamReport | None,
) -> None:
    queries: list[_Query] = []
    try:
        # The one that has more to read first, and alone: each start takes all processors.
        order = _order(records, jobs)
        with warmed_up(session):
            queries.append(_Query(order, places["order"], takers, jobs, every_us=0))
            while not queries[0].has_begun():
                if stop.wait(_LOOK_EVERY_S):
                    return
        queries[0].raise_failure()
        waits, every_us = _waits(records, jobs), _waits_every_us(jobs)
        queries.append(_Query(waits, places["waits"], takers, jobs, every_us=every_us))
        while any(query.is_active() for query in queries) and not stop.wait(_LOOK_EVERY_S):
            for query in queries:
                query.raise_failure()
            if report is not None:
                report.refresh()
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
        takers: get it too.
        jobs: what to do.
        every_us: how often to look for rows, in microseconds; 0: when the last batch is done.
    """

    def __init__(
        self,
        results: DataFrame,
        places: ResultPlaces,
        takers: Takers,
        jobs: LiveJobs,
        *,
        every_us: int,
    ) -> None:
        self._places = places
        self._takers = takers
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
            for taker in self._takers:
                taker.add(table, rows)
        # The first batch may be here before the query is known by a name.
        progress = None if self._query is None else self._query.lastProgress
        for taker in self._takers:
            taker.batch_done(self._places.query, progress or {}, number)


def _waits_every_us(jobs: LiveJobs) -> int:
    """How often to look at waits: a window is told once, when it is closed, and not before."""
    return min(jobs.window_us // 2, _WAITS_EVERY_US)
