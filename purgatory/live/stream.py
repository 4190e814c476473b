"""The queries of ``purgatory stream``: waits and order, each with its checkpoint and its results.

Ground rules
------------
* Each query has a checkpoint, and so a watermark and a state, of its own: one that has nothing to
  read doesn't hold up the other.
* Results of a batch are written in this order: Parquet, the topic, the metrics. What is there
  already, of a batch that is repeated after a crash, is passed over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from purgatory.live.live_metrics import LiveMetrics
from purgatory.live.order import ORDER_COLUMNS, order_findings
from purgatory.live.outputs import ASIDE, ASIDE_COLUMNS
from purgatory.live.parts import Parts, split
from purgatory.live.result_topic import ResultTopic
from purgatory.live.rows import rows_of
from purgatory.live.waits import WAITS_COLUMNS, windowed_waits
from purgatory.pipeline.errors import OutputError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

Records = Callable[[str], DataFrame]
"""Gives the stream of records, with a column `value`, that has the rows of a table."""

_COLUMNS = {"waits": WAITS_COLUMNS, "order": ORDER_COLUMNS}
_ASIDE = ["run_id", *ASIDE_COLUMNS]
_STATE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # The other one asks the shell about links, ten times for each file.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.metricsEnabled": "false",
}
_LOOK_EVERY_S = 0.5
_WAITS_EVERY_US = 5_000_000


@dataclass(frozen=True)
class LiveJobs:
    """What the jobs are to do.

    Args:
        out: the folder of the results.
        checkpoint: the folder where the queries keep how far they are.
        window_us: how long a window of waits is.
        late_us: how much later than others a row may come.
        remember_us: for how long after that a record is remembered.
        to_topic: two topics' names by query, or none.
        bootstrap_servers, client: where these are.
        once: take what is there now, and end.
    """

    out: Path
    checkpoint: Path
    window_us: int = 10_000_000
    late_us: int = 30_000_000
    remember_us: int = 120_000_000
    to_topic: str | None = None
    bootstrap_servers: str = ""
    client: Mapping[str, str] = field(default_factory=dict)
    once: bool = False


def check_places(jobs: LiveJobs) -> None:
    """Refuse results of another checkpoint, whose batches have the same numbers as ours.

    Raises:
        OutputError: saying what is there and what to do.
    """
    for folder, name in ((jobs.out, "--out"), (jobs.checkpoint, "--checkpoint")):
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{name} {folder}: is a file; name a folder")
    for query in _COLUMNS:
        began = (jobs.checkpoint / query / "metadata").exists()
        if not began and any((jobs.out / query).glob("part-*.parquet")):
            raise OutputError(
                f"--out {jobs.out}: has results, and {jobs.checkpoint} does not know of them: "
                "name the checkpoint that goes with them, or another folder"
            )


def run_jobs(
    session: SparkSession,
    records: Records,
    jobs: LiveJobs,
    metrics: LiveMetrics,
    stop: threading.Event,
) -> None:
    """Run both queries until ``stop`` is set, or until all is read that is there now.

    Raises:
        OutputError: a place for results can't be used.
        pyspark.errors.PySparkException: a query failed.
    """
    check_places(jobs)
    for name, value in _STATE.items():
        session.conf.set(name, value)
    # Each task of a batch opens a state of its own: more of them than cores only cost time.
    tasks = min(
        int(session.conf.get("spark.sql.shuffle.partitions") or 1),
        session.sparkContext.defaultParallelism,
    )
    session.conf.set("spark.sql.shuffle.partitions", str(tasks))
    _count_earlier(jobs, metrics)
    queries = [
        # The one that has more to read first: each start takes seconds.
        _start(_order(records, jobs), "order", jobs, metrics),
        _start(_waits(records, jobs), "waits", jobs, metrics),
    ]
    try:
        while any(query.isActive for query in queries) and not stop.wait(_LOOK_EVERY_S):
            _raise_failure(queries)
        _raise_failure(queries)
    finally:
        for query in queries:
            query.stop()


def _raise_failure(queries: list[StreamingQuery]) -> None:
    for query in queries:
        failure = query.exception()
        if failure is not None:
            raise failure


def _waits(records: Records, jobs: LiveJobs) -> DataFrame:
    operations = rows_of(records("operations"), "operations")
    return windowed_waits(operations, window_us=jobs.window_us, late_us=jobs.late_us)


def _order(records: Records, jobs: LiveJobs) -> DataFrame:
    sends, reads = (rows_of(records(table), table) for table in ("sends", "reads"))
    return order_findings(sends, reads, late_us=jobs.late_us, remember_us=jobs.remember_us)


def _count_earlier(jobs: LiveJobs, metrics: LiveMetrics) -> None:
    for query in _COLUMNS:
        for table, folder in _folders(jobs, query).items():
            earlier = Parts(folder).read()
            if earlier is not None:
                metrics.add(table, earlier)


def _folders(jobs: LiveJobs, query: str) -> dict[str, Path]:
    """The folder of each table that a query has; both have rows set aside."""
    return {query: jobs.out / query, ASIDE: jobs.out / ASIDE / query}


def _start(results: DataFrame, name: str, jobs: LiveJobs, metrics: LiveMetrics) -> StreamingQuery:
    columns = list(_COLUMNS[name])
    parts = {table: Parts(folder) for table, folder in _folders(jobs, name).items()}
    topic = None
    if jobs.to_topic is not None:
        topic = ResultTopic(jobs.bootstrap_servers, f"{jobs.to_topic}.{name}", jobs.client)
    query: StreamingQuery | None = None

    def write(batch: DataFrame, number: int) -> None:
        tables = split(batch.toArrow(), name, columns, _ASIDE)
        new = {table: parts[table].write(number, rows) for table, rows in tables.items()}
        if topic is not None:
            topic.write(
                number,
                [{"table": table, **row} for table in tables for row in tables[table].to_pylist()],
            )
        for table, rows in tables.items():
            if new[table]:
                metrics.add(table, rows)
        progress = None if query is None else query.lastProgress
        metrics.batch_done(name, {} if progress is None else progress, number)

    writer = (
        results.writeStream.outputMode("append")
        .queryName(name)
        .option("checkpointLocation", str((jobs.checkpoint / name).resolve()))
        .foreachBatch(write)
    )
    if jobs.once:
        writer = writer.trigger(availableNow=True)
    elif name == "waits":
        writer = writer.trigger(processingTime=f"{_waits_every_us(jobs) // 1_000} milliseconds")
    query = writer.start()
    return query


def _waits_every_us(jobs: LiveJobs) -> int:
    """How often to look at waits: a window is told once, when it is closed, and not before."""
    return min(jobs.window_us // 2, _WAITS_EVERY_US)
