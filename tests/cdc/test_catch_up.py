"""What is applied before Spark has started: the same rows, each once, whatever comes between."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from purgatory.cdc import Applied, ApplyOptions, Record
from purgatory.cdc.apply.local_engine import CatchUp
from purgatory.cdc.apply.spark_engine import StreamSettings
from purgatory.cluster import ClusterConfig, ThreadedCluster
from tests.cdc.change_log import (
    as_list,
    closing_target,
    quarantined,
    random_log,
    raw,
    record,
    rows_of,
)
from tests.cdc.killed_apply import spread
from tests.cdc.test_apply_stream import produce

_ROOT = Path(__file__).parents[2]
_BOTH_WAYS = pytest.mark.parametrize("by_transaction", [False, True])


@pytest.fixture(scope="module")
def kafka() -> Iterator[ThreadedCluster]:
    """One broker for all tests here; each has a topic of its own."""
    with ThreadedCluster(ClusterConfig(brokers=1)) as cluster:
        yield cluster


@pytest.fixture
def settings(kafka: ThreadedCluster, request: pytest.FixtureRequest, url: str) -> StreamSettings:
    """An empty topic with two partitions, and an empty target."""
    name = f"changes-{abs(hash(request.node.name))}"
    kafka.create_topic(name, partitions=2)
    return StreamSettings((name,), url, {"kafka.bootstrap.servers": kafka.bootstrap_servers})


def log_of(seed: int, number: int, by_transaction: bool) -> tuple[list[Record], list[object]]:
    """A log, and its rows; by transaction, each partition has changes of each transaction."""
    log, rows = random_log(seed, number, keys=60)
    return (spread(log) if by_transaction else log), list(as_list(rows))


def eventually(condition: Callable[[], object]) -> None:
    """Return once the condition holds; a minute is for a machine with much else to do."""
    give_up_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


def caught_up(settings: StreamSettings, number: int) -> Applied:
    """Catch up until so many changes were applied."""
    catch_up = CatchUp(settings)
    with catch_up.beside():
        eventually(lambda: catch_up.total.applied >= number)
        catch_up.end()
    return catch_up.total


@_BOTH_WAYS
def test_what_is_there_and_what_comes_is_applied_and_the_next_goes_on_behind_it(
    kafka: ThreadedCluster, settings: StreamSettings, by_transaction: bool
) -> None:
    log, rows = log_of(3, 400, by_transaction)
    settings = replace(settings, by_transaction=by_transaction, options=ApplyOptions(effects=True))
    produce(kafka, settings.topics[0], log[:250])
    catch_up = CatchUp(replace(settings, most_records=100))
    with catch_up.beside():
        produce(kafka, settings.topics[0], log[250:350])
        # By transaction, the last one is not whole yet.
        eventually(lambda: catch_up.total.applied >= 348)
        catch_up.end()
    produce(kafka, settings.topics[0], log[350:])
    total = catch_up.total + caught_up(settings, 50)
    assert total == Applied(applied=400)
    with closing_target(settings.target_url) as target:
        assert rows_of(target) == rows
        effects = [(row[1], row[2]) for row in target.select_own("purgatory_effects")]
        assert sorted(effects) == sorted((one.partition, one.offset) for one in log)


@_BOTH_WAYS
def test_killed_again_and_again_it_comes_to_the_end(
    kafka: ThreadedCluster, settings: StreamSettings, by_transaction: bool
) -> None:
    """Each time at another point of another batch."""
    log, rows = log_of(4, 900, by_transaction)
    settings = replace(
        settings,
        by_transaction=by_transaction,
        options=ApplyOptions(effects=True),
        most_records=50,
    )
    produce(kafka, settings.topics[0], log)
    for kill_at in ("commit:3", "within:2", "after:4"):
        words = [repr(settings.client), *_words(settings), kill_at]
        ran = subprocess.run([sys.executable, "-c", _PROGRAM, *words], cwd=_ROOT, check=False)
        assert ran.returncode == -signal.SIGKILL
    done = done_in(settings)
    assert 100 < done < 900
    caught_up(settings, 900 - done)
    with closing_target(settings.target_url) as target:
        assert rows_of(target) == rows
        effects = [(row[1], row[2]) for row in target.select_own("purgatory_effects")]
        assert sorted(effects) == sorted((one.partition, one.offset) for one in log)


_PROGRAM = """
import ast, sys, time
from purgatory.cdc import ApplyOptions
from purgatory.cdc.apply.local_engine import CatchUp
from purgatory.cdc.apply.spark_engine import StreamSettings
from tests.cdc.killed_apply import KillPoint, open_killed

