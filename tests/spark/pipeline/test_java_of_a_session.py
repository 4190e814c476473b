"""The Java that a session starts: its memory and options, and its end in the middle of a start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from purgatory.pipeline.engines.memory import heap_bytes, total_memory_bytes

_DEFAULT_HEAP_BYTES = heap_bytes(total_memory_bytes())

_ITS_SETTINGS = """
import sys
from purgatory.pipeline.engines.spark.session import spark_session
memory = int(sys.argv[1]) << 20 if sys.argv[1:] else None
with spark_session("local[1]", memory=memory) as session:
    print(session._jvm.java.lang.Runtime.getRuntime().maxMemory() >> 20)
    print(session.conf.get("spark.sql.shuffle.partitions"), session.conf.get("spark.local.dir"))
"""


@pytest.mark.spark
@pytest.mark.parametrize(
    ("asked", "of_user", "heap"),
    [
        (("512",), "1200m", 512),
        pytest.param((), "1200m", 1200, marks=pytest.mark.exhaustive),
        pytest.param((), None, _DEFAULT_HEAP_BYTES >> 20, marks=pytest.mark.exhaustive),
    ],
)
def test_user_settings_take_precedence_and_memory_precedes_them(
    asked: tuple[str, ...], of_user: str | None, heap: int, tmp_path: Path
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    if of_user is not None:
        (tmp_path / "spark-defaults.conf").write_text(
            f"spark.driver.memory {of_user}\nspark.local.dir {tmp_path}/spilled\n"
        )
        environment["SPARK_CONF_DIR"] = str(tmp_path)
        environment["PYSPARK_SUBMIT_ARGS"] = "--conf spark.sql.shuffle.partitions=7 pyspark-shell"
    ran = subprocess.run(
        [sys.executable, "-c", _ITS_SETTINGS, *asked],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    found, tasks, spilled = ran.stdout.split()
    assert 0.87 * heap < int(found) <= heap, "but for what the collector reserves"
    assert (tasks == "7") == (of_user is not None)
    assert spilled.startswith(f"{tmp_path}/{'spilled' if of_user else 'purgatory-spark-'}")
    assert ran.stderr == ""
    assert [path.name for path in tmp_path.glob("purgatory-*")] == []


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_out_of_memory_error_names_the_option_for_more(tmp_path: Path) -> None:
    trace = tmp_path / "run"
    trace.mkdir()
    (trace / "operations.jsonl").write_text('{"run_id": "' + "x" * 60_000_000 + '"}\n')
    command = [
        *(sys.executable, "-m", "purgatory", "waits", str(trace)),
        *("--engine", "spark", "--memory", "512MiB"),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    said = ran.stderr.splitlines()[-1]
    assert said.startswith(
        "purgatory waits: Spark's Java process ran out of heap: set --memory higher"
    )


_FAKE_JAVA = r"""#!/bin/sh
killed() { case "$DIES" in *-by-15) kill -15 $$;; *-by-memory) exit 52;; *) kill -9 $$;; esac; }
case "$DIES,$*" in
asked*,*-version) killed;;
asked-memory,*) echo 'There is insufficient memory for the Java Runtime Environment'; exit 1;;
*,*-version) echo 'openjdk version "21"' >&2;;
launching*,*launcher.Main*) killed;;
*,*launcher.Main*) printf '\0\n%s\0main\0' "$0";;
mute,*) exit 0;;
short,*) echo 'Could not reserve enough space for 4194304KB object heap' >&2
  echo 'Error: Could not create the Java Virtual Machine.' >&2; exit 1;;
refused,*) echo "Unrecognized VM option 'Fast'" >&2
  echo 'Error: Could not create the Java Virtual Machine.' >&2; exit 1;;
told*,*) printf '\0\0\0\001\0\0\0\001s' >"$_PYSPARK_DRIVER_CONN_INFO_PATH"; killed;;
*) killed;;
esac
"""

_STARTED_WITH_EACH = """
import contextlib, io, os, sys

from purgatory.pipeline.engines.spark.java import java_version
from purgatory.cli.main import main

for line in sys.argv[1:]:
    os.environ["DIES"], *command = line.split()
    java_version.cache_clear()
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            status = main(command)
        except SystemExit as end:
            status = end.code
    print(status, said.getvalue().strip().replace("\\n", " / "))
