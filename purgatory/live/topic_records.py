"""The streams of records that a cluster's topics are, for the jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from purgatory.analysis.errors import FaultError, PipelineError
from purgatory.client.first_answer import NoAnswerError, first_answer
from purgatory.live.published_topics import published_topics

_TIMEOUT_S = 15.0


class Records(Protocol):
    """Gives the stream of the records of some tables, with columns `value` and `table`."""

    def __call__(self, *tables: str) -> DataFrame:
        """Return the stream of these tables' records."""


def topic_records(
    session: SparkSession,
    bootstrap_servers: str,
    prefix: str,
    most_rows: int,
    client: Mapping[str, str],
) -> Records:
    """Return what gives the streams of a cluster's topics.

    Args:
        session: in which the source gets registered.
        bootstrap_servers: of the cluster.
        prefix: of the topics' names.
        most_rows: how many records a batch takes at most.
        client: more settings, as librdkafka names them.
    """
    from purgatory.source import register

    register(session)
    topics = published_topics(prefix)

    def records(*tables: str) -> DataFrame:
        reader = (
            session.readStream.format("purgatory")
            .option("kafka.bootstrap.servers", bootstrap_servers)
            .option("subscribe", ",".join(topics[table] for table in tables))
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(most_rows))
        )
        for name, value in client.items():
            reader = reader.option(f"kafka.{name}", value)
        table = f.coalesce(*(f.when(f.col("topic") == topics[name], name) for name in tables))
        return reader.load().select("value", table.alias("table"))

    return records


def check_topics(bootstrap_servers: str, prefix: str, client: Mapping[str, str]) -> None:
    """Refuse a cluster that doesn't answer, or has none of the topics. Takes 15 s at most.

    Raises:
        PipelineError: saying which, and what to do.
    """
    try:
        wanted = set(published_topics(prefix).values())
        _, there = first_answer(bootstrap_servers, client, _TIMEOUT_S)
    except ValueError as error:
        raise PipelineError(f"--prefix {error}") from None
    except NoAnswerError as error:
        kind = FaultError if error.passes else PipelineError
        raise kind(f"--bootstrap {bootstrap_servers}: no cluster answers: {error}") from error
    missing = sorted(wanted - there)
    if missing:
        raise PipelineError(
            f"{bootstrap_servers} has no topic {missing[0]}: publish to it first (purgatory "
            "cluster --publish PREFIX), and give the same --prefix"
        )
