"""Records of one partition by the time when they were last heard of, put away in buckets.

A batch reads and writes the few buckets that it concerns: the one of now, those of records that
are heard of again, and those that the watermark gets to. Of the others it knows a summary.

Ground rules
------------
* Each writing of a bucket gets a number that none of its partition had before: what a worker's
  process remembers of the ids is good for that number only.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

Numbers = npt.NDArray[np.int64]

_CODEC = "lz4"
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SLOTS_PER_ID = 8
_MOST_PARTITIONS = 256


class Shelf(Protocol):
    """Where buckets are put away, each under its number."""

    def records(self, bucket: int) -> bytes:
        """Return what was put there."""
        ...

    def ids(self, bucket: int) -> bytes:
        """Return the ids that were put there."""
        ...

    def put(self, bucket: int, records: bytes, ids: bytes) -> None:
        """Put it there, in place of what there was."""
        ...

    def remove(self, bucket: int) -> None:
        """Leave nothing there."""
        ...


@dataclass
class Summary:
    """What is known of a bucket without reading it.

    Args:
        version: which writing of the partition was its last.
        count: of its records.
        due_us: the watermark at which one of them is to be judged or forgotten.
        waiting_from: the least place at which a reader is waited for, to judge a record.
        sequences: of each producer, the least and the most sequence number, and the least first
            offset of the stored ones.
    """

    version: int
    count: int
    due_us: int
    waiting_from: int
    sequences: dict[int, tuple[int, int, int]]

    def to_list(self) -> list[Any]:
        """Return what `from_list` takes, of JSON's kinds."""
        sequences = [[producer, *three] for producer, three in self.sequences.items()]
        return [self.version, self.count, self.due_us, self.waiting_from, sequences]

    @classmethod
    def from_list(cls, kept: list[Any]) -> Self:
        """Return the summary that was kept."""
        version, count, due_us, waiting_from, sequences = kept
        return cls(version, count, due_us, waiting_from, {p: (a, b, c) for p, a, b, c in sequences})


def packed(numbers: Numbers) -> bytes:
    """Return a table of numbers as bytes, column after column: what is alike lies together."""
    data: bytes = pa.compress(np.ascontiguousarray(numbers.T).tobytes(), _CODEC, asbytes=True)
    return data


def unpacked(data: bytes, rows: int, columns: int) -> Numbers:
    """Return the table of so many rows and columns."""
    plain = pa.decompress(data, rows * columns * 8, _CODEC)
    return np.frombuffer(plain, np.int64).reshape(columns, rows).T


class KnownIds:
    """Tells quickly that none of some ids is in a bucket.

    Args:
        ids: of its records, ascending.
    """

    def __init__(self, ids: Numbers) -> None:
        self._ids = ids
        bits = max(3, (len(ids) * _SLOTS_PER_ID - 1).bit_length())
        self._shift = np.uint64(64 - bits)
        self._slots = np.zeros(1 << bits, np.bool_)
        self._slots[mixed(ids) >> self._shift] = True

    def has_any(self, ids: Numbers, mixes: npt.NDArray[np.uint64]) -> bool:
        """Tell whether any is there. O(ids), and O(log n) for the one in eight that may be.

        Args:
            ids: to look for.
            mixes: the same, `mixed`.
        """
        maybe = ids[self._slots[mixes >> self._shift]]
        if not len(maybe) or not len(self._ids):
            return False
        places = np.searchsorted(self._ids, maybe).clip(max=len(self._ids) - 1)
        return bool((self._ids[places] == maybe).any())


def mixed(ids: Numbers) -> npt.NDArray[np.uint64]:
    """Return ids spread over all 64 bits."""
    return ids.astype(np.uint64) * _MIX


