"""The records of streams groups in ``__consumer_offsets``, in Kafka's own layout (KIP-1071).

Ground rules: no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from purgatory.cluster.record_fields import (
    COMPACT,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    Array,
    NullableStruct,
    Schema,
    Tagged,
)
from purgatory.kafka.groups.consumer_group_member import MemberState
from purgatory.kafka.groups.group_records import GroupRecordValue, RecordKind
from purgatory.kafka.groups.streams_member import (
    CurrentTasks,
    StreamsClient,
    StreamsEpoch,
    TargetEpoch,
    TaskId,
    TaskIds,
    Tasks,
    UserEndpoint,
    by_subtopology,
)
from purgatory.kafka.groups.streams_topology import (
    CopartitionGroup,
    InternalTopic,
    Subtopology,
    Topology,
)

_VERSION = 0
_PAIRS = Array(COMPACT, Schema(STRING, STRING, flexible=True))
_STRINGS = Array(COMPACT, STRING)
_PLACES = Array(COMPACT, INT16)

_EPOCH_VALUE = Schema(
    *(INT16, INT32, INT64),
    flexible=True,
    tags={"validated_epoch": INT32, "configs": _PAIRS},
)
"""Version, epoch, hash of the topics; tagged, the validated topology's epoch, and the settings of
the assignment."""

_MEMBER_VALUE = Schema(
    *(INT16, STRING, STRING, STRING, STRING, INT32, INT32, STRING),
    NullableStruct(Schema(STRING, UINT16, flexible=True)),
    _PAIRS,
    flexible=True,
)
"""Version, instance id, rack, client id, host, rebalance timeout, epoch of the topology, process,
address, tags."""

_TARGET_EPOCH_VALUE = Schema(INT16, INT32, flexible=True, tags={"assigned_ms": INT64})
"""Version, epoch; tagged, the time of the assignment (ms since 1970)."""

_TASKS = Array(COMPACT, Schema(STRING, Array(COMPACT, INT32), flexible=True))
"""Subtopologies, and the partitions of each."""

_TARGET_VALUE = Schema(INT16, _TASKS, _TASKS, _TASKS, flexible=True)
"""Version, active, standby, warmup tasks."""

_CURRENT_TASKS = Array(
    COMPACT,
    Tagged(
        Schema(
            STRING,
            Array(COMPACT, INT32),
            flexible=True,
            tags={"assignment_epochs": Array(COMPACT, INT32)},
        )
    ),
)
"""Subtopologies, and the partitions of each; tagged, the epochs of active tasks."""

_CURRENT_VALUE = Schema(*(INT16, INT32, INT32, INT8), *6 * (_CURRENT_TASKS,), flexible=True)
"""Version, epoch, previous epoch, state; active, standby, warmup tasks, and those to be revoked."""

_TOPICS = Array(COMPACT, Schema(STRING, INT32, INT16, _PAIRS, flexible=True))
"""Names, partitions, replication factors, settings."""

_TOPOLOGY_VALUE = Schema(
    *(INT16, INT32),
    Array(
        COMPACT,
        Schema(
            *(STRING, _STRINGS, _STRINGS, _TOPICS, _STRINGS, _TOPICS),
            Array(COMPACT, Schema(_PLACES, _PLACES, _PLACES, flexible=True)),
            flexible=True,
        ),
    ),
    flexible=True,
)
"""Version, epoch; of each subtopology its id, source topics and expressions, changelog topics,
topics that it writes and reads for a repartition, and groups of copartitioned topics."""


def encode_streams_value(value: GroupRecordValue) -> bytes:
    """Return the value of a record of a streams group."""
    match value:
        case StreamsEpoch(epoch, topics_hash, validated_epoch, configs):
            tags = {"validated_epoch": validated_epoch, "configs": configs}
            return _EPOCH_VALUE.write((_VERSION, epoch, topics_hash), tags)
        case TargetEpoch(epoch, assigned_ms):
            return _TARGET_EPOCH_VALUE.write((_VERSION, epoch), {"assigned_ms": assigned_ms})
        case StreamsClient():
            return _MEMBER_VALUE.write((_VERSION, None, *value))
        case Tasks():
            listed = (list(by_subtopology(tasks).items()) for tasks in value)
            return _TARGET_VALUE.write((_VERSION, *listed))
        case CurrentTasks():
            return _CURRENT_VALUE.write((_VERSION, *value[:3], *_current(value)))
        case Topology():
            return _TOPOLOGY_VALUE.write((_VERSION, *value))
    raise TypeError(f"{value!r} is no value of a streams group")


def _current(current: CurrentTasks) -> list[Any]:
    lists = []
    for tasks in (current.assigned, current.revoking):
        for kind, of_kind in enumerate(tasks):
            lists.append(
                [
                    ((subtopology, partitions), _epochs(current, subtopology, partitions, kind))
                    for subtopology, partitions in by_subtopology(of_kind).items()
                ]
            )
    return lists


def _epochs(
    current: CurrentTasks, subtopology: str, partitions: Sequence[int], kind: int
) -> dict[str, Any]:
    if kind:
        return {}
    tasks = [TaskId(subtopology, partition) for partition in partitions]
    return {"assignment_epochs": [current.epochs.get(task, current.epoch) for task in tasks]}


def decode_streams_value(kind: RecordKind, data: bytes) -> GroupRecordValue:
    """Decode a record's value."""
    match kind:
        case RecordKind.STREAMS_EPOCH:
            (_, epoch, topics_hash), tags, _ = _EPOCH_VALUE.read_with_tags(data, 0)
            configs = tuple(map(tuple, tags.get("configs", ())))
            return StreamsEpoch(epoch, topics_hash, tags.get("validated_epoch", 0), configs)
        case RecordKind.STREAMS_TARGET_EPOCH:
            (_, epoch), tags, _ = _TARGET_EPOCH_VALUE.read_with_tags(data, 0)
            return TargetEpoch(epoch, tags.get("assigned_ms", 0))
        case RecordKind.STREAMS_MEMBER:
            (_, _, *fields), *_ = _MEMBER_VALUE.read(data, 0)
            fields[-2] = None if fields[-2] is None else UserEndpoint(*fields[-2])
            fields[-1] = tuple(map(tuple, fields[-1]))
            return StreamsClient._make(fields)
        case RecordKind.STREAMS_TARGET:
            _, *listed = _TARGET_VALUE.read(data, 0)[0]
            return Tasks(*map(_tasks, listed))
        case RecordKind.STREAMS_CURRENT:
            return _decode_current(data)
    _, epoch, subtopologies = _TOPOLOGY_VALUE.read(data, 0)[0]
    return Topology(epoch, tuple(_subtopology(*fields) for fields in subtopologies))


