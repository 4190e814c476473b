"""The items of a binlog, read without a cluster."""

from __future__ import annotations

from typing import Any

from purgatory.cdc.capture import parse_source_address
from purgatory.cdc.capture.binlog import BinlogReader, SchemaStatement, Transaction
from purgatory.cdc.capture.source import TableFilter, connect, logs_cascades
from tests.databases.cdc.mariadb import MariaDb


class Source:
    """An empty database, and what the binlog says of it from here on."""

    def __init__(self, mariadb: MariaDb, name: str) -> None:
        self.mariadb = mariadb
        self.name = name
        self.run(f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}", database=None)
        self.begin()

    def begin(self) -> None:
        """Read from here on."""
        self.start = self.mariadb.binlog_end()

    def run(self, *statements: str, database: str | None = "") -> None:
        """Run statements in one session, by default in the database."""
        self.mariadb.run(*statements, database=self.name if database == "" else database)

    def reader(self) -> BinlogReader:
        """A reader up to the end."""
        address = parse_source_address(self.mariadb.url)
        with connect(address) as connection:
            ignore = logs_cascades(connection)
        chosen = TableFilter(self.name)
        return BinlogReader(address, self.start, chosen, once=True, ignore_cascades=ignore)

    def transactions(self) -> list[list[tuple[str, Any]]]:
        """Each transaction's changes: kind, and the row's values (one alone, if it is one)."""
        return [
            [(row.kind, _short(list(row.data.values()))) for row in item.rows]
            for item in self.reader().items()
            if isinstance(item, Transaction)
        ]

    def schema_changes(self) -> list[str]:
        """Each change of a schema: its kind, table, new name, and why it stops, if so."""
        return [
            " ".join(
                [
                    change.kind,
                    change.table or "",
                    *(() if change.new_name is None else ["to", ".".join(change.new_name)]),
                    *(step["why"][:40] for step in change.steps or () if step["do"] == "stop"),
                ]
            ).replace(f"{self.name}.", "")
            for item in self.reader().items()
            if isinstance(item, SchemaStatement)
            for change in item.changes
        ]


def _short(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values
