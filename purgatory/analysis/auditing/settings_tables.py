"""The configuration of a run's groups as small tables, which rows are joined with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from purgatory.analysis.auditing.client_configuration import (
    SETTINGS,
    Configuration,
    RunConfiguration,
    settings_rows,
)
from purgatory.analysis.engines import small
from purgatory.analysis.spark.local_table import local_table


@dataclass(frozen=True)
class SettingsTables:
    """A configuration as small tables, to be joined by broadcast. O(groups) rows.

    With `per_run` false, they and `complete` hold for all runs, and their `run_id` is null.
    """

    producers: DataFrame
    consumers: DataFrame
    runs: DataFrame
    expectations: DataFrame
    per_run: bool = True
    complete: bool = True

    def of_producers(self, rows: DataFrame, group: str, prefix: str) -> DataFrame:
        """Rows with the settings of the producer group named in a column, under prefixed names."""
        return self._joined(rows, self.producers, group, prefix)

    def of_consumers(self, rows: DataFrame, group: str, prefix: str) -> DataFrame:
        """The same for consumer groups."""
        return self._joined(rows, self.consumers, group, prefix)

    def with_isolation(self, reads: DataFrame) -> DataFrame:
        """Reads with their own `isolation`, or that of their group."""
        joined = self.of_consumers(reads, "group", "settings_")
        known = joined.withColumn("isolation", f.coalesce("isolation", "settings_isolation"))
        return known.select(*reads.columns)

    def with_expected(self, cases: DataFrame) -> DataFrame:
        """Cases with `expected`: the expectation that each is against, or null."""
        return cases.join(small(self.expectations), "anomaly", "left")

    def with_complete(self, rows: DataFrame) -> DataFrame:
        """Rows with a column `complete`."""
        if not self.per_run:
            return rows.withColumn("complete", f.lit(self.complete))
        joined = rows.join(small(self.runs), "run_id", "left")
        return joined.withColumn("complete", f.coalesce("complete", f.lit(True)))

    def _joined(self, rows: DataFrame, settings: DataFrame, group: str, prefix: str) -> DataFrame:
        named = settings.select(
            f.col("run_id").alias(f"{prefix}run_id"),
            *(f.col(name).alias(prefix + name) for name in settings.columns if name != "run_id"),
        )
        if not self.per_run:
            named = named.drop(f"{prefix}run_id")
            same = f.col(group) == f.col(f"{prefix}group")
        else:
            same = (f.col("run_id") == f.col(f"{prefix}run_id")) & (
                f.col(group) == f.col(f"{prefix}group")
            )
        joined = rows.join(small(named), same, "left")
        return joined.drop(f"{prefix}run_id", f"{prefix}group")


def settings_tables(
    session: SparkSession, configuration: Configuration, expect: Sequence[str]
) -> SettingsTables:
    """The tables of a configuration.

    Raises:
        ValueError: as `settings_rows` has it.
    """
    rows = settings_rows(configuration, expect)
    tables = {
        name: local_table(
            session,
            rows[name],
            ", ".join(f"`{column}` {kind}" for column, kind in columns.items()),
        )
        for name, columns in SETTINGS.items()
    }
    return SettingsTables(
        **tables,
        per_run=not isinstance(configuration, RunConfiguration),
        complete=not isinstance(configuration, RunConfiguration) or configuration.complete,
    )
