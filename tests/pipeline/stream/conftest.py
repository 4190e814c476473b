"""The one Spark session of these tests, and streams from files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from purgatory.pipeline.stream.rows import RecordStreams

Row = dict[str, Any]
Feed = Callable[[str, Sequence[Row | str]], None]


@pytest.fixture(name="feed")
def fixture_feed(tmp_path: Path) -> Feed:
    """A function that adds a file of rows to a table's folder: one batch of a stream."""
    numbers = iter(range(10**6))

    def feed(table: str, rows: Sequence[Row | str]) -> None:
        folder = tmp_path / "topics" / table
        folder.mkdir(parents=True, exist_ok=True)
        number = next(numbers)
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        unfinished = folder / f".{number:06}.txt"
        unfinished.write_text("\n".join(lines), encoding="utf-8")
        os.utime(unfinished, (number + 1, number + 1))  # Spark takes the older files first
        unfinished.rename(folder / f"{number:06}.txt")

    for table in ("operations", "sends", "reads"):
        (tmp_path / "topics" / table).mkdir(parents=True)
    return feed


@pytest.fixture(name="records")
def fixture_records(spark: SparkSession, tmp_path: Path) -> RecordStreams:
    """The stream of the records of some tables, as many files in each batch."""

    def records(*tables: str) -> DataFrame:
        reader = spark.readStream.option("maxFilesPerTrigger", len(tables))
        text = reader.text(str(tmp_path / "topics" / f"{{{','.join(tables)}}}"))
        folder = f.regexp_extract("_metadata.file_path", "/topics/([a-z]+)/", 1)
        return text.select("value", folder.alias("table"))

    return records
