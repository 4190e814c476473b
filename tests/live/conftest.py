"""The one Spark session of these tests, and streams from files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from purgatory.live.stream import Records
from purgatory.pipeline.session import spark_session

Row = dict[str, Any]
Feed = Callable[[str, Sequence[Row | str]], None]


_open = ExitStack()
"""The session of these tests, if they have started one."""


@pytest.fixture(scope="session", name="spark")
def fixture_spark() -> SparkSession:
    """The session that all tests here share; settings of its own, where others have one open."""
    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate().newSession()
    return _open.enter_context(spark_session("local[2]", small=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """End the session with the last test here: a process has one, and other folders want it."""
    yield
    if nextitem is None or nextitem.path.parent != item.path.parent:
        _open.close()


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
def fixture_records(spark: SparkSession, tmp_path: Path) -> Records:
    """The stream of the records of a table, a file in each batch."""

    def records(table: str) -> DataFrame:
        reader = spark.readStream.option("maxFilesPerTrigger", 1)
        return reader.text(str(tmp_path / "topics" / table))

    return records
