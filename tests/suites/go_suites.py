"""The own tests of Kafka clients in Go: franz-go, sarama, kafka-go and confluent-kafka-go.

Their sources are those that Go's module proxy has, and their tests are those that talk to a
cluster.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from tests.recorded.real_kafka import HOST, real_kafka
from tests.recorded.recordings import NEWEST
from tests.suites.cluster_process import running_cluster
from tests.suites.go_proxies import (
    BEHIND,
    CONTROL_PORT,
    FIRST_PORT,
    PROXY,
    RACKS,
    docker,
    running_proxies,
)
from tests.suites.go_tests import Package, names_in, run_tests
from tests.suites.outcomes import Outcome
from tests.suites.sources import (
    BUILD,
    CONFLUENT_KAFKA_GO,
    FRANZ_GO,
    KAFKA_GO,
    SARAMA,
    go_source,
)

PORT, SASL_PORT = 26_700, 26_750
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


class Suite(NamedTuple):
    """The tests of a client.

    Args:
        name: of the client.
        module: in Go's module proxy.
        version: of the module.
        package: the folder of the tests in it.
        body: a regular expression that is in the tests that talk to a cluster.
        files: a pattern of their files.
        brokers: their number.
        options: of `purgatory cluster`.
        settings: of a real Kafka, by the place of a broker.
        variables: of the tests.
        flags: of `go test`.
        replaced: texts in the sources, and what stands there instead.
        added: files in the package's folder.
        beside: runs what the tests need beside the cluster.
    """

    name: str
    module: str
    version: str
    package: str
    body: str
    files: str = "*_test.go"
    brokers: int = 3
    options: tuple[str, ...] = ()
    settings: Callable[[int], Mapping[str, object]] = lambda place: {}
    variables: Mapping[str, str] = {}
    flags: tuple[str, ...] = ()
    replaced: Mapping[str, str] = {}
    added: Mapping[str, str] = {}
    beside: Callable[[], AbstractContextManager[Mapping[str, str]]] = lambda: nullcontext({})

    @property
    def title(self) -> str:
        """The name and version that outcomes have."""
        return f"{self.name} {self.version}"


def _with_sasl(user: str, password: str, host: str) -> Callable[[int], Mapping[str, object]]:
    """Return the settings of brokers that have a second listener, with a user."""

    def settings(place: int) -> Mapping[str, object]:
        port, sasl_port = PORT + place, SASL_PORT + place
        listeners = f"PLAINTEXT://{host}:{port},SASL_PLAINTEXT://{host}:{sasl_port}"
        protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
        known = f'username="{user}" password="{password}" user_{user}="{password}"'
        return {
            "listeners": f"{listeners},CONTROLLER://{HOST}:{port + 100}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": protocols,
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{_PLAIN} required {known};",
            "message.max.bytes": 200_000_000,
            "num.partitions": 4,
            "group.min.session.timeout.ms": 6_000,
        }

    return settings


def _behind_proxies(place: int) -> Mapping[str, object]:
    """Return the settings of a broker that clients reach through a proxy, and brokers do not."""
    to_clients, port = FIRST_PORT + place, PORT + place
    return {
        "listeners": f"PLAINTEXT://{BEHIND}:{to_clients},INTERNAL://{HOST}:{port},"
        f"CONTROLLER://{HOST}:{port + 100}",
        "advertised.listeners": f"PLAINTEXT://{PROXY}:{to_clients},INTERNAL://{HOST}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,"
        "CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "broker.rack": place + 1,
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "auto.create.topics.enable": "false",
        "default.replication.factor": 2,
    }


_LISTENERS = ("--listener", f"PLAINTEXT:{PORT}", "--listener", f"SASL_PLAINTEXT:{SASL_PORT}")
_TESTCONF = {
    "Brokers": f"{HOST}:{PORT}",
    "BrokersSasl": f"{HOST}:{SASL_PORT}",
    "SaslUsername": "testuser",
    "SaslPassword": "testpass",
    "SaslMechanism": "PLAIN",
    "TopicName": "test",
    "GroupID": "testgroup",
    "PerfMsgCount": 20_000,
    "PerfMsgSize": 100,
    "Config": [],
}
_ENDS_THE_PROCESS = "it uses a nil pointer of its own, anywhere"
LEFT_OUT = {
    "TestReaderConsumerGroup/verify_offset_committed": _ENDS_THE_PROCESS,
    "TestReaderConsumerGroup/consumer_group_commits_on_close": _ENDS_THE_PROCESS,
}
"""Parts of kafka-go's tests that are not run; the first stands for two."""


