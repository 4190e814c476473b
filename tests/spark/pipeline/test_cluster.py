"""Jobs on a real standalone cluster, through a real Spark Connect server, and on one machine.

The results are the same everywhere, also when a worker dies while a job runs. An analysis does
three of the four jobs at once: waits, occupancy and the audit. The audit takes longest, and on the
cluster it is that of the analysis, which loses a worker. Commands that follow one another share a
session, which starts only once. Ctrl-C ends the jobs of a Connect server, too: the server is here.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.cli.main import main
from tests.spark.pipeline.cluster import Cluster, command_environment
from tests.spark.pipeline.one_session import run_all
from tests.spark.pipeline.sweeps.small_sweeps import GRID, write_sweep

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
PROGRAM = [sys.executable, "-m", "tests.spark.pipeline.one_session"]
SHORT_JOBS = ("waits", "sweep")
"""The jobs of `make test` on a cluster: by Spark alone, and by its Python workers."""

TIMES = ("computed_s", "elapsed_s")
ALL_DONE = r"Spark: ([1-9][\d,]*) of \1 stages, ([1-9][\d,]*) of \2 tasks done"

Results = Mapping[str, list[dict[str, Any]]]


class Inputs(NamedTuple):
    """A trace and a sweep file, and the results of the jobs on this machine alone."""

    trace: Path
    sweep: Path
    results: Results

    def command(self, job: str, out: Path) -> list[str]:
        """A job as a command, with a folder of its own in `out`."""
        return [job, str(self.sweep if job == "sweep" else self.trace), "--out", str(out / job)]


@pytest.fixture(scope="module")
def inputs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    folder = tmp_path_factory.mktemp("inputs")
    trace = folder / "trace"
    simulate = ["simulate", "retry-reorder", "--duration", "2500ms", "--quiet"]
    assert main([*simulate, "--trace", str(trace)]) == 0
    sweep = write_sweep(folder, GRID.format(timeouts="200, 400", lags="5, 300", further=""))
    return with_results_of(SHORT_JOBS, Inputs(trace, sweep, {}), spark)


@pytest.fixture(scope="module")
def analyzed(spark: SparkSession, inputs: Inputs) -> Inputs:
    """The same with an occupancy, and an analysis, whose audit takes longer than all else."""
    return with_results_of(["occupancy", "analyze"], inputs, spark)


def with_results_of(jobs: Sequence[str], inputs: Inputs, spark: SparkSession) -> Inputs:
    """Do some more jobs on this machine alone."""
    out = inputs.trace.parent / "local"
    commands = [inputs.command(job, out) for job in jobs]
    assert run_all(spark, "local[2]", commands) == [0] * len(jobs)
    return inputs._replace(results=results_in(out))


def results_in(out: Path) -> Results:
    """The rows of all tables in the folders of some jobs, without the time that a row took."""
    return {
        str(folder.relative_to(out)): [
            {name: value for name, value in row.items() if name not in TIMES}
            for row in pq.read_table(folder).to_pylist()
        ]
        for folder in sorted(out.glob("*/*"))
        if folder.is_dir() and folder.name != "parts"
    }


def tasks_done(progress: str) -> int:
    """The number of tasks in the last line of progress of a text; 0 without any."""
    counts = re.findall(r"([\d,]+) of [\d,]+ tasks done", progress)
    return int(counts[-1].replace(",", "")) if counts else 0


def run_apart(
    master: str, jobs: Sequence[Sequence[str]], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run commands in one session of another process, which must succeed."""
    answer = subprocess.run(
        [*PROGRAM, master, json.dumps(jobs)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout.splitlines()[-1]) == [0] * len(jobs)
    return answer


def assert_same_results(out: Path, inputs: Inputs, further: Collection[str] = ()) -> None:
    """Hold tables against those of this machine: of the short jobs, and those `further` ones."""
    found = results_in(out)
    tables = {"waits/waits", *further}
    assert {*tables, "sweep/points"} <= found.keys()
    for name, rows in found.items():
        assert rows == inputs.results[name.replace("audit/", "analyze/", 1)], name
    assert all(found[name] for name in tables), "there is something to compare"


@pytest.mark.exhaustive  # by day the audit beside a killed worker runs on a cluster
def test_jobs_on_a_cluster_have_the_results_of_one_machine(
    cluster: Cluster, inputs: Inputs, tmp_path: Path
) -> None:
    before = [len(worker.lines) for worker in cluster.workers]
    environment = command_environment(["spark.sql.shuffle.partitions=2"])
    jobs = [inputs.command(job, tmp_path) for job in SHORT_JOBS]
    run_apart(cluster.address, jobs, environment)
    for worker, line in zip(cluster.workers, before, strict=True):
        worker.wait_for("Asked to launch executor .* for purgatory", after=line)
    assert_same_results(tmp_path, inputs)


@pytest.mark.exhaustive
def test_occupancy_on_a_cluster_has_the_results_of_one_machine(
    cluster: Cluster, analyzed: Inputs, tmp_path: Path
) -> None:
    environment = command_environment(["spark.sql.shuffle.partitions=2"])
    jobs = [analyzed.command(job, tmp_path) for job in (*SHORT_JOBS, "occupancy")]
    run_apart(cluster.address, jobs, environment)
    assert_same_results(tmp_path, analyzed, further={"occupancy/occupancy"})


@pytest.mark.exhaustive
def test_jobs_through_connect_have_the_results_of_one_machine(
    connect: str, analyzed: Inputs, tmp_path: Path
) -> None:
    # A client without a Java, which it does not need.
    environment = {**os.environ, "JAVA_HOME": "", "PATH": str(tmp_path)}
    jobs = [analyzed.command(job, tmp_path) for job in (*SHORT_JOBS, "occupancy", "audit")]
    answer = run_apart(connect, jobs, environment)
    assert re.search(ALL_DONE, answer.stderr), answer.stderr
    assert_same_results(
        tmp_path, analyzed, further={"occupancy/occupancy", "audit/audit", "audit/witnesses"}
    )


@pytest.mark.exhaustive
def test_analysis_survives_a_killed_worker(
    cluster: Cluster, analyzed: Inputs, tmp_path: Path
) -> None:
    before = len(cluster.master.lines)
    command = [*analyzed.command("analyze", tmp_path), "--master", cluster.address, "--progress"]
    with subprocess.Popen(
        [sys.executable, "-m", "purgatory", *command],
        # A task for each little piece of the trace: there is much to do when the first is done.
        env=command_environment(
            ["spark.sql.shuffle.partitions=2", "spark.sql.files.maxPartitionBytes=64k"]
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        begun = next(filter(None, map(tasks_done, process.stderr)))
        cluster.workers.pop().kill()
        printed, said = process.communicate(timeout=500)
    assert process.returncode == 0, said
    assert "Report:" in printed
    assert tasks_done(said) > begun
    cluster.master.wait_for(r"Removing worker|Removing executor .* because", after=before)
    found = results_in(tmp_path)
    tables = {f"analyze/{name}" for name in ("waits", "occupancy", "audit", "witnesses")}
    assert tables < found.keys()
    for name, rows in found.items():
        assert rows == analyzed.results[name], name
    assert all(found[name] for name in tables), "there is something to compare"
    cluster.add_worker().wait_for("Successfully registered with master")


@pytest.mark.exhaustive
def test_ctrl_c_ends_the_jobs_of_a_connect_server(connect: str) -> None:
    program = textwrap.dedent(
        """
        import sys
        import click
        from purgatory.pipeline.engines.spark.session import spark_session
        from purgatory.cli.exit_status import exit_on_error

        try:
            with exit_on_error("test"), spark_session(sys.argv[1]) as session:
                def begun(stages, inflight_tasks, operation_id, done):
                    print("begun", flush=True)

                session.registerProgressHandler(begun)
                session.range(10**15).selectExpr("max(hash(id))").collect()
        except click.exceptions.Exit as ended:
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
