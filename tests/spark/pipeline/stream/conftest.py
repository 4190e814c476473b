"""Streams from files, for the one Spark session of these tests."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from purgatory.kafka.topic_partition import TopicPartition
from purgatory.pipeline.engines.spark.sql_engine import SQL_SETTINGS
from purgatory.stream.stream import STREAM_SETTINGS

Row = dict[str, Any]
Feed = Callable[[Sequence[Row | str]], None]


class FileSource(NamedTuple):
    """A folder of rows as a topic of one partition: a file is a batch."""

    folder: Path

    def records(self, session: SparkSession) -> DataFrame:
        """Return the lines of the files."""
        text = session.readStream.option("maxFilesPerTrigger", 1).text(str(self.folder))
        return text.select("value", f.lit("files").alias("topic"), f.lit(0).alias("partition"))

    def unread(self, _checkpoint: Path, _batch: int) -> frozenset[TopicPartition]:
        """Return none: one partition can't hold up another."""
        return frozenset()


@pytest.fixture(autouse=True)
def fixture_settings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Take back the settings that a query gives to the session, which other tests share."""
    if "spark" not in request.fixturenames:
        yield
        return
    session: SparkSession = request.getfixturevalue("spark")
    names = (*SQL_SETTINGS, *STREAM_SETTINGS, "spark.sql.shuffle.partitions")
    before = {name: session.conf.get(name, None) for name in names}
    yield
    for name, value in before.items():
        if value is None:
            session.conf.unset(name)
        else:
            session.conf.set(name, value)


@pytest.fixture(name="source")
def fixture_source(tmp_path: Path) -> FileSource:
    (tmp_path / "topic").mkdir()
    return FileSource(tmp_path / "topic")


@pytest.fixture(name="feed")
def fixture_feed(source: FileSource) -> Feed:
    """A function that adds a file of rows: one batch of a stream."""
    numbers = iter(range(10**6))

    def feed(rows: Sequence[Row | str]) -> None:
        number = next(numbers)
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        unfinished = source.folder / f".{number:06}.txt"
        unfinished.write_text("\n".join(lines), encoding="utf-8")
        os.utime(unfinished, (number + 1, number + 1))  # Spark takes the older files first
        unfinished.rename(source.folder / f"{number:06}.txt")

    return feed
