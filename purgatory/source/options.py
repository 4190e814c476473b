"""The options of the data source, and the offsets that they and the checkpoint have.

The names of options are those of Spark's own Kafka source; Spark ignores their case. Errors name
valid values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from purgatory.kafka.topic_partition import TopicPartition
from purgatory.settings.problems import known_names
from purgatory.source.client_settings import client_settings
from purgatory.source.errors import OptionError
from purgatory.source.spark_classes import InputPartition

Offsets = dict[TopicPartition, int]
"""The position of each partition."""

OffsetsDocument = dict[str, dict[str, int]]
"""The same in the checkpoint."""

LATEST = -1
"""The end of the log, in the protocol and in the options."""

EARLIEST = -2
"""The beginning of the log."""

_NAMES = (
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
)
_OF_BATCHES = ("endingOffsets", "endingTimestamp", "minPartitions", "maxRecordsPerPartition")
_OF_STREAMS = ("maxOffsetsPerTrigger",)
_BY_LOWER_CASE = {name.lower(): name for name in _NAMES}
_POLL_TIMEOUT_MS = 120_000


# Options


@dataclass(frozen=True)
class Subscription:
    """The topics to read: some by name, or all whose whole name a pattern matches."""

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def includes(self, topic: str) -> bool:
        """Whether a topic is read."""
        if self.pattern is None:
            return topic in self.names
        return re.fullmatch(self.pattern, topic) is not None


@dataclass(frozen=True)
class SourceOptions:
    """The options of a query.

    Args:
        client: settings for librdkafka; they may hold a password.
        subscription: which topics.
        start, end: from where to where; a stream has no end.
        max_offsets_per_trigger: for all partitions of a batch of a stream; None: no limit.
        min_partitions: in how many tasks a batch is read at least.
        max_records_per_partition: how many offsets a task of a batch reads; None: no limit.
        fail_on_data_loss: whether records that are gone stop the query, or leave a marked gap.
        include_headers: whether there is a column of them.
        timeout_ms: how long to wait for brokers while nothing comes.
    """

    client: Mapping[str, str] = field(repr=False)
    subscription: Subscription
    start: Position | None
    end: Position
    max_offsets_per_trigger: int | None
    min_partitions: int
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    include_headers: bool
    timeout_ms: int
    given: frozenset[str]

    def refuse_for_stream(self) -> None:
        """Raise OptionError if an option was given that only batches have."""
        self._refuse(_OF_BATCHES, "a stream (readStream)", "a batch (read)")

    def refuse_for_batch(self) -> None:
        """Raise OptionError if an option was given that only streams have."""
        self._refuse(_OF_STREAMS, "a batch (read)", "a stream (readStream)")
        if self.start == Position(LATEST):
            raise OptionError(
                "startingOffsets=latest: a batch ends at the latest offsets, and so would be "
                "empty: give earliest, offsets, or startingTimestamp"
            )

    def _refuse(self, names: tuple[str, ...], here: str, there: str) -> None:
        for name in names:
            if name in self.given:
                raise OptionError(f"{name} is no option of {here}, only of {there}: leave it out")


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Read the options that a query was given.

    Raises:
        OptionError: one is missing, unknown, or has a value that it can't have.
    """
    values: dict[str, str] = {}
    for key, value in options.items():
        if not key.lower().startswith("kafka."):
            values[_canonical_name(key)] = str(value)
    subscription = _subscription(values)
    start = _position(values, "starting", EARLIEST)
    for topic_partition in start.offsets if start is not None else ():
        _check_subscribed("startingOffsets", subscription, topic_partition.topic)
    end = _position(values, "ending", LATEST) or Position(LATEST)
    for topic_partition in end.offsets:
        _check_subscribed("endingOffsets", subscription, topic_partition.topic)
    if end.otherwise == EARLIEST or EARLIEST in end.offsets.values():
        raise OptionError(
            "endingOffsets: a batch can't end at the earliest offsets (-2): give latest"
        )
    return SourceOptions(
        client=client_settings(options),
        subscription=subscription,
        start=start,
        end=end,
        max_offsets_per_trigger=_number(values, "maxOffsetsPerTrigger"),
        min_partitions=_number(values, "minPartitions") or 1,
        max_records_per_partition=_number(values, "maxRecordsPerPartition"),
        fail_on_data_loss=_flag(values, "failOnDataLoss", True),
        include_headers=_flag(values, "includeHeaders", False),
        timeout_ms=_number(values, "kafkaConsumer.pollTimeoutMs") or _POLL_TIMEOUT_MS,
        given=frozenset(values),
    )


