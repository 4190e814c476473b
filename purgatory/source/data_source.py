"""The data source "purgatory" as Spark sees it."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource

from purgatory.client.errors import OptionError
from purgatory.source.batch_reader import PurgatoryBatchReader
from purgatory.source.source_columns import column_names, spark_schema
from purgatory.source.source_options import options_of
from purgatory.source.stream_reader import PurgatoryStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class PurgatoryDataSource(DataSource):
    """Topics of a Kafka-compatible cluster as rows.

    Args:
        options: as in docs/source.md.

    Raises:
        OptionError: one is missing, unknown, or has a value that it can't have.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._checked = options_of(options)

    @classmethod
    def name(cls) -> str:
        """Return what `format` is given."""
        return "purgatory"

    def schema(self) -> str:
        """Return the columns."""
        return spark_schema(self._checked.include_headers)

    def reader(self, schema: StructType) -> PurgatoryBatchReader:
        """Return what reads a batch."""
        self._checked.refuse_for_batch()
        self._check_columns(schema)
        return PurgatoryBatchReader(self._checked)

    def streamReader(self, schema: StructType) -> PurgatoryStreamReader:  # noqa: N802
        """Return what reads a stream."""
        self._checked.refuse_for_stream()
        self._check_columns(schema)
        return PurgatoryStreamReader(self._checked)

    def _check_columns(self, schema: StructType) -> None:
        right = column_names(self._checked.include_headers)
        if schema.fieldNames() != right:
            raise OptionError(
                f"schema() was given, but the columns are fixed: {', '.join(right)}: leave it out, "
                "and select what you need from them"
            )


def register(spark: SparkSession) -> None:
    """Make the format "purgatory" known to a session; doing so again has no effect."""
    try:
        spark.dataSource.register(PurgatoryDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # of a session before, it stays
            raise
