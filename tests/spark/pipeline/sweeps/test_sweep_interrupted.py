"""Ctrl-C for the command ``purgatory sweep``, and what the same command then has left to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from purgatory.sweeps.plan import load_plan
from purgatory.sweeps.run import missing
from tests.spark.pipeline.sweeps.small_sweeps import GRID, write_sweep
from tests.spark.pipeline.test_program_ends import MOST_S, assert_ended, descendants

ROOT = Path(__file__).parents[4]


@pytest.mark.spark
@pytest.mark.slow
def test_ctrl_c_ends_the_command_and_the_same_command_resumes(tmp_path: Path) -> None:
    """A real process, since the signal has to find its way past Spark's own handlers.

    Its Java and its workers end with it.
    """
    timeouts = ", ".join(str(10 * number) for number in range(1, 501))
    file = write_sweep(tmp_path, GRID.format(timeouts=timeouts, lags="1", further=""))
    out, temporary = tmp_path / "out", tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "purgatory", "sweep", str(file), "--out", str(out)]
    process = subprocess.Popen(
        [*command, "--master", "local[2]"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        start_new_session=True,
    )
    try:
        while process.poll() is None and not list(out.glob("parts/part-*.parquet")):
            time.sleep(0.05)  # until something is done: there is nothing to wait on
        started = descendants(process.pid)
        assert len(started) >= 3, "Java, a daemon, and at least one worker"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, told
    assert_ended(started, time.monotonic() + MOST_S)
    assert [path.name for path in temporary.glob("purgatory-*")] == []
    assert told.splitlines()[-1].startswith("purgatory sweep: interrupted; results so far are in")
    assert "Traceback" not in told
    plan = load_plan(file)
    assert 0 < len(missing(plan, out)) < plan.scenarios
