"""What is remembered of the records of one partition, to find what is out of order in it.

A record is a row of whole numbers, so that millions are one array. It is remembered until its last
row is older than the watermark by as long as the job was told; of its producer some numbers stay.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pandas as pd

NEVER = 2**62
"""In place of an offset that isn't known, or an attempt that there wasn't."""

_FIRST = ("key", "acks", "producer", "sequence")  # the same in all rows of a record: the largest
_LEAST = ("unknown_attempt", "acked", "read", "least_place")
_MOST = ("attempts", "most_place", "last_us", "judged", "told_copy", "told_lost_ack")
COLUMNS = ("value_id", *_FIRST, *_LEAST, *_MOST)
UNSENT = -(2**62)
"""The producer and sequence of a record that was read, and whose send nobody has told yet."""

_HOW = {
    **dict.fromkeys(_FIRST, "max"),
    **dict.fromkeys(_LEAST, "min"),
    **dict.fromkeys(_MOST, "max"),
}


@dataclass
class ProducerPlace:
    """Where a producer is in the partition: its sequence numbers, -1 where there is none yet."""

    group: str
    by_partition: bool
    stored_from: int = -1
    stored_to: int = -1
    checked_to: int = -1


@dataclass
class PartitionMemory:
    """The records that are remembered, their producers, and how far readers got."""

    records: pd.DataFrame = field(
        default_factory=lambda: _records(np.empty((0, len(COLUMNS)), np.int64))
    )
    producers: dict[int, ProducerPlace] = field(default_factory=dict)
    reached: int = -1

    def to_bytes(self) -> bytes:
        """Return it as bytes to be kept: 8 for each number of a record."""
        out = io.BytesIO()
        head = json.dumps(
            {number: vars(place) for number, place in self.producers.items()}
        ).encode()
        out.write(
            len(head).to_bytes(4, "big") + head + self.reached.to_bytes(8, "big", signed=True)
        )
        out.write(np.ascontiguousarray(self.records.to_numpy(np.int64)).tobytes())
        return out.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return what was kept."""
        size = int.from_bytes(data[:4], "big")
        places = json.loads(data[4 : 4 + size])
        reached = int.from_bytes(data[4 + size : 12 + size], "big", signed=True)
        numbers = np.frombuffer(data, np.int64, offset=12 + size).reshape(-1, len(COLUMNS))
        producers = {int(k): ProducerPlace(**v) for k, v in places.items()}
        return cls(_records(numbers.copy()), producers, reached)

    def take(self, rows: pd.DataFrame) -> np.ndarray[Any, Any]:
        """Take in sends and reads; return the ids of the records that they concern.

        O(rows + records) on average.

        Args:
            rows: with `is_send`, `value_id`, `producer`, `sequence`, `key`, `acks`, `attempt`,
                `outcome`, `offset` (`NEVER` if not known), `event_us`, `group` and `by_partition`.
        """
        sends, reads = rows[rows["is_send"]], rows[~rows["is_send"]]
        for producer, of_one in sends.groupby("producer"):
            if producer not in self.producers:
                first = of_one.iloc[0]
                place = ProducerPlace(str(first["group"]), bool(first["by_partition"]))
                self.producers[int(producer)] = place
        if len(reads):
            self.reached = max(self.reached, int(reads["offset"].max()))
        new = pd.concat([_of_sends(sends), _of_reads(reads)])
        touched: np.ndarray[Any, Any] = new["value_id"].unique()
        known = self.records["value_id"].isin(touched)
        merged = pd.concat([self.records[known], new]).groupby("value_id", sort=True).agg(_HOW)
        self.records = pd.concat(
            [self.records[~known], merged.reset_index()[list(COLUMNS)]], ignore_index=True
        )
        return touched

    def next_due_us(self, watermark_us: int, remember_us: int) -> int:
        """Return what the watermark must reach for the next record to be judged or forgotten.

        0 if there is none. O(records).
        """
        last_us = self.records["last_us"]
        coming = last_us[(self.records["judged"] == 0) & (last_us > watermark_us)]
        forgotten = last_us[last_us + remember_us > watermark_us] + remember_us
        return int(min((one.min() for one in (coming, forgotten) if len(one)), default=0))


def note_stored(memory: PartitionMemory, touched: np.ndarray[Any, Any]) -> None:
    """Note from where to where each producer's stored numbers reach. O(records touched)."""
    records = memory.records[memory.records["value_id"].isin(touched)]
    stored = records[(records["producer"] > UNSENT) & (first_offset(records) < NEVER)]
    ends = stored.groupby("producer")["sequence"].agg(["min", "max"])
    for producer, least, most in ends.itertuples():
        place = memory.producers[producer]
        place.stored_from = least if place.stored_from < 0 else min(place.stored_from, least)
        place.stored_to = max(place.stored_to, most)


def first_offset(records: pd.DataFrame) -> pd.Series[int]:
    """Return where records are stored first: as read, else as acknowledged; else `NEVER`."""
    return records["read"].where(records["read"] < NEVER, records["acked"])


def _records(numbers: np.ndarray[Any, Any]) -> pd.DataFrame:
    return pd.DataFrame(numbers, columns=list(COLUMNS))


def _of_sends(sends: pd.DataFrame) -> pd.DataFrame:
    stored = sends["offset"].where(sends["outcome"] == "ok", NEVER)
    unknown = sends["attempt"].where(sends["outcome"] == "unknown", NEVER)
    numbers = {
        "value_id": sends["value_id"],
        "key": sends["key"],
        "acks": sends["acks"],
        "producer": sends["producer"],
        "sequence": sends["sequence"],
        "unknown_attempt": unknown,
        "acked": stored,
        "read": NEVER,
        "least_place": stored,
        "attempts": sends["attempt"],
        "most_place": stored.where(stored < NEVER, -1),
        "last_us": sends["event_us"],
        "judged": 0,
        "told_copy": 0,
        "told_lost_ack": 0,
    }
    return pd.DataFrame(numbers, index=sends.index).astype(np.int64)


def _of_reads(reads: pd.DataFrame) -> pd.DataFrame:
    numbers = {
        "value_id": reads["value_id"],
        **dict.fromkeys(_FIRST, UNSENT),
        "unknown_attempt": NEVER,
        "acked": NEVER,
        "read": reads["offset"],
        "least_place": reads["offset"],
        "attempts": 0,
        "most_place": reads["offset"],
        "last_us": reads["event_us"],
        "judged": 0,
        "told_copy": 0,
        "told_lost_ack": 0,
    }
    return pd.DataFrame(numbers, index=reads.index).astype(np.int64)
