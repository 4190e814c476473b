"""Logs on disk: written records are loaded, whatever happened to the end of the files."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from purgatory.cluster.storage import Fsync, LogCheckpoint, StoredLog
from purgatory.cluster.storage.disk import RealDisk
from purgatory.cluster.storage.recovery import load_log
from purgatory.cluster.storage.stored_log import read_start_offset
from purgatory.kafka import (
    AppendOrigin,
    ErrorCode,
    KafkaError,
    Log,
    LogConfig,
    Partition,
    RecordBatch,
    TopicPartition,
)
from tests.wire.cluster.wire_values import record_batch

_CONFIG = LogConfig(segment_bytes=400)
_SIZES = (1, 2, 3, 7)
_PLAIN = [record_batch([b"%d" % size] * size) for size in _SIZES]


@contextmanager
def _folder() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp())
    try:
        yield place / "orders-0"
    finally:
        shutil.rmtree(place)


def _batch(kind: int, log: Log, epoch: int = 0) -> RecordBatch:
    return RecordBatch.from_bytes(_PLAIN[kind]).with_offset(log.end_offset, epoch)


def _numbered(sequence: int, producer_id: int = 7) -> RecordBatch:
    data = record_batch([b"numbered"], producer_id, sequence, epoch=0)
    return RecordBatch.from_bytes(data)


def _next_numbered(log: Log, producer_id: int) -> RecordBatch:
    entry = log.producers.entry(producer_id)
    return _numbered(0 if entry is None else entry.last_sequence + 1, producer_id)


def _records(log: Log) -> list[bytes]:
    found: list[bytes] = []
    offset = log.start_offset
    while offset < log.end_offset:
        batches = log.read(offset, 10_000_000)
        assert batches, "something is there at each offset"
        found += [batch.to_bytes() for batch in batches]
        offset = batches[-1].next_offset
    return found


def _reopened(folder: Path, config: LogConfig = _CONFIG) -> StoredLog:
    log = load_log(folder, config, Fsync.NEVER)
    log._check()
    return log


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, len(_SIZES) - 1)),
        st.tuples(st.just("append"), st.integers(0, len(_SIZES) - 1)),
        st.tuples(st.just("number"), st.integers(7, 9)),
        st.tuples(st.just("number"), st.integers(7, 9)),
        st.tuples(st.just("truncate"), st.integers(0, 60)),
        st.tuples(st.just("commit"), st.integers(0, 60)),
        st.tuples(st.just("delete"), st.integers(0, 60)),
        st.tuples(st.just("begin anew"), st.integers(0, 60)),
        st.tuples(st.just("new epoch"), st.integers(1, 2)),
        st.tuples(st.just("reopen"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(_steps)
def test_reopened_log_equals_a_log_in_memory(
    steps: list[tuple[str, int]],
) -> None:
    with _folder() as folder:
        model, stored = Log(_CONFIG), StoredLog(folder, _CONFIG, Fsync.NEVER)
        epoch = 0
        for what, number in [*steps, ("reopen", 0)]:
            if what == "new epoch":
                epoch += number
            elif what == "reopen":
                stored = _reopened(folder)
                stored.update_high_watermark(model.high_watermark)
            else:
                for log in (model, stored):
                    _do(log, what, number, epoch)
            assert _ends(stored) == _ends(model), what
            assert _records(stored) == _records(model), what
            assert stored.producers.to_json() == model.producers.to_json(), what
            stored._check()


def _do(log: Log, what: str, number: int, epoch: int) -> None:
    if what == "append":
        log.append(_batch(number, log, epoch))
    elif what == "number":
        log.append(_next_numbered(log, number).with_offset(log.end_offset, epoch))
    elif what == "truncate":
        log.truncate_to(number)
    elif what == "commit":
        log.update_high_watermark(number)
    elif what == "delete":
        log.delete_up_to(min(number, log.high_watermark))
    else:
        log.truncate_fully_and_start_at(number)


def _ends(log: Log) -> tuple[int, int, int]:
    return log.start_offset, log.high_watermark, log.end_offset


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, len(_SIZES) - 1), min_size=1, max_size=12),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from(["cut", "flip", "zeros", "rubbish"]),
    st.integers(1, 255),
)
def test_damaged_file_loses_only_records_behind_the_damage(
    kinds: list[int], where: float, how: str, mask: int
) -> None:
    with _folder() as folder:
        log = StoredLog(folder, _CONFIG, Fsync.NEVER)
        for kind in kinds:
            log.append(_batch(kind, log))
        written = _records(log)
        files = sorted(folder.glob("*.log"))
        sizes = [file.stat().st_size for file in files]
        at = int(where * sum(sizes))
        before, begins = _batch_before(written, at)
        if how == "flip" and (12 <= at - begins < 16 or (before == 0 and at < 8)):
            return  # the checksum doesn't cover offset and epoch, which the leader stamps
        number = 0
        while at >= sizes[number]:
            at -= sizes[number]
            number += 1
        _damage(files[number], at, how, mask)
        recovered = _records(_reopened(folder))
        # Zeros over zeros damage nothing.
        assert recovered == written[:before] or (
            how != "flip" and recovered == written[: len(recovered)]
        )
        assert len(recovered) >= before
        again = _reopened(folder)
        assert _records(again) == recovered, "truncated records stay away"
        again.append(_batch(0, again))
        assert len(_records(_reopened(folder))) == len(recovered) + 1


def _batch_before(written: list[bytes], at: int) -> tuple[int, int]:
    """Return how many batches end at or before a byte, and the position of the next one."""
    begins = 0
    for number, batch in enumerate(written):
        if begins + len(batch) > at:
            return number, begins
        begins += len(batch)
    return len(written), begins


def _damage(file: Path, at: int, how: str, mask: int) -> None:
    data = bytearray(file.read_bytes())
    if how == "cut":
        del data[at:]
    elif how == "flip":
        data[at] ^= mask
    elif how == "zeros":
        data[at:] = bytes(len(data) - at)
    else:
        data[at:] = bytes([mask]) * 100
    file.write_bytes(bytes(data))


def test_producers_retry_is_recognized_after_a_restart() -> None:
    with _folder() as folder:
        log = StoredLog(folder, _CONFIG, Fsync.NEVER)
        for sequence in range(8):
            log.append(_numbered(sequence).with_offset(log.end_offset, 0))
        log = _reopened(folder)
        retry = log.producers.find_duplicate(_numbered(7), AppendOrigin.CLIENT)
        assert retry is not None
        assert retry.first_offset == 7
        assert log.producers.find_duplicate(_numbered(8), AppendOrigin.CLIENT) is None
        with pytest.raises(KafkaError, match="expected was 8"):
            log.producers.find_duplicate(_numbered(9), AppendOrigin.CLIENT)


def _no_space(*_: object) -> int:
    raise OSError(28, "No space left on device")


class _Killed(BaseException):
    """As SIGKILL: nothing that follows is done."""


@contextmanager
def _killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End the process before one of the steps that change the disk."""
    done = itertools.count()

    def before(original: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any, **kwargs: Any) -> Any:
            if next(done) == step:
                raise _Killed
            return original(*args, **kwargs)

        return stepped

    with monkeypatch.context() as patched:
        for name in ("replace", "pwrite", "unlink", "open"):
            patched.setattr(RealDisk, name, staticmethod(before(getattr(RealDisk, name))))
        yield


