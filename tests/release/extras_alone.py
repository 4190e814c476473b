"""The commands of each extra that is installed alone, and the messages of the others' there.

A command is given by its words; ``TRACE`` stands for a trace, ``OUT`` for a folder to be made.
"""

from __future__ import annotations

from dataclasses import dataclass

WHEEL = ("wheel", "--delays", "1s,2s,7s")
SIMULATE = ("simulate", "steady", "--duration", "200ms", "--quiet")
WAITS = ("waits", "TRACE", "--engine", "duckdb")
AUDIT = ("audit", "TRACE", "--engine", "duckdb")
ANALYZE = ("analyze", "TRACE", "--engine", "duckdb", "--out", "OUT")
SPARK_WAITS = ("waits", "TRACE", "--engine", "spark")
VIEW = ("view", "TRACE", "--no-open", "--view-port", "0")
CLUSTER = ("cluster", "--port", "0", "--control-port", "0")
FAULT = ("fault", "--control", "http://127.0.0.1:9", "list")
STREAM = ("stream", "--bootstrap", "127.0.0.1:9", "--out", "OUT")
CAPTURE = ("capture", "--from", "mysql://me@127.0.0.1:9/shop", "--bootstrap", "127.0.0.1:9")


@dataclass(frozen=True)
class Alone:
    """One extra by itself.

    Args:
        extra: its name; empty for the libraries without any.
        works: commands that end well there.
        wants: commands of other extras, each with the extra that it must name in one line.
        starts: commands that serve something there, say where, and end at Ctrl-C.
    """

    extra: str
    works: tuple[tuple[str, ...], ...] = ()
    wants: tuple[tuple[tuple[str, ...], str], ...] = ()
    starts: tuple[tuple[str, ...], ...] = ()


ALL = (
    Alone("", wants=(((), "[cli]"), (WHEEL, "[cli]"))),
    Alone(
        "cli",
        works=((), ("--version",), WHEEL),
        wants=((SIMULATE, "[simulation]"), (WAITS, "[analysis]"), (CLUSTER, "[cluster]")),
    ),
    Alone(
        "simulation",
        works=(SIMULATE, ("scenarios",), WHEEL),
        wants=((WAITS, "[analysis]"), (VIEW, "[view]"), (CAPTURE, "[live]")),
    ),
    Alone(
        "analysis",
        works=(WAITS, ANALYZE, AUDIT, ("occupancy", "TRACE", "--engine", "duckdb")),
        wants=((CLUSTER, "[cluster]"), (SPARK_WAITS, "[spark]")),
    ),
    Alone(
        "spark",
        works=(SPARK_WAITS,),
        wants=((STREAM, "[live]"), (WAITS, "[analysis]")),
    ),
    Alone("connect", works=(SPARK_WAITS,)),
    Alone("view", works=(SIMULATE,), wants=((CLUSTER, "[cluster]"),), starts=(VIEW,)),
    Alone("cluster", works=(SIMULATE,), wants=((SPARK_WAITS, "[spark]"),), starts=(CLUSTER, VIEW)),
    Alone("live", works=(SIMULATE, SPARK_WAITS), starts=(CLUSTER, VIEW)),
)
