"""What the source asks brokers beside records: which partitions there are, and offsets of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from purgatory.client.errors import OptionError
from purgatory.client.patience import Patience, error_of
from purgatory.kafka.topic_partition import TopicPartition
from purgatory.source.absence import Absence
from purgatory.source.partition_offsets import Offsets
from purgatory.source.positions import EARLIEST, LATEST, Position
from purgatory.source.source_options import SourceOptions, Subscription

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import TopicMetadata

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
