"""A log on disk: a folder with a file for each segment.

The state of producers whose batches were deleted is in a snapshot beside the remaining segments.

Ground rules
------------
* As for every log, only the broker's loop touches it. An append is written first, so that one which
  the disk refuses changes nothing; a truncation cuts the files afterwards.
* The file ``start`` holds the log's start offset once records were deleted, and a checksum. Written
  before any file is deleted, it distinguishes lost files from deleted ones.
* The snapshot of an offset is written and forced before any segment below that offset is deleted,
  and the former snapshot is deleted after these: the first segment always has one, whenever the
  process dies or the power is cut. Without a readable one, producers are known from the log's start
  on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from crc32c import crc32c

from purgatory.cluster.storage.disk import (
    REAL_DISK,
    Disk,
    force_folder,
    list_paths,
    make_folder,
    read_file,
    remove_file,
    remove_folder,
    replace_file,
)
from purgatory.cluster.storage.segment_file import (
    REPLACEMENT_SUFFIX,
    Fsync,
    SegmentFile,
    StoredBatch,
)
from purgatory.core.recent_errors import Logger
from purgatory.kafka import ErrorCode, KafkaError, Log, LogConfig, RecordBatch, Segment
from purgatory.kafka.log.producer_state import ProducerStates

_SUFFIX = ".producers"
_log = Logger("purgatory.cluster")


def save_snapshot(
    folder: Path, offset: int, producers: ProducerStates, disk: Disk = REAL_DISK
) -> None:
    """Write the producers' state at an offset, if there is any. O(producers).

    Args:
        folder: of the log.
        offset: the base offset of a segment.
        producers: their state at that offset.
        disk: of the folder.

    Raises:
        OSError: the disk refuses it.
    """
    path = _path(folder, offset)
    if not len(producers):
        remove_file(disk, path)
        return
    text = json.dumps(producers.to_json()).encode()
    replace_file(disk, path, b"%08x %b" % (crc32c(text), text), forces=True)


def load_snapshot(folder: Path, offset: int, disk: Disk = REAL_DISK) -> ProducerStates | None:
    """Return the producers' state at an offset; None without a snapshot."""
    path = _path(folder, offset)
    try:
        checksum, _, text = read_file(disk, path).partition(b" ")
    except OSError:
        return None
    try:
        if checksum != b"%08x" % crc32c(text):
            raise ValueError("the checksum differs")
        return ProducerStates.from_json(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        _log.warning("producers_unreadable", file=str(path), reason=str(error))
        return None


def remove_snapshots(
    folder: Path, except_offset: int | None = None, disk: Disk = REAL_DISK
) -> None:
    """Remove all snapshots except that of one offset."""
    kept_path = None if except_offset is None else _path(folder, except_offset)
    for path in list_paths(disk, folder, _SUFFIX, f"{_SUFFIX}.new"):
        if path != kept_path:
            remove_file(disk, path)


def _path(folder: Path, offset: int) -> Path:
    return folder / f"{offset:020}{_SUFFIX}"


START_FILE = "start"


def read_start_offset(folder: Path, default: int = 0, disk: Disk = REAL_DISK) -> int:
    """Return a log's saved start offset, or ``default``."""
    file = folder / START_FILE
    try:
        text = read_file(disk, file)
    except OSError:
        return default
    checksum, _, offset = text.partition(b" ")
    if checksum != b"%08x" % crc32c(offset) or not offset.strip().isdigit():
        _log.warning("start_unreadable", file=str(file), taken=default)
        return default
    return int(offset)


class StoredLog(Log):
    """The records of one replica, in ``folder``.

    Args:
        folder: created with the first record; `load_log` reads an existing one.
        config: the settings of the log.
        fsync: when written data is forced onto the disk.
        start_offset: of the log.
        disk: of the folder.
    """

    __slots__ = (
        "_disk",
        "_files",
        "_folder",
        "_fsync",
        "_saved_start",
        "_start_is_forced",
        "_write_failed",
    )

    def __init__(
        self,
        folder: Path,
        config: LogConfig | None,
        fsync: Fsync,
        start_offset: int = 0,
        disk: Disk = REAL_DISK,
    ) -> None:
        super().__init__(config, start_offset)
        self._disk = disk
        self._folder = folder
        self._fsync = fsync
        self._files: dict[int, SegmentFile] = {}
        self._saved_start = read_start_offset(folder, disk=disk)
        self._start_is_forced = False
        self._write_failed = False  # by the disk, at the last append

    @property
    def _flush_policy(self) -> Fsync:
        return Fsync.ALWAYS if self.config.forces else self._fsync

    # ---- changes of the log, and of its files

    def configure(self, config: LogConfig) -> None:
        """Apply new settings; if they enable fsync, force the log now."""
        before = self._flush_policy
        super().configure(config)
        if self._flush_policy is not before and config.forces:
            self.force_all()

    def force_all(self) -> None:
        """Force the log to disk."""
        if not self._files:
            return
        try:
            for file in self._files.values():
                file.force()
            for folder in (self._folder, self._folder.parent, self._folder.parent.parent):
                force_folder(self._disk, folder)
        except OSError as error:
            _log.error("log_not_forced", folder=str(self._folder), reason=error.strerror)

    def append(self, batch: RecordBatch) -> int:
        """Append as any log does, and write the batch.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR, when the disk refuses it; CORRUPT_MESSAGE, when the
                disk that it was read from is damaged; else as for any log.
        """
        if batch.base_offset != self.end_offset and not self._is_inside_batch(batch):
            return super().append(batch)  # which refuses it
        if self._active.size_bytes + batch.size_bytes > self._segment_bytes:
            self._roll()
        data = batch.to_bytes()
        if isinstance(batch, StoredBatch):
            # The disk of the broker that it was read from may have been damaged since the load.
            RecordBatch.from_bytes(data, checksum=crc32c, may_be_compacted=True)
        # Written first: if the disk refuses it, the log is unchanged.
        try:
            file = self._file_of(self._bases[-1])
            at = file.append(data, self._flush_policy)
        except OSError as error:
            raise self._write_error(error) from error
        if self._write_failed:
            self._write_failed = False
            _log.info("log_written_again", partition=self._folder.name, folder=str(self._folder))
        stored = StoredBatch.of(batch)
        stored.stored_at(file, at)
        return super().append(stored)

    def _write_error(self, error: OSError) -> KafkaError:
        """Return the error of an append that the disk refused; the first one is logged."""
        if not self._write_failed:
            self._write_failed = True
            _log.error(
                "log_not_written",
                partition=self._folder.name,
                folder=str(self._folder),
                reason=error.strerror,
            )
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"{self._folder} can't be written: {error.strerror}"
        )

    def truncate_to(self, offset: int) -> None:
        """Truncate the log, and its files."""
        super().truncate_to(offset)
        self._cut_files()

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Begin anew, in new files."""
        remove_snapshots(self._folder, disk=self._disk)
        for file in self._files.values():
            file.remove()
        self._files.clear()
        super().truncate_fully_and_start_at(offset)
        self._save_start()

    def delete_up_to(self, offset: int) -> bool:
        """Move the log's start, and remove the files of whole segments."""
        moved = super().delete_up_to(offset)
        if moved and self._save_start():
            self._remove_files()
        return moved

    def replace_segments(
        self, segments: Sequence[Segment], batches: Sequence[RecordBatch]
    ) -> Segment | None:
        """Replace closed segments, and their files, by one with these batches.

        The new file is whole on the disk before it takes the name of the first. If the process dies
        then, the others are recognized by their offsets, which the new file has, too, and removed.

        Raises:
            OSError: the disk refuses it; the log and its files are unchanged.
        """
        if self._closed_segment_index(segments) is None:
            return None
        base_offset = segments[0].base_offset
        file = SegmentFile(self._folder, base_offset, REPLACEMENT_SUFFIX, self._disk)
        file.truncate(0)
        stored = []
        try:
            for batch in batches:
                copy = StoredBatch.of(batch)
                copy.stored_at(file, file.append(batch.to_bytes(), Fsync.NEVER))
                stored.append(copy)
            file.install()
        except OSError:
            file.remove()
            raise
        for segment in segments[1:]:
            self._files.pop(segment.base_offset).remove()
        self._files[base_offset] = file
        return super().replace_segments(segments, stored)

    def remove(self) -> None:
        """Remove the folder: the replica was deleted."""
        self._files.clear()
        remove_folder(self._disk, self._folder)

    # ---- loading

    def resume(self, file: SegmentFile) -> None:
        """Continue with a segment that was found on the disk."""
        if self._files:
            self._roll()
        self._files[self._bases[-1]] = file

    def load_batch(self, batch: RecordBatch, file: SegmentFile, at: int) -> None:
        """Append a batch that ``file`` has already.

        Raises:
            KafkaError: INVALID_RECORD: the batch does not follow the one before.
        """
        segment_bytes, self._segment_bytes = self._segment_bytes, 2**63 - 1
        stored = StoredBatch.of(batch)
        try:
            super().append(stored)
        finally:
            self._segment_bytes = segment_bytes
        stored.stored_at(file, at)

    # ---- the files

    def _file_of(self, base_offset: int) -> SegmentFile:
        file = self._files.get(base_offset)
        if file is None:
            forces = self._flush_policy is Fsync.ALWAYS
            make_folder(self._disk, self._folder, forces)
            file = SegmentFile(self._folder, base_offset, disk=self._disk)
            file.truncate(0)
            if forces:
                force_folder(self._disk, self._folder)
            self._files[base_offset] = file
        return file

    def _cut_files(self) -> None:
        self._remove_files()
        file = self._files.get(self._bases[-1])
        if file is not None:
            file.truncate(self._active.size_bytes)

    def _remove_files(self) -> None:
        """Remove the files of segments that the log no longer has, lowest first."""
        gone = sorted(self._files.keys() - set(self._bases))
        first = self._bases[0]
        are_dropped = bool(gone) and gone[0] < first
        if are_dropped:
            try:
                save_snapshot(self._folder, first, self._before, self._disk)
            except OSError as error:
                _log.error("start_not_saved", folder=str(self._folder), reason=error.strerror)
                return  # the next deletion tries again
        for base_offset in gone:
            self._files.pop(base_offset).remove()
        if are_dropped:
            remove_snapshots(self._folder, except_offset=first, disk=self._disk)

    def _save_start(self) -> bool:
        """Write the log's start, so that deleted records stay so; return whether it is written."""
        # The start must be on the disk before files are removed, even after a power cut: without it
        # the remaining files would look like a log that was damaged at its beginning.
        forces = self._flush_policy is Fsync.ALWAYS or any(
            base < self._bases[0] for base in self._files
        )
        if self.start_offset == self._saved_start and (self._start_is_forced or not forces):
            return True
        try:
            make_folder(self._disk, self._folder, forces)
            offset = b"%d\n" % self.start_offset
            content = b"%08x %b" % (crc32c(offset), offset)
            replace_file(self._disk, self._folder / START_FILE, content, forces)
        except OSError as error:
            # Deleted records may come back after a restart; the next deletion tries again.
            _log.error("start_not_saved", folder=str(self._folder), reason=error.strerror)
            return False
        self._saved_start, self._start_is_forced = self.start_offset, forces
        return True
