"""The folder of a remote tier by itself: what was put there is found again, or nothing is."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from purgatory.cluster.storage.remote_folder import RemoteFolder, RemotePlace
from purgatory.kafka import KafkaError, RecordBatch
from purgatory.kafka.requests import AbortedTransaction
from tests.cluster.wire_values import record_batch


def _batches(count: int, from_offset: int = 0) -> list[RecordBatch]:
    made = []
    for number in range(count):
        batch = RecordBatch.from_bytes(record_batch([b"%03d" % number, b"x" * number]))
        made.append(batch.with_offset(from_offset + 2 * number, 3))
    return made


@pytest.mark.parametrize("topic", ["t", "a.b", "a-1", "a-1.0f", "..-x", "__t", "t" * 200])
def test_what_is_finished_is_found_under_its_name(tmp_path: Path, topic: str) -> None:
    folder, place = RemoteFolder(tmp_path), RemotePlace(topic, 12, uuid.uuid4())
    segment = folder.put(place, _batches(5, from_offset=100))
    assert RemoteFolder(tmp_path).load() == {place: []}, "it is not finished, and removed"
    segment = folder.put(place, _batches(5, from_offset=100))
    segment = segment._replace(aborted=(AbortedTransaction(7, 101, 105),))
    folder.finish(place, segment)
    assert RemoteFolder(tmp_path).load() == {place: [segment]}
    assert (segment.base_offset, segment.end_offset, segment.leader_epoch) == (100, 110, 3)
    folder.delete(place, segment)
    folder.delete(place, segment)
    assert RemoteFolder(tmp_path).load() == {place: []}
    folder.delete_partition(place)
    assert RemoteFolder(tmp_path).load() == {}


def test_batches_are_read_from_the_one_with_an_offset_on(tmp_path: Path) -> None:
    folder, place, batches = RemoteFolder(tmp_path), RemotePlace("t", 0, uuid.uuid4()), _batches(9)
    segment = folder.put(place, batches)
    folder.finish(place, segment)
    data = [batch.to_bytes() for batch in batches]
    for offset in range(18):
        for max_bytes in (1, len(data[3]), 300, 10**6):
            found = [one.to_bytes() for one in folder.read(place, segment, offset, max_bytes)]
            first = offset // 2
            fitting = 1
            while (
                first + fitting < 9
                and sum(map(len, data[first : first + fitting + 1])) <= max_bytes
            ):
                fitting += 1
            assert found == data[first : first + fitting]


def test_no_damage_to_a_description_or_to_batches_is_told(tmp_path: Path) -> None:
    folder, place = RemoteFolder(tmp_path), RemotePlace("t", 0, uuid.uuid4())
    segment = folder.put(place, _batches(2))
    folder.finish(place, segment)
    [description] = tmp_path.glob("*/*.json")
    written = description.read_bytes()
    for at in range(len(written)):
        for damaged in (written[:at], written[:at] + b"\x00" + written[at + 1 :]):
            description.write_bytes(damaged)
            assert RemoteFolder(tmp_path).load() in ({place: []}, {place: [segment]})
    description.write_bytes(written)
    [data] = tmp_path.glob("*/*.segment")
    whole = data.read_bytes()
    true = [batch.to_bytes() for batch in folder.read(place, segment, 0, 10**6)]
    for at in range(21, len(whole)):
        # Another place: what was learned of a file is kept.
        other = segment._replace(segment_id=f"{at}")
        damaged = whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :]
        data.with_name(f"{0:020}-{at}.segment").write_bytes(damaged)
        try:
            found = [batch.to_bytes() for batch in folder.read(place, other, 0, 10**6)]
        except KafkaError:
            continue
        # Offsets and epochs are not in Kafka's checksum: all else is as it was.
        assert [one[21:] for one in found] == [one[21:] for one in true]
