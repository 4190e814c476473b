"""Brokers that ask for a password, or speak TLS, or both."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from purgatory.cluster import ClusterConfig, ThreadedCluster
from purgatory.source import BrokerError
from purgatory.source.stream_reader import PurgatoryStreamReader
from tests.spark.pipeline.source.certificates import make_certificate
from tests.spark.pipeline.source.topics import numbered, offsets_of, options, write

PLAIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "ann",
    "sasl.password": "secret",
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[ThreadedCluster]:
    """A broker that asks for a password."""
    with ThreadedCluster(ClusterConfig(brokers=1, users={"ann": "secret"})) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of this machine's loopback address, and its key, in one file."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


def _all_of(servers: str, topic: str, settings: dict[str, str]) -> list[dict[str, Any]]:
    """Read a topic as a stream does, with the options that people give."""
    given = {f"kafka__{name.replace('.', '__')}": value for name, value in settings.items()}
    reader = PurgatoryStreamReader(options(servers, {"subscribe": topic, **given}))
    try:
        end = reader.latestOffset({}, ReadAllAvailable())
        ranges = reader.partitions({}, end)
    finally:
        reader.stop()
    return [row for one in ranges for batch in reader.read(one) for row in batch.to_pylist()]


def test_a_password_is_passed_on_to_the_driver_and_the_tasks(
    spark: SparkSession, guarded: ThreadedCluster, topic: str
) -> None:
    guarded.create_topic(topic)
    write(guarded.bootstrap_servers, topic, numbered(3), **PLAIN)
    reader = spark.read.format("purgatory").option("subscribe", topic)
    reader = reader.option("kafka.bootstrap.servers", guarded.bootstrap_servers)
    for name, value in PLAIN.items():
        reader = reader.option(f"kafka.{name}", value)
    assert reader.load().count() == 3


def test_wrong_password_is_an_error_at_once(guarded: ThreadedCluster, topic: str) -> None:
    with pytest.raises(BrokerError, match=r"check sasl\.username and sasl\.password"):
        _all_of(guarded.bootstrap_servers, topic, {**PLAIN, "sasl.password": "wrong"})


def test_tls_and_a_password_together(certificate: Path, topic: str) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    config = ClusterConfig(brokers=1, users={"ann": "secret"})
    authority = {"ssl.ca.location": str(certificate)}
    settings = {**PLAIN, "security.protocol": "SASL_SSL", **authority}
    with ThreadedCluster(config, tls=context) as cluster:
        servers = cluster.bootstrap_servers
        cluster.create_topic(topic)
        write(servers, topic, numbered(3), **settings)
        assert offsets_of(_all_of(servers, topic, settings)) == [0, 1, 2]
        del settings["ssl.ca.location"]
        with pytest.raises(BrokerError, match=r"check security\.protocol and ssl\.ca"):
            _all_of(servers, topic, settings)
