"""What is wrong with a row, as SQL that each engine computes beside the row's columns.

A row has the columns of its table, and some of its own: `_torn`, `_wrong` (the first column whose
value is of another type, or null) and `_run` (the run of its folder). The first reason that applies
counts. Names stand in backticks, as Spark has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from purgatory.analysis.traces.cell_types import Cell
from purgatory.trace.trace_schema import DERIVED, NULLABLE, RULES, TABLES, Rule

TORN = "torn line"
WRONG_TYPE = "wrong type"
MISSING = "missing column"
OTHER_RUN = "row of another run"

MOST_CONTENT = 2_000
"""How many characters of a bad row are kept, and of what is said of it."""


def filled_in(table: str) -> dict[str, str]:
    """The columns that follow from others where they are null, and what they are then."""
    derived = DERIVED.get(table, {})
    return {
        "run_id": "coalesce(run_id, _run)",
        **{name: f"coalesce(`{name}`, {how})" for name, how in derived.items()},
    }


def reason_of(table: str) -> str:
    """The reason of the first rule that a row breaks; null if it breaks none."""
    return _first((rule.condition, _text(rule.reason)) for rule in _rules(table))


def detail_of(table: str) -> str:
    """What is wrong in a row, in words with its values; for rows that have a reason."""
    words = _first((rule.condition, rule.detail) for rule in _rules(table))
    return f"substring({words}, 1, {MOST_CONTENT})"


def first_wrong(cells: Mapping[str, Cell]) -> str:
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
    yield Rule(TORN, "_torn", _text("is no object in one line of JSON"))
    yield Rule(
        WRONG_TYPE, "_wrong IS NOT NULL", "concat(_wrong, ' is of another type, or out of bounds')"
    )
    yield Rule(
        OTHER_RUN,
        "run_id IS DISTINCT FROM _run",
        "concat('run_id is ', run_id, ', in the trace of ', coalesce(_run, 'no known run'))",
    )
    yield from RULES[table]
    for name in TABLES[table]:
        if name not in NULLABLE[table]:
            yield Rule(MISSING, f"`{name}` IS NULL", _text(f"{name} is not there"))


def _text(words: str) -> str:
    return f"'{words}'"
