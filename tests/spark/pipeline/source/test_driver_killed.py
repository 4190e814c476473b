"""A stream into Parquet whose driver is killed in a micro-batch: each record is there once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from purgatory.cluster import ThreadedCluster
from tests.spark.pipeline.cluster import command_environment
from tests.spark.pipeline.source.killed_driver import MOST_OFFSETS
from tests.spark.pipeline.source.micro_batches import MicroBatches
from tests.spark.pipeline.source.topics import numbered, offsets_of, write

ROOT = Path(__file__).parents[4]
_PATIENCE_S = 400.0


def test_planned_batch_is_the_same_after_a_restart(cluster: ThreadedCluster, topic: str) -> None:
    cluster.create_topic(topic, 2)
    servers = cluster.bootstrap_servers
    write(servers, topic, numbered(100, 2))
    with MicroBatches(servers, subscribe=topic, startingOffsets="earliest") as live:
        live.plan(limit=40)
        live.commit()
        live.plan(limit=30)
        before = live.read()
        for _ in range(2):
            live.restart()
            write(servers, topic, numbered(50, 2, start=100))
            assert live.read() == before
        live.restart()
        live.commit()
        live.run(limit=70)
    assert offsets_of(live.rows, 0) == offsets_of(live.rows, 1) == list(range(100))
    assert live.batches[1] == before


@contextmanager
def driver(
    cluster: ThreadedCluster, topic: str, folder: Path, *more: str
) -> Iterator[subprocess.Popen[str]]:
    """Run the program in a group of processes of its own."""
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.spark.pipeline.source.killed_driver",
            cluster.bootstrap_servers,
            topic,
            str(folder),
            *more,
        ],
        cwd=ROOT,
        # Files left behind are removed with the folder of the test.
        env={**command_environment(), "TMPDIR": str(folder)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def _numbers(folder: Path) -> set[int]:
    """The batches of which a log of the checkpoint has a complete entry."""
    return {int(path.name) for path in folder.glob("[0-9]*") if path.name.isdecimal()}


def _planned(folder: Path) -> set[int]:
    return _numbers(folder / "checkpoint" / "offsets")


def _committed(folder: Path) -> set[int]:
    return _numbers(folder / "checkpoint" / "commits")


def _forget(folder: Path, number: int) -> None:
    """Remove an entry of a log of the checkpoint."""
    for name in (str(number), f".{number}.crc"):
        (folder / name).unlink(missing_ok=True)


@pytest.mark.spark
@pytest.mark.exhaustive
@pytest.mark.timeout(1_800)
def test_restarted_driver_has_each_record_once(
    cluster: ThreadedCluster, topic: str, tmp_path: Path
) -> None:
    cluster.create_topic(topic, 2)
    servers = cluster.bootstrap_servers
    write(servers, topic, numbered(5 * MOST_OFFSETS, 2))
    # While a task of the second batch reads.
    with driver(cluster, topic, tmp_path, str(MOST_OFFSETS + 200)) as process:
        _, errors = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == -signal.SIGKILL, errors
    assert (_planned(tmp_path), _committed(tmp_path)) == ({0, 1}, {0})
    # Between two steps of Spark, wherever it is when a later batch is planned.
    write(servers, topic, numbered(MOST_OFFSETS, 2, start=5 * MOST_OFFSETS))
    with driver(cluster, topic, tmp_path) as process:
        deadline_s = time.monotonic() + _PATIENCE_S
        while max(_planned(tmp_path)) < 3:
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=_PATIENCE_S)
    assert not (tmp_path / "rows.json").exists(), "it was killed midway"
    # As if it had been killed after the sink wrote its log, and before the batch was committed.
    last = max(_numbers(tmp_path / "rows" / "_spark_metadata"))
    _forget(tmp_path / "checkpoint" / "commits", last)
    for number in _planned(tmp_path) - set(range(last + 1)):
        _forget(tmp_path / "checkpoint" / "offsets", number)
    assert (max(_planned(tmp_path)), max(_committed(tmp_path))) == (last, last - 1)
    total = 6 * MOST_OFFSETS
    with driver(cluster, topic, tmp_path) as process:
        _, errors = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 0, errors
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert rows == [
        [partition, offset, str(2 * offset + partition)]
        for partition in (0, 1)
        for offset in range(total // 2)
    ]
