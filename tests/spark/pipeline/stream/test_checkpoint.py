"""The files beside Spark's checkpoint: settings that must stay, states that are repeated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

from purgatory.cli.main import main
from purgatory.cluster import ClusterConfig, ThreadedCluster, TopicSpec
from purgatory.kafka.topic_partition import TopicPartition
from purgatory.pipeline.errors import OutputError, PipelineError
from purgatory.stream.checkpoint import Checkpoint, Settings
from purgatory.stream.watermark import Watermark
from purgatory.stream.windowed_waits import State

SETTINGS = Settings(10_000_000, 30_000_000, 60_000_000, "live.operations", "id")
A, B, C = (TopicPartition("live.operations", number) for number in range(3))
ROW = {"run_id": "run", "purgatory": "Fetch", "kind": "consumer", "outcome": "completed"}
NUMBERS = ("window_start_us", "rounded_us", "operations", "sum_us", "max_us")


def begun(folder: Path, settings: Settings | None = SETTINGS) -> Checkpoint:
    """A checkpoint whose first batch was begun."""
    checkpoint = Checkpoint(folder)
    if settings is not None:
        checkpoint.check(settings)
    (folder / "offsets").mkdir(parents=True)
    (folder / "offsets" / "0").touch()
    return checkpoint


def state(us: int) -> State:
    """A state with one count."""
    rows = pa.Table.from_pylist([{**ROW, **dict.fromkeys(NUMBERS, us)}], State().windows.schema)
    return State(Watermark(us, {A: us, B: None}), rows)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"window_us": 5_000_000}, "has windows of --window 10s, not 5s: give --window 10s, or"),
        ({"watermark_delay_us": 60_000_000}, "--watermark 30s, not 1min: give --watermark 30s, or"),
        ({"longest_wait_us": 5_000_000}, "--longest-wait 1min, not 5s: give --longest-wait 1min"),
        ({"topic": "other.operations"}, "of topic live.operations, not other.operations: give"),
        ({"topic_id": "another"}, "deleted and created again, or --bootstrap is another cluster"),
    ],
)
def test_checkpoint_refuses_other_settings_of_windows(
    changed: dict[str, object], message: str, tmp_path: Path
) -> None:
    checkpoint = begun(tmp_path)
    checkpoint.check(SETTINGS)
    checkpoint.check(replace(SETTINGS, topic_id=None))
    with pytest.raises(OutputError, match="name another --out") as refused:
        checkpoint.check(replace(SETTINGS, **changed))  # type: ignore[arg-type]
    assert message in str(refused.value)
    checkpoint.check(SETTINGS)


def test_checkpoint_without_a_batch_takes_other_settings(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "new")
    checkpoint.check(SETTINGS)
    checkpoint.check(replace(SETTINGS, window_us=1_000))


def test_incomplete_checkpoint_is_refused(tmp_path: Path) -> None:
    checkpoint = begun(tmp_path, settings=None)
    with pytest.raises(OutputError, match="of another version"):
        checkpoint.check(SETTINGS)
    with pytest.raises(OutputError, match="lacks the windows of batch 6"):
        checkpoint.state_before(7)


def test_states_of_the_last_two_batches_are_kept_unchanged(tmp_path: Path) -> None:
    checkpoint = begun(tmp_path)
    assert checkpoint.state_before(0) == State()
    for number in range(4):
        assert checkpoint.state_after(number) is None
        checkpoint.keep_state(number, state(number))
    assert checkpoint.state_after(1) is None
    assert checkpoint.state_before(3) == state(2)
    assert checkpoint.state_after(3) == state(3)


def test_watermark_ignores_partitions_read_to_their_ends() -> None:
    first = Watermark().advance({A: 100, B: 50, C: None}, {B, C}, 10)
    assert first.us == 40
    second = first.advance({B: 80}, {B}, 10)
    assert second == Watermark(70, {A: 100, B: 80, C: None})
    assert second.advance({B: 60}, {B}, 10) == second, "neither goes back"
    assert second.advance({}, (), 10).us == 90


def test_watermark_waits_for_an_unread_partition() -> None:
    watermark = Watermark().advance({A: 100}, {A, B}, 10)
    assert watermark.us == 0
    assert watermark.advance({B: 95}, (), 10).us == 90


def test_command_refuses_another_window_or_a_recreated_topic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = "purgatory.pipeline.engines.spark.session.spark_session"
    with ThreadedCluster(ClusterConfig(brokers=1, topics=[TopicSpec("live.operations", 1)])) as one:
        arguments = ["stream", "--prefix", "live", "--out", str(tmp_path / "out")]
        arguments += ["--bootstrap", one.bootstrap_servers]
        with patch(session, side_effect=PipelineError("Spark would start")):
            assert main([*arguments, "--window", "10s"]) == 2
            assert "Spark would start" in capsys.readouterr().err
            (tmp_path / "out" / "checkpoint" / "waits" / "offsets").mkdir()
            (tmp_path / "out" / "checkpoint" / "waits" / "offsets" / "0").touch()
            assert main([*arguments, "--window", "5s"]) == 2
            refusal = capsys.readouterr().err
            admin = AdminClient({"bootstrap.servers": one.bootstrap_servers})
            admin.delete_topics(["live.operations"])["live.operations"].result()
            one.create_topic("live.operations", 1)
            assert main(arguments) == 2
    assert "has windows of --window 10s, not 5s: give --window 10s, or name another" in refusal
    assert refusal.count("\n") == 1
    assert "has windows of another topic live.operations" in capsys.readouterr().err
