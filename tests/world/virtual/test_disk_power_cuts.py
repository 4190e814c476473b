"""Logs and metadata after a power cut at any step: they open, and have all forced data."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from purgatory.cluster.storage import (
    FolderLock,
    Fsync,
    StoredLog,
    load_metadata,
    save_metadata,
)
from purgatory.cluster.storage.disk import make_folder
from purgatory.cluster.storage.recovery import load_log
from purgatory.kafka import KafkaError, LogConfig, RecordBatch
from purgatory.kafka.controller import Controller
from purgatory.kafka.errors import ClusterError
from purgatory.virtual.disk import VirtualDisk
from tests.wire.cluster.wire_values import record_batch

_FOLDER = Path("/data")
_LOG = _FOLDER / "broker-1" / "orders-0"
_CONFIG = LogConfig(segment_bytes=400)
_FORCING_CALLS = ("open", "pwrite", "ftruncate", "fsync", "fdatasync", "replace", "unlink", "mkdir")


class _PowerCutError(BaseException):
    """A power cut; the storage does not catch it."""


class _CutDisk(VirtualDisk):
    """A disk whose power is cut at a step.

    Args:
        seed: decides the state after the power cut.
        steps: the number of changing calls before the power cut.
    """

    def __init__(self, seed: int, steps: int | None = None) -> None:
        super().__init__(random.Random(seed))
        self.steps = steps
        for name in _FORCING_CALLS:
            setattr(self, name, self._stepped(getattr(self, name)))

    def _stepped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*arguments: Any, **named: Any) -> Any:
            if self.steps is not None:
                self.steps -= 1
                if self.steps < 0:
                    raise _PowerCutError
            return call(*arguments, **named)

        return stepped

    def cut(self) -> None:
        """Cut the power, and restore it."""
        self.steps = None
        self.cut_power(Path("/"))


def _at_each_step(work: Callable[[_CutDisk], object], seeds: int) -> Iterator[_CutDisk]:
    """Cut the power at each step of some work, each with several outcomes, and after it."""
    for steps in itertools.count():
        was_cut = False
        for seed in range(seeds):
            disk = _CutDisk(seed, steps)
            try:
                work(disk)
            except _PowerCutError:
                was_cut = True
            disk.cut()
            yield disk
        if not was_cut:
            assert steps > 5
            return


def _batch(number: int, offset: int) -> RecordBatch:
    values = [b"%d" % number] * (1 + number % 3)
    return RecordBatch.from_bytes(record_batch(values)).with_offset(offset, 0)


def _records(log: StoredLog) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    offset = log.start_offset
    while offset < log.end_offset:
        batches = log.read(offset, 10_000_000)
        assert batches, "each offset has a record"
        found += [(batch.base_offset, batch.to_bytes()) for batch in batches]
        offset = batches[-1].next_offset
    return found


def _opened(disk: VirtualDisk, fsync: Fsync) -> StoredLog:
    log = load_log(_LOG, _CONFIG, fsync, disk=disk)
    log._check()
    return log


class _Work:
    """Writes and deletes records of a log, and counts those that it acknowledges."""

    def __init__(self, fsync: Fsync) -> None:
        self.fsync = fsync
        self.written: list[tuple[int, bytes]] = []
        self.acknowledged = 0
        """The acknowledged end offset."""
        self.deleted = 0
        self.deleting = 0

    def __call__(self, disk: VirtualDisk) -> None:
        self.__init__(self.fsync)  # type: ignore[misc]
        log = StoredLog(_LOG, _CONFIG, self.fsync, disk=disk)
        for number in range(14):
            batch = _batch(number, log.end_offset)
            self.written.append((batch.base_offset, batch.to_bytes()))
            log.append(batch)
            self.acknowledged = log.end_offset
            if number in (8, 11):
                log.update_high_watermark(log.end_offset)
                self.deleting = log.end_offset - 3
                log.delete_up_to(self.deleting)
                self.deleted = self.deleting


@pytest.mark.parametrize("fsync", Fsync)
def test_log_is_sound_after_a_power_cut_at_any_step(fsync: Fsync) -> None:
    work = _Work(fsync)
    cuts = lost = 0
    for disk in _at_each_step(work, 12):
        cuts += 1
        log = _opened(disk, fsync)
        left = _records(log)
        # The log has a prefix of the written records, from its start offset.
        known = [one for one in work.written if one[0] < log.end_offset]
        assert left == known[len(known) - len(left) :]
        if fsync is Fsync.ALWAYS:
            assert log.end_offset >= work.acknowledged
            assert work.deleted <= log.start_offset <= work.deleting
        elif log.end_offset < work.acknowledged:
            lost += 1
        end_offset = log.end_offset
        log.append(_batch(99, end_offset))
        again = _opened(disk, fsync)
        assert again.start_offset == log.start_offset
        assert _records(again) == _records(log)
        assert again.end_offset > end_offset
    assert cuts > 300
    if fsync is Fsync.NEVER:
        assert lost > 100, "unforced records may be lost"


def test_log_with_a_deleted_beginning_is_not_considered_damaged() -> None:
    """All forced records are kept but the deleted beginning, whenever that deletion is forced."""

    def work(disk: _CutDisk, steps: int) -> None:
        log = StoredLog(_LOG, _CONFIG, Fsync.ALWAYS, disk=disk)
        while log.end_offset < 20:
            log.append(_batch(2, log.end_offset))
        log = load_log(_LOG, _CONFIG, Fsync.NEVER, disk=disk)
        log.update_high_watermark(log.end_offset)
        disk.steps = steps
        log.delete_up_to(10)
        log.delete_up_to(13)

    for steps in itertools.count():
        was_cut = False
        for seed in range(20):
            disk = _CutDisk(seed)
            try:
                work(disk, steps)
            except _PowerCutError:
                was_cut = True
            disk.cut()
            log = _opened(disk, Fsync.NEVER)
            assert log.end_offset == 21
            assert log.start_offset <= 13
        if not was_cut:
            return


def test_power_cut_in_a_compaction_loses_no_synced_record() -> None:
    for steps in itertools.count():
        was_cut = False
        for seed in range(20):
            disk = _CutDisk(seed)
            log = StoredLog(_LOG, _CONFIG, Fsync.ALWAYS, disk=disk)
            while log.end_offset < 40:
                log.append(_batch(2, log.end_offset))
            segments = log._segments[:-1]
            assert len(segments) > 1
            kept = [batch for segment in segments for batch in segment.batches]
            before = _records(log)
            disk.steps = steps
            try:
                log.replace_segments(segments, kept)
            except _PowerCutError:
                was_cut = True
            disk.cut()
            assert _records(_opened(disk, Fsync.ALWAYS)) == before
        if not was_cut:
            return


def test_metadata_after_a_power_cut_are_the_old_or_the_new_ones() -> None:
    saved: list[int] = []

    def work(disk: VirtualDisk) -> None:
        saved[:] = [0]
        lock = FolderLock(_FOLDER, disk)
        for number in range(1, 5):
            save_metadata(_FOLDER, Controller((1, 2, 3)), number, disk)
            saved.append(number)
        lock.close()

    for disk in _at_each_step(work, 12):
        found = load_metadata(_FOLDER, Controller((1, 2, 3)), disk)
        assert saved[-1] <= found <= saved[-1] + 1


def test_logs_without_metadata_are_refused() -> None:
    disk = VirtualDisk(random.Random(0))
    StoredLog(_LOG, _CONFIG, Fsync.ALWAYS, disk=disk).append(_batch(1, 0))
    with pytest.raises(ClusterError, match="is missing, but there are logs beside it"):
        load_metadata(_FOLDER, Controller((1,)), disk)


def test_writes_of_a_killed_process_are_synced_before_serving() -> None:
    for seed in range(20):
        disk = _CutDisk(seed)
        make_folder(disk, _FOLDER, forces=True)
        log = StoredLog(
            _LOG, _CONFIG, Fsync.NEVER, disk=disk
        )  # as a killed process that never synced
        log.append(_batch(1, 0))
        log = _opened(disk, Fsync.ALWAYS)
        assert log.end_offset == 2
        disk.cut()
        assert _opened(disk, Fsync.ALWAYS).end_offset == 2


def test_power_cut_keeps_producers_of_deleted_batches() -> None:
    for steps in itertools.count():
        was_cut = False
        for seed in range(20):
            disk = _CutDisk(seed)
            log = StoredLog(_LOG, _CONFIG, Fsync.ALWAYS, disk=disk)
            for number in range(24):  # all batches of the first producer are deleted
                data = record_batch([b"x"], 7 + number // 12, number % 12, epoch=0)
                log.append(RecordBatch.from_bytes(data).with_offset(log.end_offset, 0))
            log = load_log(_LOG, _CONFIG, Fsync.NEVER, disk=disk)
            log.update_high_watermark(log.end_offset)
            known = log.producers.to_json()
            disk.steps = steps
            try:
                log.delete_up_to(log.end_offset - 2)
            except _PowerCutError:
                was_cut = True
            disk.cut()
            assert _opened(disk, Fsync.NEVER).producers.to_json() == known
        if not was_cut:
            assert steps > 5
            return


def test_full_disk_at_a_new_segment_fails_the_append() -> None:
    disk = VirtualDisk(random.Random(0))
    log = StoredLog(_LOG, _CONFIG, Fsync.NEVER, disk=disk)
    while len(log.segment_bases) < 2:
        log.append(_batch(2, log.end_offset))
    before, volume = _records(log), disk.volume(_LOG)
    volume.fill()
    for _ in range(3):
        with pytest.raises(KafkaError, match="No space left on device"):
            log.append(_batch(2, log.end_offset))
        while log._active.size_bytes + _batch(2, 0).size_bytes <= 400:
            volume.remove_limit()
            log.append(_batch(2, log.end_offset))
            before = _records(log)
            volume.fill()
        with pytest.raises(KafkaError, match="No space left on device"):
            log.append(_batch(2, log.end_offset))  # needs a new segment
        assert _records(log) == before
        assert _records(_opened(disk, Fsync.NEVER)) == before
    volume.remove_limit()
    log.append(_batch(2, log.end_offset))
    assert _records(_opened(disk, Fsync.NEVER)) == _records(log)
