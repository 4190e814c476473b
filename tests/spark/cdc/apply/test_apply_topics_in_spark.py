"""Topics of a real cluster by Spark: with each topic it does what the engine without Java does.

`test_more_topics_in_spark` has what does not depend on the engine, and restarts of brokers, which
`test_whole_chain` has, too.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from purgatory.cdc.apply.spark_engine import apply_stream
from tests.databases.cdc.apply.test_apply_topics import (
    kafka,
    test_all_partitions_are_applied_together_by_transaction,
    test_next_run_of_a_topic_resumes_at_the_targets_offset,
    topic,
)
from tests.databases.cdc.conftest import Engine

__all__ = [
    "kafka",
    "test_all_partitions_are_applied_together_by_transaction",
    "test_next_run_of_a_topic_resumes_at_the_targets_offset",
    "topic",
]
pytestmark = pytest.mark.spark


@pytest.fixture
def engine(spark: SparkSession) -> Engine:
    """Spark, in the session of the tests."""
    return partial(apply_stream, spark)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """SQLite alone: whether a target takes the changes does not depend on the engine."""
    return f"sqlite:///{tmp_path / 'target.db'}"
