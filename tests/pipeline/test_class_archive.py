"""The archive of Spark's classes: made by a command, used by sessions, passed over if spoilt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from purgatory.pipeline.engines.spark import class_archive
from purgatory.pipeline.engines.spark.class_archive import (
    OPT_OUT,
    archive_path,
    make_in_background,
    options_to_use,
)
from purgatory.pipeline.engines.spark.java import find_java_home

_SESSION = """
import sys
from purgatory.pipeline.engines.spark.session import spark_session
with spark_session("local[1]", java_options="-Xlog:class+load:file=" + sys.argv[1]) as session:
    print(session.range(3).count())
"""


def run(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python where the archive is to be found below this folder."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )


def from_archive(cache: Path, log: Path) -> int:
    """Count the classes that a session takes from the archive; it must answer as ever."""
    ended = run(cache, "-c", _SESSION, str(log))
    assert (ended.returncode, ended.stdout) == (0, "3\n"), ended.stderr
    return log.read_text(encoding="utf-8").count("shared objects file (top)")


def test_each_java_has_an_archive_of_its_own(tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    one, other = (archive_path(Path(home), cache) for home in ("/opt/java17", "/opt/java21"))
    assert one != other
    assert one.parent == other.parent == tmp_path / "kafka-purgatory"
    assert options_to_use(one) == ""
    one.parent.mkdir()
    one.touch()
    assert f'"-XX:SharedArchiveFile={one}"' in options_to_use(one)


def test_where_no_java_was_started_none_is_ended() -> None:
    code = "from purgatory.pipeline.engines.spark.session import end_java; print(end_java())"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, b"None\n")


def test_where_no_archive_can_be_made_one_line_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = run(tmp_path / "file", "-m", "purgatory", "prepare")
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 2  # what is done, and what is wrong with it
    assert f"{tmp_path}/file/kafka-purgatory: Not a directory; set XDG_CACHE_HOME" in ended.stderr


@pytest.mark.spark
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_prepare_makes_an_archive_that_sessions_use(tmp_path: Path) -> None:
    cache = tmp_path / "a cache"
    archive = archive_path(find_java_home(os.environ), {"XDG_CACHE_HOME": str(cache)})
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"spoilt")
    ended = run(cache, "-m", "purgatory", "prepare")
    assert ended.stdout == f"{archive} exists already (--overwrite replaces it)\n"
    assert archive.read_bytes() == b"spoilt"
    ended = run(cache, "-m", "purgatory", "prepare", "--overwrite")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"{archive}: ")
    assert list(archive.parent.glob("*.jsa*")) == [archive]
    assert from_archive(cache, tmp_path / "classes.log") > 5_000


@pytest.mark.spark
def test_what_is_no_archive_is_passed_over(tmp_path: Path) -> None:
    home = find_java_home(os.environ)
    archive = archive_path(home, {"XDG_CACHE_HOME": str(tmp_path)})
    archive.parent.mkdir()
    archive.write_bytes(b"spoilt" * 1_000)
    assert from_archive(tmp_path, tmp_path / "classes.log") == 0


@pytest.fixture(name="started")
def fixture_started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would be started."""
    commands: list[list[str]] = []

    def run_command(command: list[str], **options: object) -> None:
        assert options["start_new_session"], "Ctrl-C ends the analysis alone"
        commands.append(command)

    monkeypatch.delenv(OPT_OUT)
    monkeypatch.setattr(f"{class_archive.__name__}.subprocess.run", run_command)
    monkeypatch.setattr(class_archive, "total_memory_bytes", lambda: 8 << 30)
    return commands


def test_one_process_makes_the_archive_in_the_background_and_a_day_later_another_one(
    tmp_path: Path, started: list[list[str]]
) -> None:
    archive = tmp_path / "cache" / "spark.jsa"
    for _ in range(3):
        make_in_background(archive)
    [command] = started
    maker = [sys.executable, "-m", "purgatory.pipeline.engines.spark.rehearsal", str(archive)]
    assert command[-len(maker) :] == maker
    attempt = archive.with_suffix(".attempt")
    a_day_ago = time.time() - 25 * 3600
    os.utime(attempt, (a_day_ago, a_day_ago))
    for _ in range(3):
        make_in_background(archive)
    assert len(started) == 2
    archive.touch()
    attempt.unlink()
    make_in_background(archive)
    assert len(started) == 2


def test_no_archive_is_begun_where_nobody_wants_it_or_it_has_no_place(
    tmp_path: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    make_in_background(tmp_path / "file" / "spark.jsa")
    monkeypatch.setattr(class_archive, "total_memory_bytes", lambda: 2 << 30)
    make_in_background(tmp_path / "spark.jsa")
    monkeypatch.setattr(class_archive, "total_memory_bytes", lambda: 8 << 30)
    monkeypatch.setenv(OPT_OUT, "1")
    make_in_background(tmp_path / "spark.jsa")
    assert not started
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_maker_is_no_child_of_the_analysis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = tmp_path / "maker.py"
    maker.write_text("import os, sys; open(sys.argv[1], 'w').write(str(os.getppid()))")
    monkeypatch.delenv(OPT_OUT)
    monkeypatch.setattr(class_archive, "_MAKER", "maker")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(class_archive, "total_memory_bytes", lambda: 8 << 30)
    archive = tmp_path / "spark.jsa"
    make_in_background(archive)
    deadline = time.monotonic() + 60
    while not (archive.exists() and archive.read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert archive.read_text() != str(os.getpid())


@pytest.mark.spark
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_a_maker_that_is_ended_leaves_nothing(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    archive = tmp_path / "cache" / "spark.jsa"
    program = [sys.executable, "-m", "purgatory.pipeline.engines.spark.rehearsal", str(archive)]
    environment = {**os.environ, "TMPDIR": str(temporary), "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    with subprocess.Popen(program, env=environment, stderr=subprocess.DEVNULL) as process:
        while not list(temporary.glob("purgatory-spark-*/spark.log")):
            time.sleep(0.05)
        process.terminate()
        assert process.wait(120) == 128 + signal.SIGTERM
    assert list(temporary.glob("purgatory-*")) == []
    assert list(archive.parent.iterdir()) == []


@pytest.mark.spark
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_a_session_has_the_archive_made_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(OPT_OUT)
    archive = archive_path(find_java_home(os.environ), {"XDG_CACHE_HOME": str(tmp_path)})
    assert from_archive(tmp_path, tmp_path / "first.log") == 0
    deadline = time.monotonic() + 800
    while archive.with_suffix(".attempt").exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert [path.name for path in archive.parent.glob("*.jsa*")] == [archive.name]
    assert from_archive(tmp_path, tmp_path / "second.log") > 5_000
