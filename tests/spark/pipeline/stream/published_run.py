"""A topic as a run would have published it, and the expected results."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from purgatory.cluster import TopicSpec
from tests.spark.pipeline.stream.sample_rows import SECOND_US, operation
from tests.spark.pipeline.stream.test_publisher import read_rows
from tests.spark.pipeline.stream.test_windowed_waits import rows_in

Row = Mapping[str, Any]

TOPICS = [TopicSpec("live.operations", 2)]
TIMES = ("--window", "1s", "--watermark", "1s")
MOST_ROWS = ("--most-rows", "300")
"""Some batches."""

BAD_ROWS = 2
_WINDOWS = 6
_OPERATIONS = 900
_FAR_US = 10_000 * SECOND_US
"""A time by which all windows are closed."""


def publish_run(bootstrap_servers: str, seed: int) -> int:
    """Publish the operations of two purgatories, and `BAD_ROWS` invalid rows.

    Returns:
        How many operations are in windows that close.
    """
    chance = random.Random(seed)
    operations = [_operation(chance) for _ in range(_OPERATIONS)]
    # Out of order by less than rows may be late.
    operations.sort(key=lambda row: row["end_us"] + chance.randrange(SECOND_US // 2))
    operations += [operation(_FAR_US + more) for more in (0, 1)]
    rows: list[tuple[int, Row | str]] = [(number % 2, row) for number, row in enumerate(operations)]
    rows[200:200] = [(0, "no row"), (1, "{}")]
    publish(bootstrap_servers, rows)
    return _OPERATIONS


def publish(bootstrap_servers: str, rows: Sequence[tuple[int, Row | str]]) -> None:
    """Write rows of operations, each with its partition."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    for partition, row in rows:
        text = row if isinstance(row, str) else json.dumps(row)
        producer.produce("live.operations", text, partition=partition)
        producer.poll(0)
    assert producer.flush(30) == 0


def _operation(chance: random.Random) -> dict[str, Any]:
    outcome = chance.choice(["immediate", "completed", "expired", "pending"])
    purgatory = chance.choice(["Produce", "Fetch"])
    end_us = chance.randrange(1, 1 + _WINDOWS) * SECOND_US + chance.randrange(SECOND_US)
    return operation(end_us, outcome, chance.randrange(50_000), purgatory=purgatory)


def all_results(out: Path, bootstrap_servers: str, topic: str) -> dict[str, list[str]]:
    """All results of a stream, in Parquet and in its topic, each table in one order.

    Asserts that in the topic they are in the order of batches, none twice.
    """
    results = {
        name: [repr(row) for row in rows_in(out / name)] for name in ("waits", "quarantine/waits")
    }
    rows = read_rows(bootstrap_servers, f"{topic}.waits")
    places = [(row.pop("batch"), row.pop("number")) for row in rows]
    assert all(one < other for one, other in pairwise(places)), places
    results["topic"] = [repr(row) for row in rows]
    return {name: sorted(rows) for name, rows in results.items()}
