"""The task of the data source: the records in an offset range of a partition, as Arrow batches.

A range may end with offsets without a record (of transaction markers, or of compacted records).
Reading therefore ends with a record at or beyond the range's end, or with the end of the log. If
neither comes, the log may have become shorter, or the next record may belong to an open
transaction: brokers are asked.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from purgatory.core.recent_errors import Logger
from purgatory.source.broker_client import Absence, RetryTimer, error_of
from purgatory.source.errors import lost_to_retention, partition_gone, shorter_log
from purgatory.source.options import OffsetRange, SourceOptions

_COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key: string, value: binary>>",
    "gap_before": "bigint",
}
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])

_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    # The item's name is the one that Spark gives it: batches must match its schema exactly.
    "headers": pa.list_(pa.field("element", _HEADER)),
    "gap_before": pa.int64(),
}

_MOST_RECORDS = 10_000
_BATCH_BYTES = 8 * 1024 * 1024
_FIRST_RECORDS = 1_000
_CONSUME_TIMEOUT_S = 0.1
_ASK_AFTER_S = 1.0
"""After so long without a record brokers are asked whether one can come, each time."""

_log = Logger("purgatory.source")


class PartitionReader:
    """Reads one range of offsets.

    Args:
        options: of the query.
        found: the range.
    """

    def __init__(self, options: SourceOptions, found: OffsetRange) -> None:
        self._options = options
        self._range = found
        self._position = found.start
        self._gap: int | None = None
        self._ended = found.start >= found.end
        self._wanted = _FIRST_RECORDS
        self._timer = RetryTimer(
            f"topic {found.topic_partition.topic} partition {found.topic_partition.partition} at "
            f"{options.client['bootstrap.servers']}",
            options.timeout_ms,
        )
        self._absence = Absence(options.timeout_ms)
        self._short_since_s: float | None = None
        self._ask_at_s = time.monotonic() + _ASK_AFTER_S

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records in the order of their offsets.

        Raises:
            DataLossError: records are lost, with `failOnDataLoss`.
            BrokerError: brokers refuse, or do not respond in time.
        """
        size = self._range.end - self._range.start
        consumer = Consumer(
            {
                # The records exist: a wait at the end of the log only delays the event of the end.
                "fetch.wait.max.ms": "20",
                # A queue that was full for a moment must not stay empty for a second.
                "fetch.queue.backoff.ms": "20",
                **self._options.client,
                # Do not fetch far beyond the end of the range.
                "queued.min.messages": str(max(1, min(size, 100_000))),
                "error_cb": self._timer.record,
            }
        )
        try:
            self._assign(consumer)
            while not self._ended:
                messages = self._next(consumer)
                if messages:
                    yield arrow_batch(messages, self._gap, self._options.include_headers)
                    self._gap = None
        finally:
            consumer.close()
        self._log_unmarked_gap()

    def _log_unmarked_gap(self) -> None:
        """Log lost records that no row follows to mark the gap."""
        if self._gap is not None:
            _log.warning(
                "records_lost",
                topic=self._range.topic_partition.topic,
                partition=self._range.topic_partition.partition,
                offsets=self._gap,
                before=self._range.end,
                reason="no record after them is in this batch, so no row marks the gap",
            )

    def _next(self, consumer: Consumer) -> list[Message]:
        """Return the next records, perhaps none, and set whether the range has ended."""
        wanted = min(self._wanted, self._range.end - self._position)
        try:
            messages = consumer.consume(wanted, timeout=_CONSUME_TIMEOUT_S)
        except KafkaException as exception:
            self._timer.record(error_of(exception))
            messages = []
        records: list[Message] = []
        for message in messages:
            if self._ended:
                break
            error = message.error()
            if error is None:
                self._take(message, records)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET and records:
                # Return the rows before the gap first; the next fetch finds the gap again.
                self._assign(consumer)
                break
            else:
                self._handle(consumer, message, error)
        if records:
            self._timer.reset()
            self._short_since_s = None
            self._ask_at_s = time.monotonic() + _ASK_AFTER_S
            mean_bytes = (
                sum(len(message.value() or b"") for message in records) // len(records) + 100
            )
            self._wanted = max(1, min(_MOST_RECORDS, _BATCH_BYTES // mean_bytes))
        else:
            self._timer.check()
            if time.monotonic() >= self._ask_at_s:
                self._check_log(consumer)
        return records

    def _check_log(self, consumer: Consumer) -> None:
        """End a range of which no more records can come: its consumer would wait for them."""
        topic_partition = self._range.topic_partition
        try:
            # Of all topics: a request for one by name could create it.
            topics = consumer.list_topics(timeout=self._timer.call_s()).topics
        except KafkaException as exception:
            self._timer.record(error_of(exception))
            return
        finally:
            self._ask_at_s = time.monotonic() + _ASK_AFTER_S
        if self._ended:
            return
        if self._absence.gone([topic_partition], topics):
            if self._options.fail_on_data_loss:
                raise partition_gone(topic_partition, self._position)
            self._lose_rest()
        elif not self._absence.is_missing(topic_partition):
            self._check_end(consumer)

    def _check_end(self, consumer: Consumer) -> None:
        bounds = self._bounds(consumer)
        if bounds is None:
            return
        high = bounds[1]
        if high >= self._range.end:
            self._short_since_s = None
            self._ended = self._is_empty_to_end()
            return
        # A new leader may not have the whole log yet.
        now_s = time.monotonic()
        if self._short_since_s is None:
            self._short_since_s = now_s
        elif now_s - self._short_since_s >= self._absence.grace_s:
            self._end_at(self._range.end, high)

    def _is_empty_to_end(self) -> bool:
        """Return whether the next record, of any transaction, is at or beyond the end.

        Compaction may leave a hole before an open transaction. There, brokers return no records to
        a reader of committed ones, and the client does not get to the end of the log.
        """
        consumer = Consumer({**self._options.client, "isolation.level": "read_uncommitted"})
        try:
            self._assign(consumer)
            messages = consumer.consume(1, timeout=self._timer.call_s())
        except KafkaException as exception:
            self._timer.record(error_of(exception))
            return False
        finally:
            consumer.close()
        # A record, or the event of the end of the log.
        return any(
            offset_of(message) >= self._range.end
            for message in messages
            if (error := message.error()) is None or error.code() == KafkaError._PARTITION_EOF
        )

    def _take(self, message: Message, records: list[Message]) -> None:
        offset = offset_of(message)
        if offset >= self._range.end:
            self._ended = True
        elif offset >= self._position:
            records.append(message)
            self._position = offset + 1
            self._ended = self._position >= self._range.end

    def _handle(self, consumer: Consumer, message: Message, error: KafkaError) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            # Before the end of the range: a new leader has not all records yet.
            self._ended = offset_of(message) >= self._range.end
        elif code == KafkaError._AUTO_OFFSET_RESET:
            self._out_of_range(consumer)
        else:
            self._timer.record(error)

    def _out_of_range(self, consumer: Consumer) -> None:
        """Go to the next offset that the broker has, since it lacks the requested one."""
        bounds = self._bounds(consumer)
        if bounds is not None:
            low, high = bounds
            if self._position < low:
                self._skip_to(low)
            elif high < self._position:
                self._end_at(self._position, high)
        if not self._ended:
            self._assign(consumer)

    def _bounds(self, consumer: Consumer) -> tuple[int, int] | None:
        """Return the beginning and the end of the log; None: no response."""
        try:
            return consumer.get_watermark_offsets(
                ClientPartition(*self._range.topic_partition), timeout=self._timer.call_s()
            )
        except KafkaException as exception:
            self._timer.record(error_of(exception))
            return None

    def _skip_to(self, low: int) -> None:
        if self._options.fail_on_data_loss:
            raise lost_to_retention(self._range.topic_partition, self._position, low)
        upto = min(low, self._range.end)
        self._gap = (self._gap or 0) + upto - self._position
        self._position = upto
        self._ended = upto >= self._range.end

    def _end_at(self, expected: int, high: int) -> None:
        if self._options.fail_on_data_loss:
            raise shorter_log(self._range.topic_partition, expected, high)
        self._lose_rest()

    def _lose_rest(self) -> None:
        self._gap = (self._gap or 0) + self._range.end - self._position
        self._ended = True

    def _assign(self, consumer: Consumer) -> None:
        consumer.assign([ClientPartition(*self._range.topic_partition, self._position)])


# Columns: those of Spark's own Kafka source, and the marked gap


def column_names(include_headers: bool) -> list[str]:
    """Return the names of the columns, in their order."""
    return [name for name in _COLUMNS if include_headers or name != "headers"]


def spark_schema(include_headers: bool) -> str:
    """Return the columns as Spark's DDL."""
    return ", ".join(f"{name} {_COLUMNS[name]}" for name in column_names(include_headers))


def arrow_schema(include_headers: bool) -> pa.Schema:
    """Return the columns of the data source for Arrow."""
    return pa.schema([(name, _TYPES[name]) for name in column_names(include_headers)])


def arrow_batch(
    messages: Sequence[Message], gap_before: int | None, include_headers: bool
) -> pa.RecordBatch:
    """Return one batch, in the order of the messages.

    Args:
        messages: of one partition, at least one.
        gap_before: how many offsets were lost before the first; None: none.
        include_headers: whether there is a column of them.
    """
    times = [message.timestamp() for message in messages]
    columns = {
        "key": [message.key() for message in messages],
        "value": [message.value() for message in messages],
        "topic": pa.repeat(messages[0].topic(), len(messages)),
        "partition": pa.repeat(pa.scalar(messages[0].partition(), pa.int32()), len(messages)),
        "offset": [message.offset() for message in messages],
        "timestamp": [time_ms * 1000 if kind else None for kind, time_ms in times],
        # Here the kinds are counted from "none"; Spark, as Kafka, has that as -1.
        "timestampType": [kind - 1 for kind, _ in times],
        "gap_before": [gap_before] + [None] * (len(messages) - 1),
    }
    if include_headers:
        columns["headers"] = [_headers(message) for message in messages]
    schema = arrow_schema(include_headers)
    return pa.RecordBatch.from_arrays(
        [
            column if isinstance(column, pa.Array) else pa.array(column, field.type)
            for field in schema
            for column in (columns[field.name],)
        ],
        schema=schema,
    )


def _headers(message: Message) -> list[dict[str, object]] | None:
    headers = message.headers()
    if not headers:
        return None
    assert isinstance(headers, list)
    return [{"key": key, "value": value} for key, value in headers]


def offset_of(message: Message) -> int:
    """Return a message's offset, which one from a consumer always has."""
    offset = message.offset()
    assert offset is not None
    return offset
