"""What must hold throughout a run; a violation ends it.

The checks live here and in the places that call them, all of them in the simulation: the library's
own code pays nothing for them.

* No record that was acknowledged with acks=all is lost while a member of its in-sync set lives.
* The high watermark of a partition never goes back while one leader leads.
* Every request is answered exactly once.

A violation may be found inside a callback of the purgatory, which contains whatever its callbacks
raise. So it is noted, and raised by the run at the next millisecond.
"""

from __future__ import annotations

from collections.abc import Callable

from purgatory.kafka import TopicPartition
from purgatory.simulation.engine import NS_PER_MS
from purgatory.simulation.messages import Message
from purgatory.simulation.network import Request

OVERDUE_MS = 1_000
"""How long after its timeout a request may be open before it counts as never answered."""


class InvariantViolation(AssertionError):
    """The model did what it must never do. The text names seed and virtual time, to replay it."""


class Invariants:
    """Notes the first violation of a run.

    Args:
        seed: the run's seed.
        now_ns: the run's clock.
    """

    def __init__(self, seed: int, now_ns: Callable[[], int]) -> None:
        self._seed = seed
        self._now_ns = now_ns
        self.violation: InvariantViolation | None = None
        self.checked: dict[str, int] = {"acknowledged": 0, "high_watermark": 0, "answers": 0}

    def raise_if_violated(self) -> None:
        """End the run if something was noted.

        Raises:
            InvariantViolation: the first one noted.
        """
        if self.violation is not None:
            raise self.violation

    def violated(self, rule: str, what: str) -> None:
        """Note a violation; only the first one counts, the others may follow from it."""
        if self.violation is None:
            text = f"{rule}: {what} (seed {self._seed}, at {self._now_ns() / NS_PER_MS:.6f} ms)"
            self.violation = InvariantViolation(text)

    def acknowledged_without_commit(self, message: Message) -> None:
        """An acks=all acknowledgement arrived for a record that is in no committed log."""
        self.violated(
            "an acknowledged acks=all record is lost while an in-sync member lives",
            f"{_named(message)} was acknowledged, but is not committed",
        )

    def acknowledged_lost(self, message: Message, topic_partition: TopicPartition) -> None:
        """A clean election took away an acknowledged acks=all record."""
        self.violated(
            "an acknowledged acks=all record is lost while an in-sync member lives",
            f"{_named(message)} is not in the log of the new leader of {topic_partition}",
        )

    def high_watermark_back(
        self, topic_partition: TopicPartition, broker: int, epoch: int, before: int, after: int
    ) -> None:
        """A live leader's high watermark went back."""
        self.violated(
            "the high watermark went back on a live leader",
            f"{topic_partition} on broker {broker} in leader epoch {epoch}: "
            f"from {before} to {after}",
        )

    def answered_again(self, request: Request) -> None:
        """A request was answered a second time."""
        self.violated(
            "a request was answered more than once",
            f"{request!r} got answer number {request.answers}",
        )

    def never_answered(self, request: Request, broker: int) -> None:
        """A request is open long after its timeout."""
        waited_ms = (self._now_ns() - request.received_ns) / NS_PER_MS
        self.violated(
            "a request was never answered",
            f"{request!r} is open on broker {broker} for {waited_ms:.3f} ms, "
            f"with a timeout of {request.timeout_ms} ms",
        )


def _named(message: Message) -> str:
    queue = message.queue
    return f"record {message.sequence} of producer {queue.producer_number} in {queue.books.name!r}"
