"""Ctrl-C while Spark computes: one line, status 130, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.pipeline.cluster import QUICK_JAVA
from tests.pipeline.conftest import RandomOperations, WriteTrace

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
        first = process.stderr.readline()
        assert first.startswith("Spark: "), first
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert printed == ""
    *progress, last = said.splitlines()
    assert last == "purgatory analyze: interrupted; nothing was written"
    assert all(line.startswith("Spark: ") for line in progress), said
    assert list(out.parent.iterdir()) == []
    assert [path.name for path in temporary.iterdir() if "purgatory" in path.name] == []


def test_ctrl_c_ends_what_a_connect_server_does_for_the_command(connect: str) -> None:
    program = textwrap.dedent(
        """
        import sys
        import typer
        from purgatory.cli.pipeline_run import one_line_errors
        from purgatory.pipeline.session import spark_session

        try:
            with one_line_errors("test"), spark_session(sys.argv[1]) as session:
                def begun(stages, inflight_tasks, operation_id, done):
                    print("begun", flush=True)

                session.registerProgressHandler(begun)
                session.range(10**15).selectExpr("max(hash(id))").collect()
        except typer.Exit as ended:
            sys.exit(ended.exit_code)
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, connect],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=300)
    assert (process.returncode, said) == (
        130,
        "purgatory test: interrupted; nothing was written\n",
    )
