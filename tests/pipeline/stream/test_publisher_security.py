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
from tests.pipeline.source.certificates import make_certificate
from tests.pipeline.stream.test_publisher import read_rows, write
from tests.pipeline.stream.test_stream_command import publishing_cluster

_PATIENCE_S = 30.0


class Guarded(NamedTuple):
    """A cluster that is a process, and what its clients must know."""

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


def simulate(guarded: Guarded, options: list[str]) -> int:
    """Publish a short simulation to it, as `sim`."""
    arguments = ["--real-time", "--duration", "500ms", "--quiet", "--publish", "sim", *options]
    return main(["simulate", "steady", "--bootstrap", guarded.bootstrap, *arguments])


def test_a_guarded_cluster_publishes_into_itself(guarded: Guarded) -> None:
    write(guarded.bootstrap, "orders", 50, guarded.client)
    deadline = time.monotonic() + _PATIENCE_S
    while not (rows := read_rows(guarded.bootstrap, "live.operations", client=guarded.client)):
        assert time.monotonic() < deadline
    assert {row["kind"] for row in rows} <= {"producer", "consumer", "follower"}
    topics = {key.rpartition("-")[0] for row in rows for key in row["watch_keys"]}
    assert topics - {"__consumer_offsets"} == {"orders"}


def test_a_simulation_publishes_to_a_guarded_cluster(
    guarded: Guarded, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(guarded, guarded.options()) == 0
    assert "could not be delivered" not in capsys.readouterr().err
    for table in ("operations", "sends", "reads"):
        assert read_rows(guarded.bootstrap, f"sim.{table}", client=guarded.client)


def test_a_stream_comes_into_a_guarded_cluster_with_what_its_command_is_told(
    guarded: Guarded, tmp_path: Path
) -> None:
    arguments = ["--bootstrap", guarded.bootstrap, "--out", str(tmp_path / "out")]
    jobs = []

    def note(_session: object, records: object, told: StreamConfig, *_: object) -> None:
        TopicSink(told.bootstrap_servers, "results", told.client).write(0, [{"table": "waits"}])
        jobs.append(told)

    # What is read in Spark's tasks is tested with the source; here, with what they are asked to.
    with (
        patch("purgatory.pipeline.engines.spark.session.spark_session"),
        patch("purgatory.stream.rows.topic_records") as records,
        patch("purgatory.stream.stream.run_queries", note),
    ):
        assert main(["stream", *arguments, "--prefix", "live", *guarded.options()]) == 0
    assert records.call_args.args[-1] == guarded.client
    assert [one.client for one in jobs] == [guarded.client]


@pytest.mark.parametrize("command", ["simulate", "stream"])
@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"sasl_password": "wrong"}, "the user or the password is wrong"),
        ({"ssl_ca_location": None}, "certificate verify failed"),
        ({"security_protocol": "PLAINTEXT"}, "speaks TLS or asks for a password: --client"),
    ],
)
def test_refused_login_of_the_publisher_is_one_line(
    command: str,
    other: dict[str, str | None],
    message: str,
    guarded: Guarded,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = guarded.options(**other)
    # To speak plainly is not refused, but answered by nobody: no need to wait for it for long.
    with (
        patch("purgatory.stream.publisher._ASK_TIMEOUT_S", 1.0),
        patch("purgatory.stream.rows._TIMEOUT_S", 1.0),
    ):
        if command == "simulate":
            status = simulate(guarded, options)
        else:
            arguments = ["--bootstrap", guarded.bootstrap, "--out", str(tmp_path / "out")]
            status = main(["stream", *arguments, *options])
    error = capsys.readouterr().err
    # A broker that is silent may only be on its way up, so a stream is worth another start.
    is_transient = command == "stream" and "security_protocol" in other
    assert status == (75 if is_transient else 2)
    assert message in error
    assert error.count("\n") == 1
