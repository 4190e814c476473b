"""What a member of a share group says of records that it has acquired."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import groupby, pairwise
from typing import NamedTuple

from purgatory.kafka.errors import ErrorCode, KafkaError


class AcknowledgeType(IntEnum):
    """What is to become of a record, in Kafka's numbers."""

    GAP = 0
    """There is no record at the offset."""
    ACCEPT = 1
    """It was processed."""
    RELEASE = 2
    """It is to be delivered again."""
    REJECT = 3
    """It can't be processed."""
    RENEW = 4
    """It is still being processed."""


class Acknowledgement(NamedTuple):
    """What is said of the offsets from ``first`` to ``last``: one of ``types`` for all of them, or
    one for each, as numbers."""

    first: int
    last: int
    types: Sequence[int]

    def ranges(self) -> Iterator[tuple[int, int, AcknowledgeType]]:
        """Yield offsets of which the same is said. O(types).

        Raises:
            KafkaError: INVALID_REQUEST: there is no such type, or not one for each offset.
        """
        if self.last < self.first or len(self.types) not in (1, self.last - self.first + 1):
            raise _invalid(f"{len(self.types)} types for the offsets {self.first} to {self.last}")
        try:
            types = [AcknowledgeType(one) for one in self.types]
        except ValueError:
            raise _invalid(f"types of acknowledgement are 0 to 4, not {self.types}") from None
        if len(types) == 1:
            yield self.first, self.last, types[0]
            return
        first = self.first
        for of, same in groupby(types):
            last = first + len(list(same)) - 1
            yield first, last, of
            first = last + 1


def checked_ranges(
    acknowledgements: Sequence[Acknowledgement],
) -> list[tuple[int, int, AcknowledgeType]]:
    """Return what is said of which offsets, in their order. O(types).

    Raises:
        KafkaError: INVALID_REQUEST: a type is none, or offsets are out of order or there twice.
    """
    ranges = [one for said in acknowledgements for one in said.ranges()]
    for (_, last, _), (first, _, _) in pairwise(ranges):
        if first <= last:
            raise _invalid(f"offset {first} is acknowledged after {last}")
    return ranges


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
