"""What differs between the engines that compute the jobs: all else of a job is the same for both.

A job is written in PySpark's functions, in those that Spark has and SQL can be generated from for
DuckDB. Where an engine has to be told how, not what, a job says so here.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def small(table: DataFrame) -> DataFrame:
    """A table that is sent to all tasks when it is joined, where an engine has tasks."""
    hint = getattr(f, "broadcast", None)
    return table if hint is None else hint(table)


def kept(table: DataFrame) -> DataFrame:
    """A table that is computed once, however often it is read."""
    return table.persist()


def cut(table: DataFrame) -> DataFrame:
    """A table at which a plan may end, so that no statement grows too long. Spark needs none."""
    return table
