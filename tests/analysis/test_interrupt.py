"""Ctrl-C while Spark computes: one line, status 130, and nothing left behind."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from purgatory.analysis.spark.interrupts import no_repetitions
from tests.analysis.cluster import QUICK_JAVA
from tests.analysis.conftest import RandomOperations, WriteTrace

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def test_ctrl_c_ends_an_analysis_cleanly(
    write_trace: WriteTrace, random_operations: RandomOperations, tmp_path: Path
) -> None:
    trace = write_trace(tmp_path / "trace", random_operations(3, 4000), duration_ms=1000, parts=40)
    out, temporary = tmp_path / "results" / "out", tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "purgatory", "analyze", str(trace)]
    with subprocess.Popen(
        [*command, "--out", str(out), "--progress", "--master", "local[1]"],
        env={
            **os.environ,
            "TMPDIR": str(temporary),
            "JAVA_TOOL_OPTIONS": QUICK_JAVA,
            # A task for each part, one after the other: there is much to do yet after the first.
            "PYSPARK_SUBMIT_ARGS": "--conf spark.sql.files.maxPartitionBytes=1k pyspark-shell",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:  # it starts, plans, and then tells of stages
            assert line.startswith("Spark: "), line
            if " stages" in line:
                break
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert printed == ""
    *progress, last = said.splitlines()
    assert last == "purgatory analyze: interrupted; nothing was written"
    assert all(line.startswith("Spark: ") for line in progress), said
    assert list(out.parent.iterdir()) == []
    assert [path.name for path in temporary.iterdir() if "purgatory" in path.name] == []


@pytest.mark.parametrize("name", [None, "py4j.clientserver"])
def test_what_the_bridge_to_java_raises_as_well_is_not_logged(
    name: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger(name)
    with no_repetitions():
        logger.error("Exception occurred while shutting down connection")
        logger.error("something else")
    assert caplog.messages == ["something else"]
