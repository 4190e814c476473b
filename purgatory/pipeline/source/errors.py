"""How it is told that records are gone which a query was to read."""

from __future__ import annotations

import re
from typing import NamedTuple

from purgatory.client.errors import DataLossError
from purgatory.kafka.topic_partition import TopicPartition

_NEW_QUERY = "Start a new query with another checkpoint where a gap may not be"
_CHOICE = f"{_NEW_QUERY}; or set failOnDataLoss=false"


def lost_to_retention(of: TopicPartition, position: int, beginning: int) -> DataLossError:
    """Records were deleted before they were read.

    Args:
        of: of which partition.
        position: the first offset that was not read.
        beginning: the first offset that there is.
    """
    return DataLossError(
        f"topic {of.topic} partition {of.partition}: offsets {position} to {beginning - 1} are "
        f"gone before they were read: retention deleted them, and the log begins at {beginning}. "
        f"{_CHOICE}, and the first row after the gap has their number in gap_before"
    )


def shorter_log(of: TopicPartition, position: int, end: int) -> DataLossError:
    """A log ends before what was read already.

    Args:
        of: of which partition.
        position: where it was read up to.
        end: where it ends.
    """
    return DataLossError(
        f"topic {of.topic} partition {of.partition} was read up to offset {position}, but ends at "
        f"{end}: the topic was made anew, or its log was cut. {_CHOICE} to go on from its end"
    )


def partition_gone(of: TopicPartition, position: int) -> DataLossError:
    """A partition is there no more.

    Args:
        of: which.
        position: where it was read up to.
    """
    return DataLossError(
        f"topic {of.topic} partition {of.partition}, read up to offset {position}, is not among "
        f"what is subscribed to: the topic was deleted, or the subscription changed. {_CHOICE} to "
        "go on without it"
    )


def topic_made_anew(topic: str) -> DataLossError:
    """A topic was deleted and made again while it was read.

    Args:
        topic: its name.
    """
    return DataLossError(
        f"topic {topic} was deleted and made anew while it was read: its offsets are not those "
        f"that were read. {_CHOICE} to go on at the same offsets of the new one"
    )


def advised(reason: str, advice: str) -> str:
    """Return what is told of lost records with another advice than what to set in a query."""
    lost, choice, _ = reason.partition(_NEW_QUERY)
    return lost + advice if choice else reason


# What a query of Spark failed with, in one line, and whether that may pass.


_OURS = "purgatory."
_OF_PYTHON = re.compile(r"(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): .")
_PASSING = (".BrokerAwayError", ".FaultError")
"""How the names of this project's errors end that have `passes`."""


class QueryFailure(NamedTuple):
    """Why a query failed.

    Args:
        reason: one line.
        passes: whether the same query may succeed when it's started again.
    """

    reason: str
    passes: bool


def query_failure(error: Exception, if_lost: str) -> QueryFailure:
    """The line that says most: of this project's errors the last, else of Python's, else the first.

    What this project didn't find itself, such as a worker that was killed, may pass.

    Args:
        error: of the query.
        if_lost: what to do where records are gone that were to be read.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if line.startswith(_OURS) and "Error:" in line]
    if not named:
        raised = [line for line in lines if _OF_PYTHON.match(line)]
        reason = (raised[-1:] or lines[:1] or [type(error).__name__])[0]
        return QueryFailure(reason, passes=True)
    name, _, reason = named[-1].partition(":")
    return QueryFailure(advised(reason.strip(), if_lost), passes=name.endswith(_PASSING))
