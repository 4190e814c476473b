"""Records of consumer groups as bytes."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.records.readers import read_batch

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
    ClassicMetadata,
    CurrentAssignment,
    InitializedPartitions,
    MemberState,
    Subscription,
)
from purgatory.kafka.groups.group import ClassicGroupRecord, ClassicMemberRecord
from purgatory.kafka.groups.group_records import GroupRecordKey, GroupRecordValue, RecordKind
from purgatory.kafka.groups.streams_member import (
    CurrentTasks,
    StreamsClient,
    StreamsEpoch,
    TargetEpoch,
    TaskId,
    Tasks,
    UserEndpoint,
)
from purgatory.kafka.groups.streams_topology import (
    CopartitionGroup,
    InternalTopic,
    Subtopology,
    Topology,
)
from purgatory.kafka.topic_partition import Partitions, TopicIdPartition

_ints = st.integers(-(2**31), 2**31 - 1)
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
_partitions = st.frozensets(st.builds(TopicIdPartition, st.uuids(), _ints), max_size=5)
_bytes = st.binary(max_size=50)
_classic_members = st.builds(
    ClassicMemberRecord,
    _texts,
    st.none() | _texts,
    _texts,
    _texts,
    st.integers(0, 2**31 - 1),
    _ints,
    _bytes,
    _bytes,
)
_values: dict[RecordKind, st.SearchStrategy[GroupRecordValue]] = {
    RecordKind.CLASSIC: st.builds(
        ClassicGroupRecord,
        _texts,
        _ints,
        st.none() | _texts,
        st.none() | _texts,
        st.integers(-(2**63), 2**63 - 1),
        st.lists(_classic_members, max_size=4).map(tuple),
    ),
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
        st.just({}),
    ).flatmap(
        lambda current: st.sampled_from(
            [current, current._replace(epochs=dict.fromkeys(current.partitions, 7))]
        )
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
        classic=st.none()
        | st.builds(
            ClassicMetadata,
            _ints,
            st.lists(st.tuples(_texts, _bytes), max_size=3).map(tuple),
        ),
    ),
}


def _initialized(partitions: Partitions, name: str) -> InitializedPartitions:
    topics = sorted({one.topic_id for one in partitions})
    return InitializedPartitions(partitions, tuple((topic_id, name) for topic_id in topics))


_share_values: dict[RecordKind, st.SearchStrategy[GroupRecordValue]] = {
    **_values,
    RecordKind.CURRENT: st.builds(
        CurrentAssignment,
        _ints,
        _ints,
        st.sampled_from(MemberState),
        _partitions,
        st.just(frozenset[TopicIdPartition]()),
        st.just({}),
    ),
    RecordKind.MEMBER: st.builds(
        Subscription,
        st.none(),
        st.none() | _texts,
        _texts,
        _texts,
        st.lists(_texts, max_size=4).map(tuple),
        *map(st.just, (None, -1, None, None, None)),
    ),
    RecordKind.SHARE_STATE: st.builds(_initialized, _partitions, _texts),
}


_task_sets = st.frozensets(st.builds(TaskId, _texts, _ints), max_size=4)
_tasks = st.builds(Tasks, _task_sets, _task_sets, _task_sets)
_pairs = st.lists(st.tuples(_texts, _texts), max_size=3).map(tuple)
_places = st.lists(st.integers(0, 9), max_size=3).map(tuple)
_names = st.lists(_texts, max_size=3).map(tuple)
_topics = st.lists(
    st.builds(InternalTopic, _texts, _ints, st.integers(0, 9), _pairs), max_size=2
).map(tuple)


def _current(epoch: int, state: MemberState, assigned: Tasks, revoking: Tasks) -> CurrentTasks:
    epochs = dict.fromkeys(assigned.active | revoking.active, epoch - 1)
    return CurrentTasks(epoch, epoch - 1, state, assigned, revoking, epochs)


_values |= {
    RecordKind.STREAMS_EPOCH: st.builds(
        StreamsEpoch, _ints, st.integers(-(2**63), 2**63 - 1), _ints, _pairs
    ),
    RecordKind.STREAMS_MEMBER: st.builds(
        StreamsClient,
        st.none() | _texts,
        *(_texts, _texts, _ints, _ints, _texts),
        st.none() | st.builds(UserEndpoint, _texts, st.integers(0, 2**16 - 1)),
        _pairs,
    ),
    RecordKind.STREAMS_TARGET_EPOCH: st.builds(TargetEpoch, _ints, st.integers(0, 2**63 - 1)),
    RecordKind.STREAMS_TARGET: _tasks,
    RecordKind.STREAMS_CURRENT: st.builds(
        _current, st.integers(1, 99), st.sampled_from(MemberState), _tasks, _tasks
    ),
    RecordKind.STREAMS_TOPOLOGY: st.builds(
        Topology,
        _ints,
        st.lists(
            st.builds(
                Subtopology,
                *(_texts, _names, _names, _topics, _names, _topics),
                st.lists(st.builds(CopartitionGroup, _places, _places, _places), max_size=2).map(
                    tuple
                ),
            ),
            max_size=3,
        ).map(tuple),
    ),
}


MEMBER = GroupRecordKey("g", RecordKind.MEMBER, "m")
NO_CLASSIC = b"\x01\0\x01\0"
"""The tagged fields of a member of the consumer protocol: one, which is null."""


@given(st.data())
@settings(max_examples=200)
def test_records_are_read_back_as_they_were_written(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(RecordKind))
    is_share = kind is RecordKind.SHARE_STATE or (
        kind is not RecordKind.CLASSIC and not kind.is_of_streams and data.draw(st.booleans())
    )
    value = data.draw((_share_values if is_share else _values)[kind])
    is_of_member = kind.name.endswith(("MEMBER", "TARGET", "CURRENT"))
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
        b"\0\0\0\x05" + b"\x08uniform" + NO_CLASSIC
    )


def test_layout_of_streams_groups_is_that_of_kafka() -> None:
    key = GroupRecordKey("g", RecordKind.STREAMS_CURRENT, "m1")
    assert encode_group_key(key) == b"\0\x16" + b"\0\x01g" + b"\0\x02m1"
    task = TaskId("0", 2)
    current = CurrentTasks(3, 2, MemberState.STABLE, Tasks(frozenset({task})), epochs={task: 1})
    epochs = b"\x01" + b"\0\x05" + b"\x02" + b"\0\0\0\x01"
    active = b"\x02" + b"\x020" + b"\x02" + b"\0\0\0\x02" + epochs
    assert (
        encode_group_value(key, current)
        == b"\0\0" + b"\0\0\0\x03\0\0\0\x02\x01" + active + 5 * b"\x01" + b"\0"
    )
    member = key._replace(kind=RecordKind.STREAMS_MEMBER)
    client = StreamsClient(None, "c", "/h", 5, 0, "p", UserEndpoint("h", 80), (("k", "v"),))
    assert encode_group_value(member, client) == (
        b"\0\0" + b"\0\0" + b"\x02c" + b"\x03/h" + b"\0\0\0\x05" + b"\0\0\0\0" + b"\x02p"
        b"\x01" + b"\x02h" + b"\0\x50" + b"\0" + b"\x02" + b"\x02k" + b"\x02v" + b"\0" + b"\0"
    )


def plain(text: str | None) -> bytes:
    """A text as before flexible versions."""
    return b"\xff\xff" if text is None else struct.pack(">h", len(text)) + text.encode()


CLASSIC = GroupRecordKey("g", RecordKind.CLASSIC)
ONE = ClassicMemberRecord("m1", "i", "c", "/h", 300, 200, b"sub", b"parts")


def test_layout_of_a_classic_group_is_that_of_kafka() -> None:
    assert encode_group_key(CLASSIC) == b"\0\x02\0\x01g"
    record = ClassicGroupRecord("consumer", 7, "range", "m1", 99, (ONE,))
    assert encode_group_value(CLASSIC, record) == (
        struct.pack(">h", 3)
        + plain("consumer")
        + struct.pack(">i", 7)
        + plain("range")
        + plain("m1")
        + struct.pack(">qi", 99, 1)
        + plain("m1")
        + plain("i")
        + plain("c")
        + plain("/h")
        + struct.pack(">iii", 300, 200, 3)
        + b"sub"
        + struct.pack(">i", 5)
        + b"parts"
    )
    empty = ClassicGroupRecord("consumer", 8, None, None, 99)
    assert encode_group_value(CLASSIC, empty) == (
        struct.pack(">h", 3)
        + plain("consumer")
        + struct.pack(">i", 8)
        + plain(None) * 2
        + struct.pack(">qi", 99, 0)
    )


@pytest.mark.parametrize(
    ("version", "timeout_ms", "expected"),
    [
        (0, None, ONE._replace(instance_id=None, rebalance_timeout_ms=200)),
        (1, 300, ONE._replace(instance_id=None)),
        (1, -1, ONE._replace(instance_id=None, rebalance_timeout_ms=200)),
        (2, 300, ONE._replace(instance_id=None)),
    ],
)
def test_older_versions_of_classic_groups_are_read(
    version: int, timeout_ms: int | None, expected: ClassicMemberRecord
) -> None:
    data = struct.pack(">h", version) + plain("consumer") + struct.pack(">i", 7)
    data += plain("range") + plain("m1")
    data += struct.pack(">q", 99) if version == 2 else b""
    data += struct.pack(">i", 1) + plain("m1") + plain("c") + plain("/h")
    data += b"" if timeout_ms is None else struct.pack(">i", timeout_ms)
    data += struct.pack(">ii", 200, 3) + b"sub" + struct.pack(">i", 5) + b"parts"
    since_ms = 99 if version == 2 else -1
    assert decode_group_value(CLASSIC, data) == ClassicGroupRecord(
        "consumer", 7, "range", "m1", since_ms, (expected,)
    )


def test_long_texts_of_classic_groups_are_kept() -> None:
    long = ONE._replace(member_id="\N{SNOWMAN}" * 20_000)
    record = ClassicGroupRecord("consumer", 7, "range", long.member_id, 99, (ONE, long))
    encoded = encode_group_value(CLASSIC, record)
    assert encoded[:2] == b"\0\x04"
    assert decode_group_value(CLASSIC, encoded) == record


def test_classic_member_of_a_consumer_group_is_tagged() -> None:
    member = Subscription(None, None, "c", "/h", classic=ClassicMetadata(9, (("range", b"md"),)))
    metadata = struct.pack(">i", 9) + b"\x02" + b"\x06range" + b"\x03md" + b"\0" + b"\0"
    tag = b"\x01" + b"\0" + bytes([len(metadata) + 1]) + b"\x01" + metadata
    of_consumer = encode_group_value(MEMBER, member._replace(classic=None))
    assert encode_group_value(MEMBER, member) == of_consumer.removesuffix(NO_CLASSIC) + tag


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


@pytest.mark.parametrize("kind", [0, 1, 4, 16, 99])
def test_records_of_unknown_kinds_are_skipped(kind: int) -> None:
    assert decode_group_key(bytes([0, kind]) + b"\0\x01g") is None


def test_unknown_tags_are_skipped() -> None:
    said = Subscription("i", None, "c", "/h", ("t",), None, 5, None)
    encoded = encode_group_value(MEMBER, said)
    untagged = encoded.removesuffix(NO_CLASSIC)
    assert decode_group_value(MEMBER, untagged + b"\0") == said
    assert decode_group_value(MEMBER, untagged + b"\x01\x09\x02xy") == said


def test_offsets_and_records_are_in_one_batch() -> None:
    entries: list[StoredEntry] = [
        (OffsetKey("g", "t", 0), CommittedOffset(5, 4, "why", 1)),
        (OffsetKey("g", "t", 1), CommittedOffset(5, -1, "why", 1, expire_ms=9)),
        (GroupRecordKey("g", RecordKind.GROUP_EPOCH), 4),
        (GroupRecordKey("g", RecordKind.TARGET, "m"), None),
    ]
    codec = OffsetsRecords()
    assert list(codec.entries(codec.batch(entries))) == entries


def test_layout_of_an_offset_with_its_own_expiry_is_that_of_kafka() -> None:
    committed = CommittedOffset(5, -1, "why", 1, expire_ms=9)
    batch = OffsetsRecords().batch([(OffsetKey("g", "t", 0), committed)])
    [record] = read_batch(batch.to_bytes(), 0)[0].records
    assert record.value == struct.pack(">hq", 1, 5) + plain("why") + struct.pack(">qq", 1, 9)


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
