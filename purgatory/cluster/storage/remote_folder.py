"""A folder as the remote tier: closed segments of all partitions, each with what is known of it.

Ground rules
------------
* Any thread calls it, one at a time for each segment that is put or deleted; reads go on beside.
* A segment is there once its description is, which is written last and put in place as a whole: a
  copy that was broken off is never read. It goes by its description first.
* What is there is never changed.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from purgatory.cluster.record_contents import Record, records_of
from purgatory.cluster.record_times import max_timestamp_ms
from purgatory.cluster.storage.disk import Disk
from purgatory.cluster.storage.disk_files import (
    force_folder,
    make_folder,
    paths_in,
    read_file,
    read_part,
    remove_file,
    remove_folder,
    write_file,
)
from purgatory.cluster.storage.real_disk import REAL_DISK
from purgatory.core.recent_errors import Logger
from purgatory.kafka import ErrorCode, KafkaError, RecordBatch
from purgatory.kafka.record_batch import HEADER_BYTES, MAX_TIMESTAMP_AT
from purgatory.kafka.requests import AbortedTransaction
from purgatory.kafka.tiers.remote_log import RemoteSegment

_DATA, _DESCRIPTION, _NEW = ".segment", ".json", ".new"
_PLACE = re.compile(r"(.+)-(\d+)\.([0-9a-f]{32})")
_LENGTH_FROM = 12
_INDEXES_KEPT = 64

_log = Logger("purgatory.cluster")


class RemotePlace(NamedTuple):
    """A partition, in the remote tier: no other topic has its id, though it may have its name."""

    topic: str
    partition: int
    topic_id: uuid.UUID


class RemoteFolder:
    """Keeps segments.

    Args:
        folder: where; made if it isn't there.
        disk: on which the folder is.
    """

    def __init__(self, folder: Path, disk: Disk = REAL_DISK) -> None:
        self.folder = folder
        self._disk = disk
        self._index_of = lru_cache(maxsize=_INDEXES_KEPT)(partial(_index_of, disk))

    def load(self) -> dict[RemotePlace, list[RemoteSegment]]:
        """Return what is there; what isn't whole is removed. O(segments).

        Raises:
            OSError: it can't be read.
        """
        make_folder(self._disk, self.folder, forces=True)
        found = {}
        for path in paths_in(self._disk, self.folder):
            name = _PLACE.fullmatch(path.name)
            if name is not None and self._disk.is_folder(path):
                place = RemotePlace(name[1], int(name[2]), uuid.UUID(hex=name[3]))
                found[place] = _segments_in(self._disk, path)
        return found

    def put(self, place: RemotePlace, batches: Sequence[RecordBatch]) -> RemoteSegment:
        """Write batches, one behind the other, and force them onto the disk.

        They are no segment until ``finish``.

        Raises:
            OSError: the disk refuses them.
        """
        segment_id = uuid.uuid4().hex
        last = batches[-1]
        segment = RemoteSegment(
            segment_id,
            batches[0].base_offset,
            last.next_offset,
            sum(batch.size_bytes for batch in batches),
            last.leader_epoch,
            max(map(max_timestamp_ms, batches)),
        )
        path = self._path(place, segment, _DATA)
        make_folder(self._disk, path.parent, forces=True)
        try:
            write_file(self._disk, path, (batch.to_bytes() for batch in batches), True)
            force_folder(self._disk, path.parent)  # before there is a description
        except OSError:
            remove_file(self._disk, path)
            raise
        return segment

    def finish(self, place: RemotePlace, segment: RemoteSegment) -> None:
        """Have a segment that was put be there.

        Raises:
            OSError: the disk refuses it.
        """
        text = json.dumps(segment._asdict()).encode()
        path = self._path(place, segment, _DESCRIPTION)
        new = path.with_suffix(_NEW)
        write_file(self._disk, new, [b"%08x " % crc32c(text), text], True)
        self._disk.replace(new, path)
        force_folder(self._disk, path.parent)  # before the local copy goes

    def delete(self, place: RemotePlace, segment: RemoteSegment) -> None:
        """Take a segment away; one that is away is no error.

        Raises:
            OSError: the disk refuses it.
        """
        description = self._path(place, segment, _DESCRIPTION)
        with suppress(FileNotFoundError):
            self._disk.unlink(description)
            force_folder(self._disk, description.parent)
        remove_file(self._disk, self._path(place, segment, _DATA))

    def delete_partition(self, place: RemotePlace) -> None:
        """Take away all that is there of a partition."""
        remove_folder(self._disk, self._folder_of(place))

    def read(
        self, place: RemotePlace, segment: RemoteSegment, offset: int, max_bytes: int
    ) -> tuple[RecordBatch, ...]:
        """Return whole batches from the one that holds ``offset`` on, at least one.

        O(log n + those), but that the first read of a segment looks at all its batches' headers.

        Raises:
            OSError: it can't be read.
            KafkaError: CORRUPT_MESSAGE: it isn't what was written.
        """
        path = self._path(place, segment, _DATA)
        index = self._index_of(path)
        first = max(0, bisect_right(index.offsets, offset) - 1)
        begin = index.positions[first]
        last = max(first + 1, bisect_right(index.positions, begin + max_bytes) - 1)
        data = read_part(self._disk, path, begin, index.positions[last] - begin)
        return tuple(
            _batch(data[index.positions[number] - begin : index.positions[number + 1] - begin])
            for number in range(first, last)
        )

    def first_at_or_after(
        self, place: RemotePlace, segment: RemoteSegment, timestamp_ms: int, from_offset: int
    ) -> tuple[Record, int] | None:
        """Return the first record that is not older, and its leader epoch; None: there is none.

        Raises:
            OSError, KafkaError: as ``read`` does.
            ValueError: a batch can't be looked into.
        """
        path = self._path(place, segment, _DATA)
        index = self._index_of(path)
        for number, max_ms in enumerate(index.times_ms):
            if max_ms < timestamp_ms:
                continue
            begin = index.positions[number]
            batch = _batch(read_part(self._disk, path, begin, index.positions[number + 1] - begin))
            for record in records_of(batch):
                if record.timestamp_ms >= timestamp_ms and record.offset >= from_offset:
                    return record, batch.leader_epoch
        return None

    def _folder_of(self, place: RemotePlace) -> Path:
        return self.folder / f"{place.topic}-{place.partition}.{place.topic_id.hex}"

    def _path(self, place: RemotePlace, segment: RemoteSegment, suffix: str) -> Path:
        name = f"{segment.base_offset:020}-{segment.segment_id}{suffix}"
        return self._folder_of(place) / name


class _Index(NamedTuple):
    """The batches of a segment: their first offsets, where they begin, and at last where the last
    one ends; and their latest times."""

    offsets: array[int]
    positions: array[int]
    times_ms: array[int]


def _index_of(disk: Disk, path: Path) -> _Index:
    """Read the headers of all batches of a segment. O(batches)."""
    index = _Index(array("q"), array("q", [0]), array("q"))
    at = 0
    descriptor = disk.open(path, os.O_RDONLY)
    try:
        size = disk.size_of(descriptor)
        while at < size:
            header = disk.pread(descriptor, HEADER_BYTES, at)
            length = _LENGTH_FROM + int.from_bytes(header[8:_LENGTH_FROM], "big", signed=True)
            if length < HEADER_BYTES or at + length > size:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{path} is damaged at byte {at}")
            at += length
            index.offsets.append(int.from_bytes(header[:8], "big", signed=True))
            index.positions.append(at)
            time_ms = header[MAX_TIMESTAMP_AT : MAX_TIMESTAMP_AT + 8]
            index.times_ms.append(int.from_bytes(time_ms, "big", signed=True))
    finally:
        disk.close(descriptor)
    if not index.offsets:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{path} is empty")
    return index


def _batch(data: bytes) -> RecordBatch:
    return RecordBatch.from_bytes(data, checksum=crc32c, may_be_compacted=True)


def _segments_in(disk: Disk, folder: Path) -> list[RemoteSegment]:
    """Read the descriptions in a folder; remove what has none that is whole."""
    segments = []
    paths = paths_in(disk, folder)
    for path in paths:
        if path.suffix == _NEW or (
            path.suffix == _DATA and path.with_suffix(_DESCRIPTION) not in paths
        ):
            disk.unlink(path)
        elif path.suffix == _DESCRIPTION:
            try:
                segments.append(_described(read_file(disk, path)))
            except (ValueError, TypeError, KeyError) as error:
                _log.error("remote_segment_unreadable", file=str(path), reason=str(error))
    return segments


def _described(text: bytes) -> RemoteSegment:
    checksum, _, description = text.partition(b" ")
    if checksum != b"%08x" % crc32c(description):
        raise ValueError("the checksum is another one")
    values = json.loads(description)
    aborted = tuple(AbortedTransaction(*one) for one in values.pop("aborted"))
    return RemoteSegment(**values, aborted=aborted)
