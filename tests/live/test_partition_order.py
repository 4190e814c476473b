"""What is found in one partition, without Spark."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd
import pytest

from purgatory.live.partition_memory import NEVER, PartitionMemory, note_stored
from purgatory.live.partition_order import copies, gaps, reorderings
from tests.live.live_rows import ACTIONS, SECOND_US, Log, in_batches, random_log

LATE_US = 1 * SECOND_US
REMEMBER_US = 2 * SECOND_US


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


def found_in(log: Log, batches: int) -> list[dict[str, Any]]:
    """All findings, with the memory put away and taken up between the batches."""
    kept, found = PartitionMemory().to_bytes(), list[dict[str, Any]]()
    newest_us = watermark_us = 0
    for sends, reads in in_batches(log, batches):
        memory = PartitionMemory.from_bytes(kept)
        if sends or reads:
            rows = as_rows(sends, reads)
            touched = memory.take(rows)
            note_stored(memory, touched)
            found += list(copies(memory, touched))
            newest_us = int(rows["event_us"].max())
        found += list(reorderings(memory, watermark_us, REMEMBER_US))
        found += list(gaps(memory, watermark_us, REMEMBER_US))
        watermark_us = max(watermark_us, newest_us - LATE_US)
        kept = memory.to_bytes()
    memory = PartitionMemory.from_bytes(kept)
    found += list(reorderings(memory, 10**15, REMEMBER_US))
    found += list(gaps(memory, 10**15, REMEMBER_US))
    assert memory.records.empty
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


@pytest.mark.parametrize("seed", range(8))
def test_the_same_is_found_however_the_rows_are_cut_into_batches(seed: int) -> None:
    log = random_log(seed, 400)
    for batches in (1, 7, 60):
        assert counted(found_in(log, batches)) == log.expected, f"{batches} batches"


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
