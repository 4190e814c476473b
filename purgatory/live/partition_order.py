"""Finds duplicates, reorderings and gaps in one partition, from what is remembered of it.

* A copy is told as soon as a value is known at a second place.
* A record's order is judged when the watermark has passed its last row, and readers have passed its
  place if a copy of it may lie before that.
* A gap is told when what would fill it would be forgotten: by then nothing fills it any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from purgatory.live.memory_buckets import Numbers
from purgatory.live.partition_memory import (
    NEVER,
    UNSENT,
    PartitionMemory,
    ProducerPlace,
    ends_of,
    first_offset,
)

Finding = dict[str, Any]


def copies(memory: PartitionMemory, touched: Numbers) -> Iterator[Finding]:
    """Tell of values at two or more places, once each, and of those after a lost answer.

    Those whose send is not known yet are told later: their key and producer are not known either.
    O(records read).
    """
    records = memory.records
    rows = records[records["value_id"].isin(touched) & (records["producer"] > UNSENT)]
    copied = rows[rows["most_place"] > rows["least_place"]]
    lost = copied[copied["unknown_attempt"] < copied["attempts"]]
    for anomaly, told, found in (
        ("duplicate", "told_copy", copied),
        ("lost_ack_duplicate", "told_lost_ack", lost),
    ):
        new = found[found[told] == 0]
        records.loc[new.index, told] = 1
        for row in new.itertuples():
            yield _finding(memory, anomaly, row, row.least_place, row.most_place)


def reorderings(memory: PartitionMemory, watermark_us: int, remember_us: int) -> Iterator[Finding]:
    """Tell of records that lie behind later ones of their producer, when they are to be judged.

    O(n log n) for the records that were read, and those that lie among the judged ones.
    """
    ends = _ends(memory.records[_to_be_judged(memory, watermark_us, remember_us)])
    if not ends:
        return
    memory.read_between(ends)
    records = memory.records
    due = _to_be_judged(memory, watermark_us, remember_us)
    first = first_offset(records)
    stored = (records["producer"] > UNSENT) & (first < NEVER)
    records.loc[due, "judged"] = 1
    since = records["producer"].map({producer: least for producer, (least, _) in ends.items()})
    known = records[stored & (records["sequence"] >= since.fillna(NEVER))]
    known = known.assign(first=first).sort_values(["producer", "sequence"], ascending=False)
    later = known.groupby("producer")["first"].transform(lambda one: one.cummin().shift())
    unread = {producer: memory.first_behind(producer, most) for producer, (_, most) in ends.items()}
    later = np.fmin(later, known["producer"].map(unread).astype(np.float64))
    behind = known[(later < known["first"]) & due[known.index]]
    for row in behind.sort_values("first").itertuples():
        anomaly = "retry_reorder" if row.attempts > 1 else "nonmonotonic_send"
        yield _finding(memory, anomaly, row, row.first, int(later[row.Index]))


def _to_be_judged(memory: PartitionMemory, watermark_us: int, remember_us: int) -> pd.Series[bool]:
    records = memory.records
    first = first_offset(records)
    stored = (records["producer"] > UNSENT) & (first < NEVER)
    certain = (records["unknown_attempt"] == NEVER) | (first <= memory.reached)
    old = records["last_us"] + remember_us <= watermark_us
    passed = records["last_us"] <= watermark_us
    return stored & (records["judged"] == 0) & passed & (certain | old)


def _ends(records: pd.DataFrame) -> dict[int, tuple[int, int]]:
    """The least and the most sequence number of each producer's."""
    return ends_of(records["producer"].to_numpy(), records["sequence"].to_numpy())


def gaps(memory: PartitionMemory, watermark_us: int, remember_us: int) -> Iterator[Finding]:
    """Tell of sequence numbers that are missing between stored ones, and forget what is old.

    O(n log n) for the records that were read, and those whose numbers are below an old one's.
    """
    old = memory.records["last_us"] + remember_us <= watermark_us
    if not old.any():
        return
    ends = _ends(memory.records[old & (memory.records["producer"] > UNSENT)])
    memory.read_between({producer: (0, most) for producer, (_, most) in ends.items()})
    records = memory.records
    old = records["last_us"] + remember_us <= watermark_us
    sent = records["producer"] > UNSENT
    to = records["producer"].map({producer: most for producer, (_, most) in ends.items()})
    near = records[sent & (records["sequence"] <= to)]
    for producer, of_one in near.groupby("producer"):
        in_order = of_one.sort_values("sequence")
        # One that may still come keeps the later ones waiting.
        ready = in_order[old[in_order.index].cummin()]
        if not ready.empty:
            yield from _gaps_of(memory, memory.producers[int(producer)], ready)
    checked_to = {number: place.checked_to for number, place in memory.producers.items()}
    done = old & (~sent | (records["sequence"] <= records["producer"].map(checked_to)))
    for row in records[done & ~sent].itertuples():
        if row.most_place > row.least_place:
            yield _finding(memory, "duplicate", row, row.least_place, row.most_place)
    memory.records = records[~done].reset_index(drop=True)


def _gaps_of(
    memory: PartitionMemory, place: ProducerPlace, ready: pd.DataFrame
) -> Iterator[Finding]:
    sequence = ready["sequence"]
    before = sequence.shift(fill_value=place.checked_to).clip(lower=place.checked_to)
    missing = sequence - before - 1
    never_sent = (missing > 0) & (before >= max(0, place.stored_from)) & place.by_partition
    never_sent &= (sequence <= place.stored_to) & (place.stored_from >= 0)
    unstored = (first_offset(ready) == NEVER) & (sequence < place.stored_to)
    unstored &= (sequence > place.stored_from) & (place.stored_from >= 0)
    for row in ready[never_sent | unstored].itertuples():
        if never_sent[row.Index]:
            finding = _finding(memory, "sequence_gap", row, None, None)
            first = {"sequence": before[row.Index] + 1, "count": missing[row.Index]}
            yield {**finding, "key": None, "value_id": None, "attempts": 0, **first}
        if unstored[row.Index]:
            finding = _finding(memory, "sequence_gap", row, None, None)
            if row.unknown_attempt < NEVER and not _readers_passed(memory, row):
                finding["doubt"] = "readers did not get there"
            yield finding
    place.checked_to = max(place.checked_to, int(sequence.max()))


def _readers_passed(memory: PartitionMemory, row: Any) -> bool:
    """Whether readers saw what is stored behind it, so that they would have seen it too."""
    records = memory.records
    later = (records["producer"] == row.producer) & (records["sequence"] > row.sequence)
    if (first_offset(records[later]) <= memory.reached).any():
        return True
    return memory.first_behind(row.producer, row.sequence) <= memory.reached


def _finding(
    memory: PartitionMemory, anomaly: str, row: Any, offset: int | None, other: int | None
) -> Finding:
    is_sent = row.producer > UNSENT
    return {
        "anomaly": anomaly,
        "group": memory.producers[row.producer].group if is_sent else None,
        "producer": row.producer if is_sent else None,
        "key": row.key if is_sent else None,
        "value_id": row.value_id,
        "sequence": row.sequence if is_sent else None,
        "attempts": row.attempts if is_sent else None,
        "offset": offset,
        "other_offset": other,
        "event_us": row.last_us,
        "count": 1,
        "doubt": None,
    }
