"""What the parts of an ALTER TABLE do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from purgatory.changes.capture.column_definitions import column_definition
from purgatory.changes.capture.sql_tokens import Kind, SqlError, SqlMode, Token, Tokens

_INDEXES = {"INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR", "FOREIGN", "CHECK"}
_SAME_ROWS = {
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
"""With what parts begin that leave all rows as they are."""
_ROWS_HAVE_TO_FIT = {"UNIQUE", "KEY", "PRIMARY", "CHECK", "REFERENCES", "CONSTRAINT", "FOREIGN",
                     "PARTITION"}  # fmt: skip
_STOPS = {
    "EXCHANGE": "moves rows between tables that the log does not have",
    "DISCARD": "takes rows away that the log does not have",
    "IMPORT": "brings rows that the log does not have",
    "TRUNCATE": "takes rows away that the log does not have",
}


@dataclass
class TableAlteration:
    """What an ALTER TABLE does.

    Args:
        steps: as in `alteration`.
        new_name: database and table, if it is renamed.
        truncates: whether all rows go away.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    new_name: tuple[str, str] | None = None
    truncates: bool = False


def step_of_stop(why: str) -> dict[str, Any]:
    """The step at which `purgatory apply` stops."""
    return {"do": "stop", "why": why}


def altered(
    parts: Sequence[Sequence[Token]], *, database: str, mode: SqlMode, ignores: bool
) -> TableAlteration:
    """Return what an ALTER TABLE with these parts does.

    Args:
        database: the table's.
        mode: that it was run in.
        ignores: whether it is an ALTER IGNORE, which drops rows and changes values that don't fit.

    Raises:
        SqlError: a part isn't understood.
    """
    alteration = TableAlteration()
    if ignores and any(map(_may_drop_rows, parts)):
        alteration.steps.append(step_of_stop("ALTER IGNORE may drop rows without telling the log"))
    if "PARTITION" in Tokens(parts[0]).words(2):
        # It stands alone, and what is behind its commas are partitions.
        parts = parts[:1]
    if any(map(_sets_charset, parts)):
        alteration.steps.extend(_anew())
    for part in parts:
        _take(Tokens(part), alteration, database, mode)
    stops = [step for step in alteration.steps if step["do"] == "stop"]
    alteration.steps = stops or alteration.steps
    return alteration


def _sets_charset(part: Sequence[Token]) -> bool:
    """Whether the table gets another character set, which columns have that name none."""
    # Settings of a table may follow each other without commas.
    words = {token.text.upper() for token in part if token.kind is Kind.WORD}
    return Tokens(part).word in _SAME_ROWS - {"ALTER", "ORDER"} and not words.isdisjoint(
        ("CHARACTER", "CHARSET", "COLLATE")
    )


def _may_drop_rows(part: Sequence[Token]) -> bool:
    words = {token.text.upper() for token in part if token.kind is Kind.WORD}
    match Tokens(part).words(2):
        case ["ADD", "INDEX" | "KEY" | "FULLTEXT" | "SPATIAL"]:
            return False
        case ["ADD", *_]:
            return not words.isdisjoint(_ROWS_HAVE_TO_FIT)
        case ["RENAME" | "ALTER" | "DISABLE" | "ENABLE" | "COMMENT" | "ENGINE" | "LOCK", *_]:
            return "PARTITION" in words
        case ["ALGORITHM" | "AUTO_INCREMENT" | "FORCE" | "ROW_FORMAT" | "ORDER", *_]:
            return "PARTITION" in words
    return bool(part)


