"""The command ``purgatory stream``, with a real cluster that publishes its events."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from purgatory.cli.main import main
from purgatory.cluster import ClusterConfig, ThreadedCluster
from purgatory.stream.publisher import published_topics
from tests.benchmarks.live_load import PARTITIONS, Load, producer_of
from tests.spark.pipeline.stream.test_publisher import read_rows, read_rows_of_orders, write
from tests.spark.pipeline.stream.test_windowed_waits import rows_in

_PATIENCE_S = 60.0


@pytest.fixture(scope="module", name="traced")
def fixture_traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the trace of the next fixture's cluster."""
    return tmp_path_factory.mktemp("traced") / "trace"


@pytest.fixture(scope="module", name="publishing")
def fixture_publishing(traced: Path) -> Iterator[str]:
    """The address of a process `purgatory cluster --publish live`, which got the same twice.

    Request it before the session: while that starts, the cluster stops holding sends back.
    """
    with publishing_cluster("--trace", str(traced)) as bootstrap:
        write(bootstrap, "orders", 100)
        write(bootstrap, "orders", 100)
        read_rows_of_orders(bootstrap, 200)
        yield bootstrap


@contextmanager
def publishing_cluster(*more: str) -> Iterator[str]:
    """Run it, with more options."""
    command = [sys.executable, "-m", "purgatory", "cluster", "--port", "0", "--control-port", "0"]
    command += ["--topic", "orders:2", "--publish", "live", *more]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.fullmatch(r"bootstrap\.servers=(\S+)\s*", line)
            assert found is not None, line
            yield found[1]
        finally:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=_PATIENCE_S)
        assert process.returncode == 0, errors
        assert "could not be delivered" not in errors


def stream(spark: SparkSession, bootstrap: str, out: Path, *more: str, prefix: str = "live") -> int:
    """Run the command in the session that is there; again, if it ends with the status for that.

    On a busy machine Spark gives up a Python worker that takes ten seconds to start.
    """

    @contextmanager
    def shared(_master: str, **_more: object) -> Iterator[SparkSession]:
        yield spark

    arguments = ["--bootstrap", bootstrap, "--prefix", prefix, "--out", str(out), "--once", *more]
    with patch("purgatory.pipeline.engines.spark.session.spark_session", shared):
        status = main(["stream", *arguments])
        return main(["stream", *arguments]) if status == os.EX_TEMPFAIL else status


@pytest.mark.timeout(900)
def test_stream_writes_each_operation_once_to_both_sinks(
    publishing: str, spark: SparkSession, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    times = ("--window", "1s", "--watermark", "1ms", "--to-topic", "results")
    deadline = time.monotonic() + _PATIENCE_S
    while len(read_rows(publishing, "live.sends")) < 200:
        assert time.monotonic() < deadline
    assert stream(spark, publishing, out, *times) == 0
    assert stream(spark, publishing, out, *times) == 0  # resumes at its position
    told = read_rows(publishing, "results.waits")
    operations = read_rows(publishing, "live.operations", most=300)
    windows = rows_in(out / "waits")
    assert {row["purgatory"] for row in windows} >= {"Produce", "Fetch"}
    places = [(row["purgatory"], row["kind"], row["window_start"]) for row in windows]
    assert len(set(places)) == len(places)
    assert len([row for row in told if row["table"] == "waits"]) == len(windows)
    # The stream's own fetches are in none of the rows.
    topics = {key.rpartition("-")[0] for row in operations for key in row["watch_keys"]}
    assert not {topic for topic in topics if topic.startswith("live.")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--window", "10"], "'10' is not a duration"),
        (["--window", "0s"], "at least 1ms"),
        (["--client", "a"], "write NAME=VALUE"),
        (["--client", "error_cb=a"], "error_cb takes a function"),
        (["--client", "acks.of=1"], '--client: No such configuration property: "acks.of"'),
        (["--client", "ssl.ca.location=no.pem"], "--client: ssl.ca.location='no.pem'"),
        (["--master", "sc://localhost"], "Spark Connect server can't run it"),
        (["--prefix", "a b"], "can't begin the name of a topic"),
        (["--state-ttl", "2min"], "--state-ttl: is gone with the audit of a stream"),
        ([], "has no topic purgatory.operations: publish to it first"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str],
    message: str,
    bootstrap: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = main(["stream", "--bootstrap", bootstrap, "--out", str(tmp_path / "out"), *arguments])
    error = capsys.readouterr().err
    assert status == 2
    assert message in error
    assert error.count("\n") == 1


@pytest.fixture(scope="module", name="bootstrap")
def fixture_bootstrap() -> Iterator[str]:
    """A cluster without any topics."""
    with ThreadedCluster(ClusterConfig(brokers=1, auto_create_topics=False)) as cluster:
        yield cluster.bootstrap_servers


def test_results_of_another_checkpoint_are_refused(
    bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = tmp_path / "out" / "waits" / "part-000000000.parquet"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"")
    arguments = ["--bootstrap", bootstrap, "--out", str(tmp_path / "out")]
    assert main(["stream", *arguments]) == 2
    assert "name the checkpoint that goes with them" in capsys.readouterr().err


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_deleted_topic_ends_the_queries(tmp_path: Path) -> None:
    with ThreadedCluster(ClusterConfig(brokers=1)) as cluster:
        servers = cluster.bootstrap_servers
        for topic in published_topics("live").values():
            cluster.create_topic(topic, PARTITIONS)
        producer = producer_of(servers)
        Load(producer, "live").tick(200)
        producer.flush()
        out = tmp_path / "out"
        command = [sys.executable, "-m", "purgatory", "stream", "--prefix=live", f"--out={out}"]
        with subprocess.Popen(
            [*command, f"--bootstrap={servers}"], stderr=subprocess.PIPE, text=True
        ) as running:
            try:
                while not (out / "checkpoint" / "waits" / "commits" / "0").exists():
                    assert running.poll() is None
                    time.sleep(0.2)
                admin = AdminClient({"bootstrap.servers": servers})
                admin.delete_topics(["live.operations"])["live.operations"].result()
                _, said = running.communicate(timeout=300)
            finally:
                running.kill()
    assert running.returncode == 2, said
    last = said.splitlines()[-1]
    reason = "purgatory stream: the query waits failed: topic live.operations partition "
    assert last.startswith(reason)
    assert last.endswith("To begin anew, give another --out (and another --to-topic)")
    assert "Traceback" not in said
