"""Statements in the binlog: their role, and the schema changes they make.

Ground rules
------------
* Every statement that may change tables becomes a `SchemaChange`; one that is not understood gets
  the step `stop`, and is never skipped. Indexes, views, routines, users, comments and table options
  change no row, and are skipped on purpose.
* The text provides only what the log has nowhere else: the tables and columns, their new names and
  types. The source's catalog describes a later time. Values of new columns in existing rows are
  read back from the source (`capture.snapshot`).
* A statement is read as the server read it: in its session's character set and sql_mode.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from purgatory.cdc.ddl.columns import ColumnDefinition, parse_column, parse_columns
from purgatory.cdc.ddl.engines import EngineOptions, engine_options, merge_reason
from purgatory.cdc.ddl.tokens import Kind, SqlError, SqlMode, Token, Tokens, tokenize

_DATA = {
    "INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "MERGE",
    # Of a function or procedure that changes rows: others are not in the binlog.
    "CALL", "DO", "SELECT", "WITH", "VALUES",
}  # fmt: skip
_OTHER_OBJECTS = {
    "ALGORITHM", "AGGREGATE", "DEFINER", "EVENT", "FULLTEXT", "FUNCTION", "INDEX", "INSTANCE",
    "LOGFILE", "OFFLINE", "PACKAGE", "PREPARE", "PROCEDURE", "RESOURCE", "ROLE", "SEQUENCE",
    "SERVER", "SPATIAL", "SQL", "TABLESPACE", "TRIGGER", "UNDO", "UNIQUE", "USER", "VECTOR", "VIEW",
}  # fmt: skip
"""CREATE, ALTER and DROP of these change no row."""
_OTHER = {
    "ANALYZE", "CACHE", "CHANGE", "CHECK", "CHECKSUM", "DEALLOCATE", "EXECUTE",
    "FLUSH", "GRANT", "INSTALL", "KILL", "LOCK", "OPTIMIZE", "PREPARE", "PURGE", "RELEASE",
    "REPAIR", "RESET", "REVOKE", "SET", "SHOW", "SHUTDOWN", "SIGNAL",
    "UNINSTALL", "UNLOCK", "USE",
}  # fmt: skip


_PARSER_VARIABLES = {"sql_mode", "character_set_client", "old_mode"}


class Role(enum.Enum):
    """The role of a statement for a capture."""

    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    SAVEPOINT = "savepoint"
    ROLLBACK_TO = "rollback to"
    PREPARED = "xa"
    DATA = "data"
    SCHEMA = "schema"
    OTHER = "other"


@dataclass(frozen=True)
class SchemaChange:
    """A statement's change of one table or database.

    Args:
        kind: Maxwell's type, such as ``table-alter``; ``table-truncate`` is not Maxwell's.
        database: empty if unknown.
        table: its name before the statement; None for a database.
        new_name: database and table, if it was renamed.
        steps: see `ddl.steps`; None if the kind describes the change.
        columns, primary_key: of a table that was created.
        by_rename: whether the statement is a `RENAME TABLE`, and its condition.
        if_absent: of a table that is created, whether only if there is none.
        cascade: a foreign key's action that changes its rows, such as ``ON DELETE CASCADE``.
    """

    kind: str
    database: str
    table: str | None
    new_name: tuple[str, str] | None = None
    steps: Sequence[dict[str, Any]] | None = None
    columns: Sequence[ColumnDefinition] = field(default=(), compare=False)
    primary_key: Sequence[str] = field(default=(), compare=False)
    by_rename: Literal["", "always", "if exists"] = field(default="", compare=False)
    if_absent: bool = False
    cascade: str = field(default="", compare=False)

    @property
    def all_steps(self) -> list[dict[str, Any]] | None:
        """The steps, including a rename."""
        if self.new_name is None:
            return None if self.steps is None else list(self.steps)
        database, table = self.new_name
        return [*(self.steps or ()), {"do": "rename-table", "database": database, "table": table}]

    def with_json_as_text(self) -> SchemaChange:
        """The change with the type that MariaDB gives JSON columns."""
        text = ColumnDefinition("", "longtext", charset="utf8mb4")
        columns = [
            replace(text, name=column.name) if column.type_name == "json" else column
            for column in self.columns
        ]
        steps = self.steps and [
            {**step, "type": text.type_text} if step.get("type") == "json" else step
            for step in self.steps
        ]
        return replace(self, columns=columns, steps=steps)

    def with_steps(self, steps: Sequence[dict[str, Any]]) -> SchemaChange:
        return replace(self, steps=steps)

    def in_lower_case(self) -> SchemaChange:
        """The change with the table names of a server with `lower_case_table_names`."""
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
        """Maxwell's ``def`` of a table that was created; None if it is not in the statement."""
        if not self.columns:
            return None
        return {
            "database": self.database,
            "table": self.table,
            "columns": [column.to_maxwell() for column in self.columns],
            "primary-key": list(self.primary_key),
        }


