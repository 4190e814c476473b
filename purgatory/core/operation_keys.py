"""Keys to watch, as Kafka has them. Anything hashable is a key; these print well.

They are named tuples of different types, and equal only within one type: a ``TopicKey`` never
meets a ``MemberKey`` of the same words on one watch list.
"""

from __future__ import annotations

from typing import NamedTuple


class TopicPartitionOperationKey(NamedTuple):
    """A partition: produce, fetch and delete-records waits."""

    topic: str
    partition: int


class TopicKey(NamedTuple):
    """A topic: its creation or deletion."""

    topic: str
    kind: str = "topic"


class MemberKey(NamedTuple):
    """A member of a consumer group: its heartbeat."""

    group_id: str
    member_id: str
    kind: str = "member"


class GroupJoinKey(NamedTuple):
    """A consumer group whose members are joining."""

    group_id: str
    kind: str = "join"


class GroupSyncKey(NamedTuple):
    """A consumer group whose members wait for their assignment."""

    group_id: str
    kind: str = "sync"


class TransactionKey(NamedTuple):
    """A transactional id: its transaction's end."""

    transactional_id: str
    kind: str = "transaction"
