"""Which tables a RENAME TABLE renamed: decided by the tables that exist now.

`RENAME TABLE IF EXISTS` passes over missing tables, and a session with `binlog_format=ROW` writes a
RENAME TABLE of a temporary table, of which the binlog has nothing else. So each subset of a
statement's renames is followed through the statements behind it, up to the present tables: one
that contradicts them didn't happen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pymysql

from purgatory.cdc.capture.errors import source_error
from purgatory.cdc.capture.logged_statement import Name, read_statement
from purgatory.cdc.capture.position import Position
from purgatory.cdc.capture.source import SourceAddress, connect, current_position, error_text
from purgatory.cdc.capture.stream import BinlogStream, ConnectionLostError, StatementEvent
from purgatory.cdc.ddl.statements import Role, SchemaChange

_MAX_RENAMES = 8
"""More renames in one statement are tried all together and none."""


def find_renamed(
    changes: Sequence[SchemaChange],
    address: SourceAddress,
    after: Position,
    server_id: int,
    *,
    lower_case: bool,
) -> list[SchemaChange] | None:
    """The renames of a `RENAME TABLE` that happened, without those of temporary tables.

    Args:
        changes: of the statement.
        after: its end.
        server_id: no other reader of the source may have it.

    Returns:
        None if no set of them, or several that exclude each other, lead to the present tables.

    Raises:
        CaptureError: the source is unreachable.
    """
    try:
        while True:
            names = {name for change in changes for name in _names(change)}
            with connect(address) as connection:
                end = current_position(connection)
                existing_now = {name: _table_exists(connection, *name) for name in names}
                if current_position(connection) != end:
                    continue
            later = list(_changes_between(address, after, end, server_id, lower_case))
            return _consistent_renames(changes, later, existing_now)
    except (pymysql.Error, ConnectionLostError, OSError) as error:
        message = f"the tables of {address} can't be listed: {error_text(error)}"
        raise source_error(message, error) from None


def _consistent_renames(
    changes: Sequence[SchemaChange],
    later: Sequence[SchemaChange],
    existing_now: dict[Name, bool],
) -> list[SchemaChange] | None:
    conditional = changes[0].by_rename == "if exists"
    count = len(changes)
    sizes = range(count, -1, -1) if count <= _MAX_RENAMES else (count, 0)
    consistent = [
        chosen
        for size in sizes
        for chosen in itertools.combinations(range(count), size)
        if _is_possible(changes, set(chosen), later, existing_now, skips_missing=conditional)
    ]
    possible = {number for chosen in consistent for number in chosen}
    if possible in map(set, consistent) or (conditional and consistent):
        # One that needn't have happened does no harm: a table that the source didn't have is
        # missing in the copy, too.
        return [changes[number] for number in sorted(possible)]
    # A temporary table hides the one that exists.
    return [] if conditional else None


def _is_possible(
    changes: Sequence[SchemaChange],
    renamed: set[int],
    later: Sequence[SchemaChange],
    existing_now: dict[Name, bool],
    *,
    skips_missing: bool,
) -> bool:
    existing: dict[Name, bool] = {}
    for number, change in enumerate(changes):
        name = (change.database, change.table or "")
        if number in renamed:
            if not _update_existing(existing, replace(change, by_rename="always")):
                return False
        elif skips_missing and existing.setdefault(name, False):
            return False
    return all(_update_existing(existing, change) for change in later) and all(
        existing[name] == exists for name, exists in existing_now.items() if name in existing
    )


def _names(change: SchemaChange) -> Iterator[Name]:
    if change.table is not None:
        yield change.database, change.table
    if change.new_name is not None:
        yield change.new_name


def _update_existing(existing: dict[Name, bool], change: SchemaChange) -> bool:
    """Update which tables exist after a change; false if that contradicts what is known."""
    if change.table is None:
        if change.kind == "database-drop":
            existing.update({name: False for name in existing if name[0] == change.database})
        return True
    name = (change.database, change.table)
    if change.kind == "table-create":
        is_consistent = change.if_absent or not existing.get(name, False)
        existing[name] = True
        return is_consistent
    if change.kind == "table-drop":
        existing[name] = False
    elif change.new_name is not None and change.by_rename == "if exists":
        # Which of the two it was is not known: but it was not both.
        if existing.get(name, False):
            existing[name], existing[change.new_name] = False, True
        elif name not in existing:
            existing.pop(change.new_name, None)
    elif change.new_name is not None:
        # If two tables would have one name, one was temporary.
        is_consistent = existing.get(name, True) and not existing.get(change.new_name, False)
        existing[name], existing[change.new_name] = False, True
        return is_consistent
    return True


def _table_exists(connection: pymysql.connections.Connection, database: str, table: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            (database, table),
        )
        return cursor.fetchone() is not None


def _changes_between(
    address: SourceAddress, start: Position, end: Position, server_id: int, lower_case: bool
) -> Iterator[SchemaChange]:
    stream = BinlogStream(address, start, server_id=server_id, once=True, only=[StatementEvent])
    try:
        for event in stream:
            if stream.position.number > end.number:
                break
            statement = read_statement(event)
            if statement.role is Role.SCHEMA and event.alter_phase in ("", "commit"):
                yield from statement.changes(lower_case=lower_case)
    finally:
        stream.close()
