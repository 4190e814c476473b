"""How a stream gets to its first rows soon: what its session is told, and a job to warm up with.

A start is mostly Java loading and compiling Spark, and a dozen of Python processes that import what
they need, on the same processors.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    import pyarrow as pa

JAVA_OPTIONS = (
    "-XX:+UseSerialGC -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""The costly compiler ten times later than usual: what runs for long still gets it.

With the usual thresholds it takes a fifth of the processors' time of a start.
"""

SETTINGS = {"spark.python.daemon.module": "purgatory.live.python_daemon"}
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
