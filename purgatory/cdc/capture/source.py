"""The source server: its address, its settings, and the tables in its catalog."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql

from purgatory.cdc.capture.charsets import collation_charset
from purgatory.cdc.capture.errors import CaptureError, source_error
from purgatory.cdc.capture.position import Position
from purgatory.cdc.ddl.engines import MERGES, engine_reason
from purgatory.cdc.ddl.statements import schema_changes
from purgatory.settings.addresses import host_and_port

Name = tuple[str, str]

DEFAULT_PORT = 3306
_TIMEOUT_S = 10
_SESSION = (
    "SET time_zone = '+00:00', sql_mode = '', sql_select_limit = 18446744073709551615, "
    "sql_big_selects = 1, net_write_timeout = 3600, wait_timeout = 86400"
)
"""Settings that a session must not take from the source's: they change or cut results."""
_MARIADB_SESSION = (
    "SET max_statement_time = 0, idle_transaction_timeout = 0, "
    "idle_readonly_transaction_timeout = 0"
)
_MYSQL_SESSION = "SET max_execution_time = 0"


@dataclass(frozen=True, slots=True)
class SourceAddress:
    """A MariaDB or MySQL server, and a user.

    Args:
        database: to be captured; None for all except the system's.
    """

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str | None = None

    def connection_settings(self) -> dict[str, Any]:
        """The arguments of PyMySQL's ``connect``."""
        return {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password,
            "charset": "utf8mb4",
            "connect_timeout": _TIMEOUT_S,
            "init_command": _SESSION,
        }

    def __str__(self) -> str:
        return host_and_port(self.host, self.port)


def parse_source_address(text: str) -> SourceAddress:
    """Parse ``mysql://user:password@host:port[/database]``, with ``%`` escapes.

    Raises:
        CaptureError: it is none.
    """
    form = "write mysql://USER:PASSWORD@HOST:PORT[/DATABASE]"
    try:
        parts = urlsplit(text)
        port = parts.port or DEFAULT_PORT
    except ValueError:
        raise CaptureError(f"--from: it can't be read as an address: {form}") from None
    if parts.scheme not in ("mysql", "mariadb") or not parts.hostname or not parts.username:
        raise CaptureError(f"--from: it is no database's address: {form}")
    database = unquote(parts.path.strip("/"))
    if "/" in database or parts.query or parts.fragment:
        raise CaptureError(f"--from: there is more behind the database: {form}")
    return SourceAddress(
        host=parts.hostname,
        port=port,
        user=unquote(parts.username),
        password=unquote(parts.password or ""),
        database=database or None,
    )


_REQUIRED_VARIABLES = {
    "log_bin": ("ON", "start the server with --log-bin"),
    "binlog_format": ("ROW", "SET GLOBAL binlog_format = 'ROW'"),
    "binlog_row_image": ("FULL", "SET GLOBAL binlog_row_image = 'FULL'"),
    "binlog_row_metadata": ("FULL", "SET GLOBAL binlog_row_metadata = 'FULL'"),
}
_OPTIONAL_VARIABLES = {
    "binlog_row_value_options": ("", "SET GLOBAL binlog_row_value_options = ''"),
    "binlog_transaction_compression": ("OFF", "SET GLOBAL binlog_transaction_compression = OFF"),
    "log_bin_compress": ("OFF", "SET GLOBAL log_bin_compress = OFF"),
    # New tables get times whose precision the binlog doesn't say.
    "mysql56_temporal_format": ("ON", "SET GLOBAL mysql56_temporal_format = ON"),
}


class SourceConnection(pymysql.connections.Connection):  # type: ignore[misc]
    """A connection that, as by PyMySQL's default, offers TLS and doesn't verify the server.

    PyMySQL loads the system's certificates for each connection, which takes longer than all else
    that a short capture does: here, all connections share the first one's context.
    """

    _context: SSLContext | None = None

    def _create_ssl_ctx(self, settings: Any) -> Any:
        if settings:
            return super()._create_ssl_ctx(settings)
        if SourceConnection._context is None:
            SourceConnection._context = super()._create_ssl_ctx(settings)
        return SourceConnection._context


