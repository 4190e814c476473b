"""The rules by which rows are quarantined, as SQL that each engine computes beside the columns.

The reasons of a table are its `RULES`, behind those of all tables; the first that applies counts.
Files that can't be read (`trace_set`), streams (`stream/windows.sql`) and changes (`cdc.errors`)
have their own.

A row has the columns of its table, and some of its own: `_torn`, `_wrong` (of the first value that
does not fit its column, what it is and must be, or null) and `_run` (the run of its folder). Names
stand in backticks, as Spark has them.
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

_MOST_SHOWN = 60
"""The characters of a value that a detail shows."""


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
    """The first value that does not fit its column, and what it must be; or null."""
    checks = [
        (
            cell.wrong,
            _text(f"{name} must be {cell.right}")
            if cell.shown is None
            else f"concat('{name} is ', {_shown(cell.shown)}, ', and must be {cell.right}')",
        )
        for name, cell in cells.items()
        if cell.wrong != "false"
    ]
    return _first(checks) if checks else "cast(NULL AS string)"


def _shown(text: str) -> str:
    """SQL: the beginning of a text, in quotes; a list or an object is left out of it."""
    first = f"substring({text}, 1, 1)"
    shown = f"CASE WHEN {first} IN ('[', '{{') THEN concat({first}, '...') ELSE {text} END"
    return f"concat('\"', substring({shown}, 1, {_MOST_SHOWN}), '\"')"


def _first(cases: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> str:
    return f"CASE {' '.join(f'WHEN {when} THEN {then}' for when, then in cases)} END"


def _rules(table: str) -> Iterator[Rule]:
    yield Rule(
        TORN,
        "_torn",
        _text("is no object in a line of JSON, or no row of CSV with all cells, in UTF-8"),
    )
    yield Rule(WRONG_TYPE, "_wrong IS NOT NULL", "_wrong")
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