def _take(tokens: Tokens, alteration: TableAlteration, database: str, mode: SqlMode) -> None:
    steps = alteration.steps
    word = tokens.word
    if not tokens or word in _SAME_ROWS:
        return
    if tokens.take("ADD"):
        steps.extend(_added(tokens, mode))
    elif tokens.take("DROP"):
        steps.extend(_dropped(tokens))
    elif tokens.take("CHANGE"):
        condition = {"if": "exists"} if _skip_column(tokens, "IF", "EXISTS") else {}
        old = tokens.name()
        column = column_definition(tokens, mode)
        if column.name != old:
            steps.append({"do": "rename-column", "name": old, "to": column.name})
            condition = condition and {"was": old, **condition}
        steps.append({**column.retyped(), **condition})
        steps.extend(_anew() if column.is_key else [])
    elif tokens.take("MODIFY"):
        condition = {"if": "exists"} if _skip_column(tokens, "IF", "EXISTS") else {}
        column = column_definition(tokens, mode)
        steps.append({**column.retyped(), **condition})
        steps.extend(_anew() if column.is_key else [])
    elif tokens.take("RENAME"):
        _take_rename(tokens, alteration, database)
    elif tokens.take("CONVERT", "TO"):
        steps.extend(_anew())
    elif tokens.words(3) == ["TRUNCATE", "PARTITION", "ALL"]:
        alteration.truncates = True
    elif word in _STOPS:
        steps.append(step_of_stop(f"{word} {' '.join(tokens.words(2)[1:])} {_STOPS[word]}"))
    elif tokens.take("CONVERT"):
        steps.append(step_of_stop("CONVERT moves rows between tables that the log does not have"))
    elif not (tokens.take("WITH") and tokens.take("VALIDATION")):
        raise SqlError(f"ALTER TABLE ... {word or tokens.next().text}")


def _added(tokens: Tokens, mode: SqlMode) -> list[dict[str, Any]]:
    if tokens.words(2) == ["SYSTEM", "VERSIONING"]:
        why = "the history of a table with system versioning can't be told from its rows"
        return [step_of_stop(why)]
    if (
        tokens.word in _INDEXES
        or tokens.word == "PARTITION"
        or tokens.words(2) == ["PERIOD", "FOR"]
    ):
        return []
    if tokens.take("CONSTRAINT"):
        if tokens.word not in ("PRIMARY", *_INDEXES):
            tokens.name()
        return _anew() if tokens.word == "PRIMARY" else []
    if tokens.take("PRIMARY"):
        return _anew()
    condition = {"if": "absent"} if _skip_column(tokens, "IF", "NOT", "EXISTS") else {}
    group = tokens.group()
    parts = [tokens] if group is None else [Tokens(part) for part in group]
    columns = [
        column_definition(part, mode)
        for part in parts
        if part.word not in _INDEXES and part.word not in ("PRIMARY", "CONSTRAINT")
    ]
    steps = [{**column.added(), **condition} for column in columns]
    has_key = any(part.word == "PRIMARY" for part in parts)
    return steps + (_anew() if has_key or any(one.is_key for one in columns) else [])


def _anew() -> list[dict[str, Any]]:
    """Of a table that had no key before, or has another character set: the rows that were known
    can't be told apart, or the server converted them, and will convert columns to it."""
    return [{"do": "resend-table"}]


def _another_key() -> list[dict[str, Any]]:
    return [step_of_stop("another primary key: rows would change what they are known by")]


def _dropped(tokens: Tokens) -> list[dict[str, Any]]:
    if tokens.take("PRIMARY"):
        return _another_key()
    if tokens.take_any("INDEX", "KEY", "CONSTRAINT"):
        tokens.take("IF", "EXISTS")
        return _another_key() if tokens.name().upper() == "PRIMARY" else []
    if tokens.take("PARTITION"):
        return [step_of_stop("DROP PARTITION takes rows away that the log does not have")]
    if tokens.words(2) == ["SYSTEM", "VERSIONING"]:
        return [step_of_stop("DROP SYSTEM VERSIONING takes the history away")]
    if tokens.word in ("FOREIGN", "CHECK") or tokens.words(2) == ["PERIOD", "FOR"]:
        return []
    _skip_column(tokens, "IF", "EXISTS")
    return [{"do": "drop-column", "name": tokens.name()}]


def _take_rename(tokens: Tokens, alteration: TableAlteration, database: str) -> None:
    if tokens.take("COLUMN"):
        tokens.take("IF", "EXISTS")
        old = tokens.name()
        if not tokens.take("TO"):
            raise SqlError("RENAME COLUMN without TO")
        alteration.steps.append({"do": "rename-column", "name": old, "to": tokens.name()})
    elif tokens.word not in ("INDEX", "KEY", "CONSTRAINT"):
        tokens.take_any("TO", "AS") or tokens.take_sign("=")
        alteration.new_name = tokens.full_name(database)


def _skip_column(tokens: Tokens, *condition: str) -> bool:
    """Take what is before a column's name; tell whether the condition was there."""
    tokens.take("COLUMN")
    return tokens.take(*condition)
