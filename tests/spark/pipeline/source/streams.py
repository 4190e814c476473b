"""Streams of the format that collect their rows for a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

Trigger = dict[str, Any]
ALL_THERE_IS: Trigger = {"availableNow": True}
ON_AND_ON: Trigger = {"processingTime": "0 seconds"}


class Stream:
    """A query that can be stopped and started again, and the rows of each of its batches.

    Args:
        spark: the session.
        servers: of the cluster.
        checkpoint: the folder.
        given: options; dots in their names are written as `__`.
    """

    def __init__(self, spark: SparkSession, servers: str, checkpoint: Path, **given: Any) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._given = {"kafka__bootstrap__servers": servers, **given}
        self.batches: list[tuple[int, list[Row]]] = []
        self.before_batch: Callable[[int], None] = lambda number: None

    @property
    def rows(self) -> list[Row]:
        """All rows, in the order in which they came."""
        return [row for _, rows in self.batches for row in rows]

    def start(self, trigger: Trigger) -> StreamingQuery:
        """Start the query, from its checkpoint if it has one."""
        reader = self._spark.readStream.format("purgatory")
        for name, value in self._given.items():
            reader = reader.option(name.replace("__", "."), value)
        return (
            reader.load()
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(**trigger)
            .start()
        )

    def run(self) -> None:
        """Read all that there is now, in as many batches as the limit asks for."""
        self.start(ALL_THERE_IS).awaitTermination()

    def _take(self, frame: DataFrame, number: int) -> None:
        self.before_batch(number)
        self.batches.append((number, frame.collect()))
