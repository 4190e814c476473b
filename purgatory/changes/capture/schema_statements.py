"""What a statement in the binlog is: a change of a schema, or something else.

Ground rules
------------
* A statement that may change tables is told, as what it does or as one that a person has to look
  at: an unknown one is never passed by. Indexes, views, programs, users, comments and settings of
  tables change no rows, and are passed by on purpose.
* From the text comes only what nothing else has: which tables and columns, and which names and
  types they get. When it is read, the source's own catalogue is that of a later time. What a new
  column has in the rows that are there is read back (`resending`).
* It is read as the server read it: in its session's character set and sql_mode.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from purgatory.changes.alteration import declared_name
from purgatory.changes.capture.alter_table import altered, step_of_stop
from purgatory.changes.capture.captured_tables import TableFilter
from purgatory.changes.capture.column_definitions import ColumnDefinition, column_definition
from purgatory.changes.capture.sql_tokens import SqlError, SqlMode, Tokens, tokens_of

_DATA = {"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "MERGE"}
_NOT_OF_TABLES = {
    "ALGORITHM", "AGGREGATE", "DEFINER", "EVENT", "FULLTEXT", "FUNCTION", "INDEX", "INSTANCE",
    "LOGFILE", "OFFLINE", "PACKAGE", "PREPARE", "PROCEDURE", "RESOURCE", "ROLE", "SEQUENCE",
    "SERVER", "SPATIAL", "SQL", "TABLESPACE", "TRIGGER", "UNDO", "UNIQUE", "USER", "VECTOR", "VIEW",
}  # fmt: skip
"""What CREATE, ALTER and DROP do to these changes no row."""
_OTHER = {
    "ANALYZE", "CACHE", "CALL", "CHANGE", "CHECK", "CHECKSUM", "DEALLOCATE", "DO", "EXECUTE",
    "FLUSH", "GRANT", "INSTALL", "KILL", "LOCK", "OPTIMIZE", "PREPARE", "PURGE", "RELEASE",
    "REPAIR", "RESET", "REVOKE", "SAVEPOINT", "SELECT", "SET", "SHOW", "SHUTDOWN", "SIGNAL",
    "UNINSTALL", "UNLOCK", "USE",
}  # fmt: skip


_READ_OTHERWISE = {"sql_mode", "character_set_client", "old_mode"}


class Role(enum.Enum):
    """What a statement means to a capture."""

    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    PREPARED = "xa"
    DATA = "data"
    SCHEMA = "schema"
    OTHER = "other"


@dataclass(frozen=True)
class SchemaChange:
    """What a statement did to one table or database.

    Args:
        kind: Maxwell's type, as in ``table-alter``; ``table-truncate`` is not one of Maxwell's.
        database: empty where it is not known.
        table: what it was called before; None for a database.
        new_name: database and table, where that was changed.
        steps: what it did, as in `alteration`; None: its kind says it.
        columns: of a table that was made.
        primary_key: of a table that was made.
        by_rename: whether it is of a `RENAME TABLE`, and with which condition.
    """

    kind: str
    database: str
    table: str | None
    new_name: tuple[str, str] | None = None
    steps: Sequence[dict[str, Any]] | None = None
    columns: Sequence[ColumnDefinition] = field(default=(), compare=False)
    primary_key: Sequence[str] = field(default=(), compare=False)
    by_rename: Literal["", "always", "if exists"] = field(default="", compare=False)

    @property
    def all_steps(self) -> list[dict[str, Any]] | None:
        """The steps, with that of the new name."""
        if self.new_name is None:
            return None if self.steps is None else list(self.steps)
        database, table = self.new_name
        return [*(self.steps or ()), {"do": "rename-table", "database": database, "table": table}]

    def with_json_as_text(self) -> SchemaChange:
        """The same with what MariaDB makes of columns of JSON."""
        text = ColumnDefinition("", "longtext", charset="utf8mb4")
        columns = [
            replace(text, name=column.name) if column.type_name == "json" else column
            for column in self.columns
        ]
        steps = self.steps and [
            {**step, "type": text.words} if step.get("type") == "json" else step
            for step in self.steps
        ]
        return replace(self, columns=columns, steps=steps)

    def with_steps(self, steps: Sequence[dict[str, Any]]) -> SchemaChange:
        """The same with other steps."""
        return replace(self, steps=steps)

    def in_lower_case(self) -> SchemaChange:
        """The same with the tables' names as a server has them that compares them so."""
        new = self.new_name
        steps = self.steps and [
            {**step, **{name: step[name].lower() for name in ("database", "table") if name in step}}
            for step in self.steps
        ]
        return replace(
            self,
            database=self.database.lower(),
            table=None if self.table is None else self.table.lower(),
            new_name=None if new is None else (new[0].lower(), new[1].lower()),
            steps=steps,
        )

    def definition(self) -> dict[str, Any] | None:
        """Maxwell's ``def`` of a table that was made; None if its statement does not have it."""
        if not self.columns:
            return None
        return {
            "database": self.database,
            "table": self.table,
            "columns": [column.described() for column in self.columns],
            "primary-key": list(self.primary_key),
        }


