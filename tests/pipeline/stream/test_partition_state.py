"""What is found in one partition, without Spark."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd
import pytest

from purgatory.pipeline.stream.order import duplicates, gaps, reorderings
from purgatory.pipeline.stream.partition_state import (
    NEVER,
    IdCache,
    PartitionState,
    update_stored,
)
from tests.pipeline.stream.sample_rows import ACTIONS, SECOND_US, Log, in_batches, random_log

LATE_US = 1 * SECOND_US
REMEMBER_US = 2 * SECOND_US
SOON = (30_000, 60_000)
"""Late and remembered, so short that most of a log is forgotten before its end."""


def as_rows(sends: list[dict[str, Any]], reads: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows as the job gets them."""
    rows = [
        {
            **row,
            "is_send": True,
            "offset": NEVER if row["offset"] is None else row["offset"],
            "event_us": row["answer_us"] or row["send_us"],
            "by_partition": row["numbered_by"] == "partition",
        }
        for row in sends
    ]
    rows += [
        {
            **dict.fromkeys(("producer", "sequence", "attempt", "acks", "key"), 0),
            **row,
            "is_send": False,
            "event_us": row["time_us"],
            "by_partition": False,
            "group": None,
            "outcome": None,
        }
        for row in reads
    ]
    return pd.DataFrame(rows)


class DictStore(dict[int, tuple[bytes, bytes]]):
    """Buckets in memory, with the number of writes."""

    written = 0

    def records(self, bucket: int) -> bytes:
        return self[bucket][0]

    def ids(self, bucket: int) -> bytes:
        return self[bucket][1]

    def put(self, bucket: int, records: bytes, ids: bytes) -> None:
        self[bucket] = records, ids
        self.written += 1

    def remove(self, bucket: int) -> None:
        del self[bucket]


def found_in(
    log: Log,
    batches: int,
    width_us: int = 100_000,
    times_us: tuple[int, int] = (LATE_US, REMEMBER_US),
) -> list[dict[str, Any]]:
    """All findings, with the state flushed and loaded between the batches."""
    watermark_delay_us, state_ttl_us = times_us
    store, kept, found = DictStore(), None, list[dict[str, Any]]()
    newest_us = watermark_us = 0
    for sends, reads in in_batches(log, batches):
        state = PartitionState(store, kept, width_us)
        if sends or reads:
            rows = as_rows(sends, reads)
            touched = state.take(rows)
            update_stored(state, touched)
            found += list(duplicates(state, touched))
            newest_us = int(rows["event_us"].max())
        state.read_due(watermark_us)
        found += list(reorderings(state, watermark_us, state_ttl_us))
        found += list(gaps(state, watermark_us, state_ttl_us))
        kept = state.flush(watermark_us, state_ttl_us)
        watermark_us = max(watermark_us, newest_us - watermark_delay_us)
    state = PartitionState(store, kept, width_us)
    end_us = 2**61
    state.read_due(end_us)
    found += list(reorderings(state, end_us, state_ttl_us))
    found += list(gaps(state, end_us, state_ttl_us))
    state.flush(end_us, state_ttl_us)
    assert (len(state), store) == (0, {})
    return found


def counted(found: list[dict[str, Any]]) -> dict[str, int]:
    """How many of each anomaly."""
    counts: Counter[str] = Counter()
    for finding in found:
        counts[finding["anomaly"]] += finding["count"]
    return dict(counts)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("batches", [1, 50])
def test_each_anomaly_is_found_exactly_and_no_other(action: str, batches: int) -> None:
    log = Log()
    log.good(1)
    for _ in range(3):
        getattr(log, action)(1)
    log.good(1)
    assert counted(found_in(log, batches)) == log.expected


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("times_us", [(LATE_US, REMEMBER_US), SOON])
def test_the_same_is_found_however_the_rows_are_cut_into_batches_and_buckets(
    seed: int, times_us: tuple[int, int]
) -> None:
    log = random_log(seed, 400)
    for batches, width_us in ((1, 100_000), (7, 7_000), (60, 7_000), (60, 10**12)):
        found = counted(found_in(log, batches, width_us, times_us))
        assert found == log.expected, f"{batches} batches, buckets of {width_us} us"


