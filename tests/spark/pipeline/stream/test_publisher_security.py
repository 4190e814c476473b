"""Publishing to a cluster that speaks TLS and asks for a password, and following it there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest

from purgatory.cli.main import main
from purgatory.stream.sinks import StreamConfig, TopicSink
from purgatory.stream.source import TopicSource
from tests.spark.pipeline.source.certificates import make_certificate
from tests.spark.pipeline.stream.test_publisher import read_rows, write
from tests.spark.pipeline.stream.test_stream_command import publishing_cluster

_PATIENCE_S = 30.0


class Guarded(NamedTuple):
    """A cluster that is a process, and the settings of its clients."""

    bootstrap: str
    client: dict[str, str]

    def options(self, **other: str | None) -> list[str]:
        """The options of a command, some with another value or, if it is None, left out."""
        settings = {**self.client, **{name.replace("_", "."): other[name] for name in other}}
        given = [f"{name}={value}" for name, value in settings.items() if value is not None]
        return [word for setting in given for word in ("--client", setting)]


@pytest.fixture(scope="module", name="guarded")
def fixture_guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    certificate = str(make_certificate(tmp_path_factory.mktemp("tls")))
    client = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": certificate,
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": "secret",
    }
    with publishing_cluster("--tls-cert", certificate, "--user", "ann:secret") as bootstrap:
        yield Guarded(bootstrap, client)


def test_a_guarded_cluster_publishes_into_itself(guarded: Guarded) -> None:
    write(guarded.bootstrap, "orders", 50, guarded.client)
    deadline = time.monotonic() + _PATIENCE_S
    while not (rows := read_rows(guarded.bootstrap, "live.operations", client=guarded.client)):
        assert time.monotonic() < deadline
    assert {row["kind"] for row in rows} <= {"producer", "consumer", "follower"}
    topics = {key.rpartition("-")[0] for row in rows for key in row["watch_keys"]}
    assert topics - {"__consumer_offsets"} == {"orders"}


def test_stream_connects_to_a_guarded_cluster_with_its_options(
    guarded: Guarded, tmp_path: Path
) -> None:
    arguments = ["--bootstrap", guarded.bootstrap, "--out", str(tmp_path / "out")]
    jobs = []

    def note(_session: object, source: TopicSource, config: StreamConfig, *_: object) -> None:
        TopicSink(config.bootstrap_servers, "results", config.client).write(0, [{"table": "waits"}])
        jobs.append((source.client, config.client))

    # Reading in Spark's tasks is tested with the source; here, the options that reach them.
    with (
        patch("purgatory.pipeline.engines.spark.session.spark_session"),
        patch("purgatory.stream.stream.run_query", note),
    ):
        assert main(["stream", *arguments, "--prefix", "live", *guarded.options()]) == 0
    assert jobs == [(guarded.client, guarded.client)]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"sasl_password": "wrong"}, "the user or the password is wrong"),
        ({"ssl_ca_location": None}, "certificate verify failed"),
        ({"security_protocol": "PLAINTEXT"}, "speaks TLS or asks for a password: --client"),
    ],
)
def test_refused_login_of_the_stream_is_one_line(
    other: dict[str, str | None],
    message: str,
    guarded: Guarded,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = guarded.options(**other)
    # A client in plain text gets no response, rather than a refusal: the wait for it is shortened.
    with patch("purgatory.stream.source._TIMEOUT_S", 1.0):
        arguments = ["--bootstrap", guarded.bootstrap, "--out", str(tmp_path / "out")]
        status = main(["stream", *arguments, *options])
    error = capsys.readouterr().err
    # A broker that is silent may only be on its way up, so a stream is worth another start.
    assert status == (75 if "security_protocol" in other else 2)
    assert message in error
    assert error.count("\n") == 1
