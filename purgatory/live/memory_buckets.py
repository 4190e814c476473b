"""Records of one partition by the time when they were last heard of, put away in buckets.

A batch reads and writes the few buckets that it concerns: the one of now, those of records that
are heard of again, and those that the watermark gets to. Of the others it knows a summary.

Ground rules
------------
* Each writing of a bucket gets a number that none of its partition had before: what a worker's
  process remembers of the ids is good for that number only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
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
