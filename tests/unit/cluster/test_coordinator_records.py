"""Records of consumer groups as bytes."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.cluster.coordinator_records import (
    OffsetsRecords,
    ShareStateRecords,
    TransactionsRecords,
    decode_group_key,
    decode_group_value,
    encode_group_key,
    encode_group_value,
)
from purgatory.cluster.records import new_batch, new_marker
from purgatory.kafka import (
    CommittedOffset,
    OffsetKey,
    ProducerIdentity,
    StoredEntry,
    TransactionResult,
)
from purgatory.kafka.groups.consumer_group_member import (
    CurrentAssignment,
    GroupRecordKey,
    GroupRecordValue,
    MemberState,
    RecordKind,
    Subscription,
)
from purgatory.kafka.topic_partition import TopicIdPartition

_ints = st.integers(-(2**31), 2**31 - 1)
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
_partitions = st.frozensets(st.builds(TopicIdPartition, st.uuids(), _ints), max_size=5)
_values: dict[RecordKind, st.SearchStrategy[GroupRecordValue]] = {
    RecordKind.GROUP_EPOCH: _ints,
    RecordKind.TARGET_EPOCH: _ints,
    RecordKind.TARGET: _partitions,
    RecordKind.CURRENT: st.builds(
        CurrentAssignment,
        _ints,
        _ints,
        st.sampled_from(MemberState),
        _partitions,
        _partitions,
        epochs=st.just(dict[TopicIdPartition, int]()),
    ),
    RecordKind.MEMBER: st.builds(
        Subscription,
        st.none() | _texts,
        st.none() | _texts,
        _texts,
        _texts,
        st.lists(_texts, max_size=4).map(tuple),
        st.none() | _texts,
        _ints,
        st.none() | _texts,
        requester=st.none(),
    ),
}
_share_values: dict[RecordKind, st.SearchStrategy[GroupRecordValue]] = {
    **_values,
    RecordKind.CURRENT: st.builds(
        CurrentAssignment,
        _ints,
        _ints,
        st.sampled_from(MemberState),
        _partitions,
        st.just(frozenset[TopicIdPartition]()),
        epochs=st.just(dict[TopicIdPartition, int]()),
    ),
    RecordKind.MEMBER: st.builds(
        Subscription,
        st.none(),
        st.none() | _texts,
        _texts,
        _texts,
        st.lists(_texts, max_size=4).map(tuple),
        *map(st.just, (None, -1, None, None)),
    ),
}


MEMBER = GroupRecordKey("g", RecordKind.MEMBER, "m")


@given(st.data())
@settings(max_examples=200)
def test_records_are_read_back_as_they_were_written(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(RecordKind))
    is_share = data.draw(st.booleans())
    value = data.draw((_share_values if is_share else _values)[kind])
    is_of_member = kind not in (RecordKind.GROUP_EPOCH, RecordKind.TARGET_EPOCH)
    member_id = data.draw(_texts) if is_of_member else ""
    key = GroupRecordKey(data.draw(_texts), kind, member_id, is_share)
    assert decode_group_key(encode_group_key(key)) == key
    assert decode_group_value(key, encode_group_value(key, value)) == value


def test_layout_is_that_of_kafka() -> None:
    key = GroupRecordKey("g", RecordKind.CURRENT, "m1")
    assert encode_group_key(key) == b"\0\x08" + b"\0\x01g" + b"\0\x02m1"
    assert encode_group_key(GroupRecordKey("g", RecordKind.GROUP_EPOCH)) == b"\0\x03\0\x01g"
    of_share = GroupRecordKey("g", RecordKind.CURRENT, "m1", is_share=True)
    assert encode_group_key(of_share) == b"\0\x0e" + b"\0\x01g" + b"\0\x02m1"
    assert encode_group_value(MEMBER, 7) == b"\0\0" + b"\0\0\0\x07" + b"\0"
    topic_id = UUID(int=1)
    assigned = frozenset({TopicIdPartition(topic_id, 2), TopicIdPartition(topic_id, 1)})
    current = CurrentAssignment(3, 2, MemberState.STABLE, assigned)
    both = b"\x02" + topic_id.bytes + b"\x03" + b"\0\0\0\x01\0\0\0\x02" + b"\0"
    assert (
        encode_group_value(MEMBER, current)
        == b"\0\0" + b"\0\0\0\x03\0\0\0\x02\x01" + both + b"\x01" + b"\0"
    )
    said = Subscription("i", None, "c", "/h", ("t",), None, 5, "uniform")
    assert encode_group_value(MEMBER, said) == (
        b"\0\0" + b"\x02i" + b"\0" + b"\x02c" + b"\x03/h" + b"\x02\x02t" + b"\0"
        b"\0\0\0\x05" + b"\x08uniform" + b"\0"
    )


def test_epochs_of_partitions_are_kept() -> None:
    one, two, three = (TopicIdPartition(UUID(int=number), 0) for number in (1, 2, 3))
    key = GroupRecordKey("g", RecordKind.CURRENT, "m1")
    current = CurrentAssignment(
        *(5, 4, MemberState.UNREVOKED_PARTITIONS),
        *(frozenset({one, two}), frozenset({three})),
        epochs={one: 5, two: 3, three: 2},
    )
    found = decode_group_value(key, encode_group_value(key, current))
    assert isinstance(found, CurrentAssignment)
    assert found._replace(epochs={}) == current._replace(epochs={})
    assert [found.assignment_epoch(place) for place in (one, two, three)] == [5, 3, 2]


@pytest.mark.parametrize("kind", [0, 1, 2, 4, 16, 99])
def test_records_of_unknown_kinds_are_skipped(kind: int) -> None:
    assert decode_group_key(bytes([0, kind]) + b"\0\x01g") is None


def test_unknown_tags_are_skipped() -> None:
    said = Subscription("i", None, "c", "/h", ("t",), None, 5, None)
    encoded = encode_group_value(MEMBER, said)
    assert decode_group_value(MEMBER, encoded[:-1] + b"\x01\x09\x02xy") == said


def test_offsets_and_records_are_in_one_batch() -> None:
    entries: list[StoredEntry] = [
        (OffsetKey("g", "t", 0), CommittedOffset(5, -1, "why", 1)),
        (GroupRecordKey("g", RecordKind.GROUP_EPOCH), 4),
        (GroupRecordKey("g", RecordKind.TARGET, "m"), None),
    ]
    codec = OffsetsRecords()
    assert list(codec.entries(codec.batch(entries))) == entries


@pytest.mark.parametrize(
    "codec", [OffsetsRecords(), TransactionsRecords(), ShareStateRecords()], ids=type
)
def test_unreadable_record_hides_no_other(
    codec: OffsetsRecords | TransactionsRecords | ShareStateRecords,
) -> None:
    keys = [b"k", b"", b"\0\0", b"\0\x01\0\x09g", b"\0\x03\0\x01\xff", b"\0\0\0\x01t"]
    batch = new_batch([(key, b"\0\0\xff") for key in keys])
    assert list(codec.entries(batch)) == []
    marker = new_marker(ProducerIdentity(1, 0), TransactionResult.COMMIT, 0)
    assert list(codec.entries(marker)) == []


def test_records_behind_an_unreadable_one_are_loaded() -> None:
    key, value = encode_group_key(MEMBER), encode_group_value(MEMBER, Subscription())
    rows = [(b"k", b"v"), (key, value[:4]), (key, value)]
    assert list(OffsetsRecords().entries(new_batch(rows))) == [(MEMBER, Subscription())]
