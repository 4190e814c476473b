"""The rules by which rows are quarantined, as SQL that each engine computes beside the columns.

The reasons of a table are its `RULES`, behind those of all tables; the first that applies counts.
Files that can't be read (`trace_set`), streams (`stream/windows.sql`) and changes (`cdc.errors`)
have their own.

A row has the columns of its table, and some of its own: `_torn`, `_wrong` (the first column whose
value is of another type, or null) and `_run` (the run of its folder). Names stand in backticks, as
Spark has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from purgatory.pipeline.ingest.column_casts import Cell
from purgatory.trace.trace_schema import DERIVED, MISSING, NULLABLE, RULES, TABLES, Rule

TORN = "torn line"
WRONG_TYPE = "wrong type"
OTHER_RUN = "row of another run"

MOST_CONTENT = 2_000
"""The characters of a bad row, and of its detail, that are kept."""


def derived_columns(table: str) -> dict[str, str]:
    """The columns that are derived where they are null, and the SQL of the derived value."""
    derived = DERIVED.get(table, {})
    return {
        "run_id": "coalesce(run_id, _run)",
        **{name: f"coalesce(`{name}`, {expression})" for name, expression in derived.items()},
    }


def reason_sql(table: str) -> str:
    """The reason of the first rule that a row breaks; null if it breaks none."""
    return _first((rule.condition, _text(rule.reason)) for rule in _rules(table))


def detail_sql(table: str) -> str:
    """The defect of a row in words, with its values; for rows that have a reason."""
    detail = _first((rule.condition, rule.detail) for rule in _rules(table))
    return f"substring({detail}, 1, {MOST_CONTENT})"


def first_wrong_sql(cells: Mapping[str, Cell]) -> str:
    """The name of the first column whose value does not fit, or null."""
    checks = [
        (cell.wrong, _text(name + cell.right))
        for name, cell in cells.items()
        if cell.wrong != "false"
    ]
    return _first(checks) if checks else "cast(NULL AS string)"


def _first(cases: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> str:
    return f"CASE {' '.join(f'WHEN {when} THEN {then}' for when, then in cases)} END"


def _rules(table: str) -> Iterator[Rule]:
    yield Rule(
        TORN,
        "_torn",
        _text("is no object in a line of JSON, or no row of CSV with all cells, in UTF-8"),
    )
    yield Rule(
        WRONG_TYPE, "_wrong IS NOT NULL", "concat(_wrong, ' is of another type, or out of bounds')"
    )
    yield Rule(
        OTHER_RUN,
        "run_id IS DISTINCT FROM _run",
        "concat('run_id is ', run_id, ', in the trace of ', coalesce(_run, 'no known run'), "
        "', as its run.json or its folder has it')",
    )
    yield from RULES[table]
    for name in TABLES[table]:
        if name not in NULLABLE[table]:
            yield Rule(MISSING, f"`{name}` IS NULL", _text(f"{name} is not there"))


def _text(text: str) -> str:
    return f"'{text}'"