class IdsByBucket:
    """The ids of one partition's buckets, as far as this process has seen them."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, KnownIds]] = {}

    def note(self, bucket: int, version: int, ids: Numbers) -> None:
        """Remember what was written."""
        self._known[bucket] = version, KnownIds(ids)

    def keep(self, buckets: Iterable[int]) -> None:
        """Remember no others than these."""
        wanted = set(buckets)
        self._known = {bucket: known for bucket, known in self._known.items() if bucket in wanted}

    def of(self, bucket: int, version: int, shelf: Shelf) -> KnownIds:
        """Return a bucket's, read again if they are not those of this version."""
        known = self._known.get(bucket)
        if known is None or known[0] != version:
            self.note(bucket, version, np.frombuffer(shelf.ids(bucket), np.int64))
            known = self._known[bucket]
        return known[1]


_by_partition: OrderedDict[tuple[Any, ...], IdsByBucket] = OrderedDict()


def ids_of_partition(key: tuple[Any, ...]) -> IdsByBucket:
    """Return what this process remembers of a partition; of those last asked for, 256 are kept."""
    found = _by_partition.pop(key, None) or IdsByBucket()
    _by_partition[key] = found
    if len(_by_partition) > _MOST_PARTITIONS:
        _by_partition.popitem(last=False)
    return found


# What is remembered of the records of one partition, to find what is out of order in it.
#
# A record is a row of whole numbers, so that millions are one array. It is remembered until its last
# row is older than the watermark by as long as the job was told; of its producer some numbers stay.


NEVER = 2**62
"""In place of an offset that isn't known, or an attempt that there wasn't."""

_FIRST = ("key", "acks", "producer", "sequence")  # the same in all rows of a record: the largest
_LEAST = ("unknown_attempt", "acked", "read", "least_place")
_MOST = ("attempts", "most_place", "last_us", "judged", "told_copy", "told_lost_ack")
COLUMNS = ("value_id", *_FIRST, *_LEAST, *_MOST)
UNSENT = -(2**62)
"""The producer and sequence of a record that was read, and whose send nobody has told yet."""

_LEAST_COLUMNS = [COLUMNS.index(name) for name in _LEAST]


@dataclass
class ProducerPlace:
    """Where a producer is in the partition: its sequence numbers, -1 where there is none yet."""

    group: str
    by_partition: bool
    stored_from: int = -1
    stored_to: int = -1
    checked_to: int = -1


