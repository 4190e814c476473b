"""Recovery: reads logs back after the process ended in any way.

Every batch is checked. The log ends before the first one that is torn, missing or changed; the rest
is removed. A damaged log is therefore shorter than those of intact replicas, by which the
controller recognizes it (`Controller.reconcile_logs`).

Ground rules: callable from any thread. A log belongs to its loader until it is returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from purgatory.cluster.storage.disk import REAL_DISK, Disk, list_paths
from purgatory.cluster.storage.segment_file import REPLACEMENT_SUFFIX, SUFFIX, Fsync, SegmentFile
from purgatory.cluster.storage.stored_log import (
    StoredLog,
    load_snapshot,
    read_start_offset,
    remove_snapshots,
)
from purgatory.core.recent_errors import Logger
from purgatory.kafka import ErrorCode, KafkaError, LogConfig, RecordBatch, TopicPartition

_HEADER_BYTES = 61
_LENGTH_COVERS_FROM = 12
_log = Logger("purgatory.cluster")


class LogCheckpoint(NamedTuple):
    """The state of a partition's log in the metadata.

    Args:
        start_offset: the log's start, when it was last saved.
        leader_epoch: the latest possible one in the log: a later one is damage.
        high_watermark: the offset up to which the log is certainly committed; Kafka's broker reads
            it from ``replication-offset-checkpoint``.
    """

    start_offset: int = 0
    leader_epoch: int = 2**31 - 1
    high_watermark: int = 0


_NO_CHECKPOINT = LogCheckpoint()


class FoundBatch(NamedTuple):
    """A valid batch, and its position in the file."""

    batch: RecordBatch
    at: int


class LogRequest(NamedTuple):
    """A log that is to be loaded: its partition, its folder, its settings, and its known state."""

    topic_partition: TopicPartition
    folder: Path
    config: LogConfig
    checkpoint: LogCheckpoint


def load_logs(
    requests: Sequence[LogRequest], fsync: Fsync, disk: Disk = REAL_DISK
) -> dict[TopicPartition, StoredLog]:
    """Return logs, as they are on the disk. O(their bytes). Callable from any thread.

    Args:
        requests: of each log.
        fsync: when written data is forced onto the disk.
        disk: on which the folders are.
    """
    return {
        request.topic_partition: load_log(
            request.folder, request.config, fsync, request.checkpoint, disk
        )
        for request in requests
    }


def replica_folders(folder: Path, disk: Disk = REAL_DISK) -> list[tuple[TopicPartition, Path]]:
    """Return the folders of a broker's replicas, also those of deleted topics."""
    found = []
    for place in list_paths(disk, folder):
        topic, dash, partition = place.name.rpartition("-")
        if disk.is_folder(place) and dash and partition.isdecimal():
            found.append((TopicPartition(topic, int(partition)), place))
    return found


def load_log(
    folder: Path,
    config: LogConfig | None,
    fsync: Fsync,
    checkpoint: LogCheckpoint = _NO_CHECKPOINT,
    disk: Disk = REAL_DISK,
) -> StoredLog:
    """Return the log of one folder, up to its first damage. O(its bytes)."""
    for path in list_paths(disk, folder, REPLACEMENT_SUFFIX):
        disk.unlink(path)  # unfinished: the files that it was to replace exist
    bases = sorted(
        int(path.stem) for path in list_paths(disk, folder, SUFFIX) if path.stem.isdecimal()
    )
    start_offset = read_start_offset(folder, checkpoint.start_offset, disk)
    bases = _without_dropped(folder, bases, start_offset, disk)
    log = StoredLog(folder, config, fsync, min([start_offset, *bases]), disk)
    known = load_snapshot(folder, log.segment_bases[0], disk)
    if known is not None:
        log.restore_producers(known)
    damage: str | None = None
    for base_offset in bases:
        file = SegmentFile(folder, base_offset, disk=disk)
        if file.size and damage is None and log.end_offset < base_offset:
            damage = f"offsets {log.end_offset} to {base_offset} are missing"
        if damage is not None or log.end_offset != base_offset:
            if file.size:
                _log_cut(file, log, damage or "it begins within the one before it")
            file.remove()
            continue
        log.resume(file)
        damage = _load_segment(log, file, checkpoint.leader_epoch)
        if damage is not None:
            _log_cut(file, log, damage)
            log.truncate_to(log.end_offset)
    if start_offset > log.end_offset:
        # The records before the start were deleted: they must not come back.
        log.truncate_fully_and_start_at(start_offset)
    committed = min(checkpoint.high_watermark, log.end_offset)
    log.update_high_watermark(max(log.start_offset, start_offset, committed))
    log.delete_up_to(start_offset)
    remove_snapshots(folder, except_offset=log.segment_bases[0], disk=disk)
    if fsync is Fsync.ALWAYS or log.config.forces:
        log.force_all()  # a process that was killed may have left unforced data
    return log


def _without_dropped(folder: Path, bases: list[int], start_offset: int, disk: Disk) -> list[int]:
    """Remove the files of segments that were dropped; return the other files' bases.

    Without a snapshot of the producers behind them, dropped segments are read back for these.
    """
    first = max([base for base in bases if base <= start_offset], default=0)
    if load_snapshot(folder, first, disk) is None:
        return bases
    for base in bases:
        if base < first:
            SegmentFile(folder, base, disk=disk).remove()
    return [base for base in bases if base >= first]


def _log_cut(file: SegmentFile, log: StoredLog, reason: str) -> None:
    _log.warning("log_cut", file=str(file.path), reason=reason, log_ends_at=log.end_offset)


def _load_segment(log: StoredLog, file: SegmentFile, latest_epoch: int) -> str | None:
    """Append the batches of a file; return the damage behind the last valid one, or None."""
    at = 0
    try:
        for batch, begins in _batches(file):
            _check_epoch(log, batch, latest_epoch)
            log.load_batch(batch, file, begins)
            at = begins + batch.size_bytes
    except KafkaError as error:
        return str(error)
    return None if at == file.size else "the last batch is torn"


def _check_epoch(log: StoredLog, batch: RecordBatch, latest_epoch: int) -> None:
    """Refuse a batch with an impossible leader epoch: Kafka's checksum does not cover it.

    Epochs never fall. If one does, and only the batch before stands out, that batch is damaged.
    """
    epoch, highest = batch.leader_epoch, log.epochs.latest
    if highest <= epoch <= latest_epoch:
        return
    if epoch < highest:
        *before, (_, begins) = log.epochs.entries()
        last = log.read(log.end_offset - 1, 1)[0]
        if begins == last.base_offset and (not before or before[-1][0] <= epoch):
            log.truncate_to(begins)
    raise KafkaError(
        ErrorCode.CORRUPT_MESSAGE,
        f"leader epoch {epoch} comes after {highest}; the latest is {latest_epoch}",
    )


def _batches(file: SegmentFile) -> Iterator[FoundBatch]:
    at = 0
    while file.size - at >= _HEADER_BYTES:
        header = file.read(at, _LENGTH_COVERS_FROM)
        size = _LENGTH_COVERS_FROM + int.from_bytes(header[8:], "big", signed=True)
        if size < _HEADER_BYTES or at + size > file.size:
            return
        data = file.read(at, size)
        batch = RecordBatch.from_bytes(data, checksum=crc32c, may_be_compacted=True)
        yield FoundBatch(batch, at)
        at += size
