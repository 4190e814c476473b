"""The functions of the jobs' SQL that one of the engines calls otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from purgatory.pipeline.jobs.audit.anomalies import EVENT
from purgatory.trace.rounded_waits import rounded_sql


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


_TOPIC = "regexp_replace(watch_key, '-[0-9]+' || chr(92) || 'z', '')"
"""The key without `-` and the partition's number; a key without these is a topic itself."""

_SPARK_TOPICS = f"""
    case when watch_keys is null then array('*', null)
    when size(watch_keys) = 1 then array({_TOPIC.replace("watch_key", "watch_keys[0]")})
    else array_distinct(array_prepend(transform(watch_keys, watch_key -> {_TOPIC}), '*')) end
"""
_DUCKDB_TOPICS = f"""
    case when watch_keys is null then ['*', null]
    when len(watch_keys) = 1 then [{_TOPIC.replace("watch_key", "watch_keys[1]")}]
    else list_prepend('*', list_distinct(list_transform(watch_keys, lambda watch_key: {_TOPIC})))
    end
"""

_EVENTS = f"array<struct<{','.join(f'`{name}`:{kind}' for name, kind in EVENT.items())}>>"

MACROS = (
    Macro("explode", "list array<string>", "string", None, "unnest(list)"),
    # For a list that is never empty: Spark computes the list of `explode` twice more, for a filter.
    Macro("explode_outer", "list array<string>", "string", None, "unnest(list)"),
    Macro(
        "sequence", "low bigint, high bigint", "array<bigint>", None, "generate_series(low, high)"
    ),
    Macro("int_div", "a bigint, b bigint", "bigint", "a div b", "a // b"),
    Macro(
        "event_row",
        ", ".join(f"its_{name} {kind}" for name, kind in EVENT.items()),
        _EVENTS.removeprefix("array<").removesuffix(">"),
        "named_struct(" + ", ".join(f"'{name}', its_{name}" for name in EVENT) + ")",
        "{" + ", ".join(f"'{name}': its_{name}" for name in EVENT) + "}",
    ),
    Macro(
        "some_events",
        f"list {_EVENTS}",
        _EVENTS,
        f"coalesce(list, cast(array() as {_EVENTS}))",
        "coalesce(list, [])",
    ),
    Macro("ratio", "a double, b double", "double", "try_divide(a, b)", "a / nullif(b, 0)"),
    Macro(
        "array_compact",
        "list array<string>",
        "array<string>",
        None,
        "list_filter(list, lambda one: one is not null)",
    ),
    Macro(
        "named_count",
        "name string, parked bigint",
        "struct<name: string, parked: bigint>",
        "named_struct('name', name, 'parked', parked)",
        "{'name': name, 'parked': parked}",
    ),
    Macro("rounded_wait", "wait_us bigint", "bigint", *[rounded_sql("wait_us")] * 2),
    Macro("coarse_wait", "wait_us bigint", "bigint", *[rounded_sql("wait_us", 100)] * 2),
    Macro("list_size", "list array<string>", "int", "array_size(list)", "len(list)"),
    Macro("topics_of", "watch_keys array<string>", "array<string>", _SPARK_TOPICS, _DUCKDB_TOPICS),
)
"""All of them. A Spark function of its own can't aggregate, and can't stand in `explode`."""


def spark_macros() -> dict[str, str]:
    """The statement that defines each of them in Spark."""
    return {
        macro.name: f"create or replace temporary function {macro.name}({macro.arguments}) "
        f"returns {macro.returns} return {macro.spark}"
        for macro in MACROS
        if macro.spark is not None
    }


def duckdb_macros() -> Iterator[str]:
    """The statements that define them in DuckDB."""
    for macro in MACROS:
        if macro.duckdb is not None:
            names = ", ".join(argument.split()[0] for argument in macro.arguments.split(", "))
            yield f"create or replace temp macro {macro.name}({names}) as {macro.duckdb}"