"""


def _started_with_fakes(folder: Path, *lines: str) -> list[str]:
    """Status and standard error of commands, each with a Java that dies as its first word names."""
    java = folder / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(_FAKE_JAVA)
    java.chmod(0o755)
    trace = folder / "trace"
    trace.mkdir()
    (trace / "operations.jsonl").touch()
    ran = subprocess.run(
        [sys.executable, "-c", _STARTED_WITH_EACH, *lines],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        cwd=folder,
        env={**os.environ, "JAVA_HOME": str(java.parent.parent), "TMPDIR": str(folder)},
    )
    # librdkafka says that no broker is there.
    assert [line for line in ran.stderr.splitlines() if not line.startswith("%")] == []
    return ran.stdout.splitlines()


def test_java_killed_in_its_start_is_a_transient_error(tmp_path: Path) -> None:
    stages = [
        *("asked", "asked-memory", "launching", "launching-by-15", "booting", "booting-by-15"),
        *("booting-by-memory", "short", "mute", "told", "told-by-15", "told-by-memory"),
    ]
    told = _started_with_fakes(
        tmp_path, *(f"{stage} waits trace --engine spark" for stage in stages)
    )
    assert len(told) == len(stages)
    for stage, line in zip(stages, told, strict=True):
        assert line.startswith("75 purgatory waits: "), (stage, line)
        assert " / " not in line, (stage, line)


def test_each_spark_command_reports_a_killed_java(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(
        'name = "acks"\nscenario = "steady"\n[grid]\n"producers[*].acks" = [1]\n'
    )
    commands = [
        "audit trace --engine spark",
        "occupancy trace --engine spark",
        "analyze trace --out report --engine spark",
        "waits trace",
        "sweep sweep.toml --out swept",
        "apply --bootstrap 127.0.0.1:1 --topic t --to sqlite:///copy.db",
    ]
    lines = [f"{stage} {command}" for stage in ("asked", "booting") for command in commands]
    begun = [line for line in lines if "sweep" in line]
    told = _started_with_fakes(tmp_path, *lines)
    assert len(told) == len(lines)
    for line, (status, said) in zip(lines, (one.split(" ", 1) for one in told), strict=True):
        assert status == "75", (line, said)
        *before, last = said.split(" / ")
        assert last.startswith(f"purgatory {line.split()[1]}: "), (line, said)
        # The line that they print when they begin.
        assert len(before) == (line in begun), (line, said)


def test_option_refused_by_java_is_bad_input(tmp_path: Path) -> None:
    (line,) = _started_with_fakes(tmp_path, "refused waits trace --engine spark")
    assert line.startswith(
        "2 purgatory waits: Spark's Java refused to start: Unrecognized VM option 'Fast' (its log: "
    )


_KILLED_AT_A_CALL = """
import sys

from py4j.clientserver import ClientServerConnection
from pyspark.sql import SparkSession

from purgatory.pipeline.errors import SessionEndedError
from purgatory.pipeline.engines.spark import java_process, session

processes, calls, stop_at = [], 0, 0
submit, send = java_process._SparkSubmit, ClientServerConnection.send_command

class Submit(submit):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        processes.append(self)

def send_command(connection, command):
    global calls
    calls += 1
    if calls == stop_at:
        processes[-1].kill()
    return send(connection, command)

java_process._SparkSubmit, ClientServerConnection.send_command = Submit, send_command
made = SparkSession.__init__

def make(self, *arguments, **options):
    if stop_at == 0:
        processes[-1].kill()
    made(self, *arguments, **options)

SparkSession.__init__ = make
for stop_at in map(int, sys.argv[1:]):
    calls = 0
    try:
        with session.spark_session("local[1]"):
            print(stop_at, "started", calls, flush=True)
    except SessionEndedError as error:
        print(stop_at, "ended", str(error)[:46], flush=True)
"""


def _killed_at_calls(folder: Path, *calls: int) -> list[str]:
    """The outcomes of starts in which Java is killed at these calls of Python's into it.

    At 0, Java is killed when PySpark has a context, and makes a session of it.
    """
    ran = subprocess.run(
        [sys.executable, "-c", _KILLED_AT_A_CALL, *map(str, calls)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    assert ran.stderr == ""
    return ran.stdout.splitlines()


@pytest.mark.spark
@pytest.mark.timeout(120)
def test_java_killed_at_a_call_of_the_start_is_reported(tmp_path: Path) -> None:
    killed = "ended Spark's Java process was killed by signal 9: w"
    assert _killed_at_calls(tmp_path, 40) == [f"40 {killed}"], "one of some 160 at least"


@pytest.mark.spark
@pytest.mark.exhaustive
@pytest.mark.timeout(2_000)
def test_java_killed_at_any_call_of_the_start_is_reported(tmp_path: Path) -> None:
    lines = _killed_at_calls(tmp_path, 0, *range(1, 150, 2), *range(150, 195), 1_000)
    ended = [line for line in lines if " started " not in line]
    assert len(ended) >= 75
    assert all(" ended Spark's Java process was killed by signal 9" in line for line in ended)
    assert lines[-1].startswith("1000 started")


@pytest.mark.spark
@pytest.mark.exhaustive  # by day Java would refuse two collectors in all tests that name one
@pytest.mark.parametrize("named_by", ["variable", "file"])
def test_collector_of_the_user_takes_precedence(
    named_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named_by == "variable":
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseSerialGC")
    else:
        defaults = "spark.driver.defaultJavaOptions -XX:+UseSerialGC\n"
        (tmp_path / "spark-defaults.conf").write_text(defaults)
        monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    program = (
        "from purgatory.pipeline.engines.spark.session import spark_session\n"
        "with spark_session('local[1]') as session:\n"
        "    beans = session._jvm.java.lang.management.ManagementFactory\n"
        "    print(*(bean.getName() for bean in beans.getGarbageCollectorMXBeans()))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert ran.stdout == "Copy MarkSweepCompact\n", ran.stderr
