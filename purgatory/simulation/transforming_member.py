"""A consumer in a group whose records a producer sends on in transactions (KIP-447).

It commits nothing itself: its offsets go with the producer's transactions, which say of which
generation of the group it read. Who stood still, and was thrown out meanwhile, is refused.

Before it gives its partitions back, what it read is sent and the transaction ended. Whoever is
given them asks how far they are transformed, and is told once no transaction can change it.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from purgatory.kafka import ErrorCode, RecordBatch, TopicPartition
from purgatory.simulation.consumer import Consumer
from purgatory.simulation.group_member import OUT, GroupMember, MemberState
from purgatory.simulation.transactional_requests import ReadAs


class Transforming(Protocol):
    """The producer that sends on what the member reads."""

    @property
    def is_still(self) -> bool:
        """Whether it does nothing for a while."""

    def start(self) -> None:
        """Begin."""

    def was_given(
        self, topic_partition: TopicPartition, position: int, batches: Sequence[RecordBatch]
    ) -> None:
        """The consumer has read this."""

    def forget_read(self) -> None:
        """Others may read again what was read and isn't sent: drop it, and end the transaction."""

    def when_ended(self, then: Callable[[], object]) -> None:
        """Likewise, and call this once no transaction is open."""


class TransformingMember(GroupMember):
    """One consumer's part in its group, and the producer's in what it reads.

    Args:
        consumer: fetches what it is given.
        producer: sends it on.
        peers: all consumers of the group.
    """

    def __init__(
        self, consumer: Consumer, producer: Transforming, peers: Sequence[Consumer]
    ) -> None:
        super().__init__(consumer)
        self._producer = producer
        self._peers = peers

    @property
    def read_as(self) -> ReadAs:
        """As what it reads now."""
        return ReadAs(self.generation, self.member_id, self.joining.instance_id)

    @property
    def has_all(self) -> bool:
        """Whether somebody has what the group has read of each partition, up to its end."""
        return all(
            any(peer.positions.get(place, 0) >= until for peer in self._peers)
            for place, until in self.group.read_until.items()
        )

    def read_again(self) -> None:
        """Go back to what is committed."""
        if self.state is MemberState.MEMBER:
            self.consumer.assign({})
            self._fetch_offsets(list(self._committed))

    def start(self) -> None:
        if not self._life:
            self._producer.start()
        super().start()

    def was_given(
        self, topic_partition: TopicPartition, position: int, batches: Sequence[RecordBatch]
    ) -> None:
        self._producer.was_given(topic_partition, position, batches)

    # What is otherwise than where the consumer commits.

    @property
    def _stands_still(self) -> bool:
        return self._producer.is_still

    def _take_up(
        self,
        mine: Sequence[TopicPartition],
        acknowledged: Mapping[TopicPartition, int],
        answer: Mapping[TopicPartition, int] | ErrorCode | None,
    ) -> None:
        if self.state is not MemberState.GIVING_BACK:  # it may have asked before, to read again
            super()._take_up(mine, acknowledged, answer)

    def _commit_sometimes(self, turn: int) -> None:
        """Its producer commits."""

    def _commit_and(self, then: Callable[[], object]) -> None:
        self.state = MemberState.GIVING_BACK
        self.consumer.assign({})
        turn = self._turn

        def ended() -> None:
            if turn == self._turn:
                then()

        self._producer.when_ended(ended)

    def _refused(self, error: ErrorCode) -> None:
        if error in OUT:
            self._producer.forget_read()
        super()._refused(error)

    def _leave(self) -> None:
        super()._leave()
        self._producer.forget_read()
