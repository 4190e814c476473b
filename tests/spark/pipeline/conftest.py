"""Traces written by hand, and the one Spark session of these tests."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.pipeline.audit_rows import Engine
from tests.spark.pipeline.cluster import Cluster, connect_server, standalone_cluster
from tests.spark.pipeline.reading_engines import ReadingDuckdb, ReadingEngine, ReadingSpark
from tests.unit.simulation.shipped_runs import ShippedRun

OPERATIONS = pa.schema(
    [
        ("run_id", pa.string()),
        ("broker", pa.int32()),
        ("purgatory", pa.string()),
        ("operation", pa.int64()),
        ("keys", pa.int32()),
        ("timeout_ms", pa.int64()),
        ("start_us", pa.int64()),
        ("end_us", pa.int64()),
        ("wait_us", pa.int64()),
        ("outcome", pa.string()),
        ("kind", pa.string()),
    ]
)
SENDS = pa.schema(
    [
        ("run_id", pa.string()),
        ("group", pa.string()),
        ("producer", pa.int64()),
        ("sequence", pa.int64()),
        ("attempt", pa.int32()),
        ("key", pa.int64()),
        ("value_id", pa.int64()),
        ("acks", pa.int32()),
        ("outcome", pa.string()),
        ("error", pa.string()),
        ("send_us", pa.int64()),
        ("answer_us", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("size_bytes", pa.int64()),
    ]
)
READS = pa.schema(
    [
        ("run_id", pa.string()),
        ("group", pa.string()),
        ("consumer", pa.int64()),
        ("poll", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("value_id", pa.int64()),
        ("time_us", pa.int64()),
        ("applied", pa.bool_()),
    ]
)


class Operation(NamedTuple):
    """One operation of a trace written by hand."""

    purgatory: str
    broker: int
    outcome: str
    start_us: int
    end_us: int
    kind: str = "producer"


WriteTrace = Callable[..., Path]
RandomOperations = Callable[[int, int], list[Operation]]


@pytest.fixture(
    scope="session", params=[pytest.param("spark", marks=pytest.mark.exhaustive), "duckdb"]
)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Each engine that the jobs run on, in turn: a test holds for both.

    Spark, which takes seconds for each, by night: by day its tables are compared with DuckDB's.
    """
    if request.param == "spark":
        yield request.getfixturevalue("spark")
    else:
        with duckdb.connect() as connection:
            yield connection


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The one standalone cluster of these tests; started by the first that needs it."""
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="session")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the one Spark Connect server of these tests."""
    with connect_server(tmp_path_factory.mktemp("connect") / "server") as address:
        yield address


@pytest.fixture(
    scope="session",
    params=[pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.exhaustive]), "duckdb"],
)
def reader(request: pytest.FixtureRequest) -> ReadingEngine:
    """Each engine that reads traces; Spark, whose rows are compared with DuckDB's, by night."""
    if request.param == "spark":
        return ReadingSpark(request.getfixturevalue("spark"))
    return ReadingDuckdb()


@pytest.fixture(scope="session")
def slow_follower_trace(shipped: ShippedRun) -> Path:
    """The trace of the demo, as the simulator writes it."""
    return shipped("slow-follower").trace


@pytest.fixture(scope="session")
def write_trace() -> WriteTrace:
    """A function that writes a trace and returns its folder."""
    return _write_trace


@pytest.fixture(scope="session")
def hand_operations() -> list[Operation]:
    """A millisecond in two purgatories, small enough to be counted by hand."""
    return [
        Operation("Produce", 0, "immediate", 10, 10),
        Operation("Produce", 0, "completed", 100, 150),
        Operation("Produce", 0, "completed", 100, 250),
        Operation("Produce", 0, "completed", 100, 500),
        Operation("Produce", 0, "expired", 200, 700),
        Operation("Produce", 1, "pending", 700, 1000),
        Operation("Fetch", 1, "completed", 0, 1000),
        Operation("Fetch", 1, "cancelled", 0, 3),
    ]


@pytest.fixture(scope="session")
def random_operations() -> RandomOperations:
    """A function that makes the same operations for the same seed and number."""
    return _random_operations


def _random_operations(seed: int, number: int) -> list[Operation]:
    chance = random.Random(seed)
    operations = []
    for _ in range(number):
        outcome = chance.choice(["immediate", "completed", "completed", "expired", "failed"])
        start_us = chance.randrange(800_000)
        wait_us = {"immediate": 0, "expired": 50_000}.get(outcome, chance.randrange(200_000))
        purgatory = chance.choice(["Produce", "Fetch", "DeleteRecords"])
        broker = chance.randrange(3)
        kind = chance.choice(["follower", "consumer"]) if purgatory == "Fetch" else "producer"
        operations.append(Operation(purgatory, broker, outcome, start_us, start_us + wait_us, kind))
    return operations


def _write_trace(
    folder: Path,
    operations: Sequence[Operation],
    *,
    run_id: str = "by-hand-1",
    complete: bool = True,
    duration_ms: int = 1,
    parts: int = 1,
    **head: Any,
) -> Path:
    """Write a trace whose operations are dealt out over some parts."""
    for table in ("operations", "sends", "reads"):
        (folder / table).mkdir(parents=True)
    for part in range(parts):
        rows = [
            {
                **operation._asdict(),
                "run_id": run_id,
                "operation": number,
                "keys": 1,
                "timeout_ms": 1000,
                "wait_us": operation.end_us - operation.start_us,
            }
            for number, operation in enumerate(operations)
            if number % parts == part
        ]
        _write_part(folder / "operations", part, rows, OPERATIONS)
    _write_part(folder / "sends", 0, [], SENDS)
    _write_part(folder / "reads", 0, [], READS)
    tables = {
        "operations": {"parts": parts, "rows": len(operations)},
        "sends": {"parts": 1, "rows": 0},
        "reads": {"parts": 1, "rows": 0},
    }
    document = {
        "schema_version": 1,
        "run_id": run_id,
        "scenario": "by-hand",
        "seed": 1,
        "complete": complete,
        "started": 0,
        "duration_ms": duration_ms,
        "tables": tables,
        **head,
    }
    (folder / "run.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def _write_part(
    folder: Path, number: int, rows: Sequence[Mapping[str, Any]], schema: pa.Schema
) -> None:
    table = pa.Table.from_pylist(list(rows), schema=schema)
    pq.write_table(table, folder / f"part-{number:05}.parquet", compression="zstd")


@pytest.fixture(scope="session")
def simulated(shipped: ShippedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the traces of two shipped scenarios."""
    folder = tmp_path_factory.mktemp("simulated")
    for name in ("slow-follower", "steady"):
        shipped(name).link_to(folder / name)
    return folder
