"""The file of one segment: record batches, one after the other, as on the wire.

Ground rules
------------
* Only the broker's loop writes. Written bytes are never changed, only cut off at the end: a reader
  with a batch of a deleted segment still reads from the open file.
* Writes are not buffered: appended data survives the death of the process. Whether it survives that
  of the machine depends on `Fsync`.
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path

from purgatory.cluster.storage.disk import REAL_DISK, Disk, force_folder, remove_file
from purgatory.kafka import RecordBatch
from purgatory.kafka.log.record_batch import MAX_TIMESTAMP_AT

SUFFIX = ".log"
REPLACEMENT_SUFFIX = ".compacted"
"""The suffix of a file that is written to replace others, until it does."""


class Fsync(Enum):
    """When written data is forced to disk."""

    NEVER = "never"
    """When the system decides to, as by default in Kafka: replicas protect from a crash."""
    ALWAYS = "always"
    """Before a response is sent: even a power cut loses no acknowledged record."""


class SegmentFile:
    """The file of the segment that begins at ``base_offset``; created if it is missing.

    Args:
        folder: of its log.
        base_offset: of the segment.
        suffix: of the file's name.
        disk: of the folder.
    """

    def __init__(
        self, folder: Path, base_offset: int, suffix: str = SUFFIX, disk: Disk = REAL_DISK
    ) -> None:
        self._disk = disk
        self._descriptor = -1
        self.path = folder / f"{base_offset:020}{suffix}"
        self.base_offset = base_offset
        self._descriptor = disk.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        self.size = disk.size_of(self._descriptor)

    def append(self, data: bytes, fsync: Fsync) -> int:
        """Write ``data`` at the end, and return its position.

        Raises:
            OSError: the disk is full, or broken; the file is unchanged.
        """
        at = self.size
        try:
            written = 0
            while written < len(data):
                written += self._disk.pwrite(self._descriptor, data[written:], at + written)
            if fsync is Fsync.ALWAYS:
                self.force()
        except OSError:
            self._disk.ftruncate(self._descriptor, at)
            raise
        self.size = at + len(data)
        return at

    def force(self) -> None:
        """Force all written data onto the disk.

        Raises:
            OSError: the disk refuses it.
        """
        self._disk.fdatasync(self._descriptor)

    def read(self, at: int, size: int) -> bytes:
        """Return ``size`` bytes from ``at`` on."""
        return self._disk.pread(self._descriptor, size, at)

    def truncate(self, size: int) -> None:
        """Truncate the file to ``size`` bytes."""
        if size < self.size:
            self._disk.ftruncate(self._descriptor, size)
            self.size = size

    def install(self) -> None:
        """Take the name of the segment that this file replaces, with all of its bytes.

        Raises:
            OSError: the file can't be forced onto the disk, or renamed.
        """
        self._disk.fsync(self._descriptor)
        path = self.path.with_name(f"{self.base_offset:020}{SUFFIX}")
        self._disk.replace(self.path, path)
        self.path = path
        force_folder(self._disk, path.parent)  # before the replaced files are removed

    def remove(self) -> None:
        """Remove the file. Readers with batches of it can still read these."""
        remove_file(self._disk, self.path)

    def __del__(self) -> None:
        if self._descriptor >= 0:  # else the disk refused to open it
            self._disk.close(self._descriptor)


class StoredBatch(RecordBatch):
    """A batch whose bytes are in a file; only its header is in memory."""

    __slots__ = ("_at", "_bytes", "_file")

    _bytes: bytes | None

    @classmethod
    def of(cls, batch: RecordBatch) -> StoredBatch:
        """Return ``batch``, to be stored."""
        stored = cls(
            batch.base_offset,
            batch.record_count,
            batch.size_bytes,
            batch.leader_epoch,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            batch.payload,
            None,
            batch.transactional,
            batch.control,
            batch.coordinator_epoch,
            batch.offset_count,
        )
        stored._file = None
        stored._at = 0
        return stored

    _file: SegmentFile | None
    _at: int

    @property
    def payload(self) -> bytes | None:
        """The bytes, read from the file."""
        if self._bytes is not None or self._file is None:
            return self._bytes
        return self._file.read(self._at, self.size_bytes)

    @payload.setter
    def payload(self, data: bytes | None) -> None:
        self._bytes = data

    @property
    def max_timestamp_ms(self) -> int:
        """The latest time of the records: these eight bytes alone are read from the file."""
        if self._bytes is not None or self._file is None:
            return super().max_timestamp_ms
        data = self._file.read(self._at + MAX_TIMESTAMP_AT, 8)
        return int.from_bytes(data, "big", signed=True)

    def stored_at(self, file: SegmentFile, at: int) -> None:
        """Keep the bytes in ``file`` from now on."""
        self._file = file
        self._at = at
        self._bytes = None
