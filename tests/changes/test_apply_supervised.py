"""What a supervisor sees of `purgatory apply`: one line, and a status that says what to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from purgatory.broker import ClusterConfig, ThreadedCluster
from purgatory.cli.exit_status import FAULT_PASSES
from tests.changes.change_log import random_log
from tests.changes.test_apply_stream import produce

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_a_java_process_that_is_killed_is_a_fault_that_passes(tmp_path: Path) -> None:
    with ThreadedCluster(ClusterConfig(brokers=1)) as kafka:
        kafka.create_topic("changes")
        produce(kafka, "changes", random_log(3, 50)[0])
        command = [
            *(sys.executable, "-m", "purgatory", "apply", "--topic", "changes"),
            *("--bootstrap", kafka.bootstrap_servers, "--master", "local[1]"),
            *("--to", f"sqlite:///{tmp_path / 'target.db'}"),
        ]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
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


def _java_of(pid: int) -> int:
    """The child of a process that runs Java."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (java,) = [int(one) for one in children if "java" in Path(f"/proc/{one}/comm").read_text()]
    return java
