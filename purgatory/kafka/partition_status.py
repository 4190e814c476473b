"""Where one partition of a request for several stands.

A partition that waits starts out with the answer REQUEST_TIMED_OUT, which the end of its wait
replaces. So when the time is up, every partition gets the answer that is true for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Generic, TypeVar

from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.topic_partition import TopicPartition

Response = TypeVar("Response")


class PartitionStatus(ABC, Generic[Response]):
    """The answer of one partition, as far as it is known.

    ``case`` says what ended its wait: None while it waits, and for ever if it never had to.
    """

    __slots__ = ("case", "error", "message", "topic_partition", "waits")

    def __init__(
        self, topic_partition: TopicPartition, error: ErrorCode, message: str | None
    ) -> None:
        self.topic_partition = topic_partition
        self.error = error
        self.message = message
        self.waits = False
        self.case: Enum | None = None

    @abstractmethod
    def response(self) -> Response:
        """Return the answer as it is now."""

    def begin_to_wait(self) -> None:
        """Wait: until that ends, the answer is that the time was up."""
        self.waits = True
        self.error = ErrorCode.REQUEST_TIMED_OUT

    def end_wait(self, case: Enum, error: ErrorCode, message: str | None = None) -> None:
        """Replace the answer by the true one."""
        self.waits = False
        self.case = case
        self.error = error
        self.message = message

    def fail(self, message: str) -> None:
        """Answer, if it still waits, that the broker failed."""
        if self.waits:
            self.waits = False
            self.error = ErrorCode.UNKNOWN_SERVER_ERROR
            self.message = message
