"""What a statement in the binlog is: a change of a schema, or something else."""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

_COMMENT = re.compile(r"/\*(?!!|M!).*?\*/|(?:#|--\s)[^\n]*", re.DOTALL)
_NAME = r"(?:`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[\w$]+)"
_FULL_NAME = rf"({_NAME})(?:\s*\.\s*({_NAME}))?"
_TABLE = re.compile(
    rf"(create(?:\s+or\s+replace)?|alter(?:\s+online)?(?:\s+ignore)?|drop|truncate|rename)"
    rf"(\s+temporary)?(?:\s+tables?)(?:\s+if\s+(?:not\s+)?exists)?\s+{_FULL_NAME}",
    re.IGNORECASE,
)
_TRUNCATE = re.compile(rf"truncate\s+(?!table\b){_FULL_NAME}", re.IGNORECASE)
_DATABASE = re.compile(
    rf"(create(?:\s+or\s+replace)?|alter|drop)\s+(?:database|schema)"
    rf"(?:\s+if\s+(?:not\s+)?exists)?\s+({_NAME})",
    re.IGNORECASE,
)
_DROPPED = re.compile(rf"\s*,\s*{_FULL_NAME}")
_RENAMED = re.compile(rf"\s+to\s+{_FULL_NAME}", re.IGNORECASE)
_ALTER_RENAME = re.compile(
    rf"\brename\s+(?!column\b|index\b|key\b|constraint\b)(?:to\s+|as\s+)?{_FULL_NAME}",
    re.IGNORECASE,
)
_DATA = re.compile(r"(insert|update|delete|replace|load)\b", re.IGNORECASE)


class Role(enum.Enum):
    """What a statement means to a capture."""

    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    PREPARED = "xa"
    DATA = "data"
    SCHEMA = "schema"
    OTHER = "other"


class SchemaChange(NamedTuple):
    """One table or database that a statement changed.

    Args:
        kind: Maxwell's type, as in ``table-alter``; ``table-truncate`` is not one of Maxwell's.
        table: None for a database.
        old_table: what an altered table was called, if that was changed.
    """

    kind: str
    database: str
    table: str | None
    old_table: str | None = None


def role_of(sql: str) -> Role:
    """Tell what a statement is."""
    text = _COMMENT.sub(" ", sql).strip()
    words = text.upper().split(None, 2)
    match words[:2]:
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
    if _DATA.match(text):
        return Role.DATA
    if _TABLE.match(text) or _DATABASE.match(text) or _TRUNCATE.match(text):
        return Role.SCHEMA
    return Role.OTHER


def schema_changes(sql: str, database: str) -> list[SchemaChange]:
    """Return what a statement with the role SCHEMA changed.

    Args:
        database: the one that the statement was run in.
    """
    text = _COMMENT.sub(" ", sql).strip()
    if match := _DATABASE.match(text):
        return [SchemaChange(f"database-{_verb(match[1])}", _plain(match[2]), None)]
    if match := _TRUNCATE.match(text):
        return [SchemaChange("table-truncate", *_names(match[1], match[2], database))]
    match = _TABLE.match(text)
    if match is None or match[2]:
        return []
    verb = _verb(match[1])
    first = _names(match[3], match[4], database)
    if verb == "rename":
        return _renames(text, match.end(), first, database)
    changes = [SchemaChange(f"table-{verb}", *first)]
    if verb == "drop":
        end = match.end()
        while more := _DROPPED.match(text, end):
            changes.append(SchemaChange("table-drop", *_names(more[1], more[2], database)))
            end = more.end()
    if verb == "alter" and (renamed := _ALTER_RENAME.search(text, match.end())):
        now = _names(renamed[1], renamed[2], first[0])
        return [SchemaChange("table-alter", *now, old_table=first[1])]
    return changes


def _renames(text: str, end: int, first: tuple[str, str], database: str) -> list[SchemaChange]:
    changes = []
    before: tuple[str, str] | None = first
    while before is not None and (match := _RENAMED.match(text, end)):
        now = _names(match[1], match[2], database)
        changes.append(SchemaChange("table-alter", *now, old_table=before[1]))
        following = _DROPPED.match(text, match.end())
        before = _names(following[1], following[2], database) if following else None
        end = following.end() if following else match.end()
    return changes


def _verb(words: str) -> str:
    return words.split(maxsplit=1)[0].lower()


def _names(first: str, second: str | None, database: str) -> tuple[str, str]:
    return (_plain(first), _plain(second)) if second else (database, _plain(first))


def _plain(name: str) -> str:
    quote = name[0]
    return name[1:-1].replace(quote * 2, quote) if quote in '`"' else name
