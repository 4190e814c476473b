"""Progress: the counts of stages and tasks, and their display."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.engines.duckdb.connection import _query_progress, duckdb_connection
from purgatory.pipeline.engines.progress import (
    EngineProgress,
    Estimate,
    end_start,
    show_progress,
    show_start,
)
from purgatory.pipeline.engines.spark.progress import (
    ConnectSource,
    StatusTrackerSource,
    spark_progress,
    sum_stages,
)
from tests.spark.pipeline.one_session import without_clients_lines


class Terminal(io.StringIO):
    """A terminal that remembers everything that was drawn on it."""

    def isatty(self) -> bool:
        return True


class Stage(NamedTuple):
    """A Spark Connect server's report of a stage."""

    stage_id: int
    num_tasks: int
    num_completed_tasks: int


class Job(NamedTuple):
    """The status tracker's report of a job."""

    stageIds: list[int]  # noqa: N815


class StageInfo(NamedTuple):
    """The status tracker's report of a stage."""

    numTasks: int  # noqa: N815
    numActiveTasks: int  # noqa: N815
    numCompletedTasks: int  # noqa: N815


class Tracker:
    """A status tracker whose responses a test sets; a stand-in for the context, too."""

    def __init__(self) -> None:
        self.active: list[int] = []
        self.jobs: dict[int, list[int]] = {}
        self.stages: dict[int, StageInfo] = {}
        self.asked: list[int] = []

    def statusTracker(self) -> Tracker:  # noqa: N802
        return self

    def getActiveJobsIds(self) -> list[int]:  # noqa: N802
        return self.active

    def getJobIdsForGroup(self, group: None) -> list[int]:  # noqa: N802
        return list(self.jobs)

    def getJobInfo(self, job: int) -> Job:  # noqa: N802
        self.asked.append(job)
        return Job(self.jobs[job])

    def getStageInfo(self, stage: int) -> StageInfo | None:  # noqa: N802
        return self.stages.get(stage)


def test_counts_are_sums_over_stages() -> None:
    assert sum_stages([]) == EngineProgress("0 of 0 stages, 0 of 0 tasks done", 0, 0)
    assert sum_stages([(4, 4), (1_500, 3), (1, 1)]) == EngineProgress(
        "2 of 3 stages, 8 of 1,505 tasks done", 8, 1_505
    )


def test_progress_polls_finished_jobs_once() -> None:
    tracker = Tracker()
    source = StatusTrackerSource(cast("Any", tracker))
    assert source.progress() == sum_stages([])
    tracker.active, tracker.jobs = [0], {0: [0, 1]}
    tracker.stages = {0: StageInfo(8, 2, 3), 1: StageInfo(5, 0, 0)}
    assert source.progress() == sum_stages([(8, 3)])
    tracker.active, tracker.stages[0] = [], StageInfo(8, 0, 8)
    assert source.progress() == sum_stages([(8, 8)])
    assert source.progress() == sum_stages([(8, 8)])
    assert tracker.asked == [0, 0]


def test_job_that_starts_and_ends_between_two_polls_is_counted() -> None:
    tracker = Tracker()
    source = StatusTrackerSource(cast("Any", tracker))
    tracker.jobs, tracker.stages = {0: [0]}, {0: StageInfo(2, 0, 2)}
    assert source.progress() == sum_stages([(2, 2)])


def test_progress_drops_a_connect_servers_skipped_stages() -> None:
    source = ConnectSource()
    source.note([cast("Any", Stage(0, 4, 1)), cast("Any", Stage(1, 4, 0))], 2, "a", False)
    assert source.progress() == sum_stages([(4, 1), (4, 0)])
    source.note([cast("Any", Stage(0, 4, 4)), cast("Any", Stage(1, 4, 0))], 0, "a", True)
    assert source.progress() == sum_stages([(4, 4)])
    source.note(None, 0, None, True)
    assert source.progress() == sum_stages([(4, 4)])


@pytest.mark.spark
def test_progress_is_lines_without_a_terminal(spark: SparkSession) -> None:
    said = io.StringIO()
    with spark_progress(spark, True, said):
        assert spark.range(0, 100, 1, 7).selectExpr("sum(id)").collect()[0][0] == 4950
        _settle(spark)
    last = re.fullmatch(r"Spark: (\d+) of \1 stages, (\d+) of \2 tasks done", _last_line(said))
    assert last is not None
    assert int(last[1]) >= 2
    assert int(last[2]) >= 8
    assert not [thread for thread in threading.enumerate() if thread.name == "progress"]


@pytest.mark.spark
def test_progress_bar_is_removed_from_the_terminal(spark: SparkSession) -> None:
    terminal = Terminal()
    with spark_progress(spark, None, terminal):
        spark.range(0, 100, 1, 7).selectExpr("sum(id)").collect()
    drawn = terminal.getvalue()
    assert "tasks done" in drawn
    assert drawn.endswith("\x1b[2K"), drawn[-80:]


@pytest.mark.spark
@pytest.mark.parametrize(("shown", "to"), [(None, io.StringIO()), (False, Terminal())])
def test_progress_is_hidden_by_default(
    spark: SparkSession, shown: bool | None, to: io.StringIO
) -> None:
    with spark_progress(spark, shown, to):
        spark.range(10).collect()
    assert to.getvalue() == ""


