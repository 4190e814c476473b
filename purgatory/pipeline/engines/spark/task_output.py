"""Places for results that Spark's tasks write into: tables of a catalog, and partitioned folders.

Ground rules: nothing is written before it is known that all tables of a job may be. A table that is
there is replaced as its format does it: Delta Lake and Iceberg in one step, Spark's own formats by
dropping the old one first. The tables of a job come one after the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from purgatory.pipeline.errors import OutputError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession


class TaskOutput(ABC):
    """A place that Spark's tasks write into.

    Args:
        session: whose tasks do.
        partition_by: the column of whose values each has a part of its own; None: no column.
    """

    def __init__(self, session: SparkSession, partition_by: str | None) -> None:
        self._session = session
        self.partition_by = partition_by

    @abstractmethod
    def __truediv__(self, name: str) -> TaskOutput:
        """The place of one table."""

    @abstractmethod
    def save(self, rows: DataFrame) -> None:
        """Have tasks write a table here.

        Raises:
            OutputError: something else is here.
        """

    def save_rows(self, rows: pa.Table) -> None:
        """Write rows that this process has, in one file or in one for each partition."""
        # Only here: DuckDB's jobs come by without PySpark.
        from purgatory.pipeline.engines.spark.connect import arrow_table

        self.save(arrow_table(self._session, rows).coalesce(1))

    def save_sorted(self, rows: DataFrame, order: Sequence[str | Column]) -> None:
        """Have tasks write a table that may be large: each partition sorted, in one file."""
        assert self.partition_by is not None, "there is a column to part it by"
        self.save(rows.repartition(self.partition_by).sortWithinPartitions(*order))

    def _writer(self, rows: DataFrame) -> DataFrameWriter:
        return (
            rows.write if self.partition_by is None else rows.write.partitionBy(self.partition_by)
        )


class PartitionedFolder(TaskOutput):
    """A folder of results, each table of which has a folder such as `run_id=...` for each value."""

    def __init__(self, session: SparkSession, partition_by: str, path: str) -> None:
        super().__init__(session, partition_by)
        self._path = path

    def __truediv__(self, name: str) -> PartitionedFolder:
        assert self.partition_by is not None, "that is what it is for"
        return PartitionedFolder(self._session, self.partition_by, f"{self._path}/{name}")

    def save(self, rows: DataFrame) -> None:
        self._writer(rows).parquet(self._path)


class CatalogOutput(TaskOutput):
    """A database of a catalog, or a table in it."""

    def __init__(
        self, session: SparkSession, name: str, overwrite: bool, partition_by: str | None
    ) -> None:
        super().__init__(session, partition_by)
        self._name, self._overwrite = name, overwrite

    def __truediv__(self, name: str) -> CatalogOutput:
        full = f"{self._name}.{name}"
        return CatalogOutput(self._session, full, self._overwrite, self.partition_by)

    def check(self, tables: Sequence[str]) -> None:
        """Refuse a database that is not there, or has one of the tables, which is to be kept.

        Raises:
            OutputError: saying which.
        """
        if not self._session.catalog.databaseExists(self._name):
            raise OutputError(
                f"--to-table {self._name}: there is no such database; CREATE DATABASE makes one"
            )
        for table in tables:
            if self._session.catalog.tableExists(f"{self._name}.{table}") and not self._overwrite:
                raise OutputError(
                    f"--to-table {self._name}: has a table {table} already; allow --overwrite or "
                    "name another database"
                )

    def save(self, rows: DataFrame) -> None:
        if self._session.catalog.tableExists(self._name):
            there = self._session.table(self._name).columns
            if set(there) != set(rows.columns):
                raise OutputError(
                    f"--to-table: {self._name} has other columns than the result, so it is not "
                    "replaced; drop it, or name another database"
                )
        mode = "overwrite" if self._overwrite else "error"
        self._writer(rows).mode(mode).saveAsTable(self._name)
