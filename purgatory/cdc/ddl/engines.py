"""Storage engines in statements: whether the binlog has the rows of their tables.

Rows written through a MERGE table are in the binlog under its name, not under that of the table
that has them. Tables of other engines are those of another server, or keep nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from purgatory.cdc.ddl.tokens import Token, Tokens

_LOGGED = frozenset({
    "ARCHIVE", "ARIA", "CSV", "DEFAULT", "HEAP", "INNODB", "MEMORY", "MROONGA", "MYISAM", "NDB",
    "NDBCLUSTER", "ROCKSDB", "TOKUDB", "XTRADB",
})  # fmt: skip
MERGES = frozenset({"MERGE", "MRG_MYISAM"})

Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options of a table that decide where its rows are.

    Args:
        engine: in upper case; empty if it is not named.
        union: the tables of a MERGE table.
    """

    engine: str = ""
    union: Sequence[Name] = ()

    @property
    def reason(self) -> str:
        """Why the table can't be captured; empty: it can."""
        return engine_reason(self.engine)


def engine_reason(engine: str) -> str:
    """Why a table of an engine can't be captured; empty: it can.

    Args:
        engine: in upper case; empty for the server's default.
    """
    if not engine or engine in _LOGGED:
        return ""
    if engine in MERGES:
        return (
            "the binlog doesn't say which tables have the rows of a MERGE table: drop it, or leave "
            "it and its tables out with --only"
        )
    return f"the binlog doesn't have all that its engine {engine} does: leave it out with --only"


def merge_reason(database: str, table: str) -> str:
    """Why a table of a MERGE table can't be captured."""
    return (
        f"changes through the MERGE table {database}.{table} are in the binlog under that name: "
        "drop that table, or leave both out with --only"
    )


def engine_options(options: Sequence[Token], database: str) -> EngineOptions:
    """Read a table's options.

    Args:
        database: of tables that are named without one.

    Raises:
        SqlError: they aren't understood.
    """
    engine, union = "", list[Name]()
    tokens = Tokens(options)
    while tokens:
        if tokens.accept("ENGINE"):
            tokens.accept_sign("=")
            engine = tokens.next().text.upper()
        elif tokens.accept("UNION"):
            tokens.accept_sign("=")
            union = [Tokens(part).full_name(database) for part in tokens.group() or () if part]
        elif tokens.group() is None:  # partitions
            tokens.next()
    if union and not engine:
        engine = "MERGE"
    return EngineOptions(engine, union if engine in MERGES else ())