def _settle(spark: SparkSession) -> None:
    """Wait until Spark has counted the tasks that are done, a moment after their results."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()


def _last_line(said: io.StringIO) -> str:
    return said.getvalue().splitlines()[-1]


@pytest.mark.spark
def test_progress_leaves_out_earlier_jobs_of_the_session(spark: SparkSession) -> None:
    spark.range(0, 300, 1, 150).count()
    said = io.StringIO()
    with spark_progress(spark, True, said):
        spark.range(0, 100, 1, 2).collect()
        _settle(spark)
    assert _last_line(said) == "Spark: 1 of 1 stages, 2 of 2 tasks done"


def test_start_of_spark_is_shown_before_its_import() -> None:
    program = (
        "import sys; from purgatory.cli.exit_status import exit_on_error\n"
        "with exit_on_error('waits', progress=True):\n"
        "    print('pyspark' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert (ran.stdout, ran.stderr) == ("False\n", "Spark: starting\n")


@pytest.mark.spark
def test_sparks_bar_replaces_that_of_the_start_on_a_terminal(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    show_start(None)
    assert "starting" in terminal.getvalue()
    with spark_progress(spark, None):
        give_up_s = time.monotonic() + 60
        while "planning" not in terminal.getvalue():
            assert time.monotonic() < give_up_s, terminal.getvalue()
            time.sleep(0.01)
    # A start without stages is not shown as done.
    drawn = terminal.getvalue()
    assert "0 of 0" not in drawn
    end_start()
    assert terminal.getvalue() == drawn


def test_remaining_time_is_estimated_from_finished_work() -> None:
    estimate = Estimate()
    assert estimate.remaining(EngineProgress(), 100.0) == ""
    assert estimate.remaining(EngineProgress("0 of 8", 0, 8), 110.0) == ""
    assert estimate.remaining(EngineProgress("2 of 8", 2, 8), 120.0) == ", about 1 min 0 s left"
    assert estimate.remaining(EngineProgress("6 of 8", 6, 8), 120.0) == ", about 7 s left"
    assert (
        estimate.remaining(EngineProgress("6 of 8000", 6, 8_000), 160.0)
        == ", about 22 h 12 min left"
    )
    assert estimate.remaining(EngineProgress("8 of 8", 8, 8), 130.0) == ""


def test_restarted_step_is_estimated_by_itself() -> None:
    estimate = Estimate()
    estimate.remaining(EngineProgress("90 %", 90, 100), 100.0)
    assert estimate.remaining(EngineProgress("10 %", 10, 100), 200.0) == ", about 1 s left"
    assert estimate.remaining(EngineProgress("50 %", 50, 100), 230.0) == ", about 30 s left"


def test_progress_lines_have_the_remaining_time_except_the_last() -> None:
    told, told_once = io.StringIO(), threading.Event()
    steps = iter([EngineProgress("1 of 4", 1, 4), EngineProgress("2 of 4", 2, 4)])

    def ask() -> EngineProgress:
        found = next(steps, EngineProgress("4 of 4", 4, 4))
        if found.done == 4:
            told_once.set()
        return found

    with show_progress("Some engine", ask, True, told):
        assert told_once.wait(60)
    first, *_, last = told.getvalue().splitlines()
    assert re.fullmatch(r"Some engine: 1 of 4(, about .* left)?", first)
    assert last == "Some engine: 4 of 4"


def test_progress_of_a_failed_engine_ends_with_its_last_state() -> None:
    told, asked = io.StringIO(), threading.Event()
    steps = iter([EngineProgress("1 of 4", 1, 4)])

    def ask() -> EngineProgress | None:
        found = next(steps, None)
        if found is None:
            asked.set()
        return found

    with show_progress("Some engine", ask, True, told):
        assert asked.wait(60)
    assert told.getvalue().splitlines()[-1] == "Some engine: 1 of 4"


def test_progress_ends_with_a_connection_closed_by_a_signal() -> None:
    with duckdb_connection(progress=False) as connection:
        connection.close()
        assert _query_progress(connection) is None


def test_a_step_of_duckdb_is_shown_on_standard_error_alone(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with duckdb_connection(progress=True) as connection:
        connection.execute("SET threads = 1")
        connection.execute("CREATE TABLE numbers AS SELECT range AS n FROM range(1000000)")
        give_up_s, said, results = time.monotonic() + 100, "", ""
        while "% of this step done" not in said:
            assert time.monotonic() < give_up_s
            connection.execute("SELECT count(DISTINCT hash(n)) FROM numbers").fetchall()
            if connection.sql("FROM numbers").count("n").fetchall()[0][0] < 20_000_000:
                connection.execute("INSERT INTO numbers SELECT n + 1 FROM numbers")
            out, err = capfd.readouterr()
            said, results = said + err, results + out
    assert without_clients_lines(said).startswith("DuckDB: ")
    assert results == ""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["spark", "duckdb"])
def test_terminal_shows_the_start_before_the_engine(engine: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "never")
    for name in ("pyarrow", "duckdb"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'never')!r})")  # waits
    command = [sys.executable, "-m", "purgatory", "waits", str(tmp_path / "empty")]
    child, terminal = pty.fork()
    if child == 0:
        path = os.pathsep.join((str(tmp_path), *sys.path))
        os.execve(
            sys.executable, [*command, "--engine", engine], {**os.environ, "PYTHONPATH": path}
        )
    shown = b""
    try:
        while b"starting" not in shown:
            shown += os.read(terminal, 65_536)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)
    assert {"spark": b"Spark", "duckdb": b"DuckDB"}[engine] in shown
