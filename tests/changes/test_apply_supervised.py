"""What a supervisor sees of `purgatory apply`: one line, and a status that says what to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from purgatory.broker import ClusterConfig, ThreadedCluster
from purgatory.cli.exit_status import FAULT_PASSES
from tests.changes.change_log import as_list, closing_target, random_log, rows_of
from tests.changes.test_apply_stream import produce

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_a_java_process_that_is_killed_is_a_fault_that_passes(tmp_path: Path) -> None:
    with ThreadedCluster(ClusterConfig(brokers=1)) as kafka:
        kafka.create_topic("changes")
        produce(kafka, "changes", random_log(3, 50)[0])
        with subprocess.Popen(
            _command(kafka, tmp_path), stderr=subprocess.PIPE, text=True
        ) as running:
            try:
                assert running.stderr is not None
                assert running.stderr.readline() == "50 applied, 0 set aside\n"
                os.kill(_java_of(running.pid), signal.SIGKILL)  # as when memory is short
                said = running.stderr.read().splitlines()
                assert running.wait(60) == FAULT_PASSES
            finally:
                running.kill()
    assert len(said) == 1, "\n".join(said)
    assert said[0].startswith("purgatory apply: Spark's Java process was killed by signal 9")


@pytest.mark.exhaustive
def test_a_reader_that_is_up_too_late_for_spark_is_started_again(tmp_path: Path) -> None:
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
            env={**os.environ, "PYSPARK_PYTHON": str(late)},
        )
    assert (tmp_path / "was-late").exists()
    assert (ran.returncode, ran.stdout) == (0, "50 applied, 0 set aside\n"), ran.stderr


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_killed_a_second_after_each_first_commit_it_comes_to_the_end(tmp_path: Path) -> None:
    log, rows = random_log(4, 3_000, keys=60)
    with ThreadedCluster(ClusterConfig(brokers=1)) as kafka:
        kafka.create_topic("changes")
        produce(kafka, "changes", log)
        command = _command(kafka, tmp_path)
        for _ in range(2):
            with subprocess.Popen(
                [*command, "--batch", "100"],
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            ) as running:
                assert running.stderr is not None
                assert running.stderr.readline() == "100 applied, 0 set aside\n"
                time.sleep(1)
                os.killpg(running.pid, signal.SIGKILL)
        subprocess.run([*command, "--once"], capture_output=True, check=True)
    with closing_target(f"sqlite:///{tmp_path / 'target.db'}") as target:
        assert rows_of(target) == as_list(rows)


def test_workers_fork_from_a_process_that_has_imported_what_their_tasks_use() -> None:
    program = (
        "import sys; from unittest.mock import patch; from purgatory.changes import python_daemon\n"
        "sys.argv.append('pyspark.worker')\n"
        "with patch('pyspark.daemon.manager'):\n"
        "    python_daemon.begin(python_daemon.OF_TASKS)\n"
        "before = set(sys.modules)\n"
        "from purgatory.changes.streaming import _Task\n"
        "from purgatory.changes.targets import open_target\n"
        "from purgatory.source.partition_reader import PartitionReader\n"
        "open_target('sqlite:///:memory:').close()\n"
        "print(sorted(set(sys.modules) - before))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout == "[]\n"


def _command(kafka: ThreadedCluster, folder: Path) -> list[str]:
    """Apply the topic to a database in a folder."""
    return [
        *(sys.executable, "-m", "purgatory", "apply", "--topic", "changes"),
        *("--bootstrap", kafka.bootstrap_servers, "--master", "local[1]"),
        *("--to", f"sqlite:///{folder / 'target.db'}"),
    ]


def _java_of(pid: int) -> int:
    """The child of a process that runs Java."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (java,) = [int(one) for one in children if "java" in Path(f"/proc/{one}/comm").read_text()]
    return java
