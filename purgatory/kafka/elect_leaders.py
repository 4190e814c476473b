"""Elections that an administrator asks for: answered when the new leaders lead.

The controller elects at once; that is told to the brokers, who may be some time in coming to know.
Until then the request waits in the ElectLeader purgatory, watched on its partitions.

Ground rules: those of `delayed_decision`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.kafka.controller import Controller
from purgatory.kafka.delayed_decision import DelayedDecision
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.topic_partition import TopicPartition

RespondElections = Callable[[Mapping[TopicPartition, ErrorCode]], object]


class DelayedElectLeader(DelayedDecision[TopicPartition]):
    """Waits until the leaders that were elected lead."""

    __slots__ = ()


class LeaderElections:
    """Does what ElectLeaders requests ask of one broker.

    Args:
        purgatory: where they wait.
        controller: elects.
        is_led: whether a partition's leader leads, as far as this broker knows.
    """

    def __init__(
        self,
        purgatory: DelayedOperationPurgatory,
        controller: Controller,
        is_led: Callable[[TopicPartition], bool],
    ) -> None:
        self._purgatory = purgatory
        self._controller = controller
        self._is_led = is_led

    def elect(
        self,
        topic_partitions: Sequence[TopicPartition] | None,
        unclean: bool,
        timeout_ms: int,
        respond: RespondElections,
    ) -> None:
        """Elect leaders, and answer when they lead.

        Args:
            topic_partitions: which; None: all, of which those are told that need an election.
            unclean: as for `Controller.elect_leaders`.
            timeout_ms: the longest wait, in milliseconds.
            respond: takes what became of each.

        Raises:
            PurgatoryClosedError: it would have to wait, but the purgatory was closed.
        """
        asked = topic_partitions
        if asked is None:
            asked = [topic_partition for topic_partition, _ in self._controller.partitions()]
        results = self._controller.elect_leaders(asked, unclean)
        if topic_partitions is None:
            needless = ErrorCode.ELECTION_NOT_NEEDED
            results = {key: code for key, code in results.items() if code is not needless}
        if ErrorCode.NONE not in results.values():
            respond(results)
            return
        operation = DelayedElectLeader(timeout_ms, results, self._is_led, respond)
        self._purgatory.try_complete_else_watch(operation, tuple(operation.waiting))

    def check(self, topic_partition: TopicPartition) -> None:
        """Answer whoever waited for a partition that has a leader now."""
        self._purgatory.check_and_complete(topic_partition)

    def check_all(self) -> None:
        """Answer whoever can be answered. O(partitions), if somebody waits."""
        if self._purgatory.watched:
            for topic_partition, _ in self._controller.partitions():
                self.check(topic_partition)