def _tasks(listed: Sequence[Any]) -> TaskIds:
    return frozenset(TaskId(name, number) for name, numbers in listed for number in numbers)


def _decode_current(data: bytes) -> CurrentTasks:
    _, epoch, previous_epoch, state, *lists = _CURRENT_VALUE.read(data, 0)[0]
    plain = [_tasks([fields for fields, _ in listed]) for listed in lists]
    epochs = {
        TaskId(name, number): assigned_in
        for listed in (lists[0], lists[3])
        for (name, numbers), tags in listed
        for number, assigned_in in zip(
            numbers, tags.get("assignment_epochs") or [epoch] * len(numbers), strict=False
        )
    }
    states = epoch, previous_epoch, MemberState(state)
    return CurrentTasks(*states, Tasks(*plain[:3]), Tasks(*plain[3:]), epochs)


def _subtopology(name: str, *fields: Any) -> Subtopology:
    sources, expressions, changelogs, sinks, repartitions, groups = fields
    return Subtopology(
        name,
        tuple(sources),
        tuple(expressions),
        tuple(map(_topic, changelogs)),
        tuple(sinks),
        tuple(map(_topic, repartitions)),
        tuple(CopartitionGroup(*map(tuple, group)) for group in groups),
    )


def _topic(fields: Sequence[Any]) -> InternalTopic:
    name, partitions, replication_factor, configs = fields
    return InternalTopic(name, partitions, replication_factor, tuple(map(tuple, configs)))
