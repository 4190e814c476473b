"""A real Kafka is found by its version or its folder, or one line says what is missing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from purgatory.cluster import ClusterError
from purgatory.pipeline.errors import SessionError
from purgatory.real_kafka import find_kafka, jars


@pytest.fixture(autouse=True)
def _java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "find_java_home", lambda *_: Path("/java"))


def environment(folder: Path) -> dict[str, str]:
    """The variables of a machine without Maven, whose cache is in a folder."""
    return {"PATH": str(folder / "nothing"), "XDG_CACHE_HOME": str(folder)}


def put_jar(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True)
    (folder / f"kafka-clients-{version}.jar").touch()
    return folder


def test_version_in_the_cache_needs_no_maven(tmp_path: Path) -> None:
    cached = put_jar(tmp_path / "kafka-purgatory" / "kafka-4.3.1", "4.3.1")
    found = find_kafka("4.3.1", environment(tmp_path))
    assert found == ("4.3.1", cached, Path("/java/bin/java"))


@pytest.mark.parametrize("below", ["libs", "."])
def test_folder_of_a_kafka_tells_its_version(tmp_path: Path, below: str) -> None:
    put_jar(tmp_path / "kafka" / below, "4.0.1")
    found = find_kafka(str(tmp_path / "kafka"), environment(tmp_path))
    assert found.version == "4.0.1"
    assert found.jars == (tmp_path / "kafka" / below).resolve()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("4.3.1", "Maven fetches it, once, and is not there: install it .* or unpack Kafka"),
        ("3.9.1", r"too old: 4\.0 or later"),
        ("nowhere", r"neither a version, as 4\.3\.1, nor a folder with libs/"),
    ],
)
def test_missing_kafka_is_one_line(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ClusterError, match=named) as raised:
        find_kafka(text, environment(tmp_path))
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_missing_java_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object, program: str) -> Path:
        raise SessionError(f"{program} needs Java 17 or later, and none was found.")

    monkeypatch.setattr(jars, "find_java_home", refuse)
    put_jar(tmp_path / "libs", "4.3.1")
    with pytest.raises(ClusterError, match="Kafka needs Java 17 or later"):
        find_kafka(str(tmp_path), environment(tmp_path))


def test_command_has_the_jars_and_the_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    files = jars.KafkaFiles("4.3.1", Path("/libs"), Path("/java"))
    monkeypatch.delenv("KAFKA_HEAP_OPTS", raising=False)
    command = files.command("kafka.Kafka", "1.properties")
    assert (command[0], command[1]) == ("/java", "-Xmx512m")
    assert command[-4:] == ["-cp", "/libs/*", "kafka.Kafka", "1.properties"]
    monkeypatch.setenv("KAFKA_HEAP_OPTS", "-Xms1g -Xmx2g")
    assert files.command("kafka.Kafka")[1:3] == ["-Xms1g", "-Xmx2g"]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("[ERROR] Could not find artifact org:kafka:jar:9.9.9", "repositories have no such Kafka$"),
        ("[ERROR] No route to host", "Maven did not fetch it: No route to host$"),
        ("", "Maven did not fetch it: status 1$"),
    ],
)
def test_error_of_maven_is_one_line(
    output: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess(["mvn"], 1, output, "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: "mvn")
    with pytest.raises(ClusterError, match=f"^--kafka 9.9.9: .*{expected}"):
        jars.fetch_jars("9.9.9", tmp_path / "kafka-9.9.9")
    assert list(tmp_path.iterdir()) == []
