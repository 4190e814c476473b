"""Records of a change log, and the change that each of them holds as Maxwell's JSON.

    {"database": "shop", "table": "orders", "type": "update", "ts": 1763683200, "xid": 812,
     "commit": true, "position": "binlog.000003:4711", "data": {"id": 7, "state": "paid"},
     "old": {"state": "new"}, "primary_key_columns": ["id"]}

`data` is the whole row after the change (before it, for a delete); `old` has the replaced values of
an update.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, TypeVar

from purgatory.cdc.column_types import ColumnType
from purgatory.cdc.quarantine import MALFORMED, TOO_LARGE, InvalidChangeError

T = TypeVar("T")

INSERT, UPDATE, DELETE = "insert", "update", "delete"
BOOTSTRAP_INSERT = "bootstrap-insert"
ROW_KINDS = frozenset({INSERT, UPDATE, DELETE, BOOTSTRAP_INSERT})
MARK_KINDS = frozenset({"bootstrap-start", "bootstrap-complete", "heartbeat"})
"""Records about the log itself, which change nothing."""
TRANSACTION_END = "transaction-end"
"""A record with the number of a transaction's changes, which are in other records."""
TABLE_KINDS = frozenset({"table-create", "table-alter", "table-drop", "table-truncate"})
DATABASE_KINDS = frozenset({"database-create", "database-alter", "database-drop"})
_DEFINING_KINDS = frozenset({"table-create", "table-alter"})
SCHEMA_KINDS = TABLE_KINDS | DATABASE_KINDS
KINDS = ROW_KINDS | MARK_KINDS | SCHEMA_KINDS

MAX_VALUE_BYTES = 16 * 1024 * 1024
"""A longer record is quarantined without being parsed."""

_POSITION = re.compile(r".{0,1000}?([0-9]{1,18}):([0-9]{1,18})")
_MOST_XOFFSET = 2**14 - 1
_MOST_PARTITIONS = 1_000_000


class Origin(NamedTuple):
    """The place of a change in its log, if that may have a change twice.

    Args:
        server: names the log.
        place: grows along the log; empty if unknown.
        time_ms: when it was made, at the source.
        columns: all columns of the row, with their types where they are known.
        unknown: those of them that may not be null in rows written before they were added.
        snapshot: names the snapshot of which the row is; empty if it is of none. A table's first
            row of a snapshot comes after an unknown end of its former rows.
        is_apart: whether it is in a topic of its own, so that its place among others is unknown.
        changes: of a transaction's end, the number of its changes.
    """

    server: str
    place: tuple[int, ...]
    time_ms: int
    columns: Mapping[str, ColumnType | None] | None = None
    unknown: Sequence[str] = ()
    snapshot: str = ""
    is_apart: bool = False
    changes: int = 0


class Change(NamedTuple):
    """One change.

    Args:
        kind: Maxwell's `type`.
        table: empty for changes of a whole database.
        data: the row: after an insert or update, before a delete; numbers with a fraction are
            `Decimal`.
        old: of an update, the previous values of the changed columns.
        primary_key: the key's columns, empty if there is no key; None if not in the log.
        xid: the source's transaction, if any.
        xoffset: the number of the change in its transaction, from 0.
        commit: whether it is the transaction's last change.
        position: in the binlog: number of the file and byte; None if not in the log.
        definition: Maxwell's `def` of a table.
        steps: of a schema change, in order (`ddl.steps`); None if not in the log.
        if_absent: of a created table, whether it is only created if there is none.
        copies: how many partitions have a copy of a schema change.
        origin: None if the log has each change once.
        others: of a schema change, those that follow it in its statement.
    """

    kind: str
    database: str
    table: str
    data: Mapping[str, Any]
    old: Mapping[str, Any]
    primary_key: Sequence[str] | None
    xid: int | str | None
    xoffset: int | None
    commit: bool
    position: tuple[int, int] | None
    definition: Mapping[str, Any] | None
    steps: Sequence[Mapping[str, Any]] | None
    if_absent: bool
    copies: int
    origin: Origin | None = None
    others: Sequence[Change] = ()

    @property
    def source(self) -> str:
        """The table's name with its database, as `source_name` writes it."""
        return source_name(self.database, self.table)

    @property
    def removes_rows(self) -> bool:
        """Whether a schema change drops or renames something."""
        return self.kind in ("table-drop", "table-truncate", "database-drop") or bool(self.steps)

    def version(self, offset: int) -> int:
        """A number that grows along the binlog; the offset if there is no position.

        17 bits of the file's number, 32 of the byte, 14 of the number in the transaction (larger
        ones count as the last).
        """
        if self.position is None:
            return offset
        file, byte = self.position
        within = max(0, min(self.xoffset or 0, _MOST_XOFFSET))
        return (file % 2**17) << 46 | (byte % 2**32) << 14 | within


@lru_cache(maxsize=4096)
def source_name(database: str, table: str) -> str:
    """A table's name with its database; a backslash escapes dots and backslashes in the latter."""
    return re.sub(r"([.\\])", r"\\\1", database) + "." + table