def statement_role(sql: str, mode: SqlMode = SqlMode.NONE) -> Role:
    """The role of a statement, which was executed with this sql_mode."""
    try:
        tokens = _statement_tokens(sql, mode)
    except SqlError:
        return Role.SCHEMA
    match tokens.words(2):
        case []:
            return Role.OTHER
        case ["BEGIN", *_] | ["START", "TRANSACTION"]:
            return Role.BEGIN
        case ["COMMIT", *_]:
            return Role.COMMIT
        case ["SAVEPOINT", *_]:
            return Role.SAVEPOINT
        case ["ROLLBACK", "TO"]:
            return Role.ROLLBACK_TO
        case ["ROLLBACK", *_]:
            return Role.ROLLBACK
        case ["XA", *_]:
            return Role.PREPARED
        case [word, *_] if word in _DATA:
            return Role.DATA
        case [word, *_] if word in _OTHER:
            return Role.OTHER
        case ["CREATE" | "ALTER" | "DROP" | "RENAME", *_]:
            return Role.OTHER if _is_other_object(tokens) else Role.SCHEMA
    return Role.SCHEMA


def schema_changes(sql: str, database: str, mode: SqlMode = SqlMode.NONE) -> list[SchemaChange]:
    """The changes of a statement with the role SCHEMA.

    Args:
        database: the session's default database.
        mode: the session's sql_mode.
    """
    try:
        return _changes(_statement_tokens(sql, mode), database, mode)
    except SqlError as error:
        return [unknown_statement(sql, str(error))]


@dataclass(frozen=True, slots=True)
class TemporaryChange:
    """The temporary tables that a statement creates or drops."""

    creates: bool
    tables: Sequence[tuple[str, str]]


def temporary_change(
    sql: str, database: str, mode: SqlMode = SqlMode.NONE
) -> TemporaryChange | None:
    """The temporary tables that a statement makes or drops; None if it does neither."""
    try:
        tokens = _statement_tokens(sql, mode)
        verb = tokens.next().text.upper() if tokens else ""
        tokens.accept("OR", "REPLACE")
        if verb not in ("CREATE", "DROP") or not tokens.accept("TEMPORARY"):
            return None
        if not tokens.accept_any("TABLE", "TABLES"):
            return None
        tokens.accept("IF", "NOT", "EXISTS") or tokens.accept("IF", "EXISTS")
        if verb == "CREATE":
            return TemporaryChange(True, [tokens.full_name(database)])
        dropped = _drop_table_changes(tokens, database)
        return TemporaryChange(False, [(one.database, one.table or "") for one in dropped])
    except SqlError:
        return None


def unknown_statement(sql: str, reason: str) -> SchemaChange:
    """The change of a statement that is not understood: it stops `purgatory apply`."""
    text = " ".join(sql.split())[:200]
    step = stop_step(f"this statement is not understood ({reason}): {text}")
    return SchemaChange("database-alter", "", None, steps=[step])


def _statement_tokens(sql: str, mode: SqlMode) -> Tokens:
    """A statement's tokens, without a leading SET STATEMENT ... FOR."""
    tokens = Tokens(tokenize(sql, mode))
    if tokens.accept("SET", "STATEMENT"):
        while not tokens.accept("FOR"):
            if tokens.next().text.lower() in _PARSER_VARIABLES:
                raise SqlError("it sets how it is read itself")
    return tokens


