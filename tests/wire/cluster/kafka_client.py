"""The interface of the tests to every client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIMEOUT_S = 20.0
"""The longest time of a call that is to succeed; a loaded machine must not fail a test."""


class Record(NamedTuple):
    """A record as a consumer gets it."""

    offset: int
    value: bytes


class KafkaClient(Protocol):
    """One client library or program."""

    def produce(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        acks: str = "all",
        idempotent: bool = False,
        codec: str = "none",
        **settings: Any,
    ) -> None:
        """Send the values to partition 0 in one go, and return when all are acknowledged.

        Args:
            topic: the topic.
            values: without newlines.
            acks: "0", "1" or "all".
            idempotent: whether the producer is.
            codec: how batches are compressed.
            settings: more, in the client's own words.

        Raises:
            Exception: some value was not acknowledged.
        """

    def read(self, topic: str, start: int, count: int) -> list[Record]:
        """Read so many records of partition 0 from an offset on, without a group."""

    def read_from_time(self, topic: str, time_ms: int, count: int) -> list[Record]:
        """Read so many records of partition 0 from the first one at or after a time on."""

    def read_in_group(self, group: str, topic: str, count: int) -> list[bytes]:
        """Join a group, read so many records, commit how far it came, and leave."""
