"""What the books hold of a group of producers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass
class GroupCounts:
    """What became of one producer group's records.

    `acknowledged`: an answer said that they are stored. `unanswered`: sent with acks=0.
    `failed`: given up, of which `unknown` may be stored all the same. `requests` counts the
    produce requests sent, and `retries` the batches that were sent again.
    """

    records: int = 0
    requests: int = 0
    retries: int = 0
    acknowledged: int = 0
    unanswered: int = 0
    failed: int = 0
    unknown: int = 0
    unsettled: int = 0
    committed: int = 0
    duplicates: int = 0
    reorderings: int = 0
    lost: int = 0


class GroupBooks(NamedTuple):
    """A group's name, the acknowledgements that it asks for (-1: all), and its counts."""

    name: str
    acks: int
    counts: GroupCounts
