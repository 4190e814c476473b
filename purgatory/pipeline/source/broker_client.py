"""What the source asks brokers beside records: which partitions there are, and offsets of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from purgatory.client.errors import OptionError
from purgatory.client.patience import Patience, error_of
from purgatory.kafka.topic_partition import TopicPartition
from purgatory.pipeline.source.options import (
    EARLIEST,
    LATEST,
    Offsets,
    Position,
    SourceOptions,
    Subscription,
)

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import TopicMetadata
import time

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state"})


class BrokerClient:
    """Asks the brokers of one cluster, again and again until they answer.

    Every method raises BrokerError when they do not in time, or refuse.

    Args:
        options: of the query.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._timeout_ms = options.timeout_ms
        self._servers = options.client["bootstrap.servers"]
        self._patience = self._new_patience()
        self._consumer = Consumer({**options.client, "error_cb": self._note})

    def close(self) -> None:
        """Close its connections."""
        self._consumer.close()

    def partitions(self, subscription: Subscription) -> list[TopicPartition]:
        """Return the partitions that there are now of the topics subscribed to, in order."""
        patience = self._new_patience()
        while (topics := self._topics(patience)) is None:
            patience.wait(self._consumer)
        return sorted(
            TopicPartition(name, number)
            for name, topic in topics.items()
            if subscription.includes(name)
            and (subscription.pattern is None or name not in _INTERNAL)
            for number in topic.partitions
        )

    def _topics(self, patience: Patience) -> Mapping[str, TopicMetadata] | None:
        """Return all topics: to ask for one by its name could make it. None: no answer."""
        try:
            cluster = self._consumer.list_topics(timeout=patience.call_s())
        except KafkaException as exception:
            patience.note(error_of(exception))
            return None
        patience.answered()
        topics: Mapping[str, TopicMetadata] = cluster.topics
        return topics

    def beginnings(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return the first offset that each partition still has; none of one that is gone."""
        return self._offsets(dict.fromkeys(partitions, EARLIEST))

    def ends(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return the offset that the next record of each partition gets; as `beginnings`."""
        return self._offsets(dict.fromkeys(partitions, LATEST))

    def resolve(
        self, option: str, position: Position, partitions: Iterable[TopicPartition]
    ) -> Offsets:
        """Return the offsets that a position stands for.

        Args:
            option: where it comes from, for errors.
            position: the position.
            partitions: those that there are.

        Raises:
            OptionError: it names a partition that there isn't.
        """
        there = set(partitions)
        for of in sorted(position.offsets):
            if of not in there:
                has = sum(of.topic == one.topic for one in there)
                raise OptionError(
                    f"{option} names partition {of.partition} of topic {of.topic!r}, which "
                    + (f"has {has}" if has else "is not there: was it deleted?")
                )
        fixed = {of: offset for of, offset in position.offsets.items() if offset >= 0}
        asked = {
            of: position.offsets.get(of, position.otherwise)
            if position.time_ms is None
            else position.time_ms
            for of in there - fixed.keys()
        }
        found = self._offsets(asked)
        # After the last record of a partition there is none of that time or later.
        late = [of for of, offset in found.items() if offset < 0]
        return {**fixed, **found, **(self.ends(late) if late else {})}

    def _offsets(self, asked: Mapping[TopicPartition, int]) -> Offsets:
        """Return offsets by time in milliseconds, LATEST or EARLIEST, in one request a broker.

        Those of partitions that are gone meanwhile are not among them.
        """
        found: Offsets = {}
        gone: set[TopicPartition] = set()
        patience, absence = self._new_patience(), Absence(self._timeout_ms)
        while missing := sorted(asked.keys() - found.keys() - gone):
            found.update(self._ask(patience, [ClientPartition(*of, asked[of]) for of in missing]))
            if len(found) + len(gone) < len(asked):
                patience.wait(self._consumer)
                # The client goes on asking whom it knows as a leader until it is told otherwise.
                gone |= absence.gone(asked.keys() - found.keys(), self._topics(patience))
        return found

    def _ask(self, patience: Patience, missing: list[ClientPartition]) -> Offsets:
        """Return the offsets of those partitions for which a broker answered."""
        try:
            answers = self._consumer.offsets_for_times(missing, timeout=patience.call_s())
        except KafkaException as exception:
            patience.note(error_of(exception))
            return {}
        found = {}
        for answer in answers:
            if answer.error is None:
                found[TopicPartition(answer.topic, answer.partition)] = answer.offset
            else:
                patience.note(answer.error)
        return found

    def _new_patience(self) -> Patience:
        self._patience = Patience(f"brokers at {self._servers}", self._timeout_ms)
        return self._patience

    def _note(self, error: KafkaError) -> None:
        self._patience.note(error)


# Tells a partition that is gone from one that brokers don't know at the moment.
#
# A broker that has just come back may not know all topics yet: only what brokers that answer have not
# known for a while is gone.


GRACE_S = 10.0
"""For how long a partition must not be known, unless the query waits for brokers less than that."""


class Absence:
    """Keeps since when partitions are not among what brokers know.

    Args:
        timeout_ms: how long the query waits for brokers.
    """

    def __init__(self, timeout_ms: int) -> None:
        self._grace_s = min(GRACE_S, timeout_ms / 1000)
        self._since_s: dict[TopicPartition, float] = {}

    def gone(
        self, wanted: Iterable[TopicPartition], topics: Mapping[str, TopicMetadata] | None
    ) -> set[TopicPartition]:
        """Take what brokers know now, and return which partitions are gone.

        Args:
            wanted: the partitions in question.
            topics: all that there are; None: nobody answered, which tells nothing.
        """
        if topics is None:
            return set()
        now_s = time.monotonic()
        gone = set()
        for of in wanted:
            if of.topic in topics and of.partition in topics[of.topic].partitions:
                self._since_s.pop(of, None)
            elif now_s - self._since_s.setdefault(of, now_s) >= self._grace_s:
                gone.add(of)
        return gone


# Tells a topic that was deleted and made again, under its old name, from the one it was.
#
# Its offsets begin at 0 again, and once there are as many records as before, they tell nothing.


_ASK_FOR_S = 5.0


class TopicIds:
    """Remembers the ids of topics, from when they are first asked for.

    Args:
        client: settings for librdkafka.
    """

    def __init__(self, client: Mapping[str, str]) -> None:
        # Those of consumers it would warn of.
        self._admin = AdminClient({**client, "log_level": 0})
        self._known: dict[str, str] = {}

    def made_anew(self, topics: Iterable[str]) -> list[str]:
        """Return which topics have another id than before; from now on it is theirs.

        A topic whose id brokers don't tell, as those before Kafka 2.8, is as it was. One request
        to the brokers, and five seconds at most.
        """
        anew = []
        for topic, told in sorted(self._told(topics).items()):
            if self._known.setdefault(topic, told) != told:
                anew.append(topic)
                self._known[topic] = told
        return anew

    def _told(self, topics: Iterable[str]) -> dict[str, str]:
        found = {}
        asked = TopicCollection(sorted(topics))
        for name, answer in self._admin.describe_topics(asked, request_timeout=_ASK_FOR_S).items():
            try:
                number = answer.result().topic_id
            except KafkaException:
                continue  # what is gone, or whose brokers are away, is told by others
            if number and (
                number.get_most_significant_bits() or number.get_least_significant_bits()
            ):
                found[name] = str(number)
        return found
