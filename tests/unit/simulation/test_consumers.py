"""Consumers read committed records, after at most the wait that they requested."""

from __future__ import annotations

from pathlib import Path

from tests.unit.simulation.running import HEAD, run_scenario

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


def test_empty_fetch_expires_after_max_wait() -> None:
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


def test_records_deleted_before_a_read_count_as_skipped() -> None:
    small = HEAD + "segment_bytes = 5_000\nretention_bytes = 10_000\n"
    slow = readers("poll_interval_ms = 400\npartition_max_bytes = 2_000")
    ran = run_scenario(small + ORDERS + slow)
    (counts,) = ran.summary["consumers"]
    assert counts["skipped"] > 0
    assert counts["records"] + counts["skipped"] == ran.producers("orders")["committed"]
