"""Which rows are bad, and why: as columns that Spark computes beside the others.

A row has the columns of its table, and four of its own: `_torn`, `_wrong` (the first column whose
value is of another type, or null), `_run` (the run of its folder) and what says where it is. The
first reason that applies counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from purgatory.trace.trace_schema import DERIVED, NULLABLE, RULES, TABLES, Rule

TORN = "torn line"
WRONG_TYPE = "wrong type"
MISSING = "missing column"
OTHER_RUN = "row of another run"


def with_reason(rows: DataFrame, table: str) -> DataFrame:
    """Rows with what follows from other columns filled in, and `_reason`: null for a good row."""
    derived = DERIVED.get(table, {})
    rows = rows.withColumns(
        {
            "run_id": f.coalesce("run_id", "_run"),
            **{name: f.expr(f"coalesce({name}, {how})") for name, how in derived.items()},
        }
    )
    return rows.withColumn("_reason", _first(table, what="reason"))


def detail_of(table: str) -> Column:
    """What is wrong in a row, in words with its values; for rows that have a reason."""
    return _first(table, what="detail")


def _first(table: str, *, what: str) -> Column:
    """The reason, or the detail, of the first rule that a row breaks; null if it breaks none."""
    chosen = " ".join(
        f"WHEN {rule.condition} THEN {_text(rule.reason) if what == 'reason' else rule.detail}"
        for rule in _rules(table)
    )
    return f.expr(f"CASE {chosen} END")


def _rules(table: str) -> Iterator[Rule]:
    yield Rule(TORN, "_torn", _text("is no object in one line of JSON"))
    yield Rule(
        WRONG_TYPE, "_wrong IS NOT NULL", "concat(_wrong, ' is of another type, or out of bounds')"
    )
    yield Rule(
        OTHER_RUN,
        "NOT (run_id <=> _run)",
        "concat('run_id is ', run_id, ', in the trace of ', coalesce(_run, 'no known run'))",
    )
    yield from RULES[table]
    for name in TABLES[table]:
        if name not in NULLABLE[table]:
            yield Rule(MISSING, f"`{name}` IS NULL", _text(f"{name} is not there"))


def _text(words: str) -> str:
    return "'" + words.replace("\\", "\\\\").replace("'", "\\'") + "'"
