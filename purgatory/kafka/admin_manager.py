"""Changes that an administrator requests and that complete when the brokers know them.

The controller decides at once; its decision reaches the brokers some time later. Until then a
request waits: for topics and partitions that are created or deleted in the purgatory Topic, watched
on its topics (`TopicChanges`); for elections in ElectLeader, watched on its partitions
(`LeaderElections`). Each topic or partition has an error of its own when the time is up.

Ground rules
------------
* One thread, that of the controller.
* ``respond`` is called once, but for operations that are cancelled: who cancels responds.
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
    """Waits until what was decided is in force.

    Args:
        timeout_ms: the longest wait.
        results: what was decided of each thing so far: those with NONE are waited for.
        is_in_force: whether the decision on a thing is.
        respond: takes the results; REQUEST_TIMED_OUT where it isn't in force in time.
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
        """What it still waits for."""
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
    """Waits until all brokers concerned know what topics became."""

    __slots__ = ()


class TopicChanges:
    """Those who wait at one broker for topics to come or go.

    Args:
        purgatory: where they wait.
    """

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
        """Answer when what was decided of the topics is in force. O(topics).

        Args:
            results: what was decided; nothing is waited for but where it is NONE.
            is_in_force: whether that is so for a topic.
            timeout_ms: the longest wait, in milliseconds.
            respond: takes what became of each: REQUEST_TIMED_OUT of those that weren't in time.

        Raises:
            PurgatoryClosedError: it would have to wait, but the purgatory was closed.
        """

        def respond_all(errors: Mapping[str, ErrorCode]) -> None:
            self._waiting.discard(operation)
            respond(errors)

        operation = DelayedTopicChange(timeout_ms, results, is_in_force, respond_all)
        if not operation.waiting:
            respond(results)
            return
        self._waiting.add(operation)
        self._purgatory.try_complete_else_watch(operation, [TopicKey(one) for one in results])

    def check(self, topic: str) -> None:
        """Complete the requests that wait for a topic, as far as they can be."""
        if self._waiting:
            self._purgatory.check_and_complete(TopicKey(topic))

    def check_all(self) -> None:
        """Complete the requests that can be. O(topics that are waited for)."""
        for topic in {topic for operation in self._waiting for topic in operation.waiting}:
            self.check(topic)


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
        """Elect leaders, and respond when they lead.

        Args:
            topic_partitions: which; None: all that need an election.
            unclean: as for `Controller.elect_leaders`.
            timeout_ms: the longest wait, in milliseconds.
            respond: takes what became of each.

        Raises:
            PurgatoryClosedError: it would have to wait, but the purgatory was closed.
        """
        partitions = topic_partitions
        if partitions is None:
            partitions = [topic_partition for topic_partition, _ in self._controller.partitions()]
        results = self._controller.elect_leaders(partitions, unclean)
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
        """Complete the requests that can be. O(partitions), if one waits."""
        if self._purgatory.watched:
            for topic_partition, _ in self._controller.partitions():
                self.check(topic_partition)
