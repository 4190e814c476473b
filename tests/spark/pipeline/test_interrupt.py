"""Ctrl-C and SIGTERM while Spark starts or computes: one line, and nothing left behind."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pytest

from purgatory.pipeline.engines.spark.java_process import no_repetitions
from purgatory.pipeline.signals import TERMINATED, exit_on_signal, is_free
from tests.spark.pipeline.cluster import QUICK_JAVA
from tests.spark.pipeline.conftest import RandomOperations, WriteTrace
from tests.spark.pipeline.test_spark_environments import tables_in

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("command", "number", "from_line", "status", "said_last"),
    [
        ("waits", signal.SIGINT, " stages", 130, "interrupted"),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in (
                ("analyze", signal.SIGINT, " stages", 130, "interrupted"),
                ("waits", signal.SIGTERM, " stages", 143, "terminated"),
                ("audit", signal.SIGTERM, "", 143, "terminated"),
                ("occupancy", signal.SIGINT, "", 130, "interrupted"),
            )
        ),
    ],
)
def test_signal_ends_a_job_cleanly(
    command: str,
    number: signal.Signals,
    from_line: str,
    status: int,
    said_last: str,
    write_trace: WriteTrace,
    random_operations: RandomOperations,
    tmp_path: Path,
) -> None:
    trace = write_trace(tmp_path / "trace", random_operations(3, 4000), duration_ms=1000, parts=40)
    out, temporary, of_spark = (tmp_path / name for name in ("results/out", "temporary", "spark"))
    temporary.mkdir()
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "purgatory", command, str(trace), "--out", str(out)),
            *("--engine", "spark", "--progress", "--master", "local[1]"),
        ],
        env={
            **os.environ,
            "TMPDIR": str(temporary),
            "SPARK_LOCAL_DIRS": str(of_spark),
            "JAVA_TOOL_OPTIONS": QUICK_JAVA,
            # A task for each part, one after the other: there is much to do yet after the first.
            "PYSPARK_SUBMIT_ARGS": "--conf spark.sql.files.maxPartitionBytes=1k pyspark-shell",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:  # it starts, plans, and then reports stages
            assert line.startswith("Spark: "), line
            if from_line in line:
                break
        process.send_signal(number)
        printed, said = process.communicate(timeout=300)
    assert process.returncode == status, said
    assert printed == ""
    *progress, last = said.splitlines()
    assert last == f"purgatory {command}: {said_last}; nothing was written"
    assert all(line.startswith("Spark: ") for line in progress), said
    assert not out.parent.exists() or list(out.parent.iterdir()) == []
    assert [path.name for path in temporary.iterdir() if "purgatory" in path.name] == []
    give_up_s = time.monotonic() + 120  # Java, which is asked to end, ends after the command
    while left := [path.name for path in of_spark.glob("*")]:
        assert time.monotonic() < give_up_s, left
        time.sleep(0.1)


def processes_of(temporary: Path) -> list[str]:
    """The commands of processes that name a folder."""
    commands = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            commands.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [command[:200] for command in commands if str(temporary) in command]


def assert_no_process_is_left(temporary: Path) -> None:
    """Wait for processes that end after their command."""
    give_up_s = time.monotonic() + 60
    while left := processes_of(temporary):
        assert time.monotonic() < give_up_s, left
        time.sleep(0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(
    ("number", "status"),
    # By day a Java that hangs in its start gets each signal.
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.exhaustive)],
)
def test_signal_during_the_start_of_java_leaves_no_java(
    number: signal.Signals,
    status: int,
    write_trace: WriteTrace,
    random_operations: RandomOperations,
    tmp_path: Path,
) -> None:
    trace = write_trace(tmp_path / "trace", random_operations(3, 40), duration_ms=1000)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "purgatory", "waits", str(trace)),
            *("--engine", "spark", "--master", "local[1]"),
        ],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not processes_of(temporary):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == status, said
    assert said.endswith("; nothing was written\n")
    assert_no_process_is_left(temporary)


_INTERRUPTS_AN_IMPORT = """
import signal, sys
from purgatory.pipeline.engines.run import run_job

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "_duckdb":
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupts())
try:
    run_job("waits", [sys.argv[1]], engine="duckdb")