def source_table(source: str) -> str:
    """The table's name in what `source_name` wrote."""
    return re.sub(r"\A(?:[^.\\]|\\[.\\])*\.", "", source)


def parse_change(value: bytes | str, *, max_bytes: int = MAX_VALUE_BYTES) -> Change:
    """Parse a record's value in Maxwell's format. O(its length).

    Raises:
        InvalidChangeError: it is too long, no JSON, or not in Maxwell's format.
    """
    return maxwell_change(decode_object(value, max_bytes))


def decode_object(value: bytes | str, max_bytes: int = MAX_VALUE_BYTES) -> dict[str, Any]:
    """Decode a JSON object; numbers with a fraction are `Decimal`.

    Raises:
        InvalidChangeError: it is too long, or no object of JSON.
    """
    if len(value) > max_bytes:
        raise InvalidChangeError(TOO_LARGE, f"{len(value)} bytes, and the maximum is {max_bytes}")
    try:
        document = decode_json(value.decode() if isinstance(value, bytes) else value)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise InvalidChangeError(MALFORMED, f"no JSON: {str(error)[:200]}") from None
    if not isinstance(document, dict):
        raise InvalidChangeError(MALFORMED, f"a {type(document).__name__}, and not an object")
    return document


def maxwell_change(document: Mapping[str, Any]) -> Change:
    """The change of a decoded record in Maxwell's format.

    Raises:
        InvalidChangeError: it is not in that format.
    """
    kind = document.get("type")
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidChangeError(MALFORMED, f"type is {str(kind)[:60]!r}, which is no change")
    is_row = kind in ROW_KINDS
    database = _field(document, "database", str, required=True) or ""
    is_database_change = kind in DATABASE_KINDS or kind == "heartbeat"
    table = _field(document, "table", str, required=not is_database_change) or ""
    data = _field(document, "data", dict, required=is_row) or {}
    old = _field(document, "old", dict) if kind == UPDATE and document.get("old") else None
    steps = None if is_row else _steps(document)
    is_required = kind in _DEFINING_KINDS and steps is None
    definition = None if is_row else _field(document, "def", dict, required=is_required)
    return Change(
        kind,
        database,
        table,
        data,
        old or {},
        _key_columns(document),
        _field(document, "xid", int),
        _field(document, "xoffset", int),
        document.get("commit") is True,
        _position(document.get("position")),
        definition,
        steps,
        document.get("if") == "absent",
        _copy_count(document)
        if kind in SCHEMA_KINDS and document.get("snapshot") is not True
        else 1,
    )


def _steps(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | None:
    steps = _field(document, "steps", list)
    if steps is not None and not all(
        type(step) is dict and type(step.get("do")) is str for step in steps
    ):
        raise InvalidChangeError(MALFORMED, f"steps must have a `do`, and are {str(steps)[:60]!r}")
    return steps


def _copy_count(document: Mapping[str, Any]) -> int:
    copies = _field(document, "partitions", int)
    return copies if copies is not None and 1 <= copies <= _MOST_PARTITIONS else 1


def _field(
    document: Mapping[str, Any], name: str, kind: type[T], required: bool = False
) -> T | None:
    value = document.get(name)
    if type(value) is kind:
        return value
    if value is None:
        if required:
            raise InvalidChangeError(MALFORMED, f"{name} is missing")
        return None
    raise InvalidChangeError(
        MALFORMED, f"{name} must be of type {kind.__name__}, and is {str(value)[:60]!r}"
    )


def _key_columns(document: Mapping[str, Any]) -> Sequence[str] | None:
    columns = document.get("primary_key_columns")
    if columns is None:
        return None
    if type(columns) is not list or not all(type(name) is str for name in columns):
        raise InvalidChangeError(
            MALFORMED, f"primary_key_columns must be names, and is {str(columns)[:60]!r}"
        )
    return columns


def _position(text: object) -> tuple[int, int] | None:
    if not isinstance(text, str):
        return None
    match = _POSITION.fullmatch(text)
    return None if match is None else (int(match[1]), int(match[2]))


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


decode_json = json.JSONDecoder(parse_float=Decimal, parse_constant=_reject_constant).decode
"""Decodes JSON with numbers as they are written; raises ValueError and ArithmeticError."""


def parse_key_columns(key: bytes | None) -> Sequence[str] | None:
    """The primary key's columns in the key of Maxwell's record, such as `{"pk.id": 7}`."""
    if key is None:
        return None
    try:
        document = json.loads(key)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    return [name[3:] for name in document if name.startswith("pk.")] or None


class Record(NamedTuple):
    """A record of a topic, or a line of a file; a line's offset is its number, from 0."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None

    @property
    def topic_partition(self) -> tuple[str, int]:
        return self.topic, self.partition


def hash_63(data: bytes | None) -> int:
    """A 63-bit hash, as in the cluster's traces."""
    if data is None:
        return 0
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1
