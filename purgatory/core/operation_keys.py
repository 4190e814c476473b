"""Keys to watch, as Kafka has them. Anything hashable is a key; these print well.

They are named tuples of different types, and equal only within one type: a ``TopicKey`` never
meets a ``MemberKey`` of the same words on one watch list, nor a plain tuple.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

T = TypeVar("T")


def _is_equal(one: tuple[object, ...], other: object) -> bool:
    return type(one) is type(other) and tuple.__eq__(one, other)


def _is_different(one: tuple[object, ...], other: object) -> bool:
    return not _is_equal(one, other)


def _equal_within_type(kind: type[T]) -> type[T]:
    # The hash is C's, as of any tuple: it is asked for at each event.
    methods = {"__eq__": _is_equal, "__ne__": _is_different, "__hash__": tuple.__hash__}
    for name, method in methods.items():
        setattr(kind, name, method)
    return kind


@_equal_within_type
class TopicPartitionOperationKey(NamedTuple):
    """A partition: produce, fetch and delete-records waits."""

    topic: str
    partition: int


@_equal_within_type
class TopicKey(NamedTuple):
    """A topic: its creation or deletion."""

    topic: str
    kind: str = "topic"


@_equal_within_type
class MemberKey(NamedTuple):
    """A member of a consumer group: its heartbeat."""

    group_id: str
    member_id: str
    kind: str = "member"


@_equal_within_type
class GroupJoinKey(NamedTuple):
    """A consumer group whose members are joining."""

    group_id: str
    kind: str = "join"


@_equal_within_type
class GroupSyncKey(NamedTuple):
    """A consumer group whose members wait for their assignment."""

    group_id: str
    kind: str = "sync"


@_equal_within_type
class TransactionKey(NamedTuple):
    """A transactional id: its transaction's end."""

    transactional_id: str
    kind: str = "transaction"
