"""Recorded topics of Debezium, applied: the target equals the source, even if some comes twice."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from purgatory.cdc import Record, Target
from purgatory.cdc.apply.exactly_once import Writer
from purgatory.cdc.apply.local_engine import apply_topics
from purgatory.cdc.apply.options import ApplyOptions, TopicSettings
from purgatory.cdc.apply.transactions import apply_rows, apply_transactions
from purgatory.cdc.change import hash_63
from purgatory.cdc.errors import ChangesError, QuarantineStopError
from purgatory.cluster import ClusterConfig, ThreadedCluster
from tests.databases.cdc.apply.test_apply_topics import produce
from tests.databases.cdc.change_log import closing_target, cut, quarantined
from tests.databases.cdc.debezium.recordings import (
    FOLDER,
    expected_rows,
    lines_of,
    plain_rows,
    records_of,
)

_ROOT = Path(__file__).parents[4]
_BOTH_WAYS = pytest.mark.parametrize("by_transaction", [False, True])
_SCHEMAS = ("mariadb-schemas", "postgres-schemas")
_AS_WRITTEN = {
    # The length of a month is not known.
    "postgres-schemas": {"iv"},
    # Without schemas, nothing tells a number from a text, or bytes from their base 64.
    "postgres-plain": {
        "iv", "b5", "vb", "by", "photo", "dt", "t", "tt", "ts", "ts3", "tz",
    },
    "mariadb-plain": {"u64", "t"},
}  # fmt: skip
"""Columns whose values are as Debezium writes them."""


def apply(target: Target, records: list[Record], by_transaction: bool) -> None:
    """Apply a topic's records in batches as they might come, some of them again."""
    writer = Writer(target, ApplyOptions(audit_log=True))
    for batch in cut(records, random.Random(7)):
        if by_transaction:
            apply_transactions(writer, batch)
        else:
            apply_rows(writer, *batch[0].topic_partition, batch)


def difference(target: Target, name: str, ignored: Any = ()) -> list[Any]:
    """The cells that are not as in the source."""
    wrong: list[Any] = []
    for table, all_rows in expected_rows(name).items():
        found = plain_rows(target, table) if target.table(table) else []
        rows = [row for row in all_rows if name != "mariadb-plain" or not row.get("b12")]
        if len(rows) != len(found):
            wrong.append((table, len(rows), found))
            continue
        wrong += [
            (table, column, row.get(column), copy.get(column))
            for row, copy in zip(rows, found, strict=True)
            for column in row.keys() | copy.keys()
            if row.get(column) != copy.get(column) and column not in ignored
        ]
    return wrong


@_BOTH_WAYS
@pytest.mark.parametrize(
    "name", ["mariadb-plain", "mariadb-schemas", "postgres-plain", "postgres-schemas"]
)
def test_recorded_topic_gives_the_rows_of_its_source(
    target: Target, name: str, by_transaction: bool
) -> None:
    records = records_of(name)
    apply(target, records, by_transaction)
    wrong = difference(target, name, _AS_WRITTEN.get(name, ()))
    if name == "mariadb-plain":
        details = {row[4] for row in target.select_own("purgatory_quarantine")}
        assert details == {"b12: 'BQA=' is not a number"}
    else:
        assert quarantined(target) == []
    assert wrong == []
    assert target.select_own("purgatory_pending") == []
    effects = [row[2] for row in target.select_own("purgatory_effects")]
    assert effects == list(range(len(records))), "each record has one effect"
    assert target.table("gone") is None
    assert target.table("old_name") is None


def test_recorded_topics_have_changes_twice() -> None:
    for name in _SCHEMAS:
        values = [record.value for record in records_of(name)]
        places = [
            json.dumps(payload["source"]) + payload["op"]
            for value in values
            if value and "op" in (payload := json.loads(value)["payload"])
        ]
        assert len(places) - len(set(places)) >= 5