def test_crash_keeps_producers_of_deleted_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for step in itertools.count():
        with _folder() as folder:
            log = StoredLog(folder, _CONFIG, Fsync.NEVER)
            for number in range(40):  # of the first producers nothing is left
                batch = _next_numbered(log, number // 10)
                log.append(batch.with_offset(log.end_offset, 0))
            log.update_high_watermark(40)
            log.delete_up_to(15)
            expected = log.producers.to_json()
            was_killed = False
            with _killed_at(step, monkeypatch):
                try:
                    log.delete_up_to(35)
                except _Killed:
                    was_killed = True
            for _ in range(2):
                log = _reopened(folder)
                assert log.producers.to_json() == expected, step
            assert [len(log.producers.entry(one).batches) for one in range(4)] == [5] * 4  # type: ignore[union-attr]
            # Only the records truncated since are forgotten.
            log.update_high_watermark(36)
            log.truncate_to(36)
            assert log.producers.to_json() == _reopened(folder).producers.to_json()
            retry = _numbered(9, 0)
            assert log.producers.find_duplicate(retry, AppendOrigin.CLIENT) is not None
            log.delete_up_to(36)
            assert len(list(folder.glob("*.producers*"))) == 1
        if not was_killed:
            assert step > 5
            return


@pytest.mark.parametrize("damage", ["", "x", "00000000 {}", "[]"])
def test_damaged_snapshot_of_producers_is_ignored(damage: str) -> None:
    with _folder() as folder:
        log = StoredLog(folder, _CONFIG, Fsync.NEVER)
        for number in range(20):
            log.append(_next_numbered(log, number // 10).with_offset(log.end_offset, 0))
        log.update_high_watermark(20)
        log.delete_up_to(15)
        [file] = folder.glob("*.producers")
        file.write_text(damage)
        with capture_logs() as logged:
            log = _reopened(folder)
        assert [one["event"] for one in logged] == ["producers_unreadable"] * len(logged) != []
        assert log.producers.entry(0) is None
        assert log.producers.entry(1) is not None
        assert len(_records(log)) == 5


def test_log_truncated_fully_has_no_producers() -> None:
    with _folder() as folder:
        log = StoredLog(folder, _CONFIG, Fsync.NEVER)
        for _ in range(20):
            log.append(_next_numbered(log, 7).with_offset(log.end_offset, 0))
        log.update_high_watermark(20)
        log.delete_up_to(20)
        assert _reopened(folder).producers.entry(7) is not None
        log.truncate_fully_and_start_at(20)
        assert _reopened(folder).producers.entry(7) is None


def test_flush_messages_syncs_before_the_append_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forced: list[int] = []
    monkeypatch.setattr(RealDisk, "fdatasync", forced.append)
    with _folder() as folder:
        log = StoredLog(folder, _CONFIG, Fsync.NEVER)
        for _ in range(10):
            log.append(_batch(0, log))
        assert not forced
        files = len(log.segment_bases)
        assert files > 1
        log.configure(replace(_CONFIG, forces=True))
        assert len(forced) == files  # earlier writes as well
        log.configure(replace(_CONFIG, forces=True, retention_ms=1))
        log.append(_batch(0, log))
        assert len(forced) == files + 1
        log.configure(_CONFIG)
        log.append(_batch(0, log))
        assert len(forced) == files + 1


@pytest.mark.parametrize("when", ["within a segment", "at a new segment", "after some bytes"])
def test_full_disk_leaves_the_log_unchanged(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with _folder() as folder:
        log = StoredLog(folder, _CONFIG, Fsync.NEVER)
        while log._active.size_bytes < (330 if when == "at a new segment" else 1):
            log.append(_numbered(log.end_offset).with_offset(log.end_offset, 0))
        before = _ends(log), _records(log), log.producers.to_json()
        written = os.pwrite

        def some_bytes(descriptor: int, data: bytes, at: int) -> int:
            if len(data) < 50:
                _no_space()
            return written(descriptor, data[: len(data) // 2], at)

        with monkeypatch.context() as patch:
            refuses = some_bytes if when == "after some bytes" else _no_space
            patch.setattr(RealDisk, "pwrite", staticmethod(refuses))
            for _ in range(3):
                with pytest.raises(KafkaError, match="No space left") as refused:
                    log.append(_numbered(log.end_offset).with_offset(log.end_offset, 0))
                assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
                assert (_ends(log), _records(log), log.producers.to_json()) == before
                log._check()
        assert _records(_reopened(folder)) == before[1]
        log.append(_numbered(log.end_offset).with_offset(log.end_offset, 0))
        assert _records(_reopened(folder)) == _records(log)
        assert len(_records(log)) == len(before[1]) + 1


def test_log_that_rolled_on_a_full_disk_is_loaded_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with _folder() as folder:
        log = StoredLog(folder, _CONFIG, Fsync.NEVER)
        log.append(_batch(3, log))
        for _ in range(3):
            with monkeypatch.context() as patch:
                patch.setattr(RealDisk, "pwrite", staticmethod(_no_space))
                large = record_batch([bytes(500)])
                with pytest.raises(KafkaError):
                    log.append(RecordBatch.from_bytes(large).with_offset(log.end_offset, 0))
            for kind in (0, 1, 3):
                log.append(_batch(kind, log))
        expected = _records(log)
        assert _records(_reopened(folder)) == expected


def test_full_disk_keeps_none_of_several_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with _folder() as folder:
        log = StoredLog(folder, _CONFIG, Fsync.NEVER)
        partition = Partition(TopicPartition("orders", 0), 1, log)
        partition.make_leader(0, [1], [1], 0)
        partition.append_as_leader([_batch(0, log)])
        written, calls = os.pwrite, []

        def one_write(descriptor: int, data: bytes, at: int) -> int:
            calls.append(at)
            return written(descriptor, data, at) if len(calls) == 1 else _no_space()

        with monkeypatch.context() as patch:
            patch.setattr(RealDisk, "pwrite", staticmethod(one_write))
            with pytest.raises(KafkaError):
                partition.append_as_leader(
                    [_batch(0, log), _batch(1, log)], origin=AppendOrigin.COORDINATOR
                )
        assert len(calls) == 2
        assert (log.end_offset, len(_records(log))) == (1, 1)
        assert partition.append_as_leader([_batch(1, log)]).base_offset == 1
        assert _records(_reopened(folder)) == _records(log)


def test_deleted_records_stay_deleted_after_a_torn_write() -> None:
    with _folder() as folder:
        log = StoredLog(folder, LogConfig(), Fsync.ALWAYS)
        for _ in range(6):
            log.append(_batch(0, log))
        log.update_high_watermark(6)
        log.delete_up_to(5)
        (file,) = folder.glob("*.log")
        os.truncate(file, 100)  # within the second of six batches
        log = _reopened(folder, LogConfig())
        assert (log.start_offset, log.end_offset) == (5, 5)
        log.append(_batch(0, log))
        assert _ends(_reopened(folder, LogConfig())) == (5, 5, 6)


def test_removed_log_leaves_no_files_and_its_readers_continue() -> None:
    with _folder() as folder:
        log = StoredLog(folder, _CONFIG, Fsync.NEVER)
        for _ in range(9):
            log.append(_batch(3, log))
        (batch,) = log.read(0, 1)
        log.remove()
        assert not folder.exists()
        assert batch.to_bytes()[61:] == _PLAIN[3][61:]


def test_full_disk_is_logged_when_it_begins_and_when_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with _folder() as folder, capture_logs() as logs:
        log = StoredLog(folder, _CONFIG, Fsync.NEVER)
        for _ in range(2):
            log.append(_batch(0, log))
            with monkeypatch.context() as patch:
                patch.setattr(RealDisk, "pwrite", staticmethod(_no_space))
                for _ in range(3):
                    with pytest.raises(KafkaError):
                        log.append(_batch(0, log))
        log.append(_batch(0, log))
        log.append(_batch(0, log))
        place = {"partition": "orders-0", "folder": str(folder)}
        full = {"event": "log_not_written", "log_level": "error", **place}
        again = {"event": "log_written_again", "log_level": "info", **place}
        assert logs == [{**full, "reason": "No space left on device"}, again] * 2


def test_damaged_start_file_is_ignored() -> None:
    with _folder() as folder:
        log = StoredLog(folder, _CONFIG, Fsync.NEVER)
        for _ in range(9):
            log.append(_batch(3, log))
        log.update_high_watermark(60)
        log.delete_up_to(20)
        expected = _ends(_reopened(folder))
        start = folder / "start"
        written = start.read_bytes()
        for at, bit in itertools.product(range(len(written)), range(8)):
            damaged = bytearray(written)
            damaged[at] ^= 1 << bit
            for text in (bytes(damaged), written[:at]):
                start.write_bytes(text)
                assert read_start_offset(folder, -1) in (-1, 20), text
        start.unlink()
        log = load_log(folder, _CONFIG, Fsync.NEVER, LogCheckpoint(start_offset=20))
        assert _ends(log) == expected, "the metadata have the start"


@pytest.mark.parametrize(("epochs", "kept"), [("1151", 2), ("1131", 2), ("2212", 2), ("1129", 3)])
def test_impossible_leader_epoch_ends_the_log(epochs: str, kept: int) -> None:
    with _folder() as folder:
        log = StoredLog(folder, _CONFIG, Fsync.NEVER)
        for epoch in epochs:
            at = log._active.size_bytes
            log.append(_batch(0, log, 1))
            (file,) = folder.glob("*.log")
            with file.open("r+b") as stored:
                stored.seek(at + 12)
                stored.write(int(epoch).to_bytes(4, "big"))
        log = load_log(folder, _CONFIG, Fsync.NEVER, LogCheckpoint(leader_epoch=5))
        log._check()
        assert log.end_offset == kept
        assert _ends(_reopened(folder))[2] == kept