def _is_other_object(tokens: Tokens) -> bool:
    verb = tokens.next().text.upper()
    tokens.accept("OR", "REPLACE")
    if tokens.accept("ONLINE"):
        return tokens.word in _OTHER_OBJECTS
    if verb in ("CREATE", "DROP") and tokens.accept("TEMPORARY"):
        return True
    return tokens.word in _OTHER_OBJECTS


def _changes(tokens: Tokens, database: str, mode: SqlMode) -> list[SchemaChange]:
    verb = tokens.next().text.upper()
    or_replace = tokens.accept("OR", "REPLACE")
    if verb == "TRUNCATE":
        tokens.accept("TABLE")
        return [SchemaChange("table-truncate", *tokens.full_name(database))]
    if tokens.accept_any("DATABASE", "SCHEMA"):
        return _database_changes(verb, or_replace, tokens, database)
    ignores = False
    while verb == "ALTER" and tokens.word in ("ONLINE", "IGNORE"):
        ignores |= tokens.next().text.upper() == "IGNORE"
    if not tokens.accept_any("TABLE", "TABLES"):
        raise SqlError(f"{verb} {tokens.word}")
    conditional = tokens.accept("IF", "NOT", "EXISTS") or tokens.accept("IF", "EXISTS")
    match verb:
        case "CREATE":
            changes = _create_table_changes(tokens, database, or_replace, mode)
            return [replace(change, if_absent=conditional) for change in changes]
        case "DROP":
            return _drop_table_changes(tokens, database)
        case "RENAME":
            return _rename_table_changes(tokens, database, conditional)
        case "ALTER":
            return _alter_table_changes(tokens, database, mode, ignores)
    raise SqlError(f"{verb} TABLE")


def _database_changes(
    verb: str, or_replace: bool, tokens: Tokens, database: str
) -> list[SchemaChange]:
    tokens.accept("IF", "NOT", "EXISTS") or tokens.accept("IF", "EXISTS")
    settings = {"CHARACTER", "CHARSET", "COLLATE", "DEFAULT", "COMMENT", "UPGRADE", ""}
    # ALTER DATABASE may omit the name.
    unnamed = verb == "ALTER" and tokens.word in settings - {""}
    name = database if unnamed else tokens.name()
    if verb not in ("CREATE", "ALTER", "DROP"):
        raise SqlError(f"{verb} DATABASE")
    drops = [SchemaChange("database-drop", name, None)] if or_replace else []
    return [*drops, SchemaChange(f"database-{verb.lower()}", name, None)]


def _create_table_changes(
    tokens: Tokens, database: str, or_replace: bool, mode: SqlMode
) -> list[SchemaChange]:
    table_name = tokens.full_name(database)
    drops = [SchemaChange("table-drop", *table_name)] if or_replace else []
    template: tuple[str, str] | None = None
    if tokens.accept("LIKE"):
        template = tokens.full_name(database)
    items = tokens.group()
    if items is not None and Tokens(items[0]).accept("LIKE"):
        inner = Tokens(items[0])
        inner.next()
        template = inner.full_name(database)
    if template is not None:
        step = {"do": "create-like", "database": template[0], "table": template[1]}
        return [*drops, SchemaChange("table-create", *table_name, steps=[step])]
    if items is None:
        raise SqlError("CREATE TABLE without columns")
    columns, key = parse_columns(items, mode)
    options = engine_options(tokens.rest(), database)
    if options.reason:
        stop = [stop_step(options.reason)]
        created = SchemaChange("table-create", *table_name, steps=stop)
        return [*drops, created, *_merged_changes(table_name, options)]
    while tokens:
        if tokens.accept("WITH", "SYSTEM", "VERSIONING"):
            reason = "the history of a table with system versioning can't be told from its rows"
            stop = [stop_step(reason)]
            return [*drops, SchemaChange("table-create", *table_name, steps=stop)]
        if tokens.accept("SELECT"):
            raise SqlError("CREATE TABLE ... SELECT in place of rows")
        tokens.next()
    cascade = _cascade(items)
    created = SchemaChange(
        "table-create", *table_name, columns=columns, primary_key=key, cascade=cascade
    )
    return [*drops, created]


