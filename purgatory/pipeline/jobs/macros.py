"""The functions of the jobs' SQL that one of the engines calls otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Macro(NamedTuple):
    """One function: its call and its body in each engine; None: the engine has it by itself.

    Attributes:
        arguments: their names with their types, as Spark declares them.
        returns: the type of the result, as Spark declares it.
    """

    name: str
    arguments: str
    returns: str
    spark: str | None
    duckdb: str | None


MACROS = (
    Macro("explode", "list array<string>", "string", None, "unnest(list)"),
    Macro(
        "sequence", "low bigint, high bigint", "array<bigint>", None, "generate_series(low, high)"
    ),
    Macro("int_div", "a bigint, b bigint", "bigint", "a div b", "a // b"),
    Macro("ratio", "a double, b double", "double", "try_divide(a, b)", "a / nullif(b, 0)"),
)
"""All of them. A Spark function of its own can't aggregate, and can't stand in `explode`."""


def spark_macros() -> Iterator[str]:
    """The statements that define them in Spark."""
    for macro in MACROS:
        if macro.spark is not None:
            yield (
                f"create or replace temporary function {macro.name}({macro.arguments}) "
                f"returns {macro.returns} return {macro.spark}"
            )


def duckdb_macros() -> Iterator[str]:
    """The statements that define them in DuckDB."""
    for macro in MACROS:
        if macro.duckdb is not None:
            names = ", ".join(argument.split()[0] for argument in macro.arguments.split(", "))
            yield f"create or replace temp macro {macro.name}({names}) as {macro.duckdb}"