SUITES = {
    one.name: one
    for one in (
        Suite(
            name="franz-go",
            module="github.com/twmb/franz-go",
            version=FRANZ_GO,
            package="pkg/kgo",
            body=r"newTestClient|getSeedBrokers|testClientOpts|tmpTopic|\badm\(\)",
            options=("--port", str(PORT), "--memory-mb", "4096"),
            variables={
                "KGO_SEEDS": f"{HOST}:{PORT}",
                "KGO_TEST_RECORDS": "50000",
                "KGO_LOG_LEVEL": "none",
            },
        ),
        Suite(
            name="sarama",
            module="github.com/IBM/sarama",
            version=SARAMA,
            package=".",
            files="functional_*_test.go",
            body="",
            brokers=5,
            options=(
                *("--host", BEHIND, "--advertised-host", PROXY, "--port", str(FIRST_PORT)),
                *("--no-auto-create", "--default-replication", "2", "--config", str(RACKS)),
            ),
            settings=_behind_proxies,
            variables={"KAFKA_VERSION": NEWEST},
            flags=("-tags", "functional"),
            beside=running_proxies,
        ),
        Suite(
            name="kafka-go",
            module="github.com/segmentio/kafka-go",
            version=KAFKA_GO,
            package=".",
            body=r"\d{5}|[lL]ocalClient|createTopic|newTestWriter|newTestReader|scenario",
            brokers=1,
            options=(
                *_LISTENERS,
                "--advertised-host",
                "localhost",
                "--user",
                "adminplain:admin-secret",
            ),
            settings=_with_sasl("adminplain", "admin-secret", "localhost"),
            variables={"KAFKA_VERSION": NEWEST, "KAFKA_SKIP_NETTEST": "1"},
            flags=("-skip", "|".join(LEFT_OUT)),
            replaced={"9092": str(PORT), "9093": str(SASL_PORT)},
        ),
        Suite(
            name="confluent-kafka-go",
            module="github.com/confluentinc/confluent-kafka-go/v2",
            version=CONFLUENT_KAFKA_GO,
            package="kafka",
            files="*integration_test.go",
            body=r"testconfRead",
            options=(*_LISTENERS, "--user", "testuser:testpass", "--default-partitions", "4"),
            settings=_with_sasl("testuser", "testpass", HOST),
            added={"testconf.json": json.dumps(_TESTCONF)},
        ),
    )
}


@contextmanager
def on_ours(suite: Suite, log: Path) -> Iterator[Mapping[str, str]]:
    """Run a cluster for a suite while the block runs; yield variables of the tests."""
    options = ["--brokers", str(suite.brokers), "--group-delay", "0s"]
    options += ["--control-port", str(CONTROL_PORT)]
    with running_cluster(log, *options, *suite.options):
        yield {"PATH": f"{docker().parent}:{os.environ['PATH']}"}


@contextmanager
def on_real(suite: Suite, log: Path) -> Iterator[Mapping[str, str]]:
    """Run a real Kafka for a suite while the block runs; tests that stop a broker fail."""
    del log
    with real_kafka(NEWEST, PORT, suite.brokers, suite.settings):
        yield {}


def run(
    name: str,
    only: str,
    short: bool,
    on: Callable[[Suite, Path], AbstractContextManager[Mapping[str, str]]] = on_ours,
) -> Iterator[Outcome]:
    """Yield the outcome of each test, or of its parts; failed ones are tried once more.

    Args:
        name: of the suite.
        only: a text that is in the names of the tests.
        short: the short selection, which has no time for these.
        on: runs a cluster.

    Raises:
        MissingError: there is no Go, or the sources can't be had.
    """
    if short:
        return
    suite = SUITES[name]
    source = go_source(suite.module, suite.version, suite.replaced)
    folder = source / suite.package
    for file, text in suite.added.items():
        (folder / file).write_text(text, encoding="utf-8")
    tests = [one for one in names_in(folder, suite.files, suite.body) if only in one]
    log = BUILD / f"{name}.log"
    log.unlink(missing_ok=True)
    with on(suite, BUILD / f"cluster-{name}.log") as of_cluster, suite.beside() as more:
        # Tests may need modules that the list of the published module lacks.
        variables = {"GOFLAGS": "-mod=mod", **suite.variables, **of_cluster, **more}
        yield from run_tests(Package(suite.title, folder, suite.flags, variables, log), tests)
