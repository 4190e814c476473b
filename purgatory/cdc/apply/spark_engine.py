"""Applies topics with Spark Structured Streaming.

Each topic partition of a micro-batch is a task, which applies it over its own connection; with
atomicity `transaction`, one task has all of them. The applied offsets are in the target only: a
query starts from there, and nobody needs its checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from tempfile import TemporaryDirectory

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from purgatory.cdc.apply.applier import RETRY_FOR_S, Applier
from purgatory.cdc.apply.options import ApplyOptions
from purgatory.cdc.apply.writer import Applied
from purgatory.cdc.change import Record
from purgatory.cdc.errors import ChangesError, FaultError, StoppedOnBadError
from purgatory.cdc.targets import Target, open_target
from purgatory.source.query_failure import query_failure

COLUMNS = ("topic", "partition", "offset", "key", "value")
"""What a task needs of the source's columns."""

_RESULT = (
    "applied bigint, skipped bigint, quarantined bigint, pending bigint, error string, "
    "passes boolean"
)
_ARROW_RESULT = pa.schema(
    [
        *((name, pa.int64()) for name in ("applied", "skipped", "quarantined", "pending")),
        ("error", pa.string()),
        ("passes", pa.bool_()),
    ]
)

_SLOW_START = "Python worker failed to connect back"
"""What Spark says when the process that reads for a query isn't up in ten seconds.

The time can't be set, and on a machine that others keep busy, the imports alone may take it.
"""
_MOST_STARTS = 5
_IF_LOST = "To begin anew, delete the topic's rows in the target's table purgatory_offsets"


@dataclass(frozen=True)
class StreamSettings:
    """What is streamed where.

    Args:
        topics: their names.
        target_url: as `open_target` takes it; each task opens it, on whatever machine it runs.
        options: how to apply.
        client: options of the source, as `{"kafka.bootstrap.servers": ...}`.
        by_transaction: whole transactions of the source only.
        once: stop at what is there now.
        most_records: how many records a micro-batch has at most.
        retry_for_s: for how many seconds the target may be away.
    """

    topics: tuple[str, ...]
    target_url: str
    client: Mapping[str, str]
    options: ApplyOptions = field(default_factory=ApplyOptions)
    by_transaction: bool = False
    once: bool = False
    most_records: int = 100_000
    retry_for_s: float = RETRY_FOR_S


def apply_stream(
    session: SparkSession,
    settings: StreamSettings,
    *,
    connect: Callable[[str], Target] = open_target,
    progress: Callable[[Applied], None] = lambda applied: None,
) -> Applied:
    """Apply topics until the query is stopped, or, once, up to what is there now.

    Args:
        session: on whose workers this package is installed, or was sent to.
        settings: what and where.
        connect: opens a target by its URL; goes to the tasks.
        progress: is told what became of each micro-batch.

    Returns:
        What became of all records.

    Raises:
        ChangesError: the target is gone, a broker's data is, or it was to stop at a bad change.
    """
    from purgatory.source import register

    register(session)
    if settings.once:
        _check_topics(settings)
    batches = _Batches(Task(settings, connect), progress)
    source, batches.total = begin(settings, connect)
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


def begin(
    settings: StreamSettings, connect: Callable[[str], Target]
) -> tuple[dict[str, str], Applied]:
    """Apply what an earlier run has left waiting, as far as it is whole.

    Returns:
        The source's options, to go on where the target is; and what became of what waited.

    Raises:
        ChangesError: the target is gone, or it was to stop at a bad change.
    """
    waited = Applied()
    with Applier(
        partial(connect, settings.target_url), settings.options, retry_for_s=settings.retry_for_s
    ) as applier:
        starts = applier.next_offsets(settings.topics)
        for topic in settings.topics:
            waited += applier.settle(topic, by_transaction=settings.by_transaction)
    source = {
        **settings.client,
        "subscribe": ",".join(settings.topics),
        "startingOffsets": _positions(starts),
        "maxOffsetsPerTrigger": str(settings.most_records),
    }
    return source, waited


