"""How the offsets that a trigger may take are shared among partitions.

Each partition gets the same; what one can't use goes to the others. So none waits for one with a
long backlog, and those with a short one are read to their end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from purgatory.kafka.topic_partition import TopicPartition
from purgatory.source.partition_offsets import OffsetRange


def admit(
    backlog: Mapping[TopicPartition, int], limit: int, turn: int
) -> dict[TopicPartition, int]:
    """Return how many offsets of each partition to take.

    Args:
        backlog: how many there are.
        limit: how many to take in all, at least 1.
        turn: at which partition the remainder begins, where not all can have the same. With the
            number of offsets read so far, they take turns.

    Takes a time that grows as n log n with the partitions.
    """
    admitted = dict.fromkeys(backlog, 0)
    # Those with little first: then what is left is shared by those that can use it.
    hungry = sorted((of for of in backlog if backlog[of] > 0), key=lambda of: (backlog[of], of))
    left = limit
    for place, of in enumerate(hungry):
        share = left // (len(hungry) - place)
        if backlog[of] > share:
            _deal(sorted(hungry[place:]), share, left, turn, admitted)
            break
        admitted[of] = backlog[of]
        left -= backlog[of]
    return admitted


def _deal(
    among: Sequence[TopicPartition],
    share: int,
    left: int,
    turn: int,
    admitted: dict[TopicPartition, int],
) -> None:
    """Give each its share, and one more to some, in turns."""
    extra = left - share * len(among)
    for place, of in enumerate(among):
        admitted[of] = share + ((place - turn) % len(among) < extra)


def split(ranges: Sequence[OffsetRange], at_least: int, at_most_records: int) -> list[OffsetRange]:
    """Cut ranges of offsets into smaller ones, for a batch.

    Args:
        ranges: what is to be read.
        at_least: how many ranges there are to be; fewer if there are fewer offsets.
        at_most_records: how many offsets a range may have.
    """
    total = sum(found.end - found.start for found in ranges)
    if total == 0:
        return list(ranges)
    most = min(at_most_records, max(1, total // max(1, at_least)))
    parts = []
    for found in ranges:
        size = found.end - found.start
        pieces = -(-size // most)
        cuts = [found.start + size * number // pieces for number in range(pieces + 1)]
        parts += [OffsetRange(found.of, start, end) for start, end in pairwise(cuts)]
    return parts
