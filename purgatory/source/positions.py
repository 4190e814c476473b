"""Where a read begins or ends: at an end of the log, at a time, or at offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from purgatory.client.errors import OptionError
from purgatory.kafka.topic_partition import TopicPartition

LATEST = -1
"""The number that stands for the end of the log, in the protocol and in the options."""

EARLIEST = -2
"""The number that stands for the beginning of the log."""


@dataclass(frozen=True)
class Position:
    """Where reading begins or ends.

    Args:
        otherwise: LATEST or EARLIEST, for all partitions that `offsets` does not name.
        time_ms: the first record of this time or a later one, instead; the log's end if there is
            none. In milliseconds since 1970.
        offsets: by partition; may be LATEST or EARLIEST.
    """

    otherwise: int
    time_ms: int | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)

    @property
    def moves(self) -> bool:
        """Whether it may be elsewhere when it is asked for again, as the log's end is."""
        return (
            self.otherwise == LATEST or self.time_ms is not None or LATEST in self.offsets.values()
        )


def position_of(option: str, text: str, otherwise: int) -> Position:
    """Return what the value of an option such as `startingOffsets` says.

    Args:
        option: its name, for errors.
        text: "earliest", "latest", or JSON: {"topic": {"0": 12, "1": -1}}.
        otherwise: what holds for partitions that the JSON leaves out.

    Raises:
        OptionError: it is none of these.
    """
    word = text.strip().lower()
    if word == "earliest":
        return Position(EARLIEST)
    if word == "latest":
        return Position(LATEST)
    return Position(otherwise, offsets=_offsets_of(option, text))


def _offsets_of(option: str, text: str) -> dict[TopicPartition, int]:
    right = (
        'give earliest, latest, or JSON such as {"orders": {"0": 12, "1": -1}}, '
        "where -1 is the end of the log and -2 its beginning"
    )
    try:
        document = json.loads(text)
    except ValueError:
        raise OptionError(f"{option}={text!r} is no JSON: {right}") from None
    if not isinstance(document, dict):
        raise OptionError(f"{option}={text!r}: {right}")
    offsets = {}
    for topic, partitions in document.items():
        if not isinstance(partitions, dict):
            raise OptionError(f"{option}: topic {topic!r} has {partitions!r}: {right}")
        for partition, offset in partitions.items():
            known = isinstance(offset, int) and not isinstance(offset, bool) and offset >= EARLIEST
            if not (partition.isdecimal() and known):
                raise OptionError(
                    f"{option}: topic {topic!r} has {partition!r}: {offset!r}: {right}"
                )
            offsets[TopicPartition(topic, int(partition))] = offset
    return offsets