def connect(address: SourceAddress) -> pymysql.connections.Connection:
    """Connect, with times in UTC, and without the limits and modes of the source's settings.

    Raises:
        CaptureError: the server is unreachable, or refuses the user.
    """
    try:
        connection = SourceConnection(**address.connection_settings())
        with connection.cursor() as cursor:
            cursor.execute(_MARIADB_SESSION if is_mariadb(connection) else _MYSQL_SESSION)
        return connection
    except (pymysql.Error, OSError) as error:
        message = f"the source {address} can't be reached: {error_text(error)}"
        raise source_error(message, error) from None


def error_text(error: BaseException) -> str:
    """An error's message on one line."""
    return " ".join(str(error.args[-1] if error.args else error).split())


def is_mariadb(connection: pymysql.connections.Connection) -> bool:
    """Whether it is MariaDB, and not MySQL."""
    return "mariadb" in str(connection.get_server_info()).lower()


def check_settings(connection: pymysql.connections.Connection) -> bool:
    """Check that the binlog has all changes, and all columns of all rows, with their names.

    Returns:
        Whether the source compares the names of tables and databases in lower case.

    Raises:
        CaptureError: a setting is wrong; the message says how to change it.
    """
    with connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL VARIABLES")
        settings = {str(name).lower(): str(value).upper() for name, value in cursor.fetchall()}
    for name, (required, advice) in {**_REQUIRED_VARIABLES, **_OPTIONAL_VARIABLES}.items():
        value = settings.get(name)
        if value is None and name in _OPTIONAL_VARIABLES:
            continue
        if value != required:
            shown = (
                "missing (MariaDB has it from 10.5, MySQL from 8.0.1)" if value is None else value
            )
            raise CaptureError(f"the source's setting {name} is {shown}, not {required}: {advice}")
    _check_filters(connection)
    _check_replica(connection, settings)
    return settings.get("lower_case_table_names", "0") != "0"


_FILTERS = ("binlog_do_db", "binlog_ignore_db")


def _check_filters(connection: pymysql.connections.Connection) -> None:
    for name, value in zip(_FILTERS, _status(connection)[2:4], strict=True):
        if value:
            raise CaptureError(
                f"the source's setting {name} is {_text(value)}: its binlog lacks changes; start "
                f"the server without --{name.replace('_', '-')}"
            )


def _check_replica(connection: pymysql.connections.Connection, settings: dict[str, str]) -> None:
    """Check that the changes of a replica are in its own binlog."""
    name = next((n for n in ("log_replica_updates", "log_slave_updates") if n in settings), None)
    if name is None or settings[name] == "ON":
        return
    replicates = bool(settings.get("gtid_slave_pos"))
    with connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Slaves_running'")
        row = cursor.fetchone()
        replicates = replicates or (row is not None and str(row[1]) != "0")
        try:
            try:
                cursor.execute("SHOW SLAVE STATUS")
            except pymysql.err.ProgrammingError:
                # MySQL from 8.4.
                cursor.execute("SHOW REPLICA STATUS")
            replicates = replicates or cursor.fetchone() is not None
        except pymysql.OperationalError as error:
            # Without the privilege, the other signs must do.
            if error.args[0] != _ACCESS_DENIED:
                raise
    if replicates:
        raise CaptureError(
            f"the source is a replica, and its setting {name} is OFF: its binlog lacks what it "
            f"replicates; start the server with --{name.replace('_', '-')}, or capture its primary"
        )


_ACCESS_DENIED = 1227
_NO_SUCH_TABLE = 1146
_NO_MERGED_TABLE = 1168
_TIMES_TO_LIST = 20