def role_of(sql: str, mode: SqlMode = SqlMode.NONE) -> Role:
    """Tell what a statement is, which was run in this sql_mode."""
    try:
        tokens = _begun(sql, mode)
    except SqlError:
        return Role.SCHEMA
    match tokens.words(2):
        case []:
            return Role.OTHER
        case ["BEGIN", *_] | ["START", "TRANSACTION"]:
            return Role.BEGIN
        case ["COMMIT", *_]:
            return Role.COMMIT
        case ["ROLLBACK", "TO"]:
            return Role.OTHER
        case ["ROLLBACK", *_]:
            return Role.ROLLBACK
        case ["XA", *_]:
            return Role.PREPARED
        case [word, *_] if word in _DATA:
            return Role.DATA
        case [word, *_] if word in _OTHER:
            return Role.OTHER
        case ["CREATE" | "ALTER" | "DROP" | "RENAME", *_]:
            return Role.OTHER if _is_not_of_tables(tokens) else Role.SCHEMA
    return Role.SCHEMA


def schema_changes(sql: str, database: str, mode: SqlMode = SqlMode.NONE) -> list[SchemaChange]:
    """Return what a statement with the role SCHEMA changed.

    Args:
        database: the one that the statement was run in.
        mode: the sql_mode that it was run in.
    """
    try:
        return _changes(_begun(sql, mode), database, mode)
    except SqlError as error:
        return [not_understood(sql, str(error))]


def not_understood(sql: str, why: str) -> SchemaChange:
    """What stands for a statement of which nobody knows what it changes."""
    shown = " ".join(sql.split())[:200]
    step = step_of_stop(f"this statement is not understood ({why}): {shown}")
    return SchemaChange("database-alter", "", None, steps=[step])


def _begun(sql: str, mode: SqlMode) -> Tokens:
    """A statement's tokens, without SET STATEMENT ... FOR before it."""
    tokens = Tokens(tokens_of(sql, mode))
    if tokens.take("SET", "STATEMENT"):
        while not tokens.take("FOR"):
            if tokens.next().text.lower() in _READ_OTHERWISE:
                raise SqlError("it sets how it is read itself")
    return tokens


def _is_not_of_tables(tokens: Tokens) -> bool:
    verb = tokens.next().text.upper()
    tokens.take("OR", "REPLACE")
    if tokens.take("ONLINE"):
        return tokens.word in _NOT_OF_TABLES
    if verb in ("CREATE", "DROP") and tokens.take("TEMPORARY"):
        return True
    return tokens.word in _NOT_OF_TABLES


def _changes(tokens: Tokens, database: str, mode: SqlMode) -> list[SchemaChange]:
    verb = tokens.next().text.upper()
    anew = tokens.take("OR", "REPLACE")
    if verb == "TRUNCATE":
        tokens.take("TABLE")
        return [SchemaChange("table-truncate", *tokens.full_name(database))]
    if tokens.take_any("DATABASE", "SCHEMA"):
        return _database_changes(verb, anew, tokens, database)
    ignores = False
    while verb == "ALTER" and tokens.word in ("ONLINE", "IGNORE"):
        ignores |= tokens.next().text.upper() == "IGNORE"
    if not tokens.take_any("TABLE", "TABLES"):
        raise SqlError(f"{verb} {tokens.word}")
    conditional = tokens.take("IF", "NOT", "EXISTS") or tokens.take("IF", "EXISTS")
    match verb:
        case "CREATE":
            return _created(tokens, database, anew, mode)
        case "DROP":
            return _dropped(tokens, database)
        case "RENAME":
            return _renamed(tokens, database, conditional)
        case "ALTER":
            return _altered(tokens, database, mode, ignores)
    raise SqlError(f"{verb} TABLE")


def _database_changes(verb: str, anew: bool, tokens: Tokens, database: str) -> list[SchemaChange]:
    tokens.take("IF", "NOT", "EXISTS") or tokens.take("IF", "EXISTS")
    settings = {"CHARACTER", "CHARSET", "COLLATE", "DEFAULT", "COMMENT", "UPGRADE", ""}
    # ALTER DATABASE may leave its name out.
    unnamed = verb == "ALTER" and tokens.word in settings - {""}
    name = database if unnamed else tokens.name()
    if verb not in ("CREATE", "ALTER", "DROP"):
        raise SqlError(f"{verb} DATABASE")
    dropped = [SchemaChange("database-drop", name, None)] if anew else []
    return [*dropped, SchemaChange(f"database-{verb.lower()}", name, None)]


