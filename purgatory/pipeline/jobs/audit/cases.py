"""The configuration of a run's groups as small tables, and the columns of cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from purgatory.pipeline.jobs.audit.client_settings import (
    SETTINGS,
    Configuration,
    RunConfiguration,
    settings_rows,
)
from purgatory.pipeline.jobs.expressions import broadcast


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

    def join_producers(self, rows: DataFrame, group: str, prefix: str) -> DataFrame:
        """Rows with the settings of the producer group named in a column, under prefixed names."""
        return self._join_settings(rows, self.producers, group, prefix)

    def join_consumers(self, rows: DataFrame, group: str, prefix: str) -> DataFrame:
        """The same for consumer groups."""
        return self._join_settings(rows, self.consumers, group, prefix)

    def with_isolation(self, reads: DataFrame) -> DataFrame:
        """Fill the `isolation` of reads from the settings of their group."""
        joined = self.join_consumers(reads, "group", "settings_")
        with_settings = joined.withColumn(
            "isolation", f.coalesce("isolation", "settings_isolation")
        )
        return with_settings.select(*reads.columns)

    def with_expectations(self, cases: DataFrame) -> DataFrame:
        """Add `expected`: the expectation that each case violates, or null."""
        return cases.join(broadcast(self.expectations), "anomaly", "left")

    def with_completeness(self, rows: DataFrame) -> DataFrame:
        """Add the column `complete`."""
        if not self.per_run:
            return rows.withColumn("complete", f.lit(self.complete))
        joined = rows.join(broadcast(self.runs), "run_id", "left")
        return joined.withColumn("complete", f.coalesce("complete", f.lit(True)))

    def _join_settings(
        self, rows: DataFrame, settings: DataFrame, group: str, prefix: str
    ) -> DataFrame:
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
        joined = rows.join(broadcast(named), same, "left")
        return joined.drop(f"{prefix}run_id", f"{prefix}group")


def settings_tables(
    session: SparkSession, configuration: Configuration, expect: Sequence[str]
) -> SettingsTables:
    """The tables of a configuration.

    Raises:
        ValueError: as `settings_rows` has it.
    """
    # Only here: what SQL is generated from has another module in the place of PySpark.
    from purgatory.pipeline.engines.spark.connect import local_table

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


# Cases: what happened where, and what the verdict depends on.


_PLACE = "struct<group: string, topic: string, partition: int, offset: bigint>"
_RECORD = "struct<topic: string, value_id: bigint>"

CASE: Mapping[str, str] = {
    "anomaly": "string",
    # Whose settings decide: a producer group, the other one of two, or a consumer group.
    "producer_group": "string",
    "other_group": "string",
    "consumer_group": "string",
    # Where and what, for people.
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "producer": "bigint",
    "consumer": "bigint",
    "key": "bigint",
    "value_id": "bigint",
    "sequence": "bigint",
    "transaction": "bigint",
    "time_us": "bigint",
    # How many cases this row stands for.
    "weight": "bigint",
    # What the rows themselves say for the verdict: a setting that permits it, whether the group's
    # settings may excuse it, how often the record was sent, and why nobody can tell.
    "permit": "string",
    "excusable": "boolean",
    "attempts": "bigint",
    "doubt": "string",
    "broken": "string",
    # Which rows a witness shows: those of these records, and those of these inputs.
    "records": f"array<{_RECORD}>",
    "inputs": f"array<{_PLACE}>",
}
"""The columns of a case after `run_id`; a violation breaks the promise of the setting `broken`."""


Case = Mapping[str, Column]
"""One case as its columns; those that it lacks are null."""


def case(anomaly: str, **columns: Column) -> Case:
    """A case; `weight` is 1 if it is not given.

    Raises:
        ValueError: no such column.
    """
    unknown = columns.keys() - CASE.keys()
    if unknown:
        raise ValueError(f"a case has no column {min(unknown)!r}; it has {', '.join(CASE)}")
    return {"anomaly": f.lit(anomaly), **columns}


def record(value_id: str = "value_id", topic: str = "topic") -> Column:
    """The record of a value and a topic; equal values in two topics are two records."""
    return f.struct(f.col(topic).alias("topic"), f.col(value_id).alias("value_id"))


def input_key(group: Column | None = None, suffix: str = "") -> Column:
    """The input in the columns `topic`, `partition` and `offset`, with a suffix.

    Args:
        group: the consumer group that read it; None: any.
    """
    return f.struct(
        (f.lit(None).cast("string") if group is None else group).alias("group"),
        f.col("topic" + suffix).alias("topic"),
        f.col("partition" + suffix).alias("partition"),
        f.col("offset" + suffix).alias("offset"),
    )


def extract_cases(rows: DataFrame, kinds: Mapping[str, tuple[Column, Case]]) -> DataFrame:
    """The cases in some rows, in one pass. A row may have several.

    Args:
        rows: with a column `run_id`.
        kinds: by a name: when a row has such a case, and the case.
    """
    # Each column of each case costs calls into the Java process: those that no case here has are
    # added at the end, once, and so are the types.
    null, no, one = f.lit(None), f.lit(False), f.lit(1)
    used = [name for name in CASE if any(name in columns for _, columns in kinds.values())]
    conditions = [f.coalesce(condition, no) for condition, _ in kinds.values()]
    cases = [
        f.when(condition, f.struct(*(columns.get(name, null).alias(name) for name in used)))
        for condition, (_, columns) in zip(conditions, kinds.values(), strict=True)
    ]
    single = (
        rows.where(reduce(lambda left, right: left | right, conditions))
        .select("run_id", f.explode(f.array_compact(f.array(*cases))).alias("case"))
        .select("run_id", *(f.col(f"case.{name}").alias(name) for name in used))
    )
    typed = {
        name: (f.col(name) if name in used else null).cast(kind) for name, kind in CASE.items()
    }
    typed["weight"] = f.coalesce(typed["weight"], one)
    return single.select("run_id", *(column.alias(name) for name, column in typed.items()))
