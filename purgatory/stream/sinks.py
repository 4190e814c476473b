"""The sinks of `purgatory stream`: Parquet and, with `--to-topic`, a topic.

Ground rules
------------
* A batch is written to Parquet first, then to the topic. Spark repeats the last batch after a
  crash, with the same number and the same rows: a sink skips the rows that it has already.
* A sink has one writer, the query's thread. Its results belong to one checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.pipeline.errors import FaultError, OutputError
from purgatory.pipeline.jobs.registry import STREAM
from purgatory.stream.checkpoint import QUERY, Checkpoint, write_whole

if TYPE_CHECKING:
    from confluent_kafka import Consumer

_TIMEOUT_S = 30.0
_HEAD = ("batch", "number")


@dataclass(frozen=True)
class StreamConfig:
    """The configuration of the query.

    Args:
        out: the folder of the results.
        checkpoint_folder: the folder of the query's checkpoint.
        window_us: the length of a window, in microseconds.
        watermark_delay_us: how late a row may be, in microseconds.
        longest_wait_us: the longest wait that occupancy counts whole, in microseconds.
        to_topic: the prefix of the topic for results, `.waits`; None: no topic.
        bootstrap_servers, client: of the cluster with this topic.
        once: read the input that is there now, and end.
    """

    out: Path
    checkpoint_folder: Path
    window_us: int = STREAM.options["window_us"].default
    watermark_delay_us: int = STREAM.options["watermark_us"].default
    longest_wait_us: int = STREAM.options["longest_wait_us"].default
    to_topic: str | None = None
    bootstrap_servers: str = ""
    client: Mapping[str, str] = field(default_factory=dict)
    once: bool = False

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint of the query."""
        return Checkpoint(self.checkpoint_folder / QUERY)


@dataclass(frozen=True)
class Sinks:
    """The sinks of the query.

    Args:
        parquet: by table.
        topic: None without `--to-topic`.
    """

    parquet: Mapping[str, ParquetSink]
    topic: TopicSink | None

    def write(self, tables: Mapping[str, pa.Table], batch: int) -> dict[str, pa.Table]:
        """Write a batch; return the tables that were not in Parquet before.

        Args:
            tables: the rows by table.
            batch: its number.

        Raises:
            FaultError: the brokers did not acknowledge all records.
        """
        # A repeated batch may have its rows in another order.
        in_order = {
            name: rows.sort_by([(column, "ascending") for column in rows.column_names])
            for name, rows in tables.items()
        }
        new = {
            name: rows for name, rows in in_order.items() if self.parquet[name].write(batch, rows)
        }
        if self.topic is not None:
            named = [(name, row) for name, rows in in_order.items() for row in rows.to_pylist()]
            self.topic.write(batch, [{"table": name, **row} for name, row in named])
        return new

    def read_existing(self) -> Iterator[tuple[str, pa.Table]]:
        """Yield the name of a table and the rows of one batch, for all batches in Parquet."""
        for name, parquet in self.parquet.items():
            for rows in parquet.read():
                yield name, rows


def check_folders(config: StreamConfig) -> None:
    """Refuse files in place of folders, and results of another checkpoint.

    Raises:
        OutputError: with what the folder holds, and what to do.
    """
    for folder, name in ((config.out, "--out"), (config.checkpoint_folder, "--checkpoint")):
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{name} {folder}: is a file; name a folder")
    config.checkpoint.check_folder(config.out)


def open_sinks(config: StreamConfig) -> Sinks:
    """Return the sinks; a topic with results of another checkpoint is refused.

    Raises:
        OutputError: with what the topic holds, and what to do.
    """
    topic = None
    if config.to_topic is not None:
        topic = TopicSink(config.bootstrap_servers, f"{config.to_topic}.{QUERY}", config.client)
        config.checkpoint.check_topic(topic.topic, topic.last_batch)
    parquet = {name: ParquetSink(config.out / name) for name in STREAM.outputs}
    parquet["quarantine"] = ParquetSink(config.out / "quarantine" / QUERY)
    return Sinks(parquet, topic)


# Parquet


