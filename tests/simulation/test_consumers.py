"""What consumers see: what is committed, after the wait they asked for, as isolated as asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from purgatory.kafka import RecordBatch, TopicPartition
from purgatory.kafka.log.producer_state import AppendOrigin
from purgatory.kafka.log.record_batch import TransactionResult
from purgatory.simulation import Simulation, parse_scenario
from purgatory.simulation.engine import NS_PER_MS
from tests.simulation.running import HEAD, read_table, run_scenario

ORDERS = '[[producers]]\ngroup = "orders"\nrate = 100.0\nspacing = "even"\n'


def readers(more: str) -> str:
    return f'[[consumers]]\ngroup = "readers"\n{more}\n'


def test_a_consumer_reads_each_committed_record_once_and_in_order(tmp_path: Path) -> None:
    ran = run_scenario(HEAD + ORDERS + readers(""), tmp_path / "trace")
    offsets = [row["offset"] for row in ran.rows("reads")]
    assert offsets == list(range(ran.producers("orders")["committed"]))
    answered_us = {row["offset"]: row["answer_us"] for row in ran.rows("sends")}
    assert len(answered_us) == len(offsets)
    assert all(row["applied"] for row in ran.rows("reads"))


def test_a_fetch_waits_for_min_bytes(tmp_path: Path) -> None:
    # Ten records of 1,000 bytes take 100 ms to come.
    text = HEAD + ORDERS + readers("min_bytes = 10_000\nmax_wait_ms = 5000")
    ran = run_scenario(text, tmp_path / "trace")
    waits_us = [
        row["wait_us"]
        for row in ran.rows("operations")
        if row["kind"] == "consumer" and row["outcome"] == "completed"
    ]
    assert len(waits_us) == 10
    assert all(80_000 <= wait_us <= 120_000 for wait_us in waits_us)


def test_a_fetch_that_finds_nothing_expires_empty_after_max_wait() -> None:
    quiet = ORDERS.replace("100.0", "1.0")
    ran = run_scenario(HEAD + quiet + readers("max_wait_ms = 100"))
    fetch = ran.operations("Fetch", "consumer")
    assert fetch["expired"] >= 7
    assert 100_000 <= fetch["wait_us_by_outcome"]["expired"]["max"] <= 101_000
    (counts,) = ran.summary["consumers"]
    assert counts["empty_polls"] >= fetch["expired"]
    assert counts["records"] == ran.producers("orders")["records"]


def test_consumers_of_a_group_share_the_partitions(tmp_path: Path) -> None:
    text = HEAD.replace("partitions = 1", "partitions = 6") + ORDERS + readers("count = 2")
    ran = run_scenario(text, tmp_path / "trace")
    partitions: dict[int, set[int]] = {0: set(), 1: set()}
    for row in ran.rows("reads"):
        partitions[row["consumer"]].add(row["partition"])
    assert partitions == {0: {0, 2, 4}, 1: {1, 3, 5}}


def test_records_that_were_deleted_before_they_were_read_are_counted_as_skipped() -> None:
    small = HEAD + "segment_bytes = 5_000\nretention_bytes = 10_000\n"
    slow = readers("poll_interval_ms = 400\npartition_max_bytes = 2_000")
    ran = run_scenario(small + ORDERS + slow)
    (counts,) = ran.summary["consumers"]
    assert counts["skipped"] > 0
    assert counts["records"] + counts["skipped"] == ran.producers("orders")["committed"]


def open_transaction(run: Simulation, at_ms: int, end_at_ms: int | None) -> None:
    """Let a transaction begin in partition 0, and end."""
    topic_partition = TopicPartition("events", 0)
    begun = RecordBatch(
        0, 1, 100, producer_id=99, producer_epoch=0, base_sequence=0, transactional=True
    )
    ended = RecordBatch.end_transaction(99, 0, TransactionResult.ABORT)

    def append(batch: RecordBatch) -> None:
        partition = run.brokers[0].manager.partition(topic_partition)
        assert partition is not None
        origin = AppendOrigin.CLIENT if batch is begun else AppendOrigin.COORDINATOR
        partition.append_as_leader((batch,), -1, origin)

    run.engine.call_at(at_ms * NS_PER_MS, append, begun)
    if end_at_ms is not None:
        run.engine.call_at(end_at_ms * NS_PER_MS, append, ended)


def read_by(group: str, rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows if row["group"] == group]


def run_with_transaction(trace: Path, end_at_ms: int | None) -> list[dict[str, Any]]:
    text = (
        HEAD.replace('name = "small"', 'name = "small"\ndrain_ms = 500')
        + ORDERS
        + '[[consumers]]\ngroup = "committed"\nisolation = "read_committed"\n'
        + '[[consumers]]\ngroup = "uncommitted"\nisolation = "read_uncommitted"\n'
    )
    run = Simulation(parse_scenario(text, "test.toml", Path()), trace_folder=trace)
    open_transaction(run, 500, end_at_ms)
    run.run()
    return read_table(trace, "reads")


def test_read_committed_stops_at_an_open_transaction_and_read_uncommitted_does_not(
    tmp_path: Path,
) -> None:
    rows = run_with_transaction(tmp_path / "trace", None)
    committed, uncommitted = read_by("committed", rows), read_by("uncommitted", rows)
    assert len(uncommitted) == 100
    assert 45 <= len(committed) <= 55
    assert committed == uncommitted[: len(committed)]
    # The offset between the two is the transaction's own record, which nobody's producer sent.
    assert uncommitted[len(committed)] == committed[-1] + 2


def test_read_committed_goes_on_once_the_transaction_has_ended(tmp_path: Path) -> None:
    rows = run_with_transaction(tmp_path / "trace", 800)
    committed, uncommitted = read_by("committed", rows), read_by("uncommitted", rows)
    assert committed == uncommitted
    after = next(row for row in rows if row["group"] == "committed" and row["offset"] > 60)
    assert after["time_us"] >= 800_000
