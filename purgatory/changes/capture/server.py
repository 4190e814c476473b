"""The source's server: connecting, and whether its settings let changes be captured."""

from __future__ import annotations

import pymysql

from purgatory.changes.capture.address import SourceAddress
from purgatory.changes.capture.errors import CaptureError
from purgatory.changes.capture.passing_faults import source_failure
from purgatory.changes.capture.position import Position

_WANTED = {
    "log_bin": ("ON", "start the server with --log-bin"),
    "binlog_format": ("ROW", "SET GLOBAL binlog_format = 'ROW'"),
    "binlog_row_image": ("FULL", "SET GLOBAL binlog_row_image = 'FULL'"),
    "binlog_row_metadata": ("FULL", "SET GLOBAL binlog_row_metadata = 'FULL'"),
}
_WANTED_IF_THERE = {
    "binlog_row_value_options": ("", "SET GLOBAL binlog_row_value_options = ''"),
    "binlog_transaction_compression": ("OFF", "SET GLOBAL binlog_transaction_compression = OFF"),
    "log_bin_compress": ("OFF", "SET GLOBAL log_bin_compress = OFF"),
}


def connect(address: SourceAddress) -> pymysql.connections.Connection:
    """Connect, with times in UTC.

    Raises:
        CaptureError: nobody is there, or the user is refused.
    """
    try:
        return pymysql.connect(
            **address.connection_settings(), init_command="SET time_zone = '+00:00'"
        )
    except (pymysql.Error, OSError) as error:
        told = f"the source {address} can't be reached: {reason(error)}"
        raise source_failure(told, error) from None


def reason(error: BaseException) -> str:
    """Return an error's own words on one line."""
    return " ".join(str(error.args[-1] if error.args else error).split())


def is_mariadb(connection: pymysql.connections.Connection) -> bool:
    """Tell MariaDB from MySQL."""
    return "mariadb" in str(connection.get_server_info()).lower()


def check_settings(connection: pymysql.connections.Connection) -> bool:
    """See that the binlog has every column of every row, with its name.

    Returns:
        Whether the source compares the names of tables and databases in lower case.

    Raises:
        CaptureError: names the setting that is wrong, what it is, and how to change it.
    """
    with connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL VARIABLES")
        settings = {str(name).lower(): str(value).upper() for name, value in cursor.fetchall()}
    for name, (wanted, advice) in {**_WANTED, **_WANTED_IF_THERE}.items():
        value = settings.get(name)
        if value is None and name in _WANTED_IF_THERE:
            continue
        if value != wanted:
            shown = (
                "missing (MariaDB has it from 10.5, MySQL from 8.0.1)" if value is None else value
            )
            raise CaptureError(f"the source's setting {name} is {shown}, not {wanted}: {advice}")
    return settings.get("lower_case_table_names", "0") != "0"


def current_position(connection: pymysql.connections.Connection) -> Position:
    """Return where the binlog ends now.

    Raises:
        CaptureError: there is none, or the user must not know.
    """
    with connection.cursor() as cursor:
        try:
            try:
                cursor.execute("SHOW MASTER STATUS")
            except pymysql.err.ProgrammingError:
                # MySQL from 8.4.
                cursor.execute("SHOW BINARY LOG STATUS")
            row = cursor.fetchone()
        except pymysql.Error as error:
            told = f"where the binlog ends can't be asked: {reason(error)}"
            raise source_failure(told, error) from None
    if row is None:
        raise CaptureError("the source writes no binlog: start the server with --log-bin")
    return Position(str(row[0]), int(row[1]))
