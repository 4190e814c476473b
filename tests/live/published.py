"""Topics as a run would have published them, with what must be found in them."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from purgatory.cluster import TopicSpec
from tests.live.live_rows import SECOND_US, operation, random_log
from tests.live.test_publish import read_rows
from tests.live.test_waits_live import rows_in

Row = Mapping[str, Any]

TOPICS = [TopicSpec(f"live.{table}", 2) for table in ("operations", "sends", "reads")]
TIMES = ("--window", "1s", "--watermark", "1s", "--state-ttl", "2s")
MOST_ROWS = ("--most-rows", "300")
"""Some batches for each query."""

_WINDOWS = 6
_OPERATIONS = 1_200
_FAR_US = 10_000 * SECOND_US
"""A time by which all windows are closed and all records forgotten."""


def publish_run(bootstrap_servers: str, seed: int) -> tuple[int, Counter[str]]:
    """Publish what two partitions and two purgatories see, and some rows that can't be right.

    Returns:
        How many operations are in windows that close, and how many anomalies there are of each.
    """
    chance = random.Random(seed)
    anomalies: Counter[str] = Counter()
    rows: dict[str, list[tuple[int, Row | str]]] = {"operations": [], "sends": [], "reads": []}
    for partition in (0, 1):
        log = random_log(seed + partition, 400, partition)
        anomalies.update(log.expected)
        rows["sends"] += [(partition, row) for row in log.sends]
        rows["reads"] += [(partition, row) for row in log.reads]
        far = {**log.reads[-1], "time_us": _FAR_US, "partition": 9}
        rows["reads"].append((partition, {**far, "value_id": 5 + partition}))
    operations = [_operation(chance) for _ in range(_OPERATIONS)]
    # Out of order by less than rows may be late.
    operations.sort(key=lambda row: row["end_us"] + chance.randrange(SECOND_US // 2))
    operations += [operation(_FAR_US + more) for more in (0, 1)]
    rows["operations"] = [(number % 2, row) for number, row in enumerate(operations)]
    rows["operations"][200:200] = [(0, "no row"), (1, "{}")]
    rows["sends"][200:200] = [(0, "no row")]
    _write(bootstrap_servers, rows)
    return _OPERATIONS, anomalies


def _operation(chance: random.Random) -> dict[str, Any]:
    outcome = chance.choice(["immediate", "completed", "expired", "pending"])
    purgatory = chance.choice(["Produce", "Fetch"])
    end_us = chance.randrange(1, 1 + _WINDOWS) * SECOND_US + chance.randrange(SECOND_US)
    return operation(end_us, outcome, chance.randrange(50_000), purgatory=purgatory)


def _write(bootstrap_servers: str, rows: Mapping[str, Sequence[tuple[int, Row | str]]]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    for table, placed in rows.items():
        for partition, row in placed:
            text = row if isinstance(row, str) else json.dumps(row)
            producer.produce(f"live.{table}", text, partition=partition)
            producer.poll(0)
    assert producer.flush(30) == 0


def all_results(out: Path, bootstrap_servers: str, topic: str) -> dict[str, list[str]]:
    """All results of a stream, in Parquet and in topics, each table in one order.

    Asserts that in a topic they are in the order of batches, none twice.
    """
    results = {
        name: [repr(row) for row in rows_in(out / name)]
        for name in ("waits", "order", "aside/waits", "aside/order")
    }
    for query in ("waits", "order"):
        rows = read_rows(bootstrap_servers, f"{topic}.{query}")
        places = [(row.pop("batch"), row.pop("number")) for row in rows]
        assert all(one < other for one, other in pairwise(places)), places
        results[f"{topic}.{query}"] = [repr(row) for row in rows]
    return {name.removeprefix(topic): sorted(rows) for name, rows in results.items()}