def unlogged_cascade(connection: pymysql.connections.Connection, chosen: TableFilter) -> str:
    """Find a foreign key of captured tables with an action that changes rows.

    InnoDB acts itself, and logs nothing, but where `logs_cascades`.

    Returns:
        The table, and why its capture stops; empty: there is none.
    """
    for tries in range(_TIMES_TO_LIST, 0, -1):
        try:
            for database, table in _existing_tables(connection, chosen):
                sql = _create_statement(connection, database, table)
                cascade = next((change.cascade for change in schema_changes(sql, database)), "")
                if cascade:
                    return f"table {database}.{table}: {cascade_reason(cascade)}"
            break
        except pymysql.err.ProgrammingError as error:
            # A table that was renamed since the list has its keys under the other name.
            if error.args[0] != _NO_SUCH_TABLE or tries == 1:
                raise
    return ""


def unlogged_engine(connection: pymysql.connections.Connection, chosen: TableFilter) -> str:
    """Find a captured table whose engine, or whose MERGE table, changes it outside of the binlog.

    Returns:
        The table, and why its capture stops; empty: there is none.
    """
    with connection.cursor() as cursor:
        cursor.execute(_ENGINES)
        engines = [(str(row[0]), str(row[1]), str(row[2] or "").upper()) for row in cursor]
    for database, table, engine in engines:
        if chosen.includes(database, table) and engine_reason(engine):
            return f"table {database}.{table}: {engine_reason(engine)}"
    for database, table, engine in engines:
        if engine not in MERGES:
            continue
        try:
            sql = _create_statement(connection, database, table)
        except pymysql.Error as error:
            # It was dropped since, or its tables were: nothing changes through it.
            if error.args[0] in (_NO_SUCH_TABLE, _NO_MERGED_TABLE):
                continue
            raise
        for change in schema_changes(sql, database)[1:]:
            if change.table is not None and chosen.includes(change.database, change.table):
                [stop] = change.steps or ()
                return f"table {change.database}.{change.table}: {stop['why']}"
    return ""


def _create_statement(connection: pymysql.connections.Connection, database: str, table: str) -> str:
    """The statement that creates a table, with its keys, which the catalog hides from readers."""
    connection.use_unicode = False  # defaults of binary columns stand in the text as they are
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SHOW CREATE TABLE {quoted(database)}.{quoted(table)}")
            return str(cursor.fetchone()[1].decode(errors="surrogateescape"))
    finally:
        connection.use_unicode = True


def logs_cascades(connection: pymysql.connections.Connection) -> bool:
    """Whether the binlog has the rows that foreign keys change: the server acts, not InnoDB.

    MySQL from 9.6 on does so.
    """
    with connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL VARIABLES LIKE 'innodb_native_foreign_keys'")
        row = cursor.fetchone()
    return row is not None and str(row[1]).upper() == "OFF"


def cascade_reason(cascade: str) -> str:
    """Why a foreign key with this action stops a capture, and what to do."""
    return (
        f"its foreign key's {cascade} changes rows without the binlog; drop the key, leave the "
        "table out with --only, or capture without these changes with --ignore-cascades"
    )


def quoted(name: str) -> str:
    """A name in backquotes."""
    return "`" + name.replace("`", "``") + "`"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def check_beginning(connection: pymysql.connections.Connection, chosen: TableFilter) -> None:
    """Check that a new topic can begin here.

    The binlog has the rows of a prepared (XA) transaction before it, and history as rows of a table
    with system versioning. A table that gets one later has a stop in the topic.

    Raises:
        CaptureError: there is such a transaction or table.
    """
    with connection.cursor() as cursor:
        cursor.execute(_VERSIONED)
        for database, table in cursor.fetchall():
            if chosen.includes(str(database), str(table)):
                raise CaptureError(
                    f"table {database}.{table} has system versioning: its history can't be told "
                    "from its rows; ALTER TABLE ... DROP SYSTEM VERSIONING, or leave it out with "
                    "--only"
                )
        try:
            cursor.execute("XA RECOVER")
        except pymysql.OperationalError:
            # MySQL wants a privilege for it.
            return
        row = cursor.fetchone()
    if row is not None:
        raise CaptureError(
            f"a prepared transaction waits for its end: XA COMMIT or XA ROLLBACK {_text(row[3])!r}"
            " (XA RECOVER lists them), and start again"
        )


def current_position(connection: pymysql.connections.Connection) -> Position:
    """The current end of the binlog.

    Raises:
        CaptureError: there is no binlog, or the user lacks the privilege.
    """
    file, offset, *_ = _status(connection)
    return Position(str(file), int(offset))


