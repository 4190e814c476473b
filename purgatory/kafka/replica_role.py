"""Whether a replica leads, follows or does neither, and in which leader epoch.

The controller numbers every change of leadership: whoever comes with an older epoch is told so,
and nothing of what it wants is done.

Ground rules: guarded by the lock of the partition that it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.record_batch import NO_LEADER_EPOCH
from purgatory.kafka.requests import UNKNOWN_OFFSET
from purgatory.kafka.topic_partition import TopicPartition

NO_LEADER = -1


class ReplicaRole:
    """The role of the replica on ``broker_id``: the base of `Replica`.

    A base class and not a part, because the waits look at ``leadership`` for each of thousands of
    operations, and the step through a part would be a fifth of the look.

    Public attributes, to be read only: ``leader_id`` (-1 when unknown), ``leader_epoch``,
    ``leader_epoch_start_offset`` (where a leader's own epoch began, -1 on a follower),
    ``leadership`` (the number of the term: another, higher one when this replica begins or ceases
    to lead; 0 before it ever did).

    Args:
        topic_partition, broker_id: which replica.
        terms: numbers the terms, from 1 on. Shared by all replicas of a broker, so that one that
            is stopped and comes back has none of its former terms again.
    """

    __slots__ = (
        "_terms",
        "broker_id",
        "leader_epoch",
        "leader_epoch_start_offset",
        "leader_id",
        "leadership",
        "topic_partition",
    )

    def __init__(
        self, topic_partition: TopicPartition, broker_id: int, terms: Iterator[int] | None = None
    ) -> None:
        self.topic_partition = topic_partition
        self.broker_id = broker_id
        self.leader_id = NO_LEADER
        self.leader_epoch = NO_LEADER_EPOCH
        self.leader_epoch_start_offset = UNKNOWN_OFFSET
        self.leadership = 0
        self._terms = count(1) if terms is None else terms

    @property
    def is_leader(self) -> bool:
        """Whether this replica leads."""
        return self.leader_id == self.broker_id

    def _may_lead_in(self, leader_epoch: int) -> bool:
        """Whether ``leader_epoch`` is new, or is this broker's own or nobody's."""
        if leader_epoch == self.leader_epoch:
            return self.leader_id in (self.broker_id, NO_LEADER)
        return leader_epoch > self.leader_epoch

    def _begin_to_lead(self, leader_epoch: int, log_end_offset: int) -> bool:
        """Lead in ``leader_epoch``; say whether an epoch began with it."""
        was_leader = self.is_leader
        if was_leader and leader_epoch == self.leader_epoch:
            return False
        if not was_leader:
            self.leader_id = self.broker_id
            self.leadership = next(self._terms)
        self.leader_epoch = leader_epoch
        self.leader_epoch_start_offset = log_end_offset
        return True

    def _may_follow_in(self, leader_epoch: int) -> bool:
        """Whether ``leader_epoch`` is new, or the current one and not this broker's own."""
        if leader_epoch == self.leader_epoch:
            return not self.is_leader
        return leader_epoch > self.leader_epoch

    def _begin_to_follow(self, leader_id: int) -> None:
        """Follow ``leader_id``, or nobody (-1)."""
        if self.is_leader:
            self.leadership = next(self._terms)
        self.leader_id = leader_id
        self.leader_epoch_start_offset = UNKNOWN_OFFSET

    # ---- what it refuses

    def _other_epoch(self, asked_epoch: int) -> KafkaError:
        old = asked_epoch < self.leader_epoch
        return KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH if old else ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"{self.topic_partition} is in leader epoch {self.leader_epoch} on broker "
            f"{self.broker_id}, the request in {asked_epoch}",
        )

    def _not_leader(self) -> KafkaError:
        return KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"broker {self.broker_id} doesn't lead {self.topic_partition} in epoch "
            f"{self.leader_epoch}; broker {self.leader_id} does, as far as it knows (-1: nobody)",
        )
