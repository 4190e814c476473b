"""What was found, one row per case: what happened where, and what the verdict depends on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

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
    strange = columns.keys() - CASE.keys()
    if strange:
        raise ValueError(f"a case has no column {min(strange)!r}; it has {', '.join(CASE)}")
    return {"anomaly": f.lit(anomaly), **columns}


def record(value_id: str = "value_id", topic: str = "topic") -> Column:
    """The record whose value is in one column, and whose topic in another: two topics' are two."""
    return f.struct(f.col(topic).alias("topic"), f.col(value_id).alias("value_id"))


def place(group: Column | None = None, suffix: str = "") -> Column:
    """The input that the columns `topic`, `partition` and `offset` name; `suffix` ends the names.

    Args:
        group: the consumer group that read it; any, if none is given.
    """
    return f.struct(
        (f.lit(None).cast("string") if group is None else group).alias("group"),
        f.col("topic" + suffix).alias("topic"),
        f.col("partition" + suffix).alias("partition"),
        f.col("offset" + suffix).alias("offset"),
    )


def cases_of(rows: DataFrame, found: Mapping[str, tuple[Column, Case]]) -> DataFrame:
    """The cases in some rows, in one pass. A row may have several.

    Args:
        rows: with a column `run_id`.
        found: by a name: when a row has such a case, and the case.
    """
    # Each column of each case costs calls into the Java process: those that no case here has are
    # added at the end, once, and so are the types.
    null, no, one = f.lit(None), f.lit(False), f.lit(1)
    used = [name for name in CASE if any(name in columns for _, columns in found.values())]
    conditions = [f.coalesce(condition, no) for condition, _ in found.values()]
    cases = [
        f.when(condition, f.struct(*(columns.get(name, null).alias(name) for name in used)))
        for condition, (_, columns) in zip(conditions, found.values(), strict=True)
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
