"""Small tables that this process fills, for Spark.

They go over by Arrow, so that Spark plans with their rows: a table without any takes all that is
joined to it out of a plan, and no Python process has to be started for rows that are here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession


def local_table(
    session: SparkSession, rows: Sequence[tuple[object, ...]], schema: str
) -> DataFrame:
    """A table of few rows.

    Args:
        session: which gets it.
        rows: the values in the order of the columns, which have no types with parts.
        schema: the columns and their types, in Spark's words.
    """
    # Only here: what SQL is generated from has another module in the place of PySpark.
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    kinds = to_arrow_schema(cast(StructType, StructType.fromDDL(schema)))
    columns = zip(*rows, strict=True) if rows else [()] * len(kinds)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds.types, strict=True)]
    return arrow_table(session, pa.Table.from_arrays(arrays, schema=kinds))


def arrow_table(session: SparkSession, table: pa.Table) -> DataFrame:
    """A table of Arrow as one of Spark's.

    Of one without rows, Spark Connect has to be told the types.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    if table.num_rows:
        return session.createDataFrame(table)
    return session.createDataFrame(table, from_arrow_schema(table.schema))