except KeyboardInterrupt:
    print("_duckdb" in sys.modules)
"""


def test_signal_waits_for_the_end_of_an_engines_import(tmp_path: Path) -> None:
    """DuckDB's C code makes an ImportError of one."""
    command = [sys.executable, "-c", _INTERRUPTS_AN_IMPORT, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr


@pytest.mark.exhaustive
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("engine", ["spark", "duckdb"])
def test_signal_at_a_random_moment_leaves_all_tables_or_none(
    engine: str,
    write_trace: WriteTrace,
    random_operations: RandomOperations,
    tmp_path: Path,
) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    rng = random.Random(seed)
    trace = write_trace(tmp_path / "trace", random_operations(3, 4000), duration_ms=1000, parts=8)
    temporary, of_spark = tmp_path / "temporary", tmp_path / "spark"
    temporary.mkdir()

    def run(out: Path, after_s: float | None) -> tuple[int, float, str]:
        """The status, the seconds from the first line to the end, and all output."""
        with subprocess.Popen(
            [
                *(sys.executable, "-m", "purgatory", "waits", str(trace), "--out", str(out)),
                *("--engine", engine, "--progress", "--master", "local[1]"),
            ],
            env={
                **os.environ,
                "TMPDIR": str(temporary),
                "SPARK_LOCAL_DIRS": str(of_spark),
                "JAVA_TOOL_OPTIONS": QUICK_JAVA,
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            first = process.stderr.readline()
            begin_s = time.monotonic()
            if after_s is not None:
                time.sleep(after_s)
                process.send_signal(rng.choice([signal.SIGINT, signal.SIGTERM]))
            said = first + process.communicate(timeout=300)[1]
        return process.returncode, time.monotonic() - begin_s, said

    status, whole_s, said = run(tmp_path / "results" / "whole", None)
    assert status == 0, said
    expected = tables_in(tmp_path / "results" / "whole")
    statuses = set()
    for number in range(20):
        out = tmp_path / "results" / str(number)
        status, _, said = run(out, rng.uniform(0, 1.1 * whole_s))
        statuses.add(status)
        # A process that has done all, and is about to end, ends by the signal itself.
        assert status in (0, 130, 143, -signal.SIGINT, -signal.SIGTERM), (status, said)
        assert "Traceback" not in said and "Error" not in said, said
        if status <= 0 or f"; the results are in {out}" in said:
            assert tables_in(out) == expected, said
        else:
            assert said.endswith("; nothing was written\n"), said
            assert not out.exists()
        assert [path.name for path in temporary.iterdir() if "purgatory" in path.name] == []
    assert [name for name in os.listdir(tmp_path / "results") if name.startswith(".")] == []
    assert {130, 143} <= statuses
    assert_no_process_is_left(temporary)


@pytest.mark.parametrize("name", [None, "py4j.clientserver"])
def test_repeated_errors_of_the_java_bridge_are_not_logged(
    name: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger(name)
    with no_repetitions():
        logger.error("Exception occurred while shutting down connection")
        logger.error("something else")
    assert caplog.messages == ["something else"]


def _ended_by_itself(number: int, _frame: FrameType | None) -> None:
    raise ZeroDivisionError(number)


def test_program_keeps_its_own_sigterm_handler() -> None:
    before = signal.signal(signal.SIGTERM, _ended_by_itself)
    try:
        assert not is_free(signal.SIGTERM)
        with pytest.raises(ZeroDivisionError), exit_on_signal():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_sigterm_ends_a_block_and_its_handler_is_restored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as ended, exit_on_signal():
            signal.raise_signal(signal.SIGTERM)
        assert ended.value.code == TERMINATED == 143
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        with exit_on_signal():
            assert is_free(signal.SIGTERM), "a job in the block may handle it"
    finally:
        signal.signal(signal.SIGTERM, before)
