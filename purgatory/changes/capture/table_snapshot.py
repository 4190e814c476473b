"""The rows as they are at one place of the binlog.

MariaDB tells the place of a consistent snapshot itself; MySQL is locked for the moment in which the
snapshot begins.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pymysql
from pymysql.cursors import SSCursor

from purgatory.changes.capture.address import SourceAddress
from purgatory.changes.capture.captured_records import RowChange
from purgatory.changes.capture.captured_tables import (
    TableDescription,
    TableFilter,
    describe_table,
    described_tables,
)
from purgatory.changes.capture.column_values import query_converter
from purgatory.changes.capture.errors import CaptureError, CaptureFaultError
from purgatory.changes.capture.passing_faults import source_failure
from purgatory.changes.capture.position import Position
from purgatory.changes.capture.server import connect, current_position, is_mariadb, reason

_CONSISTENT_ENGINES = {"INNODB", "ROCKSDB", "TOKUDB"}
_SNAPSHOT = "START TRANSACTION WITH CONSISTENT SNAPSHOT"


_AS_IN_BINLOG = {
    # Printed with six digits unless it is made a double first.
    "float": "{} + 0e0",
    "inet4": "CAST({} AS BINARY(4))",
    "inet6": "CAST({} AS BINARY(16))",
    "uuid": "CAST({} AS BINARY(16))",
}
_CHANGED_MEANWHILE = {1054, 1146, 1412}
"""The server's errors for a table that isn't any more what it was when the snapshot began."""


class TableChangedError(CaptureFaultError):
    """A statement changed a table behind the place of the snapshot."""


class Snapshot:
    """A transaction that sees the tables as they were at ``position``. A context manager.

    Args:
        chosen: which tables; of those that are named, the ones that are there and have snapshots.

    Raises:
        CaptureError: the source can't be reached, refuses, or has tables without transactions.
    """

    def __init__(
        self, address: SourceAddress, chosen: TableFilter | Sequence[tuple[str, str]]
    ) -> None:
        self._connection = connect(address)
        try:
            self.tables: Sequence[TableDescription]
            if isinstance(chosen, TableFilter):
                self.tables = described_tables(self._connection, chosen)
                _check_engines(self.tables)
            else:
                found = [self.described(*name) for name in chosen]
                self.tables = [table for table in found if table and has_snapshots(table)]
            self.position = self._begin()
        except pymysql.Error as error:
            self._connection.close()
            told = f"no snapshot can be taken: {reason(error)}"
            raise source_failure(told, error) from None
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def described(self, database: str, table: str) -> TableDescription | None:
        """Return a table's description as it is at this moment; None when there is none."""
        return describe_table(self._connection, database, table)

    def rows(self, table: TableDescription) -> Iterator[RowChange]:
        """Give out a table's rows, in the order of its key."""
        ts = int(time.time())
        converters = [query_converter(column.data_type) for column in table.columns]
        names = [column.name for column in table.columns]
        try:
            with self._connection.cursor(SSCursor) as cursor:
                # The rows stay as the server sends them: texts, and bytes of what is binary.
                self._connection.decoders = {}
                cursor.execute(_select(table))
                for values in cursor:
                    data = {
                        name: None if value is None else convert(value)
                        for name, convert, value in zip(names, converters, values, strict=True)
                    }
                    yield RowChange(
                        "bootstrap-insert",
                        table.database,
                        table.table,
                        ts,
                        data,
                        None,
                        table.primary_key,
                    )
        except pymysql.Error as error:
            if error.args and error.args[0] in _CHANGED_MEANWHILE:
                name = f"{table.database}.{table.table}"
                raise TableChangedError(f"table {name} changed as it was read") from None
            told = f"table {table.database}.{table.table} can't be read: {reason(error)}"
            raise source_failure(told, error) from None

    def _begin(self) -> Position:
        with self._connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            if is_mariadb(self._connection):
                cursor.execute(_SNAPSHOT)
                cursor.execute("SHOW STATUS LIKE 'binlog_snapshot_%'")
                status = {str(name).lower(): str(value) for name, value in cursor.fetchall()}
                file = status.get("binlog_snapshot_file", "")
                return Position(file, int(status["binlog_snapshot_position"]))
            cursor.execute("FLUSH TABLES WITH READ LOCK")
            try:
                cursor.execute(_SNAPSHOT)
                return current_position(self._connection)
            finally:
                cursor.execute("UNLOCK TABLES")


def has_snapshots(table: TableDescription) -> bool:
    """Tell whether a table can be read as it was at one place of the binlog."""
    return table.engine.upper() in _CONSISTENT_ENGINES


def _check_engines(tables: Sequence[TableDescription]) -> None:
    for table in tables:
        if not has_snapshots(table):
            raise CaptureError(
                f"table {table.database}.{table.table} is of engine {table.engine}, which has no "
                "snapshots: ALTER TABLE it to InnoDB, or leave it out with --only"
            )


def _select(table: TableDescription) -> str:
    columns = ", ".join(
        _AS_IN_BINLOG.get(column.data_type, "{}").format(_quoted(column.name))
        for column in table.columns
    )
    order = ", ".join(map(_quoted, table.primary_key))
    ordered = f" ORDER BY {order}" if order else ""
    return f"SELECT {columns} FROM {_quoted(table.database)}.{_quoted(table.table)}{ordered}"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
