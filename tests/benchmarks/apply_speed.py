"""Row changes per second from a topic into SQLite and PostgreSQL, beside a plain consumer's loop.

    python -m tests.benchmarks.apply_speed [--full]

The whole way is measured: brokers, Spark, the databases and this program share the machine. The
plain loop does the same in one process, in the way that one writes first: consume, parse, execute a
statement for each change, and commit the offset with them every 1,000. Time counts from the first
batch's end to the last's: a running stream, without the seconds in which Spark starts.
"""

from __future__ import annotations

import json
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition
from pyspark.sql import SparkSession

from purgatory.cdc.apply.exactly_once import Applied
from purgatory.cdc.apply.options import TopicSettings
from purgatory.cdc.apply.spark_engine import apply_stream
from purgatory.cluster import ClusterConfig, ThreadedCluster, TopicSpec
from purgatory.pipeline.engines.spark.session import spark_session
from tests.benchmarks.measurement import Figure, Size, run_alone, say
from tests.databases.cdc.postgres import running_postgres

TOPIC = "changes"
PARTITIONS = 2
TARGET_PER_S = 10_000
_COMMIT_EVERY = 1_000


def measure(size: Size = Size.USUAL) -> list[Figure]:
    """Return the rates of both databases and both ways."""
    number = size.pick(300, 200_000, 1_000_000)
    batch = max(100, number // 4)
    figures = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        # The server's own user must get to its folder.
        folder.chmod(0o755)
        (folder / "postgres").mkdir()
        urls = {
            "SQLite": f"sqlite:///{folder / 'target.db'}",
            "PostgreSQL": stack.enter_context(running_postgres(folder / "postgres")).url(),
        }
        cluster = stack.enter_context(
            ThreadedCluster(ClusterConfig(brokers=1, topics=[TopicSpec(TOPIC, PARTITIONS)]))
        )
        fill(cluster.bootstrap_servers, number)
        plain = {
            "SQLite": plain_rate(cluster.bootstrap_servers, number, sqlite_writer(folder)),
            "PostgreSQL": plain_rate(
                cluster.bootstrap_servers, number, postgres_writer(urls["PostgreSQL"])
            ),
        }
        with spark_session("local[2]", rows=0) as session:
            for name, url in urls.items():
                rate = stream_rate(session, cluster.bootstrap_servers, url, batch)
                say(f"{name}: apply {rate:,.0f} changes/s, plain loop {plain[name]:,.0f}")
                figures += [
                    Figure(f"apply into {name}, row changes", rate, "/s", TARGET_PER_S, "higher"),
                    Figure(f"a plain consumer's loop into {name}", plain[name], "/s"),
                ]
    return figures


def fill(servers: str, number: int) -> None:
    """Produce changes of random rows, seven columns each: a third inserts, a tenth deletes."""
    chance = random.Random(1)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "acks": "all"})
    there: set[int] = set()
    for count in range(number):
        key = chance.randrange(max(1, number // 3))
        data = {
            "id": key,
            "name": f"customer {count}",
            "state": "paid",
            "amount": count % 1000,
            "total": round(chance.random() * 1000, 2),
            "made": "2026-11-21 10:00:00",
            "note": None,
        }
        document: dict[str, Any] = {
            "database": "shop",
            "table": "orders",
            "type": "insert",
            "ts": 1_763_683_200,
            "xid": count // 4,
            "xoffset": count % 4,
            "position": f"binlog.000001:{count // 4 * 900}",
            "primary_key_columns": ["id"],
            "data": data,
        }
        if key in there:
            gone = chance.random() < 0.15
            document["type"] = "delete" if gone else "update"
            if gone:
                there.discard(key)
            else:
                document["old"] = {"state": "new"}
        else:
            there.add(key)
        value = json.dumps(document).encode()
        producer.produce(TOPIC, value, str(key).encode(), partition=key % PARTITIONS)
        if count % 1000 == 0:
            producer.poll(0)
    producer.flush()


def stream_rate(session: SparkSession, servers: str, url: str, batch: int) -> float:
    """Apply the topic through Spark; changes per second from the first batch's end on."""
    ends: list[tuple[float, int]] = []

    def note(applied: Applied) -> None:
        ends.append((time.perf_counter(), applied.applied))

    settings = TopicSettings(
        (TOPIC,),
        url,
        {"kafka.bootstrap.servers": servers},
        once=True,
        max_records=batch,
    )
    apply_stream(session, settings, progress=note)
    ends = [(at, count) for at, count in ends if count]
    return sum(count for _, count in ends[1:]) / (ends[-1][0] - ends[0][0])


Execute = Callable[[str, tuple[Any, ...]], object]


@contextmanager
def sqlite_writer(folder: Path) -> Iterator[Execute]:
    """A function that executes a statement in a new SQLite, as durable as the product's."""
    connection = sqlite3.connect(folder / "plain.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    try:
        yield connection.execute
    finally:
        connection.close()


@contextmanager
def postgres_writer(url: str) -> Iterator[Execute]:
    """A function that executes a statement in PostgreSQL, in a schema of its own."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA plain")
        connection.execute("SET search_path = plain")

        def execute(sql: str, values: tuple[Any, ...]) -> object:
            return connection.execute(sql.replace("?", "%s").encode(), values)

        yield execute


_COLUMNS = ("id", "name", "state", "amount", "total", "made", "note")
_UPSERT = (
    f"INSERT INTO orders ({', '.join(_COLUMNS)}) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS[1:])
)
_STORE = (
    "INSERT INTO offsets VALUES (?, ?) "
    "ON CONFLICT (partition) DO UPDATE SET next_offset = excluded.next_offset"
)


def plain_rate(servers: str, number: int, writer: Any) -> float:
    """Apply the topic in a loop; changes per second."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "plain"})
    consumer.assign([ClientPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    with writer as execute:
        execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, name text, state text, amount bigint, "
            "total double precision, made text, note text)",
            (),
        )
        execute("CREATE TABLE offsets (partition int PRIMARY KEY, next_offset bigint)", ())
        messages = consumer.consume(_COMMIT_EVERY, 10)
        start = time.perf_counter()
        done = 0
        while done < number:
            execute("BEGIN", ())
            for message in messages:
                _apply_plainly(execute, json.loads(message.value() or b""))
            ends = {one.partition(): (one.offset() or 0) + 1 for one in messages}
            for partition, end in ends.items():
                execute(_STORE, (partition, end))
            execute("COMMIT", ())
            done += len(messages)
            if done < number:
                messages = consumer.consume(_COMMIT_EVERY, 10)
        elapsed_s = time.perf_counter() - start
    consumer.close()
    return number / elapsed_s


def _apply_plainly(execute: Execute, change: dict[str, Any]) -> None:
    data = change["data"]
    if change["type"] == "delete":
        execute("DELETE FROM orders WHERE id = ?", (data["id"],))
    else:
        execute(_UPSERT, tuple(data[name] for name in _COLUMNS))


if __name__ == "__main__":
    run_alone(measure)
