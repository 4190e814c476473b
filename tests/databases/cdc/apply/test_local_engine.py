"""The engine without Java: the same rows, each once, under any interruption."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from purgatory.cdc import (
    Applied,
    ApplyOptions,
    ChangesError,
    QuarantineStopError,
    Record,
    TargetError,
)
from purgatory.cdc.apply.local_engine import apply_topics
from purgatory.cdc.apply.options import TopicSettings
from purgatory.cdc.errors import TransientError
from purgatory.cluster import ClusterConfig, ThreadedCluster
from tests.databases.cdc.apply.test_apply_topics import produce
from tests.databases.cdc.change_log import (
    as_list,
    closing_target,
    quarantined,
    random_log,
    raw,
    record,
    rows_of,
)
from tests.databases.cdc.killed_apply import spread

_ROOT = Path(__file__).parents[4]
_BOTH_WAYS = pytest.mark.parametrize("by_transaction", [False, True])


@pytest.fixture(scope="module")
def kafka() -> Iterator[ThreadedCluster]:
    """One broker for all tests here; each has a topic of its own."""
    with ThreadedCluster(ClusterConfig(brokers=1)) as cluster:
        yield cluster


@pytest.fixture
def settings(kafka: ThreadedCluster, request: pytest.FixtureRequest, url: str) -> TopicSettings:
    """An empty topic with two partitions, and an empty target."""
    name = f"changes-{abs(hash(request.node.name))}"
    kafka.create_topic(name, partitions=2)
    client = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    return TopicSettings((name,), url, client, ApplyOptions(audit_log=True), once=True)


def log_of(seed: int, number: int, by_transaction: bool) -> tuple[list[Record], list[object]]:
    """A log, and its rows; by transaction, each partition has changes of each transaction."""
    log, rows = random_log(seed, number, keys=60)
    return (spread(log) if by_transaction else log), list(as_list(rows))


class _EndTest(Exception):
    """Ends an engine that would continue."""


def assert_equal(settings: TopicSettings, log: Sequence[Record], rows: list[object]) -> None:
    """The target has these rows, and each change took effect once."""
    with closing_target(settings.target_url) as target:
        assert rows_of(target) == rows
        effects = [(row[1], row[2]) for row in target.select_own("purgatory_effects")]
        assert sorted(effects) == sorted((one.partition, one.offset) for one in log)


@_BOTH_WAYS
def test_next_run_resumes_behind_applied_records(
    kafka: ThreadedCluster, settings: TopicSettings, by_transaction: bool
) -> None:
    log, rows = log_of(3, 400, by_transaction)
    settings = replace(settings, by_transaction=by_transaction)
    produce(kafka, settings.topics[0], log[:250])
    results: list[Applied] = []

    def progress(applied: Applied) -> None:
        results.append(applied)
        total = sum(results, Applied()).applied
        # By transaction, the last one is not complete yet.
        if total >= 348:
            raise _EndTest
        if total >= 248 and not producer.is_alive() and producer.ident is None:
            producer.start()

    producer = threading.Thread(target=produce, args=(kafka, settings.topics[0], log[250:350]))
    with pytest.raises(_EndTest):
        apply_topics(replace(settings, once=False, max_records=100), progress=progress)
    producer.join()
    produce(kafka, settings.topics[0], log[350:])
    total = sum(results, Applied()) + apply_topics(settings)
    assert total == Applied(applied=400)
    assert_equal(settings, log, rows)


def test_repeatedly_killed_apply_reaches_the_end(
    kafka: ThreadedCluster, settings: TopicSettings
) -> None:
    """The points of kills: each at another point of another batch.

    Each kind of target has one way: files are applied in all pairs of both with the same kills.
    """
    by_transaction = settings.target_url.startswith("postgresql")
    log, rows = log_of(4, 900, by_transaction)
    settings = replace(settings, by_transaction=by_transaction, max_records=50)
    produce(kafka, settings.topics[0], log)
    for kill_at in ("commit:3", "within:2", "after:4"):
        arguments = [repr(settings.client), settings.topics[0], settings.target_url]
        ran = subprocess.run(
            [sys.executable, "-c", _PROGRAM, *arguments, str(by_transaction), kill_at],
            cwd=_ROOT,
            check=False,
        )
        assert ran.returncode == -signal.SIGKILL
    with closing_target(settings.target_url) as target:
        done = len(target.select_own("purgatory_effects"))
    assert 100 < done < 900
    assert apply_topics(settings).applied == 900 - done
    assert_equal(settings, log, rows)


_PROGRAM = """
import ast, sys
from purgatory.cdc import ApplyOptions
from purgatory.cdc.apply.local_engine import apply_topics
from purgatory.cdc.apply.options import TopicSettings
from tests.databases.cdc.killed_apply import KillPoint, open_killed

client, topic, url, by_transaction, kill_at = sys.argv[1:]
kill_point = KillPoint(kill_at)  # which counts through all connections


def connect(url):
    target = open_killed(url, "never")
    target.kill_point = kill_point
    return target


settings = TopicSettings(
    (topic,), url, ast.literal_eval(client), ApplyOptions(audit_log=True), by_transaction == "True",
    max_records=50,
)
apply_topics(settings, connect=connect)
"""


def test_stop_at_a_change_leaves_earlier_changes_committed(
    kafka: ThreadedCluster, settings: TopicSettings
) -> None:
    produce(kafka, settings.topics[0], [record(0, data={"id": 1}), raw(1, b"{")])
    settings = replace(settings, options=ApplyOptions(stop_on_quarantine=True))
    with pytest.raises(QuarantineStopError, match="partition 0, offset 1: malformed"):
        apply_topics(settings)
    with closing_target(settings.target_url) as target:
        assert [row["id"] for row in rows_of(target)] == [1]
        assert quarantined(target) == []
        assert [row[2] for row in target.select_own("purgatory_offsets")] == [1]


def test_unreachable_brokers_and_targets_are_transient_errors(
    settings: TopicSettings,
) -> None:
    client = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafkaConsumer.pollTimeoutMs": "1000"}
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:1"):
        apply_topics(replace(settings, client=client))
    url = "postgresql://nobody@127.0.0.1:1/nothing"
    with pytest.raises(TargetError, match="can't be reached") as raised:
        apply_topics(replace(settings, target_url=url, retry_for_s=0))
    assert raised.value.is_transient


def test_lost_records_stop_the_run(kafka: ThreadedCluster, settings: TopicSettings) -> None:
    produce(kafka, settings.topics[0], [record(0, data={"id": 1})])
    assert apply_topics(settings) == Applied(applied=1)
    with closing_target(settings.target_url) as target, target.transaction():
        target.store_offset(settings.topics[0], 0, 7)  # as if the log had been longer
    produce(kafka, settings.topics[0], [record(1, data={"id": 2})])
    with pytest.raises(ChangesError, match=r"read up to offset 7.*purgatory_offsets") as raised:
        apply_topics(settings)
    assert not raised.value.is_transient
    with closing_target(settings.target_url) as target:
        assert [row[2] for row in target.select_own("purgatory_offsets")] == [7]
