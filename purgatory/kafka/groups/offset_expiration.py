"""The expiration of committed offsets, by Kafka's rules (KIP-211).

An offset expires once it is older than `offsets.retention.minutes`, unless a member of its group
subscribes to the topic. Its age begins

    in a group without a type      at its commit: no member ever joined
    in an empty classic group      when the group became empty
    in any other                   at its commit, while the coordinator knows the subscriptions:
                                   in a consumer or streams group, or a classic one of consumers
                                   that is stable

A commit of an old client may set the time itself (OffsetCommit, versions 2 to 4). An offset whose
partition has another one pending in a transaction is kept.

Ground rules: no state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from purgatory.kafka.groups.epoch_group import EpochGroup
from purgatory.kafka.groups.group import CONSUMER, UNKNOWN_MS, Group, GroupState
from purgatory.kafka.groups.offsets import NO_EXPIRY_MS, CommittedOffset
from purgatory.kafka.topic_partition import TopicPartition


def expired_offsets(
    group: Group | EpochGroup[Any],
    offsets: Mapping[TopicPartition, CommittedOffset],
    pending: Collection[TopicPartition],
    now_ms: int,
    retention_ms: int,
) -> list[TopicPartition]:
    """Return the partitions whose offsets have expired. O(offsets + members).

    Args:
        group: their group: a classic group, a consumer group or a streams group.
        offsets: what it has committed.
        pending: the partitions with offsets in open transactions.
        now_ms: the time, in milliseconds since 1970, as those of commits.
        retention_ms: how long offsets are kept.
    """
    subscribed = _subscribed_topics(group)
    if subscribed is None:
        return []
    since_ms = _empty_since_ms(group)
    return [
        topic_partition
        for topic_partition, offset in offsets.items()
        if topic_partition.topic not in subscribed
        and topic_partition not in pending
        and _is_expired(offset, since_ms, now_ms, retention_ms)
    ]


def is_empty(group: Group | EpochGroup[Any]) -> bool:
    """Whether a group without offsets is deleted: it has no members."""
    if isinstance(group, EpochGroup):
        return not group.members
    return group.state is GroupState.EMPTY


def _subscribed_topics(group: Group | EpochGroup[Any]) -> Collection[str] | None:
    """Return the topics that a group's members read; None: none of its offsets expires."""
    if isinstance(group, EpochGroup):
        return group.subscribed_names()
    if group.protocol_type is None or group.state is GroupState.EMPTY:
        return ()
    if group.protocol_type == CONSUMER and group.state is GroupState.STABLE:
        return group.subscribed_topics()
    return None


def _empty_since_ms(group: Group | EpochGroup[Any]) -> int:
    """Return since when a classic group has lost its members; `UNKNOWN_MS`: it has some, never had
    one, or an older Kafka did not store it."""
    if isinstance(group, EpochGroup) or group.protocol_type is None:
        return UNKNOWN_MS
    return group.state_ms if group.state is GroupState.EMPTY else UNKNOWN_MS


def _is_expired(offset: CommittedOffset, since_ms: int, now_ms: int, retention_ms: int) -> bool:
    if offset.expire_ms != NO_EXPIRY_MS:
        return now_ms >= offset.expire_ms
    begun_ms = offset.commit_ms if since_ms == UNKNOWN_MS else since_ms
    return now_ms - begun_ms >= retention_ms
