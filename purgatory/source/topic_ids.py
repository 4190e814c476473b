"""Tells a topic that was deleted and made again, under its old name, from the one it was.

Its offsets begin at 0 again, and once there are as many records as before, they tell nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

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
