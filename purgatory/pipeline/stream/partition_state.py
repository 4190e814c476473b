"""The state of one partition: its recent records, to find those out of order.

A record is a row of integers, so that millions are one array. It expires when its last row is older
than the watermark by the time to live; of its producer a few numbers stay.

Records are in buckets by the time of their last row. A batch reads and writes the few buckets
that it concerns: the current one, those of records that occur again, and those that the watermark
has reached. Of the others a summary is in the head.

Ground rules
------------
* Each write of a bucket gets a version that is unique in its partition: the ids that a worker
  process caches are valid for that version only.
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

NEVER = 2**62
"""Stands for an unknown offset, or no such attempt."""

_FIRST = ("key", "acks", "producer", "sequence")  # the same in all rows of a record: the largest
_LEAST = ("unknown_attempt", "acked", "read", "least_offset")
_MOST = (
    "attempts",
    "greatest_offset",
    "last_us",
    "judged",
    "reported_duplicate",
    "reported_lost_ack",
)
COLUMNS = ("value_id", *_FIRST, *_LEAST, *_MOST)
UNSENT = -(2**62)
"""The producer and sequence number of a record whose send has not been read yet."""

_LEAST_COLUMNS = [COLUMNS.index(name) for name in _LEAST]

# Buckets in the state store


class StateStore(Protocol):
    """The buckets of one partition, by their number."""

    def records(self, bucket: int) -> bytes:
        """Return the records of a bucket."""
        ...

    def ids(self, bucket: int) -> bytes:
        """Return the ids of these records."""
        ...

    def put(self, bucket: int, records: bytes, ids: bytes) -> None:
        """Replace a bucket."""
        ...

    def remove(self, bucket: int) -> None:
        """Remove a bucket."""
        ...


@dataclass
class Summary:
    """What the head has of a bucket.

    Args:
        version: of its last write.
        count: of its records.
        due_us: the watermark at which one of them is to be judged, or expires.
        waiting_from: the least offset that readers must pass for a record to be judged.
        sequences: by producer, the least and the greatest sequence number, and the least first
            offset of the stored ones.
    """

    version: int
    count: int
    due_us: int
    waiting_from: int
    sequences: dict[int, tuple[int, int, int]]

    def to_list(self) -> list[Any]:
        """Return it as plain data for JSON."""
        sequences = [[producer, *three] for producer, three in self.sequences.items()]
        return [self.version, self.count, self.due_us, self.waiting_from, sequences]

    @classmethod
    def from_list(cls, values: list[Any]) -> Self:
        """Return the summary of `to_list`."""
        version, count, due_us, waiting_from, sequences = values
        return cls(version, count, due_us, waiting_from, {p: (a, b, c) for p, a, b, c in sequences})


def pack(numbers: Numbers) -> bytes:
    """Return a table of numbers as bytes, compressed by columns."""
    data: bytes = pa.compress(np.ascontiguousarray(numbers.T).tobytes(), _CODEC, asbytes=True)
    return data


def unpack(data: bytes, rows: int, columns: int) -> Numbers:
    """Return the table of so many rows and columns."""
    plain = pa.decompress(data, rows * columns * 8, _CODEC)
    return np.frombuffer(plain, np.int64).reshape(columns, rows).T


class IdFilter:
    """A filter of the ids in a bucket, in front of the ids.

    Args:
        ids: of its records, ascending.
    """

    def __init__(self, ids: Numbers) -> None:
        self._ids = ids
        bits = max(3, (len(ids) * _SLOTS_PER_ID - 1).bit_length())
        self._shift = np.uint64(64 - bits)
        self._slots = np.zeros(1 << bits, np.bool_)
        self._slots[mix_ids(ids) >> self._shift] = True

    def has_any(self, ids: Numbers, mixes: npt.NDArray[np.uint64]) -> bool:
        """Return whether any is in the bucket. O(ids), and O(log n) for one in eight of them.

        Args:
            ids: to look for.
            mixes: their `mix_ids`.
        """
        candidates = ids[self._slots[mixes >> self._shift]]
        if not len(candidates) or not len(self._ids):
            return False
        indices = np.searchsorted(self._ids, candidates).clip(max=len(self._ids) - 1)
        return bool((self._ids[indices] == candidates).any())


def mix_ids(ids: Numbers) -> npt.NDArray[np.uint64]:
    """Return a hash of ids, spread over all 64 bits."""
    return ids.astype(np.uint64) * _MIX


class IdCache:
    """A cache of the ids in the buckets of one partition, in this process."""

    def __init__(self) -> None:
        self._filters: dict[int, tuple[int, IdFilter]] = {}

    def put(self, bucket: int, version: int, ids: Numbers) -> None:
        """Cache the ids of a version."""
        self._filters[bucket] = version, IdFilter(ids)

    def keep(self, buckets: Iterable[int]) -> None:
        """Drop all other buckets."""
        kept = set(buckets)
        self._filters = {
            bucket: cached for bucket, cached in self._filters.items() if bucket in kept
        }

    def get(self, bucket: int, version: int, store: StateStore) -> IdFilter:
        """Return the ids of this version, from the store if another one is cached."""
        cached = self._filters.get(bucket)
        if cached is None or cached[0] != version:
            self.put(bucket, version, np.frombuffer(store.ids(bucket), np.int64))
            cached = self._filters[bucket]
        return cached[1]


_by_partition: OrderedDict[tuple[Any, ...], IdCache] = OrderedDict()


def get_id_cache(key: tuple[Any, ...]) -> IdCache:
    """Return the cache of a partition; this process keeps those of the last 256 partitions."""
    cache = _by_partition.pop(key, None) or IdCache()
    _by_partition[key] = cache
    if len(_by_partition) > _MOST_PARTITIONS:
        _by_partition.popitem(last=False)
    return cache


# The records of a partition


@dataclass
class ProducerState:
    """The sequence numbers of a producer in the partition; -1 for none yet."""

    group: str
    by_partition: bool
    stored_from: int = -1
    stored_to: int = -1
    checked_to: int = -1


class PartitionState:
    """The records of a partition, their producers, and the position of readers.

    Args:
        store: of the partition.
        head: the return value of the last `flush`; None: a new partition.
        width_us: the length of a bucket, in microseconds, for a new partition.
        ids: this process's cache for the partition.
    """

    def __init__(
        self, store: StateStore, head: bytes | None, width_us: int, ids: IdCache | None = None
    ) -> None:
        self._store = store
        self._ids = ids or IdCache()
        self._read: dict[int, Numbers] = {}
        empty: dict[str, Any] = {
            "width_us": width_us,
            "written": 0,
            "producers": {},
            "reached": -1,
            "buckets": {},
        }
        document: dict[str, Any] = empty if head is None else json.loads(head)
        self._width_us: int = document["width_us"]
        self._written: int = document["written"]
        self.producers = {int(k): ProducerState(**v) for k, v in document["producers"].items()}
        """By id."""
        self.reached: int = document["reached"]
        """The greatest offset that was read."""
        self.records = _frame(np.empty((0, len(COLUMNS)), np.int64))
        """The new records, and those of the buckets that were read."""
        self._buckets = {int(k): Summary.from_list(v) for k, v in document["buckets"].items()}

    def __len__(self) -> int:
        """The number of records after a `flush`."""
        return sum(summary.count for summary in self._buckets.values())

    # Rows of a batch.

    def take(self, rows: pd.DataFrame) -> Numbers:
        """Merge sends and reads into the records; return the ids of these records.

        O(rows log rows + records of the buckets that have such records).

        Args:
            rows: with `is_send`, `value_id`, `producer`, `sequence`, `key`, `acks`, `attempt`,
                `outcome`, `offset` (`NEVER` if not known), `event_us`, `group` and `by_partition`.
        """
        sends, reads = rows[rows["is_send"]], rows[~rows["is_send"]]
        for producer, producer_rows in sends.groupby("producer"):
            if producer not in self.producers:
                first = producer_rows.iloc[0]
                state = ProducerState(str(first["group"]), bool(first["by_partition"]))
                self.producers[int(producer)] = state
        if len(reads):
            self.reached = max(self.reached, int(reads["offset"].max()))
        new = _merge(np.concatenate([_send_numbers(sends), _read_numbers(reads)]))
        touched = new[:, 0].copy()
        self._read_buckets_with(touched)
        present = self.records.to_numpy()
        self.records = _frame(_merge(np.concatenate([present, new])))
        return touched

    def _read_buckets_with(self, ids: Numbers) -> None:
        mixes = mix_ids(ids)
        self._read_buckets(
            bucket
            for bucket, summary in self._buckets.items()
            if bucket not in self._read
            and self._ids.get(bucket, summary.version, self._store).has_any(ids, mixes)
        )

    # Reads of buckets.

    def read_due(self, watermark_us: int) -> None:
        """Read the buckets with a record that is due, or expires."""
        self._read_buckets(
            bucket
            for bucket, summary in self._buckets.items()
            if summary.due_us <= watermark_us or summary.waiting_from <= self.reached
        )

    def read_between(self, sequences: Mapping[int, tuple[int, int]]) -> None:
        """Read the buckets that may have these sequence numbers, by producer from and to."""
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
        """Return the least first offset of later records in the buckets that were not read.

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
            numbers = unpack(self._store.records(bucket), count, len(COLUMNS))
            self._read[bucket] = numbers
            tables.append(numbers)
        if len(tables) > 1:
            self.records = _frame(np.concatenate(tables))

    # Writes of buckets.

    def flush(self, watermark_us: int, state_ttl_us: int) -> bytes:
        """Write the changed buckets, and return the new head. The object must not be used again."""
        records_by_bucket = self._by_bucket()
        for bucket in self._read.keys() - records_by_bucket.keys():
            self._store.remove(bucket)
            del self._buckets[bucket]
        for bucket, numbers in records_by_bucket.items():
            self._put(bucket, numbers, watermark_us, state_ttl_us)
        self._ids.keep(self._buckets)
        head = {
            "width_us": self._width_us,
            "written": self._written,
            "producers": {number: vars(state) for number, state in self.producers.items()},
            "reached": self.reached,
            "buckets": {bucket: summary.to_list() for bucket, summary in self._buckets.items()},
        }
        return json.dumps(head, separators=(",", ":")).encode()

    def _by_bucket(self) -> dict[int, Numbers]:
        """Return the records by bucket, sorted by id, after reading the rest of these buckets."""
        bucket_numbers = np.unique(self.records["last_us"].to_numpy() // self._width_us)
        self._read_buckets(bucket for bucket in bucket_numbers.tolist() if bucket in self._buckets)
        numbers = self.records.to_numpy()
        buckets = numbers[:, COLUMNS.index("last_us")] // self._width_us
        order = np.lexsort((numbers[:, 0], buckets))
        parts = np.split(numbers[order], np.searchsorted(buckets[order], bucket_numbers[1:]))
        # Not strict: no records at all are one part, an empty one, and no place.
        return dict(zip(bucket_numbers.tolist(), parts, strict=False))

    def _put(self, bucket: int, numbers: Numbers, watermark_us: int, state_ttl_us: int) -> None:
        earlier = self._buckets.get(bucket)
        version = 0 if earlier is None else earlier.version
        if not np.array_equal(self._read.get(bucket, ()), numbers):
            # A counter of the partition: a bucket that was removed may come back.
            self._written += 1
            version = self._written
            ids = numbers[:, 0].copy()
            self._store.put(bucket, pack(numbers), ids.tobytes())
            self._ids.put(bucket, version, ids)
        self._buckets[bucket] = _summary(version, numbers, watermark_us, state_ttl_us)

    def next_due_us(self, watermark_us: int) -> int:
        """Return the watermark at which the next record is due, or expires; 0 if there is none.

        To be called after `flush`. O(buckets).
        """
        times = (summary.due_us for summary in self._buckets.values())
        return min((due_us for due_us in times if due_us > watermark_us), default=0)


def _summary(version: int, numbers: Numbers, watermark_us: int, state_ttl_us: int) -> Summary:
    column = dict(zip(COLUMNS, numbers.T, strict=True))
    first = np.where(column["read"] < NEVER, column["read"], column["acked"])
    last_us, sent = column["last_us"], column["producer"] > UNSENT
    unjudged = sent & (first < NEVER) & (column["judged"] == 0)
    waiting = unjudged & (last_us <= watermark_us)
    coming_us = int(last_us[unjudged & ~waiting].min(initial=NEVER))
    # An expired record that must stay waits until others have come.
    due_us = max(watermark_us, min(int(last_us.min()) + state_ttl_us, coming_us))
    producers = column["producer"][sent]
    first_offsets = number_ranges(producers, first[sent])
    return Summary(
        version,
        len(numbers),
        due_us,
        int(first[waiting].min(initial=NEVER)),
        {
            producer: (least, most, first_offsets[producer][0])
            for producer, (least, most) in number_ranges(
                producers, column["sequence"][sent]
            ).items()
        },
    )


def number_ranges(producers: Numbers, numbers: Numbers) -> dict[int, tuple[int, int]]:
    """Return the least and the greatest number of each producer. O(n log n)."""
    if not len(producers):
        return {}
    order = np.argsort(producers, kind="stable")
    producers, numbers = producers[order], numbers[order]
    starts = np.flatnonzero(np.concatenate([[True], producers[1:] != producers[:-1]]))
    least, most = np.minimum.reduceat(numbers, starts), np.maximum.reduceat(numbers, starts)
    ends = zip(least.tolist(), most.tolist(), strict=True)
    return dict(zip(producers[starts].tolist(), ends, strict=True))


def update_stored(state: PartitionState, touched: Numbers) -> None:
    """Update the least and the greatest stored number of each producer. O(records touched)."""
    records = state.records[state.records["value_id"].isin(touched)]
    stored = records[(records["producer"] > UNSENT) & (first_offset(records) < NEVER)]
    ends = number_ranges(stored["producer"].to_numpy(), stored["sequence"].to_numpy())
    for producer, (least, most) in ends.items():
        producer_state = state.producers[producer]
        producer_state.stored_from = (
            least if producer_state.stored_from < 0 else min(producer_state.stored_from, least)
        )
        producer_state.stored_to = max(producer_state.stored_to, most)


def first_offset(records: pd.DataFrame) -> pd.Series[int]:
    """Return the first offset of records: as read, else as acknowledged; else `NEVER`."""
    return records["read"].where(records["read"] < NEVER, records["acked"])


def _frame(numbers: Numbers) -> pd.DataFrame:
    return pd.DataFrame(numbers, columns=list(COLUMNS))


def _merge(numbers: Numbers) -> Numbers:
    """Return one row for each id, ascending, merged from all rows of the record."""
    if not len(numbers):
        return numbers
    numbers = numbers[np.argsort(numbers[:, 0], kind="stable")]
    starts = np.flatnonzero(np.concatenate([[True], numbers[1:, 0] != numbers[:-1, 0]]))
    if len(starts) == len(numbers):
        return numbers
    merged = np.maximum.reduceat(numbers, starts)
    merged[:, _LEAST_COLUMNS] = np.minimum.reduceat(numbers[:, _LEAST_COLUMNS], starts)
    return merged


def _send_numbers(sends: pd.DataFrame) -> Numbers:
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
        "least_offset": stored,
        "attempts": sends["attempt"],
        "greatest_offset": stored.where(stored < NEVER, -1),
        "last_us": sends["event_us"],
        "judged": 0,
        "reported_duplicate": 0,
        "reported_lost_ack": 0,
    }
    return _table(numbers, len(sends))


def _read_numbers(reads: pd.DataFrame) -> Numbers:
    numbers = {
        "value_id": reads["value_id"],
        **dict.fromkeys(_FIRST, UNSENT),
        "unknown_attempt": NEVER,
        "acked": NEVER,
        "read": reads["offset"],
        "least_offset": reads["offset"],
        "attempts": 0,
        "greatest_offset": reads["offset"],
        "last_us": reads["event_us"],
        "judged": 0,
        "reported_duplicate": 0,
        "reported_lost_ack": 0,
    }
    return _table(numbers, len(reads))


def _table(columns: Mapping[str, Any], rows: int) -> Numbers:
    """Return a table of numbers in the order of `COLUMNS`, from columns and single numbers."""
    table = np.empty((rows, len(COLUMNS)), np.int64)
    for index, name in enumerate(COLUMNS):
        table[:, index] = columns[name]
    return table
