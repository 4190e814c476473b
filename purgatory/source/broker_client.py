"""Requests of the source to brokers, beside records: partitions, offsets, ids of topics.

Offsets and partitions are those of brokers that respond at the moment. A broker that has just
restarted may not know all topics yet, so a partition is gone only after a grace period.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from purgatory.kafka.topic_partition import TopicPartition
from purgatory.source.errors import BrokerAwayError, BrokerError, OptionError
from purgatory.source.options import (
    EARLIEST,
    LATEST,
    Offsets,
    Position,
    SourceOptions,
    Subscription,
)

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import TopicMetadata

GRACE_S = 10.0
"""The time that a deleted partition must be unknown to brokers; at most the query's timeout."""

_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state"})
_ASK_FOR_S = 5.0
_POLL_S = 0.1
_FIRST_CALL_S = 0.5
_LONGEST_CALL_S = 16.0

# Errors that do not pass.
_FATAL = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError._FATAL,
        KafkaError._INVALID_ARG,
    }
)
# Errors that pass if a connection has worked before.
_FATAL_AT_FIRST = frozenset({KafkaError._SSL, KafkaError._RESOLVE})
_HINTS = {
    KafkaError._AUTHENTICATION: "check sasl.username and sasl.password",
    KafkaError.SASL_AUTHENTICATION_FAILED: "check sasl.username and sasl.password",
    KafkaError._SSL: "check security.protocol and ssl.ca.location",
    KafkaError._RESOLVE: "check bootstrap.servers",
}