def _status(connection: pymysql.connections.Connection) -> Sequence[Any]:
    with connection.cursor() as cursor:
        try:
            try:
                cursor.execute("SHOW MASTER STATUS")
            except pymysql.err.ProgrammingError:
                # MySQL from 8.4.
                cursor.execute("SHOW BINARY LOG STATUS")
            row = cursor.fetchone()
        except pymysql.Error as error:
            message = f"the end of the binlog can't be read: {error_text(error)}"
            raise source_error(message, error) from None
    if row is None:
        raise CaptureError("the source writes no binlog: start the server with --log-bin")
    return tuple(row)


SYSTEM_DATABASES = frozenset({"mysql", "information_schema", "performance_schema", "sys"})


@dataclass(frozen=True, slots=True)
class TableFilter:
    """Selects the tables to capture.

    Args:
        database: the only one; None for all except the system's.
        tables: ``TABLE`` or ``DATABASE.TABLE``; empty for all.
    """

    database: str | None = None
    tables: frozenset[str] = frozenset()

    def in_lower_case(self) -> TableFilter:
        """The filter for a source with `lower_case_table_names`."""
        database = None if self.database is None else self.database.lower()
        return TableFilter(database, frozenset(table.lower() for table in self.tables))

    def includes_database(self, database: str) -> bool:
        """Whether a database's own changes are captured."""
        if self.database is not None:
            return database == self.database
        return database.lower() not in SYSTEM_DATABASES

    def includes(self, database: str, table: str) -> bool:
        if not self.includes_database(database):
            return False
        return not self.tables or table in self.tables or f"{database}.{table}" in self.tables


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column.

    Args:
        data_type, column_type: as in ``information_schema``, but with the character set in
            ``column_type`` if that is not the table's.
    """

    name: str
    data_type: str
    column_type: str


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A table in the source's current catalog."""

    database: str
    table: str
    columns: Sequence[TableColumn]
    primary_key: Sequence[str]
    engine: str

    def definition(self) -> dict[str, Any]:
        """Maxwell's ``def``."""
        return {
            "database": self.database,
            "table": self.table,
            "columns": [
                {
                    "name": column.name,
                    "type": column.data_type,
                    "column-type": column.column_type,
                    "signed": "unsigned" not in column.column_type,
                }
                for column in self.columns
            ],
            "primary-key": list(self.primary_key),
        }


_COLUMNS = """SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME, COLUMN_KEY
FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"""
_KEYS = """SELECT INDEX_NAME, COLUMN_NAME FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0 ORDER BY INDEX_NAME, SEQ_IN_INDEX"""
_VERSIONED = """SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES
WHERE TABLE_TYPE = 'SYSTEM VERSIONED' ORDER BY TABLE_SCHEMA, TABLE_NAME"""
_TABLES = """SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES
WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY TABLE_SCHEMA, TABLE_NAME"""
_ENGINES = """SELECT TABLE_SCHEMA, TABLE_NAME, ENGINE FROM information_schema.TABLES
WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY TABLE_SCHEMA, TABLE_NAME"""
_TABLE = """SELECT ENGINE, TABLE_COLLATION FROM information_schema.TABLES
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND TABLE_TYPE = 'BASE TABLE'"""


def describe_table(
    connection: pymysql.connections.Connection, database: str, table: str
) -> TableDescription | None:
    """A table in the catalog; None if there is none."""
    with connection.cursor() as cursor:
        cursor.execute(_TABLE, (database, table))
        row = cursor.fetchone()
        if row is None:
            return None
        cursor.execute(_COLUMNS, (database, table))
        rows = cursor.fetchall()
        usual = collation_charset(row[1])
        columns = [
            TableColumn(
                str(name),
                str(data_type),
                f"{words}{'' if charset in (None, usual) else f' character set {charset}'}",
            )
            for name, data_type, words, charset, _ in rows
        ]
        cursor.execute(_KEYS, (database, table))
        keys: dict[str, list[str]] = {}
        for index, column in cursor.fetchall():
            keys.setdefault(str(index), []).append(str(column))
    # As in the binlog: without a primary key, the first UNIQUE key of NOT NULL columns.
    key_columns = {str(row[0]) for row in rows if row[4] == "PRI"}
    key = keys.get("PRIMARY") or next((key for key in keys.values() if set(key) == key_columns), [])
    return TableDescription(database, table, columns, key, str(row[0]))


