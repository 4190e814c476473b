"""A worker of Kafka Connect 4.3.1 with Debezium's connector for MariaDB."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.databases.cdc.lasting_port import lasting_port
from tests.databases.cdc.mariadb import MariaDb

_POM = Path(__file__).parent / "connect_pom.xml"
_START_S = 240.0
TOPIC = "changes"


def require_connect(folder: Path) -> Path:
    """The folder of the worker's and the connector's jars; skip if Maven can't get them."""
    get = ["mvn", "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies"]
    try:
        subprocess.run([*get, f"-DoutputDirectory={folder}"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"Connect can't be had: {error}")
    return folder


def connector_settings(source: MariaDb, bootstrap: str) -> dict[str, str]:
    """The connector's settings as docs/apply.md gives them: one topic of one partition."""
    return {
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "tasks.max": "1",
        "topic.prefix": "src",
        "database.hostname": "127.0.0.1",
        "database.port": str(source.port),
        "database.user": "root",
        "database.password": "",
        "database.server.id": "77",
        "database.ssl.mode": "disable",
        "database.include.list": "shop",
        "enable.time.adjuster": "false",
        "schema.history.internal.kafka.topic": "history",
        "schema.history.internal.kafka.bootstrap.servers": bootstrap,
        "topic.creation.default.replication.factor": "1",
        "topic.creation.default.partitions": "1",
        "transforms": "one",
        "transforms.one.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.one.regex": ".*",
        "transforms.one.replacement": TOPIC,
        "provide.transaction.metadata": "true",
        "bigint.unsigned.handling.mode": "precise",
        "skipped.operations": "none",
    }


class Worker:
    """A running worker. ``kill`` ends it at once.

    Args:
        settings: its own, beside those that it needs.
    """

    def __init__(self, jars: Path, folder: Path, bootstrap: str, settings: Mapping[str, str]):
        self._log = folder / "connect.log"
        self.port = lasting_port()
        properties = {
            "bootstrap.servers": bootstrap,
            "group.id": "connect",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "listeners": f"http://127.0.0.1:{self.port}",
            "offset.flush.interval.ms": "1000",
            **{
                f"{name}.storage.{key}": value
                for name in ("config", "offset", "status")
                for key, value in (("topic", f"connect-{name}"), ("replication.factor", "1"))
            },
            **settings,
        }
        path = folder / "worker.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        with self._log.open("ab") as log:
            main = "org.apache.kafka.connect.cli.ConnectDistributed"
            command = ["java", "-Xmx512m", "-cp", f"{jars}/*", main, str(path)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def create(self, name: str, settings: Mapping[str, str]) -> None:
        """Create a connector, as soon as the worker takes it."""
        body = json.dumps({"name": name, "config": settings}).encode()
        url = f"http://127.0.0.1:{self.port}/connectors"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        give_up_s = time.monotonic() + _START_S
        while True:
            try:
                urllib.request.urlopen(request, timeout=_START_S).close()
            except OSError as error:
                refusal = error.read() if isinstance(error, urllib.error.HTTPError) else b""
                if time.monotonic() > give_up_s or self.process.poll() is not None:
                    raise AssertionError(f"{error} {refusal!r}\n{self.log}") from error
                time.sleep(0.5)
            else:
                return

    @property
    def log(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-6000:]

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self.process.kill()
        self.process.wait()


@contextmanager
def running_worker(
    jars: Path, folder: Path, bootstrap: str, settings: Mapping[str, str]
) -> Iterator[Worker]:
    """Run a worker while the block runs."""
    worker = Worker(jars, folder, bootstrap, settings)
    try:
        yield worker
    finally:
        worker.kill()