def _merged_changes(merge: tuple[str, str], options: EngineOptions) -> list[SchemaChange]:
    """The stops of the tables that a MERGE table has, which change through it."""
    stop = [stop_step(merge_reason(*merge))]
    return [SchemaChange("table-alter", *name, steps=stop) for name in options.union]


def _cascade(parts: Sequence[Sequence[Token]]) -> str:
    """The first action of a foreign key that changes rows; empty if there is none."""
    for part in parts:
        words = [token.text.upper() if token.kind is Kind.WORD else "" for token in part]
        for place in range(len(words)):
            match words[place : place + 4]:
                case ["ON", "DELETE" | "UPDATE" as event, "CASCADE", *_]:
                    return f"ON {event} CASCADE"
                case ["ON", "DELETE" | "UPDATE" as event, "SET", value]:
                    return f"ON {event} SET {value}"
    return ""


def _drop_table_changes(tokens: Tokens, database: str) -> list[SchemaChange]:
    changes = [SchemaChange("table-drop", *tokens.full_name(database))]
    while tokens.accept_sign(","):
        changes.append(SchemaChange("table-drop", *tokens.full_name(database)))
    return changes


def _rename_table_changes(tokens: Tokens, database: str, conditional: bool) -> list[SchemaChange]:
    changes = []
    condition: Literal["always", "if exists"] = "if exists" if conditional else "always"
    while True:
        old = tokens.full_name(database)
        if tokens.accept("WAIT"):
            tokens.next()
        tokens.accept("NOWAIT")
        if not tokens.accept("TO"):
            raise SqlError("RENAME TABLE without TO")
        new = tokens.full_name(database)
        changes.append(
            SchemaChange("table-alter", *old, new_name=new, steps=(), by_rename=condition)
        )
        if not tokens.accept_sign(","):
            return changes


def _alter_table_changes(
    tokens: Tokens, database: str, mode: SqlMode, ignores: bool
) -> list[SchemaChange]:
    table_name = tokens.full_name(database)
    if tokens.accept("WAIT"):
        tokens.next()
    tokens.accept("NOWAIT")
    # A new name without a database is one of the session's database.
    parts = tokens.list()
    alteration = parse_alter_table(parts, database=database, mode=mode, ignores=ignores)
    changes = []
    if alteration.truncates:
        changes.append(SchemaChange("table-truncate", *table_name))
    change = SchemaChange(
        "table-alter",
        *table_name,
        new_name=alteration.new_name,
        steps=alteration.steps,
        cascade=_cascade(parts),
    )
    return [*changes, change, *_merged_changes(table_name, alteration.engine)]


_METADATA_ONLY = {
    "ALTER", "ANALYZE", "CHARACTER", "CHARSET", "COALESCE", "COLLATE", "DEFAULT", "DISABLE",
    "ENABLE", "FORCE", "LOCK", "NOWAIT", "OPTIMIZE", "ORDER", "PARTITION", "REBUILD", "REMOVE",
    "REORGANIZE", "REPAIR", "WAIT", "WITHOUT",
    # Settings of a table.
    "ALGORITHM", "AUTO_INCREMENT", "AUTOEXTEND_SIZE", "AVG_ROW_LENGTH", "CHECKSUM", "COMMENT",
    "COMPRESSION", "CONNECTION", "DATA", "DELAY_KEY_WRITE", "ENCRYPTED", "ENCRYPTION",
    "ENCRYPTION_KEY_ID", "ENGINE", "IETF_QUOTES", "INSERT_METHOD", "KEY_BLOCK_SIZE", "MAX_ROWS",
    "MIN_ROWS", "PACK_KEYS", "PAGE_CHECKSUM", "PAGE_COMPRESSED", "PAGE_COMPRESSION_LEVEL",
    "PASSWORD", "ROW_FORMAT", "SECONDARY_ENGINE", "STATS_AUTO_RECALC", "STATS_PERSISTENT",
    "STATS_SAMPLE_PAGES", "TABLE_CHECKSUM", "TABLESPACE", "TRANSACTIONAL", "TYPE", "UNION",
}  # fmt: skip
"""The first words of clauses that change no rows."""
_OPTIONS = _METADATA_ONLY - {"ALTER", "ORDER"}
_CONSTRAINTS = {"UNIQUE", "KEY", "PRIMARY", "CHECK", "REFERENCES", "CONSTRAINT", "FOREIGN",
                     "PARTITION"}  # fmt: skip
