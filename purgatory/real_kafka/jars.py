"""The files of a real Kafka: its jars, by Maven or in a folder, and the Java that runs them.

A version such as "4.3.1" is fetched once, into the cache folder, from which it is taken later
without Maven and without a network. A folder is that of an unpacked Kafka, or of its jars.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from purgatory.kafka.errors import ClusterError
from purgatory.pipeline.engines.spark.java import cache_folder, find_java_home
from purgatory.pipeline.errors import SessionError

OLDEST = 4
"""The oldest major version: those before have other settings, and older versions of APIs."""

_VERSION = re.compile(r"\d+\.\d+\.\d+(-\w+)?")
_CLIENTS = re.compile(r"kafka-clients-(\d+\.\d+\.\d+.*)\.jar")
_POM = Path(__file__).parent / "pom.xml"
_LOGGING = Path(__file__).parent / "log4j2.properties"
_SHOWN_LINES = 5


class KafkaFiles(NamedTuple):
    """A real Kafka's files.

    Args:
        version: such as "4.3.1".
        jars: the folder of its jars.
        java: the executable.
    """

    version: str
    jars: Path
    java: Path

    def command(self, *arguments: str) -> list[str]:
        """Return the command that runs a class of it, with its arguments."""
        heap = os.environ.get("KAFKA_HEAP_OPTS", "-Xmx512m").split()
        quick = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        logging = f"-Dlog4j2.configurationFile={_LOGGING}"
        return [str(self.java), *heap, *quick, logging, "-cp", f"{self.jars}/*", *arguments]


def find_kafka(text: str, environment: Mapping[str, str] = os.environ) -> KafkaFiles:
    """Find a Kafka by its version, which is fetched if necessary, or by its folder.

    Args:
        text: "4.3.1", or the path of an unpacked Kafka, or of a folder with its jars.
        environment: variables as in `os.environ`: JAVA_HOME, PATH and XDG_CACHE_HOME are read.

    Raises:
        ClusterError: something is missing; one line says what to install, or which folder to give.
    """
    if _VERSION.fullmatch(text):
        _check_version(text)
        return KafkaFiles(text, _cached_jars(text, environment), _java(environment))
    for folder in (Path(text) / "libs", Path(text)):
        for jar in folder.glob("kafka-clients-*.jar"):
            match = _CLIENTS.fullmatch(jar.name)
            if match is not None:
                _check_version(match[1])
                return KafkaFiles(match[1], folder.resolve(), _java(environment))
    raise ClusterError(
        f"--kafka {text}: neither a version, as 4.3.1, nor a folder with libs/kafka-clients-*.jar; "
        "unpack Kafka from kafka.apache.org/downloads, and give its folder"
    )


def fetch_jars(version: str, folder: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return a folder with a version's jars, which Maven fills if they are not there.

    Raises:
        ClusterError: there is no Maven, or it failed.
    """
    if (folder / f"kafka-clients-{version}.jar").exists():
        return folder
    maven = shutil.which("mvn", path=environment.get("PATH", os.defpath))
    if maven is None:
        raise ClusterError(
            f"--kafka {version}: Maven fetches it, once, and is not there: install it (Debian: "
            "apt-get install maven), or unpack Kafka from kafka.apache.org/downloads and give its "
            "folder"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    filling = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _run_maven(maven, version, filling)
        filling.chmod(0o755)
        try:
            filling.rename(folder)
        except OSError:  # another process was faster
            if not (folder / f"kafka-clients-{version}.jar").exists():
                raise
    except OSError as error:
        raise ClusterError(f"--kafka {version}: {folder} can't be filled: {error}") from error
    finally:
        shutil.rmtree(filling, ignore_errors=True)
    return folder


def _run_maven(maven: str, version: str, folder: Path) -> None:
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    pom = ["-f", str(_POM), f"-Dkafka.version={version}"]
    done = subprocess.run(
        [maven, "-q", "-B", "-Dstyle.color=never", *pom, *goal],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        output = done.stdout + done.stderr
        if f":{version} was not found" in output or "Could not find artifact" in output:
            raise ClusterError(f"--kafka {version}: Maven's repositories have no such Kafka")
        errors = [line.removeprefix("[ERROR] ") for line in output.splitlines() if line.strip()]
        told = " ".join(errors[:1]) or f"status {done.returncode}"
        raise ClusterError(f"--kafka {version}: Maven did not fetch it: {told[:300]}")


def _cached_jars(version: str, environment: Mapping[str, str]) -> Path:
    return fetch_jars(version, cache_folder(environment) / f"kafka-{version}", environment)


def _check_version(version: str) -> None:
    if int(version.partition(".")[0]) < OLDEST:
        raise ClusterError(f"--kafka {version}: too old: {OLDEST}.0 or later is needed")


def _java(environment: Mapping[str, str]) -> Path:
    try:
        return find_java_home(environment, "Kafka") / "bin" / "java"
    except SessionError as error:
        raise ClusterError(f"--kafka: {error}") from error
