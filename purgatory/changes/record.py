"""A record of a change log as it comes from a topic or a file."""

from __future__ import annotations

import hashlib
from typing import NamedTuple


class Record(NamedTuple):
    """One record; in a file, the offset is the number of the line, from 0."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None

    @property
    def place(self) -> tuple[str, int]:
        """Its topic and partition."""
        return self.topic, self.partition


def number_of(data: bytes | None) -> int:
    """A number of 63 bits that stands for some bytes, as in the traces of the cluster."""
    if data is None:
        return 0
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1