class ParquetSink:
    """A table in a folder, with one file for each batch that has rows.

    Args:
        folder: made with its first file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, batch: int, rows: pa.Table) -> bool:
        """Write the rows of a batch; return False if the file exists, or there are no rows.

        The file appears whole. O(rows).
        """
        path = self.folder / f"part-{batch:09}.parquet"
        if path.exists() or not len(rows):
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda unfinished: pq.write_table(rows, unfinished, compression="zstd"))
        return True

    def read(self) -> Iterator[pa.Table]:
        """Yield the rows of each batch, in the order of batches; one batch is in memory."""
        for path in sorted(self.folder.glob("part-*.parquet")):
            yield pq.read_table(path)


# A topic
#
# The value of a record is JSON, with the number of its batch and its number in the batch. All
# are in partition 0, so that the last record determines which results the topic has.


class TopicSink:
    """A topic of results, of which it is the only writer.

    Args:
        bootstrap_servers: of the cluster.
        topic: created with one partition if it does not exist.
        client: more settings, as librdkafka names them.

    Raises:
        FaultError: no broker responds in time.
        OutputError: the brokers refuse, or the last record of the topic is no result.
    """

    def __init__(
        self, bootstrap_servers: str, topic: str, client: Mapping[str, str] | None = None
    ) -> None:
        from confluent_kafka import KafkaException, Producer

        self.topic = topic
        self._settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap_servers,
            "client.id": "purgatory-stream",
            "log_level": 0,
            **(client or {}),
        }
        try:
            self._make()
            self._last = self._find_last()
            self._producer = Producer({**self._settings, "enable.idempotence": True})
        except KafkaException as error:
            text = f"--to-topic {topic}: {bootstrap_servers} can't be used: {error.args[0].str()}"
            raise (FaultError if error.args[0].retriable() else OutputError)(text) from error

    @property
    def last_batch(self) -> int:
        """The batch of the last result in the topic; -1 if there is none."""
        return self._last[0]

    def write(self, batch: int, rows: Sequence[Mapping[str, Any]]) -> int:
        """Write the rows that the topic does not have yet; return how many. Waits for the brokers.

        Args:
            batch: its number: that of the last batch, or a higher one.
            rows: in the same order whenever the batch is repeated.

        Raises:
            FaultError: the brokers did not acknowledge all records.
        """
        failures: list[str] = []

        def on_delivery(error: Any, _message: Any) -> None:
            if error is not None:
                failures.append(error.str())

        written = 0
        for number, row in enumerate(rows):
            if (batch, number) <= self._last:
                continue
            document = {**dict(zip(_HEAD, (batch, number), strict=True)), **row}
            value = json.dumps(document, default=datetime.isoformat, ensure_ascii=False)
            self._producer.produce(self.topic, value, partition=0, on_delivery=on_delivery)
            self._producer.poll(0)
            written += 1
        remaining = self._producer.flush(_TIMEOUT_S)
        if remaining or failures:
            reason = failures[0] if failures else f"no answer within {_TIMEOUT_S:g} s"
            raise FaultError(f"--to-topic {self.topic}: results were not taken: {reason}")
        if written:
            self._last = (batch, len(rows) - 1)
        return written

    def _make(self) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        admin = AdminClient(self._settings)
        if self.topic not in admin.list_topics(timeout=_TIMEOUT_S).topics:
            for made in admin.create_topics([NewTopic(self.topic, 1, -1)]).values():
                made.result(_TIMEOUT_S)

    def _find_last(self) -> tuple[int, int]:
        """Return the batch and number of the last record; (-1, -1) if there is none."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({**self._settings, "group.id": "purgatory-stream"})
        try:
            partition = TopicPartition(self.topic, 0)
            first, end = consumer.get_watermark_offsets(partition, timeout=_TIMEOUT_S)
            if end <= first:
                return -1, -1
            consumer.assign([TopicPartition(self.topic, 0, end - 1)])
            value = self._next_value(consumer)
        finally:
            consumer.close()
        try:
            row = json.loads(value or b"")
            return int(row[_HEAD[0]]), int(row[_HEAD[1]])
        except (ValueError, TypeError, KeyError):
            raise OutputError(
                f"--to-topic {self.topic}: its last record is no result of this command: name a "
                "topic that nobody else writes to"
            ) from None

    def _next_value(self, consumer: Consumer) -> bytes | None:
        """Return the value of the next record; errors such as a lost connection are waited out."""
        reason = f"no answer within {_TIMEOUT_S:g} s"
        deadline_s = time.monotonic() + _TIMEOUT_S
        while (left_s := deadline_s - time.monotonic()) > 0:
            message = consumer.poll(left_s)
            error = None if message is None else message.error()
            if error is not None:
                reason = error.str()
            elif message is not None:
                return message.value()
        raise FaultError(f"--to-topic {self.topic}: its last record can't be read: {reason}")