def _created(tokens: Tokens, database: str, anew: bool, mode: SqlMode) -> list[SchemaChange]:
    where = tokens.full_name(database)
    dropped = [SchemaChange("table-drop", *where)] if anew else []
    like: tuple[str, str] | None = None
    if tokens.take("LIKE"):
        like = tokens.full_name(database)
    items = tokens.group()
    if items is not None and Tokens(items[0]).take("LIKE"):
        inner = Tokens(items[0])
        inner.next()
        like = inner.full_name(database)
    if like is not None:
        step = {"do": "create-like", "database": like[0], "table": like[1]}
        return [*dropped, SchemaChange("table-create", *where, steps=[step])]
    if items is None:
        raise SqlError("CREATE TABLE without columns")
    columns, key = _columns(items, mode)
    while tokens:
        if tokens.take("WITH", "SYSTEM", "VERSIONING"):
            why = "the history of a table with system versioning can't be told from its rows"
            stop = [step_of_stop(why)]
            return [*dropped, SchemaChange("table-create", *where, steps=stop)]
        if tokens.next().text.upper() == "SELECT":
            raise SqlError("CREATE TABLE ... SELECT in place of rows")
    made = SchemaChange("table-create", *where, columns=columns, primary_key=key)
    return [*dropped, made]


def _columns(
    items: Sequence[Sequence[Any]], mode: SqlMode
) -> tuple[list[ColumnDefinition], list[str]]:
    columns: list[ColumnDefinition] = []
    key: list[str] = []
    for item in items:
        tokens = Tokens(item)
        if tokens.take("CONSTRAINT") and tokens.word not in ("PRIMARY", "UNIQUE", "FOREIGN"):
            if tokens.word == "CHECK":
                continue
            tokens.name()
        match tokens.words(2):
            case ["PRIMARY", "KEY"]:
                key = _key_columns(tokens)
            case ["KEY" | "INDEX" | "UNIQUE" | "FULLTEXT" | "SPATIAL" | "VECTOR", *_]:
                pass
            case ["FOREIGN" | "CHECK", *_] | ["PERIOD", "FOR"]:
                pass
            case _:
                columns.append(column_definition(tokens, mode))
    names = [column.name for column in columns]
    declared = [declared_name(names, name) or name for name in key]
    return columns, declared or [column.name for column in columns if column.is_key]


def _key_columns(tokens: Tokens) -> list[str]:
    while tokens:
        group = tokens.group()
        if group is not None:
            return [Tokens(part).name() for part in group]
        tokens.next()
    raise SqlError("PRIMARY KEY without columns")


def _dropped(tokens: Tokens, database: str) -> list[SchemaChange]:
    changes = [SchemaChange("table-drop", *tokens.full_name(database))]
    while tokens.take_sign(","):
        changes.append(SchemaChange("table-drop", *tokens.full_name(database)))
    return changes


def _renamed(tokens: Tokens, database: str, conditional: bool) -> list[SchemaChange]:
    changes = []
    how: Literal["always", "if exists"] = "if exists" if conditional else "always"
    while True:
        old = tokens.full_name(database)
        if tokens.take("WAIT"):
            tokens.next()
        tokens.take("NOWAIT")
        if not tokens.take("TO"):
            raise SqlError("RENAME TABLE without TO")
        new = tokens.full_name(database)
        changes.append(SchemaChange("table-alter", *old, new_name=new, steps=(), by_rename=how))
        if not tokens.take_sign(","):
            return changes


def _altered(tokens: Tokens, database: str, mode: SqlMode, ignores: bool) -> list[SchemaChange]:
    where = tokens.full_name(database)
    if tokens.take("WAIT"):
        tokens.next()
    tokens.take("NOWAIT")
    alteration = altered(tokens.list(), database=where[0], mode=mode, ignores=ignores)
    changes = []
    if alteration.truncates:
        changes.append(SchemaChange("table-truncate", *where))
    told = SchemaChange("table-alter", *where, new_name=alteration.new_name, steps=alteration.steps)
    return [*changes, told]


def taken_changes(changes: Sequence[SchemaChange], tables: TableFilter) -> list[SchemaChange]:
    """Return those of the tables that are captured.

    A table that is renamed to what is not captured is gone for the target; one that comes from
    there brings rows that the log does not have.
    """
    taken = []
    for change in changes:
        if change.table is None:
            # A statement that is not understood may concern any database.
            if not change.database or tables.takes_database(change.database):
                taken.append(change)
            continue
        was = tables.takes(change.database, change.table)
        comes = was if change.new_name is None else tables.takes(*change.new_name)
        if was and comes:
            taken.append(change)
        elif was:
            taken.append(SchemaChange("table-drop", change.database, change.table))
        elif comes:
            why = "it was not captured under its name before: begin a new topic with --snapshot"
            taken.append(replace(change, steps=[step_of_stop(why)]))
    return taken
