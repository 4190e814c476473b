"""`purgatory apply` under a supervisor: one line, and a status that determines the next step."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest
from confluent_kafka.admin import AdminClient

from purgatory.cli.exit_status import INVALID_INPUT, TRANSIENT_FAILURE
from purgatory.cluster import ClusterConfig, ThreadedCluster
from tests.databases.cdc.apply.test_apply_topics import produce
from tests.databases.cdc.change_log import as_list, closing_target, random_log, rows_of

pytestmark = pytest.mark.timeout(900)

_BOTH_ENGINES = pytest.mark.parametrize(
    "engine",
    [pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.exhaustive]), "local"],
)


@contextmanager
def _applying(
    folder: Path, engine: str = "spark"
) -> Iterator[tuple[ThreadedCluster, subprocess.Popen[str], IO[str]]]:
    """A command that has applied 50 changes of a topic, and its output from then on."""
    with ThreadedCluster(ClusterConfig(brokers=1)) as kafka:
        kafka.create_topic("changes")
        produce(kafka, "changes", random_log(3, 50)[0])
        with subprocess.Popen(
            _command(kafka, folder, engine),
            stderr=subprocess.PIPE,
            text=True,
            env=_environment(folder),
        ) as running:
            try:
                assert running.stderr is not None
                assert running.stderr.readline() == "50 applied, 0 quarantined\n"
                yield kafka, running, running.stderr
            finally:
                running.kill()


@pytest.mark.spark
@pytest.mark.exhaustive  # by day Java is killed as a session starts, and ends in a job by its heap
def test_killed_java_is_a_transient_error(tmp_path: Path) -> None:
    with _applying(tmp_path) as (_, running, stderr):
        # As when memory is short.
        os.kill(_java_with_workers_of(running.pid), signal.SIGKILL)
        said = stderr.read().splitlines()
        assert running.wait(60) == TRANSIENT_FAILURE
    assert len(said) == 1, "\n".join(said)
    assert said[0].startswith("purgatory apply: Spark's Java process was killed by signal 9")


@_BOTH_ENGINES
def test_deleted_topic_ends_the_query(tmp_path: Path, engine: str) -> None:
    with _applying(tmp_path, engine) as (kafka, running, stderr):
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.delete_topics(["changes"])["changes"].result()
        *batches, last = stderr.read().splitlines()
        assert running.wait(60) == INVALID_INPUT
    assert set(batches) <= {"0 applied, 0 quarantined"}
    assert re.fullmatch(
        "purgatory apply: the stream failed: ("
        # as Spark starts, or when it reads
        "startingOffsets names .* topic 'changes', which is not there: was it deleted\\?|"
        "topic changes partition 0, read up .* rows in the target's table purgatory_offsets)",
        last,
    ), last


@pytest.mark.spark
@pytest.mark.exhaustive  # by day a stand-in for Java is killed while it starts for each command
def test_java_killed_while_it_starts_is_a_transient_error(tmp_path: Path) -> None:
    with ThreadedCluster(ClusterConfig(brokers=1)) as kafka:
        kafka.create_topic("changes")
        ran = subprocess.run(
            [sys.executable, "-c", _KILLED_AT_ITS_START, *_command(kafka, tmp_path)[3:]],
            capture_output=True,
            text=True,
            check=False,
            env=_environment(tmp_path),
        )
    assert ran.returncode == TRANSIENT_FAILURE, ran.stderr
    assert ran.stderr.count("\n") == 1, ran.stderr
    assert ran.stderr.startswith("purgatory apply: Spark's Java process was killed by signal 9")


_KILLED_AT_ITS_START = """
import sys

from pyspark import SparkContext

from purgatory.cli.main import main
from purgatory.pipeline.engines.spark import session


class Killed(SparkContext):
    def __init__(self, conf, gateway):
        gateway.proc.kill()
        super().__init__(conf=conf, gateway=gateway)