def test_what_a_process_knows_of_a_bucket_is_void_when_another_has_made_it_anew() -> None:
    store, kept, found = DictStore(), None, list[dict[str, Any]]()
    log = Log()
    log.good(1)
    log.good(1)
    (one, two), (read_one, read_two) = log.sends, log.reads
    later = {"time_us": 150_000}
    here, there = IdCache(), IdCache()
    for ids, sends, reads in (
        (here, [one], []),  # into the first bucket
        (there, [], [{**read_one, **later}]),  # which moves to the second
        (there, [two], [read_two]),  # and the first is there again, with another
        (here, [], [{**read_two, **later, "offset": 7}]),
    ):
        state = PartitionState(store, kept, 100_000, ids)
        found += duplicates(state, state.take(as_rows(sends, reads)))
        kept = state.flush(0, REMEMBER_US)
    assert [one["anomaly"] for one in found] == ["duplicate"]


def judged_later(log: Log, watermark_us: int) -> list[dict[str, Any]]:
    """What is found at a watermark that comes a while after the rows, which are put away."""
    store = DictStore()
    state = PartitionState(store, None, 10_000)
    state.take(as_rows(log.sends, log.reads))
    kept = state.flush(0, REMEMBER_US)
    state = PartitionState(store, kept, 10_000)
    state.read_due(watermark_us)
    return list(reorderings(state, watermark_us, REMEMBER_US))


def test_a_record_is_compared_with_later_ones_that_are_put_away() -> None:
    log = Log()
    first, second = log.next_of(1), log.next_of(1)
    log.send(1, *second)
    log.send(1, *first)
    log.sends[0]["answer_us"] = 200_000
    log.reads[0]["time_us"] = 200_000
    (finding,) = judged_later(log, watermark_us=50_000)
    assert (finding["sequence"], finding["offset"], finding["other_offset"]) == (0, 1, 0)


def test_a_record_that_waited_for_readers_is_judged_when_one_has_passed_it() -> None:
    log = Log()
    first, second, third = (log.next_of(1) for _ in range(3))
    log.send(1, *second)
    log.send(1, *first, outcome="unknown", stored=False)
    log.send(1, *first, attempt=2)
    log.send(1, *third)
    passed, log.reads[1:] = log.reads[2], []
    store = DictStore()
    state = PartitionState(store, None, 1_000)
    state.take(as_rows(log.sends, log.reads))
    state.read_due(10**6)
    assert list(reorderings(state, 10**6, REMEMBER_US)) == []
    kept = state.flush(10**6, REMEMBER_US)
    state = PartitionState(store, kept, 1_000)
    state.take(as_rows([], [passed]))
    state.read_due(10**6)
    (finding,) = reorderings(state, 10**6, REMEMBER_US)
    assert (finding["anomaly"], finding["sequence"]) == ("retry_reorder", 0)


def test_a_batch_reads_and_writes_no_more_than_it_concerns() -> None:
    log = Log()
    for _ in range(1_000):
        log.good(1)
    store = DictStore()
    state = PartitionState(store, None, 10_000)
    state.take(as_rows(log.sends, log.reads))
    kept = state.flush(0, REMEMBER_US)
    assert len(store) > 90
    log.sends.clear()
    log.reads.clear()
    log.good(1)
    state, store.written = PartitionState(store, kept, 10_000), 0
    state.take(as_rows(log.sends, log.reads))
    state.read_due(0)
    assert len(state.records) <= 11
    state.flush(0, REMEMBER_US)
    assert store.written == 1
    assert len(state) == 1_001


def test_an_unknown_send_that_nobody_could_have_read_is_doubtful() -> None:
    log = Log()
    log.good(1)
    log.send(1, *log.next_of(1), outcome="unknown", stored=False)
    log.good(1)
    log.reads.clear()
    found = found_in(log, 1)
    assert [(one["anomaly"], one["doubt"]) for one in found] == [
        ("sequence_gap", "readers did not get there")
    ]


def test_a_finding_names_the_record_and_both_places() -> None:
    log = Log()
    for _ in range(3):
        log.good(7)
    log.nonmonotonic(7)
    log.good(7)
    (finding,) = found_in(log, 1)
    assert finding["producer"] == 7
    assert finding["group"] == "group-1"
    assert (finding["sequence"], finding["offset"], finding["other_offset"]) == (3, 4, 3)
    assert finding["key"] == finding["value_id"] % 5
