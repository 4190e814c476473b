"""Topics and partitions that are made or deleted: answered when the brokers concerned know.

The controller has decided then. Until the new partitions are led, or the last replica is gone, the
request waits in the Topic purgatory, watched on its topics.

Ground rules: those of `delayed_decision`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from purgatory.core.keys import TopicKey
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.kafka.delayed_decision import DelayedDecision
from purgatory.kafka.errors import ErrorCode

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

        def answer(answers: Mapping[str, ErrorCode]) -> None:
            self._waiting.discard(operation)
            respond(answers)

        operation = DelayedTopicChange(timeout_ms, results, is_in_force, answer)
        if not operation.waiting:
            respond(results)
            return
        self._waiting.add(operation)
        self._purgatory.try_complete_else_watch(operation, [TopicKey(one) for one in results])

    def check(self, topic: str) -> None:
        """Answer whoever waited for a topic, if that can be told now."""
        if self._waiting:
            self._purgatory.check_and_complete(TopicKey(topic))

    def check_all(self) -> None:
        """Answer whoever can be answered. O(topics that are waited for)."""
        for topic in {topic for operation in self._waiting for topic in operation.waiting}:
            self.check(topic)
