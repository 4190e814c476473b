"""The fixtures of `tests/databases/cdc`, with Spark as the engine."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from purgatory.cdc.apply.spark_engine import apply_stream
from tests.databases.cdc.conftest import Engine, mariadb, postgres, target, url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["mariadb", "postgres", "target", "url"]


@pytest.fixture
def engine(spark: SparkSession) -> Engine:
    """Spark."""
    return partial(apply_stream, spark)
