"""Publishes the rows of a run as JSON, into a topic for each table.

A row has the columns of the trace (`docs/traces.md`), and two more: `started_us`, the start of the
run in microseconds since 1970, and, in sends, `numbered_by`: whether sequence numbers count the
records of a producer (`producer`) or those that it sends to one partition (`partition`).

Sends of one partition are in one partition of their topic, in order; so are the reads of one
partition, and the operations of one broker.

Ground rules
------------
* `operation`, `send` and `read` only append to a deque: an event loop may call them. The thread of
  the publisher encodes the rows and produces them.
* Memory is bounded: a row is dropped, and counted, while `MOST_WAITING` rows wait.
* `publishing` runs on the thread of the cluster's event loop.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from purgatory.cluster import Cluster, ClusterTrace
from purgatory.trace.table_rows import (
    CommitRow,
    OperationRow,
    ReadRow,
    Row,
    SendRow,
    TransactionRow,
)
from purgatory.trace.trace_schema import REQUIRED_TABLES

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer
    from confluent_kafka.admin import AdminClient

PARTITIONS = 4
"""The number of partitions of a topic that is created here."""

MOST_WAITING = 1_000_000
"""The maximum number of rows that wait for the publisher's thread."""

CLIENT_ID = "purgatory-publish"

_LONGEST_REST_S = 0.05
_CLOSE_TIMEOUT_S = 30.0
_ENCODE = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=str).encode
_RELEASE_EVERY_S = 1.0
_CALL_TIMEOUT_S = 2.0
_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,200}")


def published_topics(prefix: str) -> dict[str, str]:
    """Return the topic of each table: ``PREFIX.operations``, ``PREFIX.sends``, ``PREFIX.reads``.

    Raises:
        ValueError: the prefix is no prefix of a topic's name.
    """
    if _LEGAL.fullmatch(prefix) is None:
        raise ValueError(
            f"{prefix!r} can't begin the name of a topic: use letters, digits, dots, dashes and "
            "underscores, at most 200"
        )
    return {table: f"{prefix}.{table}" for table in REQUIRED_TABLES}


# The publisher


class PublishError(Exception):
    """Rows can't be published; the message has the brokers, and the reason."""


class Published(NamedTuple):
    """Counts of rows: delivered, failed (refused or timed out), and dropped for lack of room."""

    delivered: int
    failed: int
    dropped: int


class RowPublisher:
    """Sends rows of operations, sends and reads to topics.

    Args:
        prefix: of the topics' names.
        run_id: stands in each row.
        numbered_by: the scope of sequence numbers: ``producer`` or ``partition``.
        client: settings of the producer beside its own, as librdkafka names them.

    Raises:
        ValueError: the prefix is no prefix of a topic's name.
    """

    def __init__(
        self,
        prefix: str,
        *,
        run_id: str,
        numbered_by: str,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        self.topics = published_topics(prefix)
        self.run_id = run_id
        started_us = time.time_ns() // 1_000
        head = {"run_id": run_id, "started_us": started_us}
        self._heads = {
            "operations": head,
            "sends": {**head, "numbered_by": numbered_by},
            "reads": head,
        }
        self._client = dict(client or {})
        self._waiting: deque[tuple[str, Row]] = deque()
        self._closing = False
        self._delivered = self._failed = self._dropped = 0
        self._thread: threading.Thread | None = None

    # Rows of the run.

    def operation(self, row: OperationRow) -> None:
        """Publish a row of the table of operations. O(1)."""
        self._append("operations", row)

    def send(self, row: SendRow) -> None:
        """Publish a row of the table of sends. O(1)."""
        self._append("sends", row)

    def read(self, row: ReadRow) -> None:
        """Publish a row of the table of reads. O(1)."""
        self._append("reads", row)

    def commit(self, row: CommitRow) -> None:
        """Ignore a row of the table of commits: no query of a stream reads it."""

    def transaction(self, row: TransactionRow) -> None:
        """Ignore a row of the table of transactions, likewise."""

    def _append(self, table: str, row: Row) -> None:
        if self._closing:
            return  # the cluster still runs while it stores the last rows
        if len(self._waiting) >= MOST_WAITING:
            self._dropped += 1
        else:
            self._waiting.append((table, row))

    # Records for the topics.

    def start(self, bootstrap_servers: str) -> None:
        """Start the publisher's thread.

        Raises:
            PublishError: the settings are wrong.
        """
        from confluent_kafka import KafkaException, Producer

        try:
            producer = Producer(
                {
                    "bootstrap.servers": bootstrap_servers,
                    "client.id": CLIENT_ID,
                    "enable.idempotence": True,
                    "linger.ms": 20,
                    "compression.type": "lz4",
                    "queue.buffering.max.messages": MOST_WAITING,
                    "queue.buffering.max.kbytes": 512 * 1024,
                    "log_level": 0,
                    **self._client,
                }
            )
        except KafkaException as error:
            raise PublishError(f"{bootstrap_servers}: {error.args[0].str()}") from error
        self._thread = threading.Thread(
            target=self._run, args=(producer,), name="purgatory-publish", daemon=True
        )
        self._thread.start()

    def close(self) -> Published:
        """Ignore further rows, deliver the waiting ones within 30 s, and return the counts."""
        self._closing = True
        if self._thread is None:
            self._drop_waiting()
        else:
            self._thread.join()
        return Published(self._delivered, self._failed, self._dropped)

    def _drop_waiting(self) -> None:
        self._dropped += len(self._waiting)
        self._waiting.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self, producer: Producer) -> None:
        deadline: float | None = None
        while True:
            closing = self._closing
            if closing and deadline is None:
                deadline = time.monotonic() + _CLOSE_TIMEOUT_S
            sent = self._send_some(producer)
            producer.poll(0 if sent else _LONGEST_REST_S)
            if deadline is not None and time.monotonic() > deadline:
                self._drop_waiting()
            if closing and not self._waiting:
                break
        assert deadline is not None
        self._failed += producer.flush(max(0.0, deadline - time.monotonic()))

    def _send_some(self, producer: Producer, most: int = 1_000) -> int:
        """Produce waiting rows until none is left, or the queue is full; return how many."""
        waiting = self._waiting
        for number in range(most):
            if not waiting:
                return number
            table, row = waiting[0]
            document: dict[str, Any] = dict(self._heads[table])
            document.update(row._asdict())
            if table == "operations":  # keys are tuples that have names
                document["watch_keys"] = [str(key) for key in document["watch_keys"] or ()]
            try:
                producer.produce(
                    self.topics[table],
                    _ENCODE(document),
                    _key(table, document),
                    on_delivery=self._on_delivery,
                )
            except BufferError:
                return 0
            waiting.popleft()
        return most

    def _on_delivery(self, error: object, _message: object) -> None:
        if error is None:
            self._delivered += 1
        else:
            self._failed += 1


