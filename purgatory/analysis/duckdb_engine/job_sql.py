"""Runs the SQL of a job, which is generated from its source, on the tables of a connection."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb

    from purgatory.analysis.row_order import Order

_END = ";\n"


def statements_of(job: str) -> Iterator[str]:
    """The statements of a job, in their order; each makes a temporary table."""
    text = (files("purgatory.analysis.duckdb_engine") / "sql" / f"{job}.sql").read_text("utf-8")
    return (statement for statement in text.split(_END) if statement)


def run_job(connection: duckdb.DuckDBPyConnection, job: str, **options: int | None) -> None:
    """Make the tables of a job from those of a trace, which are there already.

    Args:
        connection: with the tables.
        job: its name.
        options: the numbers that the job takes; some may be None.
    """
    for name, number in options.items():
        value = "NULL" if number is None else f"{number:d}"
        connection.execute(f"SET VARIABLE {name} = {value}::BIGINT")
    for statement in statements_of(job):
        connection.execute(statement)


def ordered(order: Order) -> str:
    """An order as SQL; nulls come first, as they do in Spark."""
    return ", ".join(
        (
            f'"{name}"'
            if among is None
            else f'list_position([{", ".join(repr(one) for one in among)}], "{name}")'
        )
        + " NULLS FIRST"
        for name, among in order
    )
