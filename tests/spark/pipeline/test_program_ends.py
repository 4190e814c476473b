"""The ends of a program that started Spark: its Java and its workers end within 5 seconds."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.spark.pipeline.test_interrupt import processes_of

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.timeout(300),
]

MOST_S = 5.0
"""How long the processes of a program may outlive it."""

_STUBBORN_JAVA = """#!/bin/sh
case "$*" in
*-version) echo 'openjdk version "21"' >&2;;
*launcher.Main*) printf '\\0\\n%s\\0main\\0' "$0";;
*) trap '' HUP INT TERM; : >"$TMPDIR/begun"; while :; do sleep 0.2; done;;
esac
"""
"""A Java that never starts, and ends neither by a signal nor as its standard input closes."""

_STREAM = """
import sys
from purgatory.stream import source
source.TopicSource.check = lambda _: "id"
from purgatory.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""The command `purgatory` where brokers are not asked for topics."""

_PROGRAM = """
from purgatory.pipeline.engines.spark.session import spark_session
with spark_session("local[1]"):
    pass
"""

_COMMANDS = {
    "analyze": "analyze trace --out report --engine spark",
    "waits": "waits trace --engine spark",
    "occupancy": "occupancy trace --engine spark",
    "audit": "audit trace --engine spark",
    "sweep": "sweep sweep.toml --out swept",
    "apply": "apply --bootstrap 127.0.0.1:1 --topic t --to sqlite:///copy.db --engine spark",
    "stream": "stream --bootstrap 127.0.0.1:1 --out streamed",
    "program": "",
}
_STATUSES = {
    signal.SIGINT: 130,
    signal.SIGTERM: 143,
    signal.SIGHUP: 129,
    signal.SIGKILL: -signal.SIGKILL,
}


def _arguments(command: str) -> list[str]:
    if command == "program":
        return [sys.executable, "-c", _PROGRAM]
    how = ("-c", _STREAM) if command == "stream" else ("-m", "purgatory")
    return [sys.executable, *how, *_COMMANDS[command].split()]


def _wait_for(path: Path, process: subprocess.Popen[Any]) -> None:
    while not path.exists():
        assert process.poll() is None, "it ended by itself"
        time.sleep(0.02)


def _assert_all_end(folder: Path, by_s: float) -> None:
    while left := processes_of(folder):
        assert time.monotonic() < by_s, left
        time.sleep(0.02)


@pytest.fixture(name="folder")
def fixture_folder(tmp_path: Path) -> Path:
    """A folder with all that the commands read, and a Java that does not end."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(_STUBBORN_JAVA)
    java.chmod(0o755)
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "operations.jsonl").touch()
    (tmp_path / "sweep.toml").write_text(
        'name = "acks"\nscenario = "steady"\n[grid]\n"producers[*].acks" = [1]\n'
    )
    return tmp_path


@contextmanager
def _started(command: str, folder: Path, number: int) -> Iterator[subprocess.Popen[bytes]]:
    temporary = folder / f"temporary-{number}"
    temporary.mkdir()
    with subprocess.Popen(
        _arguments(command),
        cwd=folder,
        env={**os.environ, "JAVA_HOME": str(folder / "java"), "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        _wait_for(temporary / "begun", process)
        yield process


@pytest.mark.parametrize("command", _COMMANDS)
def test_hanging_start_of_java_ends_with_the_command(command: str, folder: Path) -> None:
    # Each command with one signal, and one command, and a program, with each.
    one = list(_STATUSES)[list(_COMMANDS).index(command) % len(_STATUSES)]
    chosen = _STATUSES if command in ("waits", "program") else {one: _STATUSES[one]}
    for number, status in chosen.items():
        with _started(command, folder, number) as process:
            process.send_signal(number)
            by_s = time.monotonic() + MOST_S
            ended = process.wait(MOST_S)
            # Without a command around it, a program ends by the signal itself.
            expected = status if command != "program" or number == signal.SIGKILL else None
            assert ended == (expected if expected is not None else -number), number
        _assert_all_end(folder, by_s)
        left = [path.name for path in (folder / f"temporary-{number}").iterdir()]
        assert [name for name in left if name.startswith("purgatory-")] == [], number


def test_killed_process_group_leaves_no_process(folder: Path) -> None:
    with _started("program", folder, 0) as process:
        os.killpg(process.pid, signal.SIGKILL)
        by_s = time.monotonic() + MOST_S
    _assert_all_end(folder, by_s)
    assert list((folder / "temporary-0").glob("purgatory-*")) == []


def test_closed_terminal_ends_the_command_and_its_java(folder: Path) -> None:
    number, terminal = pty.fork()
    if number == 0:
        os.chdir(folder)
        os.environ |= {"JAVA_HOME": str(folder / "java"), "TMPDIR": str(folder)}
        os.execv(sys.executable, _arguments("audit"))
    while not (folder / "begun").exists():
        time.sleep(0.02)
    os.close(terminal)
    by_s = time.monotonic() + MOST_S
    assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == 129
    _assert_all_end(folder, by_s)


_COMPUTES = """
import sys, time
from pathlib import Path
import click
from purgatory.cli.exit_status import exit_on_error
from purgatory.pipeline.engines.spark.session import spark_session

def slowly(batches):
    begun.touch()
    time.sleep(600)
    yield from batches

begun = Path(sys.argv[1]) / "begun"
try:
    with exit_on_error("audit"), spark_session("local[2]") as session:
        session.range(2).mapInArrow(slowly, "id long").collect()
except click.exceptions.Exit as ended:
    sys.exit(ended.exit_code)
"""


@pytest.mark.spark
@pytest.mark.exhaustive  # by day Ctrl-C ends a sweep, which is computed by workers
@pytest.mark.parametrize("number", _STATUSES)
def test_spark_with_a_python_worker_ends_with_the_program(
    number: signal.Signals, tmp_path: Path
) -> None:
    spilled = tmp_path / "spilled"
    with subprocess.Popen(
        [sys.executable, "-c", _COMPUTES, str(tmp_path)],
        env={**os.environ, "TMPDIR": str(tmp_path), "SPARK_LOCAL_DIRS": str(spilled)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        _wait_for(tmp_path / "begun", process)
        workers = descendants(process.pid)
        assert len(workers) >= 3, "Java, a daemon, and at least one worker"
        process.send_signal(number)
        by_s = time.monotonic() + MOST_S
        said = process.communicate(timeout=60)[1]
        assert process.returncode == _STATUSES[number], said
    assert_ended(workers, by_s)
    assert said.count("\n") == (number != signal.SIGKILL), said
    assert [path.name for path in tmp_path.glob("purgatory-*")] == []
    assert list(spilled.iterdir()) == []


def assert_ended(processes: Sequence[int], by_s: float) -> None:
    """Wait for the end of processes, until a time of the monotonic clock."""
    while left := [pid for pid in processes if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < by_s, left
        time.sleep(0.02)


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that they started in turn."""
    children = Path(f"/proc/{pid}/task")
    listed = [
        int(word)
        for file in children.glob("*/children")
        for word in file.read_text("ascii").split()
    ]
    return [one for child in listed for one in (child, *descendants(child))]
