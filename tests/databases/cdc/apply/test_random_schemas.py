"""Random rows and tables of a real MariaDB, captured with restarts, are the same at the targets."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from purgatory.cdc import Record, Target
from purgatory.cdc.apply.exactly_once import Writer
from purgatory.cdc.apply.transactions import apply_rows, apply_transactions, drain_pending
from purgatory.cluster import ClusterConfig, ThreadedCluster
from tests.databases.cdc.capture.capturing import Capturing
from tests.databases.cdc.captured import read_records
from tests.databases.cdc.mariadb import MariaDb
from tests.databases.cdc.same_rows import difference
from tests.databases.cdc.schema_workload import SchemaWorkload

# The fixture captures a whole workload, and its time counts as the first test's.
pytestmark = pytest.mark.timeout(900)

_SEEDS = [0]
_MORE_SEEDS = range(10, 30)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(ClusterConfig(brokers=1)) as running:
        yield running


@dataclass(frozen=True)
class Source:
    """One database with its log, after the workload."""

    mariadb: MariaDb
    database: str
    records: Sequence[Record]


@pytest.fixture(scope="module")
def source(cluster: ThreadedCluster, request: pytest.FixtureRequest) -> Iterator[Source]:
    seed: int = request.param
    print(f"seed {seed}")
    with MariaDb() as mariadb:
        capturing = Capturing(mariadb, cluster, f"random{seed}")
        # Each batch parses anew what waits for others: by day less waits, in the same places.
        large = 100 if seed in _SEEDS else 400
        workload = SchemaWorkload(mariadb, capturing.name, seed, large=large)
        capturing.capture()
        for _ in range(3):
            # Each capture begins with a heartbeat in each partition.
            workload.run(70)
            capturing.capture()
        records = read_records(cluster.bootstrap_servers, capturing.name)
        yield Source(mariadb, capturing.name, records)


def paced(records: Sequence[Record], chance: random.Random) -> list[Sequence[Record]]:
    """Batches of single partitions, each at its own pace, some of which come again."""
    queues: dict[int, list[Record]] = {}
    for record in records:
        queues.setdefault(record.partition, []).append(record)
    batches: list[Sequence[Record]] = []
    at = dict.fromkeys(queues, 0)
    while left := [partition for partition in queues if at[partition] < len(queues[partition])]:
        partition = chance.choice(left)
        start = max(0, at[partition] - chance.choice([0, 0, 0, 9]))
        at[partition] += chance.choice([10, 40, 200, 400])
        batches.append(queues[partition][start : at[partition]])
    return batches


def check(target: Target, source: Source, way: str) -> None:
    chance = random.Random(source.database)
    writer = Writer(target)
    for batch in paced(source.records, chance):
        if chance.random() < 0.02:
            # As a new run does.
            writer = Writer(target)
            drain_pending(writer, batch[0].topic, by_transaction=way == "transaction")
        if way == "transaction":
            apply_transactions(writer, batch)
        else:
            apply_rows(writer, batch[0].topic, batch[0].partition, batch)
    assert [row[4] for row in target.select_own("purgatory_quarantine")] == []
    assert target.select_own("purgatory_pending") == []
    assert difference(source.mariadb, source.database, target) == {}


@pytest.mark.parametrize("way", ["row", "transaction"])
@pytest.mark.parametrize("source", _SEEDS, indirect=True)
def test_random_schema_changes_give_an_equal_target(
    target: Target, source: Source, way: str
) -> None:
    check(target, source, way)


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["row", "transaction"])
@pytest.mark.parametrize("source", _MORE_SEEDS, indirect=True)
def test_more_random_tables_have_the_same_cells(target: Target, source: Source, way: str) -> None:
    check(target, source, way)
