"""Elections that an administrator asks for: answered when the new leaders lead.

The controller elects at once; that is told to the brokers, who may be some time in coming to know.
Until then the request waits in the ElectLeader purgatory, watched on its partitions.

Ground rules
------------
* One thread, that of the controller.
* ``respond`` is called once, but by whoever was cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from purgatory.core.delayed_operation import DelayedOperation
from purgatory.core.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.kafka.controller import Controller
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.topic_partition import TopicPartition

RespondElections = Callable[[Mapping[TopicPartition, ErrorCode]], object]


class DelayedElectLeader(DelayedOperation):
    """Waits until the leaders that were elected lead.

    Args:
        timeout_ms: the longest wait.
        results: what became of each partition so far: of those with NONE a leader is to come.
        is_led: whether a partition's leader leads.
        respond: takes the results; REQUEST_TIMED_OUT where nobody leads in time.
    """

    __slots__ = ("_answered", "_is_led", "_respond", "_results", "_waiting")

    def __init__(
        self,
        timeout_ms: int,
        results: Mapping[TopicPartition, ErrorCode],
        is_led: Callable[[TopicPartition], bool],
        respond: RespondElections,
    ) -> None:
        super().__init__(timeout_ms)
        self._results = dict(results)
        self._waiting = {key for key, code in results.items() if code is ErrorCode.NONE}
        self._is_led = is_led
        self._respond = respond
        self._answered = False

    @property
    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        """What it waits for."""
        return tuple(self._waiting)

    def try_complete(self) -> bool:
        self._waiting = {key for key in self._waiting if not self._is_led(key)}
        return not self._waiting and self.force_complete()

    def on_complete(self) -> None:
        self._answer(ErrorCode.REQUEST_TIMED_OUT)

    def on_failure(self, error: BaseException) -> None:
        if not self._answered:
            self._answer(ErrorCode.UNKNOWN_SERVER_ERROR)

    def _answer(self, to_waiting: ErrorCode) -> None:
        self._answered = True
        self._respond(self._results | dict.fromkeys(self._waiting, to_waiting))


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
        self._purgatory.try_complete_else_watch(operation, operation.topic_partitions)

    def check(self, topic_partition: TopicPartition) -> None:
        """Answer whoever waited for a partition that has a leader now."""
        self._purgatory.check_and_complete(topic_partition)
