"""The topic of operations as a stream of records, and the partitions of it with unread records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from purgatory.kafka.topic_partition import TopicPartition
from purgatory.pipeline.errors import FaultError, PipelineError
from purgatory.source import register
from purgatory.source.broker_client import BrokerClient, TopicIds
from purgatory.source.options import from_document, parse_options
from purgatory.stream.publisher import ConnectError, connect_admin, published_topics

_TIMEOUT_S = 15.0


class RecordSource(Protocol):
    """The records that a query follows."""

    def records(self, session: SparkSession) -> DataFrame:
        """Return their stream, with the columns `value`, `topic` and `partition`."""

    def unread(self, checkpoint: Path, batch: int) -> Set[TopicPartition]:
        """Return the partitions that have more records than a batch and those before it read.

        Args:
            checkpoint: the query's.
            batch: the number of a batch that is being processed.
        """


@dataclass(frozen=True)
class TopicSource:
    """A cluster's topic of operations.

    Args:
        bootstrap_servers: of the cluster.
        prefix: of the topic's name.
        most_rows: the maximum number of records in a batch.
        client: more settings, as librdkafka names them.
    """

    bootstrap_servers: str
    prefix: str
    most_rows: int
    client: Mapping[str, str] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        """The topic's name.

        Raises:
            PipelineError: the prefix is no prefix of a topic's name.
        """
        try:
            return published_topics(self.prefix)["operations"]
        except ValueError as error:
            raise PipelineError(f"--prefix {error}") from None

    def check(self) -> str | None:
        """Refuse a cluster that does not respond, or lacks the topic. Takes 20 s at most.

        Returns:
            The topic's id, which is another one once the topic was created again; None from
            brokers without such ids.

        Raises:
            FaultError: no broker responds in time.
            PipelineError: the brokers refuse, or the topic is missing.
        """
        topic, servers = self.topic, self.bootstrap_servers
        try:
            _, existing = connect_admin(servers, self.client, _TIMEOUT_S)
        except ConnectError as error:
            kind = FaultError if error.is_transient else PipelineError
            raise kind(f"--bootstrap {servers}: no cluster answers: {error}") from error
        if topic not in existing:
            raise PipelineError(
                f"{servers} has no topic {topic}: publish to it first (purgatory cluster --publish "
                "PREFIX), and give the same --prefix"
            )
        return TopicIds({"bootstrap.servers": servers, **self.client}).ids([topic]).get(topic)

    def records(self, session: SparkSession) -> DataFrame:
        """Return the stream of the topic's records."""
        register(session)
        reader = session.readStream.format("purgatory").options(**self._options())
        return reader.load().select("value", "topic", "partition")

    def unread(self, checkpoint: Path, batch: int) -> Set[TopicPartition]:
        """Return the partitions whose log continues after the end of a batch, which Spark recorded.

        Raises:
            SourceError: the brokers refuse, or do not respond in time.
        """
        planned = (checkpoint / "offsets" / str(batch)).read_text("utf-8").splitlines()[-1]
        read_to = from_document(json.loads(planned))
        options = parse_options(self._options())
        with closing(BrokerClient(options)) as client:
            ends = client.ends(client.partitions(options.subscription))
        # A broker that has just restarted may not name all partitions yet.
        unknown = read_to.keys() - ends.keys()
        return unknown | {
            partition for partition, end in ends.items() if end > read_to.get(partition, 0)
        }

    def _options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(self.most_rows),
            **{f"kafka.{name}": value for name, value in self.client.items()},
        }