def _run(writer: DataStreamWriter, batches: _Batches) -> None:
    """Start a query and wait for its end; again, if Spark lost patience with a process of its own.

    What was applied before is skipped the second time: the target knows of it.
    """
    for starts_left in reversed(range(_MOST_STARTS)):
        query = writer.start()
        try:
            query.awaitTermination()
            return
        except PySparkException as error:
            if batches.failure is not None:
                raise batches.failure from None
            if _SLOW_START not in str(error) or not starts_left:
                raise _stream_failure(error) from error
        finally:
            query.stop()


def _check_topics(settings: StreamSettings) -> None:
    """Without an end, a stream waits for a topic that somebody will make; once, nobody will."""
    from purgatory.source import SourceError
    from purgatory.source.broker_client import BrokerClient
    from purgatory.source.source_options import options_of

    try:
        options = options_of({**settings.client, "subscribe": ",".join(settings.topics)})
        client = BrokerClient(options)
        try:
            there = {found.topic for found in client.partitions(options.subscription)}
        finally:
            client.close()
    except SourceError as error:
        raise (FaultError if error.passes else ChangesError)(str(error)) from error
    missing = [topic for topic in settings.topics if topic not in there]
    if missing:
        raise ChangesError(f"there is no topic {missing[0]}: make it, or mend --topic")


def _positions(starts: Mapping[str, Mapping[int, int]]) -> str:
    if not starts:
        return "earliest"
    return json.dumps(
        {
            topic: {str(partition): offset for partition, offset in offsets.items()}
            for topic, offsets in starts.items()
        }
    )


def _stream_failure(error: Exception) -> ChangesError:
    reason, passes = query_failure(error, _IF_LOST)
    return (FaultError if passes else ChangesError)(f"the stream failed: {reason}")


class _Batches:
    """What Spark calls with each micro-batch, at the driver."""

    def __init__(self, task: Task, progress: Callable[[Applied], None]) -> None:
        self._task = task
        self._progress = progress
        self.total = Applied()
        self.failure: ChangesError | None = None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        try:
            self._apply(frame)
        except ChangesError as error:
            self.failure = error
            raise

    def _apply(self, frame: DataFrame) -> None:
        if self._task.settings.by_transaction:
            frame = frame.coalesce(1)
        rows = frame.mapInArrow(self._task, _RESULT).collect()
        became = Applied()
        for row in rows:
            became += Applied(row.applied, row.skipped, row.quarantined, row.pending)
        self.total += became
        self._progress(became)
        for row in rows:
            if row.error is not None:
                raise _failure_of(row)


def _failure_of(row: Row) -> ChangesError:
    return {True: FaultError, False: ChangesError, None: StoppedOnBadError}[row.passes](row.error)


class Task:
    """Applies the records of one Spark partition; goes to the workers.

    Args:
        settings: what and where.
        connect: opens a target by its URL.
    """

    def __init__(self, settings: StreamSettings, connect: Callable[[str], Target]) -> None:
        self.settings = settings
        self.connect = connect

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        became, error, passes = Applied(), None, None
        try:
            for one in self.applied(batches):
                became += one
        except ChangesError as failure:
            # Told by the driver in one line; a task that fails would be told by its traceback.
            error = str(failure)
            passes = None if isinstance(failure, StoppedOnBadError) else failure.passes
        row = {**dataclasses.asdict(became), "error": error, "passes": passes}
        yield pa.RecordBatch.from_pylist([row], schema=_ARROW_RESULT)

    def applied(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Applied]:
        """Apply batches with the columns `COLUMNS`; yield what became of some, in its turn.

        Raises:
            ChangesError: the target is gone, or it was to stop at a bad change.
        """
        settings = self.settings
        with Applier(
            partial(self.connect, settings.target_url),
            settings.options,
            retry_for_s=settings.retry_for_s,
            prepare=False,
        ) as applier:
            if settings.by_transaction:
                records = [record for batch in batches for record in _records(batch)]
                yield applier.apply_transactions(records)
                return
            for batch in batches:
                for place, found in groupby(_records(batch), key=_place):
                    yield applier.apply_batch(*place, list(found))


def _records(batch: pa.RecordBatch) -> Iterator[Record]:
    return map(Record, *(column.to_pylist() for column in batch.columns))


def _place(record: Record) -> tuple[str, int]:
    return record.topic, record.partition