_GRANT = re.compile(
    r"GRANT (?P<what>.+?) ON (?P<database>\*|`(?:[^`]|``)*`)\.(?P<table>\*|`[^`]*`)"
)
_WILDCARD = re.compile(r"\\(.)|([%_])|(.)", re.DOTALL)


def _check_grants(
    connection: pymysql.connections.Connection, chosen: TableFilter, captured: Sequence[Name]
) -> None:
    """Check that the user may read all captured tables and columns: the catalog hides the others.

    Raises:
        CaptureError: SELECT is missing; the message has the statement that grants it.
    """
    with connection.cursor() as cursor:
        cursor.execute("SHOW GRANTS")
        matches = [_GRANT.match(str(text)) for (text,) in cursor.fetchall()]
    grants = [match for match in matches if match and _SELECTS.search(match["what"])]
    patterns = [match["database"] for match in grants if match["table"] == "*"]
    if "*" in patterns:
        return
    if chosen.tables:
        readable = {(_unquoted(m["database"]), _unquoted(m["table"])) for m in grants}
        for database, table in captured:
            if (database, table) not in readable and not _any_matches(patterns, database):
                where = f"`{database}`.`{table}`"
                raise CaptureError(f"the user may not read all of {where}: GRANT SELECT ON {where}")
    elif chosen.database is None or not _any_matches(patterns, chosen.database):
        where = "*" if chosen.database is None else f"`{chosen.database}`"
        raise CaptureError(
            f"the user may not see all tables: GRANT SELECT ON {where}.* to it, or name the tables "
            "with --only"
        )


_SELECTS = re.compile(r"\bSELECT\b(?! ?\()|\bALL PRIVILEGES\b")


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`")


def _any_matches(patterns: Sequence[str], database: str) -> bool:
    """Whether a database's name fits a pattern of GRANT."""
    return any(_matches(_unquoted(pattern), database) for pattern in patterns)


def _matches(pattern: str, database: str) -> bool:
    parts = [
        re.escape(escaped or letter) if escaped or letter else ".*" if sign == "%" else "."
        for escaped, sign, letter in _WILDCARD.findall(pattern)
    ]
    return re.fullmatch("".join(parts), database, re.DOTALL | re.IGNORECASE) is not None


def captured_tables(connection: pymysql.connections.Connection, chosen: TableFilter) -> list[Name]:
    """The names of the captured tables that exist, with their databases.

    Raises:
        CaptureError: the user may not see all.
    """
    captured = _existing_tables(connection, chosen)
    _check_grants(connection, chosen, captured)
    return captured


def missing_tables(connection: pymysql.connections.Connection, chosen: TableFilter) -> str:
    """Name the chosen tables that do not exist: typing errors, or dropped since; empty: none."""
    captured = _existing_tables(connection, chosen)
    existing = {table for _, table in captured} | {".".join(name) for name in captured}
    missing = ", ".join(sorted(chosen.tables - existing))
    return missing and f"--only: the source has no table {missing}"


def _existing_tables(connection: pymysql.connections.Connection, chosen: TableFilter) -> list[Name]:
    with connection.cursor() as cursor:
        cursor.execute(_TABLES)
        names = [(str(row[0]), str(row[1])) for row in cursor.fetchall()]
    return [name for name in names if chosen.includes(*name)]


def describe_tables(
    connection: pymysql.connections.Connection, chosen: TableFilter
) -> list[TableDescription]:
    """The captured tables, by name.

    Raises:
        CaptureError: as `captured_tables`.
    """
    captured = captured_tables(connection, chosen)
    descriptions = [describe_table(connection, *name) for name in captured]
    return [description for description in descriptions if description is not None]
