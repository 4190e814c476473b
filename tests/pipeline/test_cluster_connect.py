"""The commands on a real Spark Connect server: the same results as on this machine alone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.analyze import write_results
from purgatory.pipeline.traces import find_traces
from tests.pipeline.cluster import connect_server
from tests.pipeline.conftest import RandomOperations, WriteTrace

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server out of the Python package."""
    with connect_server(tmp_path_factory.mktemp("connect") / "server") as started:
        yield started


def test_an_analysis_through_connect_gives_what_it_gives_on_one_machine(
    address: str,
    spark: SparkSession,
    write_trace: WriteTrace,
    random_operations: RandomOperations,
    tmp_path: Path,
) -> None:
    trace = write_trace(tmp_path / "trace", random_operations(11, 2000), duration_ms=1000, parts=3)
    out, local = tmp_path / "out", tmp_path / "local"
    command = [sys.executable, "-m", "purgatory", "analyze", str(trace), "--out", str(out)]
    # A client without a Java, which it does not need.
    environment = {**os.environ, "JAVA_HOME": "", "PATH": str(tmp_path)}
    answer = subprocess.run(
        [*command, "--master", address, "--progress"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert answer.returncode == 0, answer.stderr
    last = answer.stderr.splitlines()[-1]
    assert re.fullmatch(r"Spark: ([1-9]\d*) of \1 stages, ([1-9]\d*) of \2 tasks done", last)
    local.mkdir()
    write_results(spark, find_traces([trace]), local)
    for table in ("waits", "occupancy", "runs"):
        assert pq.read_table(out / table).equals(pq.read_table(local / table)), table


def test_ctrl_c_ends_what_a_connect_server_does_for_the_command(
    address: str, tmp_path: Path
) -> None:
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
        [sys.executable, "-c", program, address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=100)
    assert (process.returncode, said) == (
        130,
        "purgatory test: interrupted; nothing was written\n",
    )