_UNSUPPORTED = {
    "EXCHANGE": "moves rows between tables that the log does not have",
    "DISCARD": "takes rows away that the log does not have",
    "IMPORT": "brings rows that the log does not have",
    "TRUNCATE": "takes rows away that the log does not have",
}


@dataclass
class TableAlteration:
    """The effects of an ALTER TABLE.

    Args:
        steps: see `ddl.steps`.
        new_name: database and table, if it is renamed.
        truncates: whether all rows are deleted.
        engine: the options that name its engine, if any.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    new_name: tuple[str, str] | None = None
    truncates: bool = False
    engine: EngineOptions = field(default_factory=EngineOptions)


def stop_step(reason: str) -> dict[str, Any]:
    """The step at which `purgatory apply` stops."""
    return {"do": "stop", "why": reason}


def parse_alter_table(
    parts: Sequence[Sequence[Token]], *, database: str, mode: SqlMode, ignores: bool
) -> TableAlteration:
    """The effects of an ALTER TABLE with these clauses.

    Args:
        database: the session's.
        ignores: whether it is an ALTER IGNORE, which drops rows and changes values that don't fit.

    Raises:
        SqlError: a clause isn't understood.
    """
    alteration = TableAlteration()
    # ORDER BY comes last, and its commas separate columns.
    order = next((n for n, part in enumerate(parts, 1) if Tokens(part).word == "ORDER"), None)
    parts = parts[:order]
    if ignores and any(map(_may_delete_rows, parts)):
        alteration.steps.append(stop_step("ALTER IGNORE may drop rows without logging it"))
    if "PARTITION" in Tokens(parts[0]).words(2):
        # A clause of partitions is the only one, and its commas separate partitions.
        parts = parts[:1]
    if any(map(_may_become_binary, parts)):
        alteration.steps.extend(_resend_table())
    for part in parts:
        _parse_alteration(Tokens(part), alteration, database, mode)
        options = _table_options(part, database)
        if options.reason:
            alteration.engine = options
            alteration.steps.append(stop_step(options.reason))
    stops = [step for step in alteration.steps if step["do"] == "stop"]
    alteration.steps = stops or alteration.steps
    return alteration


def _table_options(part: Sequence[Token], database: str) -> EngineOptions:
    """The options in a clause of ALTER TABLE, which has several without commas, or is another."""
    is_option = Tokens(part).word in _OPTIONS
    return engine_options(part, database) if is_option else EngineOptions()


def _may_become_binary(part: Sequence[Token]) -> bool:
    """Whether texts may become bytes: of all columns, or of those that the statement changes."""
    # Table options may follow each other without commas.
    words = {token.text.strip("'\"`").upper() for token in part}
    if words.isdisjoint(("CHARACTER", "CHARSET", "COLLATE")):
        return False
    if Tokens(part).word == "CONVERT":
        return not words.isdisjoint(("BINARY", "DEFAULT"))
    return Tokens(part).word in _OPTIONS and "BINARY" in words


def _may_delete_rows(part: Sequence[Token]) -> bool:
    words = {token.text.upper() for token in part if token.kind is Kind.WORD}
    match Tokens(part).words(2):
        case ["ADD", "INDEX" | "KEY" | "FULLTEXT" | "SPATIAL"]:
            return False
        case ["ADD", *_]:
            return not words.isdisjoint(_CONSTRAINTS)
        case ["RENAME" | "ALTER" | "DISABLE" | "ENABLE" | "COMMENT" | "ENGINE" | "LOCK", *_]:
            return "PARTITION" in words
        case ["ALGORITHM" | "AUTO_INCREMENT" | "FORCE" | "ROW_FORMAT" | "ORDER", *_]:
            return "PARTITION" in words
    return bool(part)


def _parse_alteration(
    tokens: Tokens, alteration: TableAlteration, database: str, mode: SqlMode
) -> None:
    steps = alteration.steps
    word = tokens.word
    if not tokens or word in _METADATA_ONLY:
        return
    if tokens.accept("ADD"):
        steps.extend(_add_part(tokens, mode))
    elif tokens.accept("DROP"):
        steps.extend(_dropped_part(tokens))
    elif tokens.accept("CHANGE"):
        condition = {"if": "exists"} if _skip_column(tokens, "IF", "EXISTS") else {}
        old = tokens.name()
        column = parse_column(tokens, mode)
        steps.append({**column.change_step(old), **condition})
        steps.extend(_resend_table() if column.is_key else [])
    elif tokens.accept("MODIFY"):
        condition = {"if": "exists"} if _skip_column(tokens, "IF", "EXISTS") else {}
        column = parse_column(tokens, mode)
        steps.append({**column.change_step(column.name), **condition})
        steps.extend(_resend_table() if column.is_key else [])
    elif tokens.accept("RENAME"):
        _parse_rename(tokens, alteration, database)
    elif tokens.accept("CONVERT", "TO"):
        steps.append({"do": "resend-rows", "resent": True})
    elif tokens.words(3) == ["TRUNCATE", "PARTITION", "ALL"]:
        alteration.truncates = True
    elif word in _UNSUPPORTED:
        steps.append(stop_step(f"{word} {' '.join(tokens.words(2)[1:])} {_UNSUPPORTED[word]}"))
    elif tokens.accept("CONVERT"):
        steps.append(stop_step("CONVERT moves rows between tables that the log does not have"))
    elif not (tokens.accept("WITH") and tokens.accept("VALIDATION")):
        raise SqlError(f"ALTER TABLE ... {word or tokens.next().text}")


def _add_part(tokens: Tokens, mode: SqlMode) -> list[dict[str, Any]]:
    if tokens.words(2) == ["SYSTEM", "VERSIONING"]:
        reason = "the history of a table with system versioning can't be told from its rows"
        return [stop_step(reason)]
    if tokens.word == "PARTITION":
        return []
    condition = {"if": "absent"} if _skip_column(tokens, "IF", "NOT", "EXISTS") else {}
    columns, key = parse_columns(tokens.group() or tokens.list(), mode)
    steps = [{**column.add_step(), **condition} for column in columns]
    return steps + (_resend_table() if key else [])


def _resend_table() -> list[dict[str, Any]]:
    """The step for a table that had no key before, or whose texts become bytes: known rows can't be
    identified, or columns get types that the statement does not name."""
    return [{"do": "resend-table"}]


def _another_key() -> list[dict[str, Any]]:
    return [stop_step("another primary key: rows would change their identity")]


def _dropped_part(tokens: Tokens) -> list[dict[str, Any]]:
    if tokens.accept("PRIMARY"):
        return _another_key()
    if tokens.accept_any("INDEX", "KEY", "CONSTRAINT"):
        tokens.accept("IF", "EXISTS")
        return _another_key() if tokens.name().upper() == "PRIMARY" else []
    if tokens.accept("PARTITION"):
        return [stop_step("DROP PARTITION takes rows away that the log does not have")]
    if tokens.words(2) == ["SYSTEM", "VERSIONING"]:
        return [stop_step("DROP SYSTEM VERSIONING takes the history away")]
    if tokens.word in ("FOREIGN", "CHECK") or tokens.words(2) == ["PERIOD", "FOR"]:
        return []
    _skip_column(tokens, "IF", "EXISTS")
    return [{"do": "drop-column", "name": tokens.name()}]


def _parse_rename(tokens: Tokens, alteration: TableAlteration, database: str) -> None:
    if tokens.accept("COLUMN"):
        tokens.accept("IF", "EXISTS")
        old = tokens.name()
        if not tokens.accept("TO"):
            raise SqlError("RENAME COLUMN without TO")
        alteration.steps.append({"do": "rename-column", "name": old, "to": tokens.name()})
    elif tokens.word not in ("INDEX", "KEY", "CONSTRAINT"):
        tokens.accept_any("TO", "AS") or tokens.accept_sign("=")
        alteration.new_name = tokens.full_name(database)


def _skip_column(tokens: Tokens, *condition: str) -> bool:
    """Skip the words before a column's name; return whether the condition was there."""
    tokens.accept("COLUMN")
    return tokens.accept(*condition)
