"""Results in a topic: each once, and none of another run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from purgatory.cli.main import main
from purgatory.cluster import ClusterConfig, ThreadedCluster, TopicSpec
from purgatory.stream.sinks import TopicSink
from tests.spark.pipeline.stream.test_publisher import read_rows

ROWS = [{"table": "waits", "operations": number} for number in range(3)]


@pytest.fixture(scope="module", name="bootstrap")
def fixture_bootstrap() -> Iterator[str]:
    topics = [TopicSpec("live.operations", 1)]
    with ThreadedCluster(ClusterConfig(brokers=1, topics=topics)) as cluster:
        yield cluster.bootstrap_servers


def test_writer_resumes_behind_its_predecessor(bootstrap: str) -> None:
    assert TopicSink(bootstrap, "once").write(0, ROWS) == 3
    assert TopicSink(bootstrap, "once").write(1, ROWS[:2]) == 2  # and is cut off
    assert TopicSink(bootstrap, "once").write(1, ROWS) == 1
    assert TopicSink(bootstrap, "once").write(1, ROWS) == 0
    found = [(row["batch"], row["operations"]) for row in read_rows(bootstrap, "once")]
    assert found == [(batch, number) for batch in (0, 1) for number in range(3)]


def test_transient_error_is_not_taken_for_a_foreign_record(bootstrap: str) -> None:
    lost, last = Mock(), Mock()
    last.error.return_value, last.value.return_value = None, b"the last record"
    consumer = Mock(poll=Mock(side_effect=[lost, None, last]))
    assert TopicSink(bootstrap, "errors")._next_value(consumer) == b"the last record"


@pytest.mark.parametrize(("begun", "refused"), [(None, True), (3, True), (4, False), (12, False)])
def test_a_topic_with_results_of_another_checkpoint_is_refused(
    begun: int | None,
    refused: bool,
    bootstrap: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    TopicSink(bootstrap, "other.waits").write(4, ROWS)
    out = tmp_path / "out"
    arguments = ["--bootstrap", bootstrap, "--prefix", "live", "--out", str(out)]
    # An accepted command goes on to start Spark, which is patched away here.
    with patch(
        "purgatory.pipeline.engines.spark.session.check_master", side_effect=NotRefusedError
    ):
        with pytest.raises(NotRefusedError):
            main(["stream", *arguments])  # the checkpoint has its settings now
        for number in range(0 if begun is None else begun + 1):
            offsets = out / "checkpoint" / "waits" / "offsets" / str(number)
            offsets.parent.mkdir(parents=True, exist_ok=True)
            offsets.touch()
        if not refused:
            with pytest.raises(NotRefusedError):
                main(["stream", *arguments, "--to-topic", "other"])
            return
        assert main(["stream", *arguments, "--to-topic", "other"]) == 2
    error = capsys.readouterr().err
    assert "--to-topic other.waits: has results up to batch 4" in error
    assert "or another topic" in error
    assert error.count("\n") == 1


class NotRefusedError(Exception):
    """The command came further than its checks."""