def _key(table: str, row: Mapping[str, Any]) -> str:
    if table == "operations":
        return str(row["broker"])
    return f"{row['topic']}-{row['partition']}"


# A cluster that publishes into topics of its own


@asynccontextmanager
async def publishing(
    trace: ClusterTrace, publisher: RowPublisher, cluster: Cluster
) -> AsyncIterator[None]:
    """Publish to topics of the cluster itself until the block ends; then warn if rows were lost."""
    make_published_topics(cluster, publisher.topics.values())
    publisher.start(cluster.bootstrap_servers)
    loop = asyncio.get_running_loop()
    releasing = loop.create_task(_release(trace))
    try:
        yield
    finally:
        releasing.cancel()
        trace.close()
        # The cluster must run meanwhile: it stores the last rows.
        published = await loop.run_in_executor(None, publisher.close)
        if published.failed or published.dropped:
            print(
                f"purgatory cluster: of the published rows {published.failed:,} could not be "
                f"delivered, and {published.dropped:,} were dropped because the queue was full",
                file=sys.stderr,
            )


def make_published_topics(cluster: Cluster, names: Iterable[str]) -> None:
    """Create the missing topics for published rows.

    They have one replica: otherwise the replication of each row would be an operation to publish.
    """
    for name in names:
        if name not in cluster.controller.topics:
            settings = {"min.insync.replicas": "1"}
            cluster.controller.create_topic(name, PARTITIONS, 1, settings)


async def _release(trace: ClusterTrace) -> None:
    while True:
        await asyncio.sleep(_RELEASE_EVERY_S)
        trace.release()


# The connection to a cluster, whose errors come before Spark starts


class ConnectError(Exception):
    """No broker responds, or brokers refuse the client; the message is the reason.

    Args:
        is_transient: whether a retry may succeed.
    """

    def __init__(self, reason: str, *, is_transient: bool) -> None:
        super().__init__(reason)
        self.is_transient = is_transient


def connect_admin(
    bootstrap_servers: str, client: Mapping[str, Any], timeout_s: float
) -> tuple[AdminClient, frozenset[str]]:
    """Return a client that is connected to a cluster, and the names of its topics.

    A wrong password or an unknown certificate fails at once: a retry does not help.

    Args:
        bootstrap_servers: `HOST:PORT,HOST:PORT`.
        client: more settings, as librdkafka names them.
        timeout_s: of all retries.

    Raises:
        ConnectError: no response, or invalid settings.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    errors: list[KafkaError] = []
    deadline = time.monotonic() + timeout_s
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "log_level": 0,
        "error_cb": errors.append,
        **client,
    }
    try:
        admin = AdminClient(settings)
    except KafkaException as error:
        raise ConnectError(_error_text(error.args[0]), is_transient=False) from error
    while True:
        left_s = deadline - time.monotonic()
        try:
            topics = admin.list_topics(timeout=max(0.0, min(_CALL_TIMEOUT_S, left_s))).topics
            return admin, frozenset(topics)
        except KafkaException as error:
            admin.poll(0)  # calls error_cb
            refusal = _refusal(errors)
            if refusal is not None or left_s <= _CALL_TIMEOUT_S:
                shown = _error_text(refusal or error.args[0])
                raise ConnectError(shown, is_transient=refusal is None) from error


def _refusal(errors: list[KafkaError]) -> KafkaError | None:
    """Return the first error for which a retry does not help."""
    from confluent_kafka import KafkaError

    fatal = {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._SSL,
    }
    return next((error for error in errors if error.code() in fatal), None)


def _error_text(error: KafkaError) -> str:
    from confluent_kafka import KafkaError

    reason = str(error.str()).partition(" (after ")[0]
    if error.code() == KafkaError._TRANSPORT:
        reason += " (if it speaks TLS or asks for a password: --client security.protocol=...)"
    return reason
