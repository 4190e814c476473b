"""Administrative changes, which complete once the brokers have applied them.

The controller decides at once; its decision reaches the brokers later. Until then a request waits:
creations and deletions of topics and partitions in the purgatory Topic, watched on topics
(`TopicChanges`); elections in ElectLeader, watched on partitions (`LeaderElections`). After the
timeout each topic or partition has its own error.

Ground rules
------------
* Only the broker's loop touches these objects.
* ``respond`` is called once, except for cancelled operations: their canceller responds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from purgatory.core.keys import TopicKey
from purgatory.core.operation import DelayedOperation
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.kafka.controller import Controller
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.topic_partition import TopicPartition

KeyT = TypeVar("KeyT", bound=Hashable)


class DelayedDecision(DelayedOperation, Generic[KeyT]):
    """Waits until decisions are in force.

    Args:
        results: the decisions by key; those with NONE are waited for.
        is_in_force: whether the decision on a key is.
        respond: called with the results; REQUEST_TIMED_OUT for those not in force in time.
    """

    __slots__ = ("_is_in_force", "_respond", "_responded", "_results", "waiting")

    def __init__(
        self,
        timeout_ms: int,
        results: Mapping[KeyT, ErrorCode],
        is_in_force: Callable[[KeyT], bool],
        respond: Callable[[Mapping[KeyT, ErrorCode]], object],
    ) -> None:
        super().__init__(timeout_ms)
        self._results = dict(results)
        self.waiting = {key for key, code in results.items() if code is ErrorCode.NONE}
        """The keys whose decisions are not in force yet."""
        self._is_in_force = is_in_force
        self._respond = respond
        self._responded = False

    def try_complete(self) -> bool:
        self.waiting = {key for key in self.waiting if not self._is_in_force(key)}
        return not self.waiting and self.force_complete()

    def on_complete(self) -> None:
        self._respond_all(ErrorCode.REQUEST_TIMED_OUT)

    def on_failure(self, error: BaseException) -> None:
        if not self._responded:
            self._respond_all(ErrorCode.UNKNOWN_SERVER_ERROR)

    def _respond_all(self, code: ErrorCode) -> None:
        self._responded = True
        self._respond(self._results | dict.fromkeys(self.waiting, code))


RespondTopics = Callable[[Mapping[str, ErrorCode]], object]


class DelayedTopicChange(DelayedDecision[str]):
    """Waits until all affected brokers have applied changes of topics."""

    __slots__ = ()


class TopicChanges:
    """The requests at one broker that wait for created or deleted topics."""

    def __init__(self, purgatory: DelayedOperationPurgatory) -> None:
        self._purgatory = purgatory
        self._waiting: set[DelayedTopicChange] = set()

    def wait(
        self,
        results: Mapping[str, ErrorCode],
        is_in_force: Callable[[str], bool],
        timeout_ms: int,
        respond: RespondTopics,
    ) -> None:
        """Respond once the decisions on the topics are in force. O(topics).

        Args:
            results: the decisions; those with NONE are waited for.
            is_in_force: whether the decision on a topic is.
            respond: called with the results; REQUEST_TIMED_OUT for those not in force in time.

        Raises:
            PurgatoryClosedError: the request would have to wait, but the purgatory was closed.
        """

        def respond_all(errors: Mapping[str, ErrorCode]) -> None:
            self._waiting.discard(operation)
            respond(errors)

        operation = DelayedTopicChange(timeout_ms, results, is_in_force, respond_all)
        if not operation.waiting:
            respond(results)
            return
        self._waiting.add(operation)
        self._purgatory.try_complete_else_watch(operation, [TopicKey(topic) for topic in results])

    def check(self, topic: str) -> None:
        """Complete the delayed requests on a topic that can be completed."""
        if self._waiting:
            self._purgatory.check_and_complete(TopicKey(topic))

    def check_all(self) -> None:
        """Complete all delayed requests that can be completed. O(their topics)."""
        for topic in {topic for operation in self._waiting for topic in operation.waiting}:
            self.check(topic)


RespondElections = Callable[[Mapping[TopicPartition, ErrorCode]], object]


class DelayedElectLeader(DelayedDecision[TopicPartition]):
    """Waits until the elected leaders lead."""

    __slots__ = ()


class LeaderElections:
    """The ElectLeaders requests of one broker.

    Args:
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
        """Elect leaders, and respond when they lead.

        Args:
            topic_partitions: None: all that need an election.
            unclean: as for `Controller.elect_leaders`.
            respond: called with an error code for each.

        Raises:
            PurgatoryClosedError: the request would have to wait, but the purgatory was closed.
        """
        partitions = topic_partitions
        if partitions is None:
            partitions = [topic_partition for topic_partition, _ in self._controller.partitions()]
        results = self._controller.elect_leaders(partitions, unclean)
        if topic_partitions is None:
            not_needed = ErrorCode.ELECTION_NOT_NEEDED
            results = {key: code for key, code in results.items() if code is not not_needed}
        if ErrorCode.NONE not in results.values():
            respond(results)
            return
        operation = DelayedElectLeader(timeout_ms, results, self._is_led, respond)
        self._purgatory.try_complete_else_watch(operation, tuple(operation.waiting))

    def check(self, topic_partition: TopicPartition) -> None:
        """Complete the requests for a partition that has a leader now."""
        self._purgatory.check_and_complete(topic_partition)

    def check_all(self) -> None:
        """Complete the requests that can be completed. O(partitions), if one waits."""
        if self._purgatory.watched:
            for topic_partition, _ in self._controller.partitions():
                self.check(topic_partition)
