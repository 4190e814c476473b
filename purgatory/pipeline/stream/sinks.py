"""What the jobs of ``purgatory stream`` are to do."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from purgatory.pipeline.errors import FaultError, OutputError
from purgatory.pipeline.stream.rows import ASIDE

if TYPE_CHECKING:
    from confluent_kafka import Consumer
from purgatory.pipeline.stream.order import ORDER_COLUMNS
from purgatory.pipeline.stream.rows import ASIDE_COLUMNS
from purgatory.pipeline.stream.windowed_waits import WAITS_COLUMNS


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


# Results as Parquet, each batch's rows exactly once.
#
# A batch that is repeated after a crash has the same number and the same rows: its part is there
# already, whole, or it isn't there at all.


_UNFINISHED = ".part"


class Parts:
    """A table of results: a folder with a part for each batch that gave some.

    Args:
        folder: of the table; made with its first part.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, batch: int, rows: pa.Table) -> bool:
        """Write a batch's rows, unless they are there; return whether they were written now.

        O(rows).
        """
        path = self.folder / f"part-{batch:09}.parquet"
        if path.exists() or not len(rows):
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        # Readers pass over names that begin with a dot.
        unfinished = path.with_name(f".{path.name}{_UNFINISHED}")
        with unfinished.open("wb") as file:
            pq.write_table(rows, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        return True

    def read(self) -> Iterator[pa.Table]:
        """Yield the rows of each batch, in their order; one batch's are in memory."""
        for path in sorted(self.folder.glob("part-*.parquet")):
            yield pq.read_table(path)


def split(
    rows: pa.Table, main: str, columns: list[str], aside_columns: list[str]
) -> dict[str, pa.Table]:
    """Return the tables that a job's rows are of, each with its own columns, in a fixed order."""
    tables = {}
    for name, wanted in ((main, columns), (ASIDE, aside_columns)):
        of_table = rows.filter(pc.equal(rows["table"], name)).select(wanted)
        tables[name] = of_table.sort_by([(column, "ascending") for column in wanted])
    return tables


# Results in a topic, as JSON, each once however often a batch is repeated.
#
# Each record says which batch it is of and its number in it. A job that starts reads the last record
# of the topic's partition 0, where all are, and goes on behind it.


_TIMEOUT_S = 30.0
_HEAD = ("batch", "number")


class ResultTopic:
    """Writes results to one topic, of which it is the only writer.

    Args:
        bootstrap_servers: of the cluster.
        topic: made with one partition if it isn't there.
        client: more settings, as librdkafka names them.

    Raises:
        OutputError: nobody answers, or the topic's last record is none of these results.
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
            told = f"--to-topic {topic}: {bootstrap_servers} can't be used: {error.args[0].str()}"
            raise (FaultError if error.args[0].retriable() else OutputError)(told) from error

    @property
    def last_batch(self) -> int:
        """The batch of the last result that it has; -1 if it has none."""
        return self._last[0]

    def write(self, batch: int, rows: Sequence[Mapping[str, Any]]) -> int:
        """Write a batch's rows, those that aren't there; return how many. Waits for them.

        Args:
            batch: its number, higher than the one before, or the same again.
            rows: in an order that is the same each time.

        Raises:
            FaultError: they were not all acknowledged.
        """
        failures: list[str] = []

        def note(error: Any, _message: Any) -> None:
            if error is not None:
                failures.append(error.str())

        written = 0
        for number, row in enumerate(rows):
            if (batch, number) <= self._last:
                continue
            document = {**dict(zip(_HEAD, (batch, number), strict=True)), **row}
            value = json.dumps(document, default=_as_text, ensure_ascii=False)
            self._producer.produce(self.topic, value, partition=0, on_delivery=note)
            self._producer.poll(0)
            written += 1
        left = self._producer.flush(_TIMEOUT_S)
        if left or failures:
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
            place = TopicPartition(self.topic, 0)
            first, end = consumer.get_watermark_offsets(place, timeout=_TIMEOUT_S)
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
        """Return the next record's; what may pass, such as a lost connection, is waited out."""
        reason = f"no answer within {_TIMEOUT_S:g} s"
        give_up_s = time.monotonic() + _TIMEOUT_S
        while (left_s := give_up_s - time.monotonic()) > 0:
            message = consumer.poll(left_s)
            error = None if message is None else message.error()
            if error is not None:
                reason = error.str()
            elif message is not None:
                return message.value()
        raise FaultError(f"--to-topic {self.topic}: its last record can't be read: {reason}")


def check_result_topic(topic: ResultTopic, checkpoint: Path) -> None:
    """Refuse a topic with results of another checkpoint: ours would be taken for repeated ones.

    Args:
        topic: of one query.
        checkpoint: the folder where this query keeps how far it is.

    Raises:
        OutputError: saying what is there and what to do.
    """
    begun = (int(path.name) for path in checkpoint.glob("offsets/*") if path.name.isdecimal())
    if topic.last_batch > max(begun, default=-1):
        raise OutputError(
            f"--to-topic {topic.topic}: has results up to batch {topic.last_batch}, and "
            f"{checkpoint} does not know of them: name the checkpoint that goes with them, or "
            "another topic"
        )


def _as_text(value: Any) -> str:
    return str(value.isoformat())


# Where the results of the queries go: Parquet and, if asked for, a topic for each.
#
# Ground rules: the results of a batch go to Parquet first, then into the topic. What is there
# already, of a batch that is repeated after a crash, is passed over.


_COLUMNS = {"waits": WAITS_COLUMNS, "order": ORDER_COLUMNS}
_ASIDE = ["run_id", *ASIDE_COLUMNS]


@dataclass(frozen=True)
class ResultPlaces:
    """The places of one query's results.

    Args:
        query: its name, ``waits`` or ``order``: also that of its main table.
        parts: the Parquet of each of its tables.
        topic: the one that it writes to, or none.
    """

    query: str
    parts: Mapping[str, Parts]
    topic: ResultTopic | None

    def write(self, rows: pa.Table, batch: int) -> dict[str, pa.Table]:
        """Write a batch's results; return those by table that were not in Parquet yet.

        Raises:
            FaultError: the topic didn't take them.
        """
        tables = split(rows, self.query, list(_COLUMNS[self.query]), _ASIDE)
        new = {name: self.parts[name].write(batch, rows) for name, rows in tables.items()}
        if self.topic is not None:
            named = [(name, row) for name in tables for row in tables[name].to_pylist()]
            self.topic.write(batch, [{"table": name, **row} for name, row in named])
        return {name: tables[name] for name in tables if new[name]}

    def earlier(self) -> Iterator[tuple[str, pa.Table]]:
        """Yield what is in Parquet already, by table, a batch at a time."""
        for name, parts in self.parts.items():
            for rows in parts.read():
                yield name, rows


def check_folders(jobs: LiveJobs) -> None:
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


def open_places(jobs: LiveJobs) -> dict[str, ResultPlaces]:
    """Return the places of each query; a topic with results of another checkpoint is refused.

    Raises:
        OutputError: saying what is there and what to do.
    """
    return {query: _open(query, jobs) for query in _COLUMNS}


def _open(query: str, jobs: LiveJobs) -> ResultPlaces:
    parts = {name: Parts(folder) for name, folder in _folders(query, jobs.out).items()}
    topic = None
    if jobs.to_topic is not None:
        topic = ResultTopic(jobs.bootstrap_servers, f"{jobs.to_topic}.{query}", jobs.client)
        check_result_topic(topic, jobs.checkpoint / query)
    return ResultPlaces(query, parts, topic)


def _folders(query: str, out: Path) -> dict[str, Path]:
    """The folder of each table that a query has; both have rows set aside."""
    return {query: out / query, ASIDE: out / ASIDE / query}
