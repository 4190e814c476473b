"""Sessions on a Spark Connect server: `sc://HOST:PORT`, without a Java on this machine.

The server computes and writes; this process sends plans and takes small results over gRPC. Files
are the server's: traces and results must lie in a file system that both see under the same path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from purgatory.pipeline.errors import SessionError

CONNECT = "sc://"
"""The scheme of the address of a Spark Connect server."""

CONNECT_PORT = 15002
"""The port of a Spark Connect server whose address names none."""

# PySpark decides by these, for the whole process, whether its functions are those of Connect.
_MODE = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE")

SESSION_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # Otherwise a file with columns of one name but for the case can't be read at all.
    "spark.sql.caseSensitive": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
}
"""The settings with which every session of the pipeline reads SQL and files."""


@contextmanager
def connect_session(address: str) -> Iterator[SparkSession]:
    """A session of its own on a Spark Connect server; the caller stops it.

    Args:
        address: `sc://HOST:PORT`, with parameters as Spark Connect has them.

    Raises:
        SessionError: a package that the client needs is missing, or the server refuses.
    """
    before = {name: os.environ.get(name) for name in _MODE}
    try:
        yield _start(address)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def is_connect(session: SparkSession) -> bool:
    """Whether a session is one of Spark Connect; needs none of the packages of its client."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def _start(address: str) -> SparkSession:
    # Only here, as below: what SQL is generated from has another module in the place of PySpark.
    from pyspark.errors import PySparkException

    try:
        session = SparkSession.builder.remote(address).create()
        for name, value in SESSION_SETTINGS.items():
            session.conf.set(name, value)
    except ImportError as error:
        raise SessionError(
            f"{address}: a session on a Spark Connect server needs the connect extra ({error}): "
            "pip install 'kafka-purgatory[connect]'"
        ) from error
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise SessionError(f"{address}: no session there: {reason}") from error
    return session


# Small tables that this process fills, for Spark.
#
# They go over by Arrow, so that Spark plans with their rows: a table without any takes all that is
# joined to it out of a plan, and no Python process has to be started for rows that are here.


def local_table(
    session: SparkSession, rows: Sequence[tuple[object, ...]], schema: str
) -> DataFrame:
    """A table of few rows.

    Args:
        session: which gets it.
        rows: the values in the order of the columns, which have no types with parts.
        schema: the columns and their types, in Spark's words.
    """
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    columns = cast(StructType, StructType.fromDDL(schema))
    kinds = to_arrow_schema(columns)
    values = zip(*rows, strict=True) if rows else [()] * len(kinds)
    arrays = [pa.array(column, kind) for column, kind in zip(values, kinds.types, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=kinds)
    # Spark Connect does not infer the types of a table without rows.
    return session.createDataFrame(table) if rows else session.createDataFrame(table, columns)