class PartitionMemory:
    """The records that are remembered, their producers, and how far readers got.

    Args:
        shelf: where the records are.
        head: what `put_away` returned; None: nothing yet.
        width_us: how long the time of a bucket is; what it was at first holds for good.
        ids: what this process remembers of the buckets.
    """

    def __init__(
        self, shelf: Shelf, head: bytes | None, width_us: int, ids: IdsByBucket | None = None
    ) -> None:
        self._shelf = shelf
        self._ids = ids or IdsByBucket()
        self._read: dict[int, Numbers] = {}
        nothing: dict[str, Any] = {
            "width_us": width_us,
            "written": 0,
            "producers": {},
            "reached": -1,
            "buckets": {},
        }
        kept: dict[str, Any] = nothing if head is None else json.loads(head)
        self._width_us: int = kept["width_us"]
        self._written: int = kept["written"]
        self.producers = {int(k): ProducerPlace(**v) for k, v in kept["producers"].items()}
        """The place of each producer."""
        self.reached: int = kept["reached"]
        """The last offset that was read."""
        self.records = _frame(np.empty((0, len(COLUMNS)), np.int64))
        """The records of the buckets that were read, and new ones."""
        self._buckets = {int(k): Summary.from_list(v) for k, v in kept["buckets"].items()}

    def __len__(self) -> int:
        """How many records are remembered, when they are put away."""
        return sum(summary.count for summary in self._buckets.values())

    # Taking rows in.

    def take(self, rows: pd.DataFrame) -> Numbers:
        """Take in sends and reads; return the ids of the records that they concern.

        O(rows log rows + records of the buckets that have such records).

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
        new = _merged(np.concatenate([_of_sends(sends), _of_reads(reads)]))
        touched = new[:, 0].copy()
        self._read_those_with(touched)
        known = self.records.to_numpy()
        self.records = _frame(_merged(np.concatenate([known, new])))
        return touched

    def _read_those_with(self, ids: Numbers) -> None:
        mixes = mixed(ids)
        self._read_buckets(
            bucket
            for bucket, summary in self._buckets.items()
            if bucket not in self._read
            and self._ids.of(bucket, summary.version, self._shelf).has_any(ids, mixes)
        )

    # Reading what was put away.

    def read_due(self, watermark_us: int) -> None:
        """Read the records of which one is to be judged or forgotten."""
        self._read_buckets(
            bucket
            for bucket, summary in self._buckets.items()
            if summary.due_us <= watermark_us or summary.waiting_from <= self.reached
        )

    def read_between(self, sequences: Mapping[int, tuple[int, int]]) -> None:
        """Read the records that may lie among these numbers, by producer from and to."""
        self._read_buckets(
            bucket
            for bucket, summary in self._buckets.items()
            if any(
                least <= sequences[producer][1] and most >= sequences[producer][0]
                for producer, (least, most, _) in summary.sequences.items()
                if producer in sequences
            )
        )

    def first_behind(self, producer: int, sequence: int) -> int:
        """Return the least first offset of later records, of those that were not read.

        `NEVER` if there is none. O(buckets).
        """
        return min(
            (
                summary.sequences[producer][2]
                for bucket, summary in self._buckets.items()
                if bucket not in self._read
                and producer in summary.sequences
                and summary.sequences[producer][0] > sequence
            ),
            default=NEVER,
        )

    def _read_buckets(self, buckets: Iterable[int]) -> None:
        tables = [self.records.to_numpy()]
        for bucket in [bucket for bucket in buckets if bucket not in self._read]:
            count = self._buckets[bucket].count
            numbers = unpacked(self._shelf.records(bucket), count, len(COLUMNS))
            self._read[bucket] = numbers
            tables.append(numbers)
        if len(tables) > 1:
            self.records = _frame(np.concatenate(tables))

    # Putting it away.

    def put_away(self, watermark_us: int, remember_us: int) -> bytes:
        """Put all records away, and return the rest as bytes to be kept. It is of no use then."""
        now = self._by_bucket()
        for bucket in self._read.keys() - now.keys():
            self._shelf.remove(bucket)
            del self._buckets[bucket]
        for bucket, numbers in now.items():
            self._put(bucket, numbers, watermark_us, remember_us)
        self._ids.keep(self._buckets)
        head = {
            "width_us": self._width_us,
            "written": self._written,
            "producers": {number: vars(place) for number, place in self.producers.items()},
            "reached": self.reached,
            "buckets": {bucket: one.to_list() for bucket, one in self._buckets.items()},
        }
        return json.dumps(head, separators=(",", ":")).encode()

    def _by_bucket(self) -> dict[int, Numbers]:
        """Return the records that were read by bucket, whole buckets, each by id."""
        places = np.unique(self.records["last_us"].to_numpy() // self._width_us)
        self._read_buckets(bucket for bucket in places.tolist() if bucket in self._buckets)
        numbers = self.records.to_numpy()
        buckets = numbers[:, COLUMNS.index("last_us")] // self._width_us
        order = np.lexsort((numbers[:, 0], buckets))
        parts = np.split(numbers[order], np.searchsorted(buckets[order], places[1:]))
        # Not strict: no records at all are one part, an empty one, and no place.
        return dict(zip(places.tolist(), parts, strict=False))

    def _put(self, bucket: int, numbers: Numbers, watermark_us: int, remember_us: int) -> None:
        earlier = self._buckets.get(bucket)
        version = 0 if earlier is None else earlier.version
        if not np.array_equal(self._read.get(bucket, ()), numbers):
            # Not one that a bucket of this number had before it was emptied.
            self._written += 1
            version = self._written
            ids = numbers[:, 0].copy()
            self._shelf.put(bucket, packed(numbers), ids.tobytes())
            self._ids.note(bucket, version, ids)
        self._buckets[bucket] = _summary(version, numbers, watermark_us, remember_us)

    def next_due_us(self, watermark_us: int) -> int:
        """Return what the watermark must reach for a record to be judged or forgotten.

        0 if there is none. Of what is put away; O(buckets).
        """
        times = (summary.due_us for summary in self._buckets.values())
        return min((due_us for due_us in times if due_us > watermark_us), default=0)


def _summary(version: int, numbers: Numbers, watermark_us: int, remember_us: int) -> Summary:
    column = dict(zip(COLUMNS, numbers.T, strict=True))
    first = np.where(column["read"] < NEVER, column["read"], column["acked"])
    last_us, sent = column["last_us"], column["producer"] > UNSENT
    unjudged = sent & (first < NEVER) & (column["judged"] == 0)
    waiting = unjudged & (last_us <= watermark_us)
    coming_us = int(last_us[unjudged & ~waiting].min(initial=NEVER))
    # One that is kept though its time is over is waited with, until others have come.
    due_us = max(watermark_us, min(int(last_us.min()) + remember_us, coming_us))
    producers = column["producer"][sent]
    places = ends_of(producers, first[sent])
    return Summary(
        version,
        len(numbers),
        due_us,
        int(first[waiting].min(initial=NEVER)),
        {
            producer: (least, most, places[producer][0])
            for producer, (least, most) in ends_of(producers, column["sequence"][sent]).items()
        },
    )


def ends_of(producers: Numbers, numbers: Numbers) -> dict[int, tuple[int, int]]:
    """Return the least and the most of each producer's numbers. O(n log n)."""
    if not len(producers):
        return {}
    order = np.argsort(producers, kind="stable")
    producers, numbers = producers[order], numbers[order]
    starts = np.flatnonzero(np.concatenate([[True], producers[1:] != producers[:-1]]))
    least, most = np.minimum.reduceat(numbers, starts), np.maximum.reduceat(numbers, starts)
    ends = zip(least.tolist(), most.tolist(), strict=True)
    return dict(zip(producers[starts].tolist(), ends, strict=True))