client, topic, url, by_transaction, kill_at = sys.argv[1:]
kill_point = KillPoint(kill_at)  # which counts through all connections


def connect(url):
    target = open_killed(url, "never")
    target.kill_point = kill_point
    return target


settings = StreamSettings(
    (topic,), url, ast.literal_eval(client), ApplyOptions(effects=True), by_transaction == "True",
    most_records=50,
)
with CatchUp(settings, connect=connect).beside():
    time.sleep(60)
"""


def _words(settings: StreamSettings) -> Sequence[str]:
    return settings.topics[0], settings.target_url, str(settings.by_transaction)


def done_in(settings: StreamSettings) -> int:
    """How many changes a target has."""
    with closing_target(settings.target_url) as target:
        return len(target.select_own("purgatory_effects"))


def test_a_change_to_stop_at_is_left_to_the_query_and_all_before_it_is_committed(
    kafka: ThreadedCluster, settings: StreamSettings
) -> None:
    produce(kafka, settings.topics[0], [record(0, data={"id": 1}), raw(1, b"{")])
    options = ApplyOptions(stop_on_bad=True, effects=True)
    catch_up = CatchUp(replace(settings, options=options))
    with catch_up.beside():
        eventually(lambda: done_in_own(settings))
        catch_up.end()
    with closing_target(settings.target_url) as target:
        assert [row["id"] for row in rows_of(target)] == [1]
        assert quarantined(target) == []
        assert [row[2] for row in target.select_own("purgatory_offsets")] == [1]


def done_in_own(settings: StreamSettings) -> int:
    """How many changes a target has, if its own tables are there yet."""
    with closing_target(settings.target_url) as target:
        target.prepare()
    return done_in(settings)


@pytest.mark.parametrize("what", ["brokers", "target"])
def test_what_is_away_is_not_waited_for(settings: StreamSettings, what: str) -> None:
    if what == "brokers":
        settings = replace(settings, client={"kafka.bootstrap.servers": "127.0.0.1:1"})
    else:
        settings = replace(settings, target_url="postgresql://nobody@127.0.0.1:1/nothing")
    catch_up = CatchUp(settings)
    began_s = time.monotonic()
    with catch_up.beside():
        catch_up.end()
    assert catch_up.total == Applied()
    assert time.monotonic() - began_s < 30, "a query waits for 60 s"


def test_an_error_of_any_kind_is_the_querys_to_tell(
    settings: StreamSettings, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(url: str) -> NoReturn:
        raise ZeroDivisionError(url)

    catch_up = CatchUp(settings, connect=fail)
    with catch_up.beside():
        catch_up.end()
    assert catch_up.total == Applied()
    assert "Traceback" not in capfd.readouterr().err


def test_what_is_gone_from_the_topic_is_not_passed_by(
    kafka: ThreadedCluster, settings: StreamSettings
) -> None:
    produce(kafka, settings.topics[0], [record(0, data={"id": 1})])
    assert caught_up(settings, 1) == Applied(applied=1)
    with closing_target(settings.target_url) as target, target.transaction():
        target.store_offset(settings.topics[0], 0, 7)  # as if the log had been longer
    catch_up = CatchUp(settings)
    with catch_up.beside():
        produce(kafka, settings.topics[0], [record(1, data={"id": 2})])
        eventually(lambda: not catch_up._thread.is_alive())  # the query is to tell of it
    assert catch_up.total == Applied()
    with closing_target(settings.target_url) as target:
        assert [row[2] for row in target.select_own("purgatory_offsets")] == [7]
