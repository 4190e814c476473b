"""Reading logs back after the process ended, however it ended.

Every batch is checked. At the first that is torn, or not what its checksum says, the log ends: its
file is cut there, and later files go. Whatever a leader had acknowledged with acks=all is in the
files of all in-sync replicas, so a cut costs nothing that was acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import structlog
from crc32c import crc32c

from purgatory.broker.storage.segment_file import SUFFIX, Fsync, SegmentFile
from purgatory.broker.storage.stored_log import StoredLog, saved_start
from purgatory.kafka import KafkaError, LogConfig, RecordBatch, TopicPartition

_HEADER_BYTES = 61
_LENGTH_FROM = 12

_log = structlog.get_logger("purgatory.broker")


class FoundBatch(NamedTuple):
    """A sound batch, and where in its file it begins."""

    batch: RecordBatch
    at: int


def load_logs(
    folder: Path, config_of: Callable[[TopicPartition], LogConfig], fsync: Fsync
) -> dict[TopicPartition, StoredLog]:
    """Return all logs of one broker's folder. O(their bytes).

    Args:
        folder: with a folder for each replica, as `StoredLog` makes it; it need not be there.
        config_of: the settings of each log.
        fsync: when what is written is forced onto the disk.
    """
    logs: dict[TopicPartition, StoredLog] = {}
    if not folder.is_dir():
        return logs
    for place in sorted(folder.iterdir()):
        topic, dash, partition = place.name.rpartition("-")
        if place.is_dir() and dash and partition.isdigit():
            topic_partition = TopicPartition(topic, int(partition))
            logs[topic_partition] = load_log(place, config_of(topic_partition), fsync)
    return logs


def load_log(folder: Path, config: LogConfig | None, fsync: Fsync) -> StoredLog:
    """Return the log of one folder, cut where it is torn. O(its bytes)."""
    bases = sorted(int(path.stem) for path in folder.glob(f"*{SUFFIX}") if path.stem.isdigit())
    log = StoredLog(folder, config, fsync, bases[0] if bases else saved_start(folder))
    torn = False
    for base_offset in bases:
        file = SegmentFile(folder, base_offset)
        if torn or log.end_offset != base_offset:
            file.remove()
            torn = torn or file.size > 0
            continue
        log.resume(file)
        torn = not _take_back(log, file)
    start_offset = saved_start(folder)
    if start_offset > log.end_offset:
        # What is left was deleted before: it must not come back.
        log.truncate_fully_and_start_at(start_offset)
    log.update_high_watermark(max(log.start_offset, start_offset))
    log.delete_up_to(start_offset)
    return log


def _take_back(log: StoredLog, file: SegmentFile) -> bool:
    """Append what a file holds; False, and it was cut, where it is torn."""
    at = 0
    reason = "the last batch is torn"
    try:
        for batch, begins in _batches(file):
            log.take_back(batch, file, begins)
            at = begins + batch.size_bytes
    except KafkaError as error:
        reason = str(error)
    if at == file.size:
        return True
    _log.warning("log_cut", file=str(file.path), reason=reason, kept=at, cut=file.size - at)
    file.truncate(at)
    return False


def _batches(file: SegmentFile) -> Iterator[FoundBatch]:
    at = 0
    while file.size - at >= _HEADER_BYTES:
        header = file.read(at, _LENGTH_FROM)
        size = _LENGTH_FROM + int.from_bytes(header[8:], "big", signed=True)
        if size < _HEADER_BYTES or at + size > file.size:
            return
        yield FoundBatch(RecordBatch.from_bytes(file.read(at, size), checksum=crc32c), at)
        at += size