@pytest.mark.parametrize("name", _SCHEMAS)
def test_value_that_goes_back_is_never_seen(target: Target, name: str) -> None:
    """The rows of orders after each transaction: what was delivered again changes nothing."""
    writer = Writer(target)
    records = records_of(name)
    states: list[Any] = []
    for record in records:
        apply_transactions(writer, [record])
        if target.table("orders") is not None:
            states.append(plain_rows(target, "orders"))
    changed = [one for at, one in enumerate(states) if at == 0 or one != states[at - 1]]
    # A new snapshot begins with no rows, or one.
    before = changed[: max(at for at, one in enumerate(changed) if len(one) <= 1)]
    texts = [json.dumps(one) for one in before if one]
    assert len(texts) == len(set(texts))


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *zip(_SCHEMAS, ("together", "whole"), strict=True),
        *(  # by day each recording and each way is killed in one of both pairs
            pytest.param(name, mode, marks=pytest.mark.exhaustive)
            for name, mode in zip(_SCHEMAS, ("whole", "together"), strict=True)
        ),
    ],
)
def test_killed_apply_of_a_recording_reaches_its_rows(
    url: str, name: str, mode: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    lines = list(lines_of(name))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    chance = random.Random(name)
    points = [
        f"{point}:{chance.randrange(1, 3)}" for point in ("before", "within", "commit", "after")
    ]
    command = (sys.executable, "-m", "tests.databases.cdc.killed_apply")
    for kill_at in [*points, "never"]:
        ran = subprocess.run(
            [*command, mode, url, str(path), str(tmp_path / "offsets.db"), kill_at],
            cwd=_ROOT,
            check=False,
            capture_output=True,
            text=True,
        )
        assert ran.returncode == (0 if kill_at == "never" else -signal.SIGKILL), ran.stderr
    with closing_target(url) as target:
        assert difference(target, name, _AS_WRITTEN.get(name, ())) == []
        effects = [row[2] for row in target.select_own("purgatory_effects")]
        assert effects == list(range(len(lines)))
        assert_in_order(target)
        assert quarantined(target) == []


def assert_in_order(target: Target) -> None:
    """Each key's effects are in the order of the log; those on nothing have keys of their own."""
    versions: dict[int, list[int]] = defaultdict(list)
    for _, _, _, key, version, _ in target.select_own("purgatory_effects"):
        versions[key].append(version)
    assert all(found == sorted(found) for found in versions.values())
    assert max(map(len, versions.values())) >= 5


def in_partitions(records: list[Record], count: int) -> list[Record]:
    """The records as a producer spreads them, by their keys; by turns where there is none."""
    ends: dict[int, int] = defaultdict(int)
    spread = []
    for record in records:
        partition = hash_63(record.key) % count
        spread.append(record._replace(partition=partition, offset=ends[partition]))
        ends[partition] += 1
    return spread


@_BOTH_WAYS
def test_partitions_in_any_order_give_the_same_rows(
    target: Target, by_transaction: bool, tmp_path: Path
) -> None:
    records = records_of("postgres-schemas")
    # A column that is dropped soon after one is added might be one with a new name.
    end = next(at for at, one in enumerate(records) if b'"after":{"id":7,' in (one.value or b""))
    records = records[: end - 1]
    with closing_target(f"sqlite:///{tmp_path / 'one.db'}") as one:
        one.prepare()
        apply(one, records, by_transaction=False)
        expected = {table: plain_rows(one, table) for table in ("orders", "kinds", "papers")}
    writer = Writer(target)
    chance = random.Random(3)
    spread = in_partitions(records, 3)
    queues = [[record for record in spread if record.partition == number] for number in range(3)]
    while any(queues):
        queue = chance.choice([queue for queue in queues if queue])
        batch = [queue.pop(0) for _ in range(min(len(queue), chance.randrange(1, 9)))]
        if by_transaction:
            apply_transactions(writer, batch)
        else:
            apply_rows(writer, *batch[0].topic_partition, batch)
    assert quarantined(target) == []
    assert target.select_own("purgatory_pending") == []
    assert {table: plain_rows(target, table) for table in expected} == expected


def test_transactions_without_metadata_end_with_the_next(target: Target) -> None:
    records: list[Record] = []
    for record in records_of("postgres-schemas"):
        document = json.loads(record.value) if record.value else None
        if document is not None:
            if "status" in document["payload"]:
                continue
            document["payload"].pop("transaction", None)
        records.append(
            record._replace(
                value=None if document is None else json.dumps(document).encode(),
                offset=len(records),
            )
        )
    apply(target, records, by_transaction=True)
    assert target.select_own("purgatory_pending") == []
    assert difference(target, "postgres-schemas", {"iv"}) == []


@pytest.mark.parametrize("name", _SCHEMAS)
def test_topic_of_each_table_gives_its_rows(name: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'target.db'}"
    by_topic: dict[str, list[Record]] = defaultdict(list)
    for record, line in zip(records_of(name), lines_of(name), strict=True):
        one = by_topic[line["topic"]]
        one.append(record._replace(topic=line["topic"], offset=len(one)))
    tables = tuple(topic for topic in by_topic if topic.startswith("src.shop."))
    with ThreadedCluster(ClusterConfig(brokers=1)) as kafka:
        for topic in tables:
            kafka.create_topic(topic, partitions=1)
            produce(kafka, topic, by_topic[topic])
        client = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
        settings = TopicSettings(tables, url, client, once=True)
        with pytest.raises(ChangesError, match="the topic is of one table"):
            apply_topics(TopicSettings(tables, url, client, by_transaction=True, once=True))
        if name.startswith("mariadb"):
            # Only the statement tells a new name.
            with pytest.raises(QuarantineStopError, match="lost note and got remark"):
                apply_topics(settings)
            return
        apply_topics(settings)
    with closing_target(url) as target:
        assert difference(target, name, {"iv"}) == []


def test_folder_has_small_recordings() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 100_000
