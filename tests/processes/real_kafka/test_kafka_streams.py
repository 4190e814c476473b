"""Kafka Streams counts words exactly once, through a SIGKILL and faults: at ours as at a Kafka."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from purgatory.cluster import ClusterConfig, GroupConfig, ThreadedCluster, TopicSpec
from purgatory.real_kafka import KafkaFiles, ThreadedRealKafka
from tests.recorded.recordings import NEWEST

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900)]

_HERE = Path(__file__).parent
_BUILT = Path(__file__).parents[3] / "build" / "kafka-streams"
_GROUP, _LINES = "word-count", 400
_PATIENCE_S = 150.0
_PAUSE_S = 0.02
"""Between two lines."""


@pytest.fixture(scope="module")
def class_path(kafka_files: KafkaFiles) -> str:
    """The compiled program and its jars, which Maven fetches once."""
    jars, classes = _BUILT / NEWEST, _BUILT / "classes"
    if not (jars / f"kafka-streams-{NEWEST}.jar").exists():
        maven = shutil.which("mvn")
        if maven is None:
            pytest.skip("Maven fetches Kafka Streams, and is not there")
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        pom = ["-f", str(_HERE / "pom.xml"), f"-Dkafka.version={NEWEST}"]
        subprocess.run([maven, "-q", "-B", *pom, *goal], check=True)
    javac = kafka_files.java.with_name("javac")
    source = str(_HERE / "WordCount.java")
    subprocess.run([javac, "-cp", f"{jars}/*", "-d", str(classes), source], check=True)
    return f"{jars}/*:{classes}"


class _Application:
    """Instances of the program, each a process with a folder of its own."""

    def __init__(self, java: Path, class_path: str, servers: str, folder: Path) -> None:
        self._command = [str(java), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", class_path]
        self._servers = servers
        self._folder = folder
        self.instances: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start an instance."""
        program = ["WordCount", self._servers, _GROUP, str(self._folder / name)]
        with (self._folder / f"{name}.log").open("wb") as log:
            self.instances[name] = subprocess.Popen(
                [*self._command, *program], stdout=log, stderr=subprocess.STDOUT
            )

    def kill(self, name: str) -> None:
        """Kill an instance by a signal that it can't handle."""
        instance = self.instances.pop(name)
        instance.kill()
        instance.wait()

    def told(self) -> str:
        """Return what the instances have printed."""
        return "".join(log.read_text() for log in sorted(self._folder.glob("*.log")))


@contextmanager
def _application(
    files: KafkaFiles, class_path: str, servers: str, folder: Path
) -> Iterator[_Application]:
    application = _Application(files.java, class_path, servers, folder)
    try:
        yield application
    finally:
        for instance in application.instances.values():
            instance.terminate()
        for instance in application.instances.values():
            instance.wait(60)


class _Reader:
    """Reads what is counted, by committed transactions alone."""

    def __init__(self, servers: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "reader",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        self._consumer.subscribe(["counted"])
        self.counts: dict[str, list[int]] = defaultdict(list)

    def read(self, for_s: float) -> bool:
        """Read for a while; return whether each word of all lines is counted."""
        ends_s, last = time.monotonic() + for_s, {word: of[-1] for word, of in _expected().items()}
        while time.monotonic() < ends_s and not self._has(last):
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                key, value = message.key(), message.value()
                assert isinstance(key, bytes)
                assert isinstance(value, bytes)
                self.counts[key.decode()].append(int(value))
        return self._has(last)

    def _has(self, last: Mapping[str, int]) -> bool:
        return all(number in self.counts[word] for word, number in last.items())

    def close(self) -> None:
        self._consumer.close()


def _lines(first: int, last: int) -> Sequence[str]:
    return [f"word{number % 7} word{number % 5} all" for number in range(first, last)]


def _expected() -> Mapping[str, Sequence[int]]:
    words = [word for line in _lines(0, _LINES) for word in line.split()]
    return {word: list(range(1, words.count(word) + 1)) for word in set(words)}


def _produce(servers: str, first: int, last: int) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number, line in enumerate(_lines(first, last), first):
        producer.produce("lines", line, key=str(number))
        producer.flush()
        time.sleep(_PAUSE_S)


def _config() -> ClusterConfig:
    return ClusterConfig(
        brokers=3,
        topics=[TopicSpec("lines", 3), TopicSpec("counted", 1)],
        groups=GroupConfig(
            initial_rebalance_delay_ms=0,
            streams_session_timeout_ms=6_000,
            streams_heartbeat_interval_ms=500,
            streams_initial_rebalance_delay_ms=500,
        ),
    )


@pytest.mark.parametrize("kind", ["ours", "kafka"])
def test_words_are_counted_exactly_once(
    kind: str, kafka_files: KafkaFiles, class_path: str, tmp_path: Path
) -> None:
    cluster: Any = (
        ThreadedCluster(_config()) if kind == "ours" else ThreadedRealKafka(kafka_files, _config())
    )
    with cluster:
        servers = cluster.bootstrap_servers
        reader = _Reader(servers)
        with _application(kafka_files, class_path, servers, tmp_path) as application:
            application.start("one")
            application.start("two")
            _produce(servers, 0, 100)
            assert not reader.read(5)
            assert reader.counts, "it counts before the first fault"
            # While nothing is assigned anew: Kafka tells an assignment once, lost or not.
            with (
                cluster.fault.lose_responses(api="StreamsGroupHeartbeat", count=2) as unheard,
                cluster.fault.lose_responses(api="EndTxn", count=2) as unended,
            ):
                _produce(servers, 100, 200)
                ends_s = time.monotonic() + _PATIENCE_S
                while min(unheard.uses, unended.uses) < 2 and time.monotonic() < ends_s:
                    time.sleep(0.2)
            assert (unheard.uses, unended.uses) == (2, 2)
            application.kill("one")
            application.start("three")
            _produce(servers, 200, 300)
            with cluster.fault.kill(1):
                _produce(servers, 300, _LINES)
            assert reader.read(_PATIENCE_S), application.told()[-3_000:]
            _check_group(servers)
        reader.close()
    assert dict(reader.counts) == _expected(), "each count of a word once, in order"


def _check_group(servers: str) -> None:
    topics = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=30).topics
    of_group = {name: len(topic.partitions) for name, topic in topics.items() if _GROUP in name}
    assert of_group == {
        f"{_GROUP}-words-repartition": 3,
        f"{_GROUP}-counts-changelog": 3,
    }
