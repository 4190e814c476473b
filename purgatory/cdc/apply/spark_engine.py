"""Applies topics with Spark Structured Streaming.

Each topic partition of a micro-batch is a task, which applies it over its own connection; by
transaction, one task has all of them. The offsets are in the target only: a query starts from
there, and its checkpoint is not needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from purgatory.cdc.apply.exactly_once import Applied
from purgatory.cdc.apply.local_engine import (
    COLUMNS,
    RESTART_ADVICE,
    apply_batches,
    check_topics,
    open_applier,
    resume,
)
from purgatory.cdc.apply.options import TopicSettings
from purgatory.cdc.errors import ChangesError, QuarantineStopError, TransientError
from purgatory.cdc.targets import Target, open_target
from purgatory.source.errors import SourceError, query_failure

_RESULT = (
    "applied bigint, skipped bigint, quarantined bigint, pending bigint, error string, "
    "is_transient boolean"
)
_ARROW_RESULT = pa.schema(
    [
        *((name, pa.int64()) for name in ("applied", "skipped", "quarantined", "pending")),
        ("error", pa.string()),
        ("is_transient", pa.bool_()),
    ]
)

_SLOW_START = "Python worker failed to connect back"
"""Spark's error when the process that reads for a query isn't up in ten seconds.

The time can't be set, and on a busy machine the imports alone may take it.
"""
_MAX_STARTS = 5


def apply_stream(
    session: SparkSession,
    settings: TopicSettings,
    *,
    connect: Callable[[str], Target] = open_target,
    progress: Callable[[Applied], None] = lambda applied: None,
) -> Applied:
    """Apply topics until the query is stopped, or, with `once`, up to their current ends.

    Args:
        session: on whose workers this package is installed, or was sent to.
        connect: opens a target by its URL; is sent to the tasks.
        progress: called with the result of each micro-batch.

    Raises:
        ChangesError: the brokers or the target are unreachable, records to be read are gone, or a
            change can't be applied and has to stop the run.
    """
    from purgatory.source import register

    register(session)
    if settings.once:
        try:
            check_topics(settings)
        except SourceError as error:
            raise (TransientError if error.is_transient else ChangesError)(str(error)) from error
    batches = _Batches(Task(settings, connect), progress)
    with open_applier(settings, connect) as applier:
        source, batches.total = resume(applier, settings)
    with TemporaryDirectory(prefix="purgatory-apply-") as checkpoint:
        writer = (
            session.readStream.format("purgatory")
            .options(**source)
            .load()
            .select(*COLUMNS)
            .writeStream.foreachBatch(batches)
            .option("checkpointLocation", checkpoint)
        )
        _run(writer.trigger(availableNow=True) if settings.once else writer, batches)
    return batches.total


def _run(writer: DataStreamWriter, batches: _Batches) -> None:
    """Run a query to its end; start it again if one of Spark's processes was up too late.

    Records that were applied before are skipped the second time.
    """
    for starts_left in reversed(range(_MAX_STARTS)):
        query = writer.start()
        try:
            query.awaitTermination()
            return
        except PySparkException as error:
            if batches.failure is not None:
                raise batches.failure from None
            if _SLOW_START not in str(error) or not starts_left:
                reason, is_transient = query_failure(error, RESTART_ADVICE)
                kind = TransientError if is_transient else ChangesError
                raise kind(f"the stream failed: {reason}") from error
        finally:
            query.stop()


@dataclass
class _Batches:
    """Called by Spark with each micro-batch, at the driver."""

    task: Task
    progress: Callable[[Applied], None]
    total: Applied = field(default_factory=Applied)
    failure: ChangesError | None = None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        if self.task.settings.by_transaction:
            frame = frame.coalesce(1)
        rows = frame.mapInArrow(self.task, _RESULT).collect()
        applied = Applied()
        for row in rows:
            applied += Applied(row.applied, row.skipped, row.quarantined, row.pending)
        self.total += applied
        self.progress(applied)
        for row in rows:
            if row.error is not None:
                kinds = {True: TransientError, False: ChangesError, None: QuarantineStopError}
                self.failure = kinds[row.is_transient](row.error)
                raise self.failure


@dataclass(frozen=True)
class Task:
    """Applies the records of one Spark partition; is sent to the workers."""

    settings: TopicSettings
    connect: Callable[[str], Target]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        applied, error, is_transient = Applied(), None, None
        by_transaction = self.settings.by_transaction
        try:
            with open_applier(self.settings, self.connect, prepare=False) as applier:
                for result in apply_batches(applier, batches, by_transaction):
                    applied += result
        except ChangesError as failure:
            # The driver raises it in one line; a failed task would bring its traceback.
            error = str(failure)
            is_transient = (
                None if isinstance(failure, QuarantineStopError) else failure.is_transient
            )
        row = {**dataclasses.asdict(applied), "error": error, "is_transient": is_transient}
        yield pa.RecordBatch.from_pylist([row], schema=_ARROW_RESULT)