class BrokerClient:
    """Requests to the brokers of one cluster, retried until they respond.

    Every method raises BrokerError if they do not in time, or refuse.

    Args:
        options: of the query.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._timeout_ms = options.timeout_ms
        self._servers = options.client["bootstrap.servers"]
        self._timer = self._new_timer()
        self._consumer = Consumer({**options.client, "error_cb": self._on_error})

    def close(self) -> None:
        """Close its connections; it can't be used any more."""
        self._consumer.close()
        # librdkafka's threads live as long as the consumer, and its callback refers to this object.
        del self._consumer

    def partitions(self, subscription: Subscription) -> list[TopicPartition]:
        """Return the current partitions of the topics subscribed to, in order."""
        timer = self._new_timer()
        while (topics := self._topics(timer)) is None:
            timer.wait(self._consumer)
        return sorted(
            TopicPartition(name, number)
            for name, topic in topics.items()
            if subscription.includes(name)
            and (subscription.pattern is None or name not in _INTERNAL)
            for number in topic.partitions
        )

    def _topics(self, timer: RetryTimer) -> Mapping[str, TopicMetadata] | None:
        """Return all topics: a request for one by name could create it. None: no response."""
        try:
            cluster = self._consumer.list_topics(timeout=timer.call_s())
        except KafkaException as exception:
            timer.record(error_of(exception))
            return None
        timer.connected()
        topics: Mapping[str, TopicMetadata] = cluster.topics
        return topics

    def beginnings(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return the first offset of each partition; a partition that is gone has none."""
        return self._offsets(dict.fromkeys(partitions, EARLIEST))

    def ends(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return the offset of the next record of each partition; as `beginnings`."""
        return self._offsets(dict.fromkeys(partitions, LATEST))

    def resolve(
        self, option: str, position: Position, partitions: Iterable[TopicPartition]
    ) -> Offsets:
        """Return the offsets that a position stands for.

        Args:
            option: its name, for errors.
            position: the value of the option.
            partitions: all existing ones.

        Raises:
            OptionError: it names a partition that does not exist.
        """
        existing = set(partitions)
        for topic_partition in sorted(position.offsets):
            if topic_partition not in existing:
                has = sum(topic_partition.topic == other.topic for other in existing)
                raise OptionError(
                    f"{option} names partition {topic_partition.partition} of topic "
                    f"{topic_partition.topic!r}, which "
                    + (f"has {has}" if has else "is not there: was it deleted?")
                )
        fixed = {
            topic_partition: offset
            for topic_partition, offset in position.offsets.items()
            if offset >= 0
        }
        requested = {
            topic_partition: position.offsets.get(topic_partition, position.otherwise)
            if position.time_ms is None
            else position.time_ms
            for topic_partition in existing - fixed.keys()
        }
        offsets = self._offsets(requested)
        # After the last record of a partition there is none of that time or later.
        late = [topic_partition for topic_partition, offset in offsets.items() if offset < 0]
        return {**fixed, **offsets, **(self.ends(late) if late else {})}

    def _offsets(self, requested: Mapping[TopicPartition, int]) -> Offsets:
        """Return offsets by time in milliseconds, LATEST or EARLIEST, in one request a broker.

        Those of partitions that are gone meanwhile are not among them.
        """
        offsets: Offsets = {}
        gone: set[TopicPartition] = set()
        timer, absence = self._new_timer(), Absence(self._timeout_ms)
        while missing := sorted(requested.keys() - offsets.keys() - gone):
            offsets.update(
                self._ask(
                    timer,
                    [
                        ClientPartition(*topic_partition, requested[topic_partition])
                        for topic_partition in missing
                    ],
                )
            )
            if len(offsets) + len(gone) < len(requested):
                timer.wait(self._consumer)
                # The client keeps asking the former leader until it learns of another.
                gone |= absence.gone(requested.keys() - offsets.keys(), self._topics(timer))
        return offsets

    def _ask(self, timer: RetryTimer, missing: list[ClientPartition]) -> Offsets:
        """Return the offsets of those partitions for which a broker answered."""
        try:
            responses = self._consumer.offsets_for_times(missing, timeout=timer.call_s())
        except KafkaException as exception:
            timer.record(error_of(exception))
            return {}
        offsets = {}
        for response in responses:
            if response.error is None:
                offsets[TopicPartition(response.topic, response.partition)] = response.offset
            else:
                timer.record(response.error)
        return offsets

    def _new_timer(self) -> RetryTimer:
        self._timer = RetryTimer(f"brokers at {self._servers}", self._timeout_ms)
        return self._timer

    def _on_error(self, error: KafkaError) -> None:
        self._timer.record(error)


class Absence:
    """The times at which partitions were first missing in the metadata of brokers.

    Args:
        timeout_ms: of the query.
    """

    def __init__(self, timeout_ms: int) -> None:
        self.grace_s = min(GRACE_S, timeout_ms / 1000)
        self._since_s: dict[TopicPartition, float] = {}

    def is_missing(self, topic_partition: TopicPartition) -> bool:
        """Return whether the last metadata lacked the partition."""
        return topic_partition in self._since_s

    def gone(
        self, partitions: Iterable[TopicPartition], topics: Mapping[str, TopicMetadata] | None
    ) -> set[TopicPartition]:
        """Return the partitions that are gone.

        Args:
            partitions: the partitions in question.
            topics: the current metadata; None: no broker responded.
        """
        if topics is None:
            return set()
        now_s = time.monotonic()
        gone = set()
        for topic_partition in partitions:
            if (
                topic_partition.topic in topics
                and topic_partition.partition in topics[topic_partition.topic].partitions
            ):
                self._since_s.pop(topic_partition, None)
            elif now_s - self._since_s.setdefault(topic_partition, now_s) >= self.grace_s:
                gone.add(topic_partition)
        return gone


class TopicIds:
    """The ids of topics: a topic that was created again has another id than the former one.

    Its offsets begin at 0 again, and look the same after as many records as before.

    Args:
        client: settings for librdkafka.
    """

    def __init__(self, client: Mapping[str, str]) -> None:
        # The client would warn of settings of consumers.
        self._admin = AdminClient({**client, "log_level": 0})
        self._id_of_topic: dict[str, str] = {}

    def recreated(self, topics: Iterable[str]) -> list[str]:
        """Return the topics with another id than at the last call.

        Brokers before Kafka 2.8 have no ids: their topics are never returned. One request, and five
        seconds at most.
        """
        recreated = []
        for topic, topic_id in sorted(self.ids(topics).items()):
            if self._id_of_topic.setdefault(topic, topic_id) != topic_id:
                recreated.append(topic)
                self._id_of_topic[topic] = topic_id
        return recreated

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of those topics that have one; as `recreated`."""
        found = {}
        asked = TopicCollection(sorted(topics))
        for name, answer in self._admin.describe_topics(asked, request_timeout=_ASK_FOR_S).items():
            try:
                number = answer.result().topic_id
            except KafkaException:
                continue  # a topic that is gone, or whose brokers are: found elsewhere
            if number and (
                number.get_most_significant_bits() or number.get_least_significant_bits()
            ):
                found[name] = str(number)
        return found


# Retries


class RetryTimer:
    """The timeout of silent brokers, and librdkafka's errors that end the wait at once.

    Args:
        what: the brokers, for errors.
        timeout_ms: of the query.
    """

    def __init__(self, what: str, timeout_ms: int) -> None:
        self._what = what
        self._timeout_s = timeout_ms / 1000
        self._deadline_s = time.monotonic() + self._timeout_s
        self._was_connected = False
        self._call_s = _FIRST_CALL_S / 2
        self._last: KafkaError | None = None

    def connected(self) -> None:
        """Record a response of a broker, though not yet the expected one."""
        self._was_connected = True

    def reset(self) -> None:
        """Record the expected response, and start the timeout again."""
        self._was_connected = True
        self._deadline_s = time.monotonic() + self._timeout_s

    def call_s(self) -> float:
        """Return the timeout of the next call, in seconds: twice that of the last one.

        librdkafka reports errors of connections when a call returns; and a slow broker must get
        enough time at last.
        """
        self._call_s = min(2 * self._call_s, _LONGEST_CALL_S)
        return min(self._call_s, max(_POLL_S, self._deadline_s - time.monotonic()))

    def record(self, error: KafkaError) -> None:
        """Record an error of librdkafka; also for its `error_cb`."""
        # "All brokers are down" comes after the reason.
        if self._last is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last = error

    def check(self) -> None:
        """Raise BrokerError if the last error does not pass, or the timeout is over."""
        last = self._last
        if last is not None and self._is_fatal(last):
            raise BrokerError(f"{self._what}: {last.str()}{_hint(last)}")
        if time.monotonic() > self._deadline_s:
            reason = "nothing came" if last is None else f"{last.str()}{_hint(last)}"
            raise BrokerAwayError(
                f"{self._what}: gave up after {self._timeout_s:g} s "
                f"(kafkaConsumer.pollTimeoutMs): {reason}"
            )

    def wait(self, consumer: Consumer) -> None:
        """Sleep for a moment, serve the events of the consumer, and check."""
        time.sleep(_POLL_S)
        consumer.poll(0)
        self.check()

    def _is_fatal(self, error: KafkaError) -> bool:
        return error.code() in _FATAL or (
            not self._was_connected and error.code() in _FATAL_AT_FIRST
        )


def error_of(exception: KafkaException) -> KafkaError:
    """Return the error in an exception of librdkafka."""
    error: KafkaError = exception.args[0]
    return error


def _hint(error: KafkaError) -> str:
    hint = _HINTS.get(error.code())
    return f": {hint}" if hint else ""