def _canonical_name(key: str) -> str:
    name = _BY_LOWER_CASE.get(key.lower())
    if name is not None:
        return name
    if key.lower() == "path":
        raise OptionError('load() takes no path here: name topics with option("subscribe", ...)')
    raise OptionError(f"there is no option {key!r}: {known_names(key, (*_NAMES, 'kafka.*'))}")


def _subscription(values: Mapping[str, str]) -> Subscription:
    names, pattern = values.get("subscribe"), values.get("subscribePattern")
    if (names is None) == (pattern is None):
        problem = "neither is given" if names is None else "both are given"
        raise OptionError(
            f"one of subscribe (topics, as in a,b) and subscribePattern is needed: {problem}"
        )
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(
                f"subscribePattern={pattern!r} is no regular expression: {error}"
            ) from None
        return Subscription(pattern=pattern)
    assert names is not None
    topics = tuple(name.strip() for name in names.split(","))
    if not all(topics):
        raise OptionError(f"subscribe={names!r} has an empty name: give topics, as in a,b")
    return Subscription(names=topics)


def _position(values: Mapping[str, str], which: str, otherwise: int) -> Position | None:
    by_offset, by_time = f"{which}Offsets", f"{which}Timestamp"
    if by_offset in values and by_time in values:
        raise OptionError(f"{by_offset} and {by_time} are both given: leave one out")
    if by_time in values:
        return Position(LATEST, time_ms=_number(values, by_time, 0))
    if by_offset in values:
        return parse_position(by_offset, values[by_offset], otherwise)
    return None


def _check_subscribed(option: str, subscription: Subscription, topic: str) -> None:
    if not subscription.includes(topic):
        raise OptionError(f"{option} names topic {topic!r}, which is not subscribed to")


def _number(values: Mapping[str, str], name: str, least: int = 1) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        unit = ", in milliseconds since 1970" if name.endswith("Timestamp") else ""
        raise OptionError(f"{name}={text!r}: give a whole number of at least {least}{unit}")
    return number


def _flag(values: Mapping[str, str], name: str, default: bool) -> bool:
    text = values.get(name, str(default)).strip().lower()
    if text not in {"true", "false"}:
        raise OptionError(f"{name}={values[name]!r}: give true or false")
    return text == "true"


# Offsets
#
# The checkpoint has them by topic and partition: {"orders": {"0": 12, "1": 7}}, as that of Spark's
# own Kafka source. The order is fixed: Spark compares them as text.


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """The offset range of one task: from `start` up to, and without, `end` of a partition."""

    topic_partition: TopicPartition
    start: int
    end: int


def to_document(offsets: Mapping[TopicPartition, int]) -> OffsetsDocument:
    """Return offsets as the checkpoint keeps them, in the order of topics and partitions."""
    document: OffsetsDocument = {}
    for topic_partition in sorted(offsets):
        document.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = offsets[
            topic_partition
        ]
    return document


def from_document(document: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Return the offsets that a checkpoint has."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in document.items()
        for partition, offset in partitions.items()
    }


@dataclass(frozen=True)
class Position:
    """The offsets where reading begins or ends.

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
        """Whether the offset may change until it is asked for again, as the log's end does."""
        return (
            self.otherwise == LATEST or self.time_ms is not None or LATEST in self.offsets.values()
        )


def parse_position(option: str, text: str, otherwise: int) -> Position:
    """Return the position in the value of an option such as `startingOffsets`.

    Args:
        option: its name, for errors.
        text: "earliest", "latest", or JSON: {"topic": {"0": 12, "1": -1}}.
        otherwise: the offset of partitions that the JSON leaves out.

    Raises:
        OptionError: it is none of these.
    """
    name = text.strip().lower()
    if name == "earliest":
        return Position(EARLIEST)
    if name == "latest":
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
