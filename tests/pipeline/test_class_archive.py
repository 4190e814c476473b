"""The archive of Spark's classes: made by a command, used by sessions, passed over if spoilt."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from purgatory.pipeline.engines.spark.java import archive_path, find_java_home, use

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
        timeout=300,
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
    assert use(one) == ""
    one.parent.mkdir()
    one.touch()
    assert f'"-XX:SharedArchiveFile={one}"' in use(one)


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
@pytest.mark.timeout(300)
def test_prepare_makes_an_archive_that_sessions_use(tmp_path: Path) -> None:
    cache = tmp_path / "a cache"
    archive = archive_path(find_java_home(os.environ), {"XDG_CACHE_HOME": str(cache)})
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"spoilt")
    ended = run(cache, "-m", "purgatory", "prepare")
    assert ended.stdout == f"{archive} is there already (--overwrite makes it anew)\n"
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
