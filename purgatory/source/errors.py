"""The errors of the data source, and why a query of Spark failed, in one line."""

from __future__ import annotations

import re
from typing import NamedTuple

from purgatory.kafka.topic_partition import TopicPartition

_NEW_QUERY = "Start a new query with another checkpoint where a gap may not be"
_CHOICE = f"{_NEW_QUERY}; or set failOnDataLoss=false"
_OURS = "purgatory."
_OF_PYTHON = re.compile(r"(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): .")
_TRANSIENT_NAMES = (".BrokerAwayError", ".FaultError", ".TransientError")
"""The ends of the names of this project's errors with `is_transient`."""


class SourceError(Exception):
    """A read that failed; the message says what is wrong, where, and what would be right."""

    is_transient = False
    """Whether the same query may succeed after a restart."""


class OptionError(SourceError):
    """An option that is missing, unknown, or has a value that it can't have."""


class BrokerError(SourceError):
    """Brokers that refuse, or that did not respond in time."""


class BrokerAwayError(BrokerError):
    """Brokers that did not respond in time, and may yet."""

    is_transient = True


class DataLossError(SourceError):
    """Records that the query was to read do not exist any more."""


# Lost records


def lost_to_retention(
    topic_partition: TopicPartition, position: int, beginning: int
) -> DataLossError:
    """Return the error for records that were deleted before they were read.

    Args:
        topic_partition: the partition.
        position: the first offset that was not read.
        beginning: the first offset that there is.
    """
    topic, partition = topic_partition
    return DataLossError(
        f"topic {topic} partition {partition}: offsets {position} to {beginning - 1} are "
        f"gone before they were read: retention deleted them, and the log begins at {beginning}. "
        f"{_CHOICE}, and the first row after the gap has their number in gap_before"
    )


def shorter_log(topic_partition: TopicPartition, position: int, end: int) -> DataLossError:
    """Return the error for a log that ends before the position of the query.

    Args:
        topic_partition: the partition.
        position: the offset that it was read, or planned to be read, up to.
        end: where it ends.
    """
    topic, partition = topic_partition
    return DataLossError(
        f"topic {topic} partition {partition} was planned or read up to offset {position}, but "
        f"ends at {end}: the topic was made anew, or its log was cut. {_CHOICE} to go on from its "
        "end"
    )


def partition_gone(topic_partition: TopicPartition, position: int) -> DataLossError:
    """Return the error for a partition that does not exist any more.

    Args:
        topic_partition: the partition.
        position: where it was read up to.
    """
    topic, partition = topic_partition
    return DataLossError(
        f"topic {topic} partition {partition}, read up to offset {position}, is not among "
        f"what is subscribed to: the topic was deleted, or the subscription changed. {_CHOICE} to "
        "go on without it"
    )


def topic_recreated(topic: str) -> DataLossError:
    """Return the error for a topic that was deleted and created again.

    Args:
        topic: its name.
    """
    return DataLossError(
        f"topic {topic} was deleted and made anew while it was read: its offsets are not those "
        f"that were read. {_CHOICE} to go on at the same offsets of the new one"
    )


def with_advice(reason: str, advice: str) -> str:
    """Return the message of a `DataLossError` with other advice than for a query in a program."""
    lost, choice, _ = reason.partition(_NEW_QUERY)
    return lost + advice if choice else reason


# Failures of queries


class QueryFailure(NamedTuple):
    """The reason why a query failed.

    Args:
        reason: one line.
        is_transient: whether the same query may succeed when it's started again.
    """

    reason: str
    is_transient: bool


def query_failure(error: Exception, if_lost: str) -> QueryFailure:
    """Return the reason of a failure: of its lines, the last one with an error of this project.

    Without one, the last one with an error of Python, or the first. Other errors than this
    project's, such as the death of a worker, may pass.

    Args:
        error: of the query.
        if_lost: the advice for lost records.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if line.startswith(_OURS) and "Error:" in line]
    if not named:
        raised = [line for line in lines if _OF_PYTHON.match(line)]
        reason = (raised[-1:] or lines[:1] or [type(error).__name__])[0]
        return QueryFailure(reason, is_transient=True)
    name, _, reason = named[-1].partition(":")
    return QueryFailure(
        with_advice(reason.strip(), if_lost), is_transient=name.endswith(_TRANSIENT_NAMES)
    )