session.SparkContext = Killed
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.spark
@pytest.mark.exhaustive
def test_query_is_restarted_after_a_late_reader(tmp_path: Path) -> None:
    late = tmp_path / "late-python"
    late.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *streaming_source*) mkdir {tmp_path}/was-late && sleep 15;; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    late.chmod(0o755)
    with ThreadedCluster(ClusterConfig(brokers=1)) as kafka:
        kafka.create_topic("changes")
        produce(kafka, "changes", random_log(3, 50)[0])
        ran = subprocess.run(
            [*_command(kafka, tmp_path), "--once"],
            capture_output=True,
            text=True,
            check=False,
            env={**_environment(tmp_path), "PYSPARK_PYTHON": str(late)},
        )
    assert (tmp_path / "was-late").exists()
    assert (ran.returncode, ran.stdout) == (0, "50 applied, 0 quarantined\n"), ran.stderr


@_BOTH_ENGINES
def test_apply_killed_at_each_first_commit_reaches_the_end(tmp_path: Path, engine: str) -> None:
    """Either engine resumes where the other one was killed."""
    log, rows = random_log(4, 6_000, keys=60)
    with ThreadedCluster(ClusterConfig(brokers=1)) as kafka:
        kafka.create_topic("changes")
        produce(kafka, "changes", log)
        for _ in range(2):
            with subprocess.Popen(
                [*_command(kafka, tmp_path, engine), "--batch", "100"],
                stderr=subprocess.PIPE,
                text=True,
                env=_environment(tmp_path),
                start_new_session=True,
            ) as running:
                try:
                    assert running.stderr is not None
                    assert running.stderr.readline() == "100 applied, 0 quarantined\n"
                finally:
                    os.killpg(running.pid, signal.SIGKILL)
        command = [*_command(kafka, tmp_path, "local"), "--once"]
        subprocess.run(command, capture_output=True, check=True)
    with closing_target(f"sqlite:///{tmp_path / 'target.db'}") as target:
        assert rows_of(target) == as_list(rows)


@pytest.mark.spark
def test_workers_fork_from_a_process_with_their_tasks_imports() -> None:
    program = (
        "import sys; from unittest.mock import patch\n"
        "from purgatory.cdc.apply import daemon\n"
        "sys.argv.append('pyspark.worker')\n"
        "with patch('pyspark.daemon.manager'):\n"
        "    daemon.begin(daemon.TASK_IMPORTS)\n"
        "before = set(sys.modules)\n"
        "from purgatory.cdc.apply.spark_engine import Task\n"
        "from purgatory.cdc.targets import open_target\n"
        "from purgatory.source.partition_reader import PartitionReader\n"
        "open_target('sqlite:///:memory:').close()\n"
        "print(sorted(set(sys.modules) - before))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout == "[]\n"


def _command(kafka: ThreadedCluster, folder: Path, engine: str = "spark") -> list[str]:
    """Apply the topic to a database in a folder."""
    return [
        *(sys.executable, "-m", "purgatory", "apply", "--topic", "changes"),
        *("--engine", engine),
        *("--bootstrap", kafka.bootstrap_servers, "--master", "local[1]"),
        *("--to", f"sqlite:///{folder / 'target.db'}"),
    ]


def _environment(folder: Path) -> dict[str, str]:
    """A killed process leaves folders behind: they are removed with the folder of the test."""
    return {**os.environ, "TMPDIR": str(folder)}


def _java_with_workers_of(pid: int) -> int:
    """The child of a process that runs Java, once it has started the one that workers fork from."""
    give_up_s = time.monotonic() + 60
    while time.monotonic() < give_up_s:
        with suppress(FileNotFoundError):  # one has just ended
            for child in _children(pid):
                if any("pyspark.worker" in _command_of(one) for one in _children(child)):
                    return child
        time.sleep(0.1)
    pytest.fail("Java has started no Python")


def _command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def _children(pid: int) -> list[int]:
    found = ""
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += (task / "children").read_text()
    return list(map(int, found.split()))