def note_stored(memory: PartitionMemory, touched: Numbers) -> None:
    """Note from where to where each producer's stored numbers reach. O(records touched)."""
    records = memory.records[memory.records["value_id"].isin(touched)]
    stored = records[(records["producer"] > UNSENT) & (first_offset(records) < NEVER)]
    ends = ends_of(stored["producer"].to_numpy(), stored["sequence"].to_numpy())
    for producer, (least, most) in ends.items():
        place = memory.producers[producer]
        place.stored_from = least if place.stored_from < 0 else min(place.stored_from, least)
        place.stored_to = max(place.stored_to, most)


def first_offset(records: pd.DataFrame) -> pd.Series[int]:
    """Return where records are stored first: as read, else as acknowledged; else `NEVER`."""
    return records["read"].where(records["read"] < NEVER, records["acked"])


def _frame(numbers: Numbers) -> pd.DataFrame:
    return pd.DataFrame(numbers, columns=list(COLUMNS))


def _merged(numbers: Numbers) -> Numbers:
    """Return one row for each id, ascending, of rows that tell of the same record."""
    if not len(numbers):
        return numbers
    numbers = numbers[np.argsort(numbers[:, 0], kind="stable")]
    starts = np.flatnonzero(np.concatenate([[True], numbers[1:, 0] != numbers[:-1, 0]]))
    if len(starts) == len(numbers):
        return numbers
    merged = np.maximum.reduceat(numbers, starts)
    merged[:, _LEAST_COLUMNS] = np.minimum.reduceat(numbers[:, _LEAST_COLUMNS], starts)
    return merged


def _of_sends(sends: pd.DataFrame) -> Numbers:
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
    return _table(numbers, len(sends))


def _of_reads(reads: pd.DataFrame) -> Numbers:
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
    return _table(numbers, len(reads))


def _table(columns: Mapping[str, Any], rows: int) -> Numbers:
    """Return a table of numbers in the order of `COLUMNS`, from columns and single numbers."""
    table = np.empty((rows, len(COLUMNS)), np.int64)
    for place, name in enumerate(COLUMNS):
        table[:, place] = columns[name]
    return table
