"""What differs between the engines that compute the jobs: all else of a job is the same for both.

A job is written in PySpark's functions, in those that Spark has and SQL can be generated from for
DuckDB. Where an engine has to be told how, not what, a job says so here.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from purgatory.analysis.row_order import Order


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


def sorting(order: Order) -> list[Column]:
    """An order for Spark; `duckdb_engine.job_sql.ordered` is the same for DuckDB."""
    return [f.col(name) if among is None else position(among, name) for name, among in order]


def position(names: Iterable[str], column: str) -> Column:
    """The place of a column's value among some, from 1; 0 if it is none of them."""
    return f.array_position(f.array(*(f.lit(name) for name in names)), f.col(column))
