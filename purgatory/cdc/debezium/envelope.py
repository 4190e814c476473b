"""Records of Debezium's topics as changes.

    {"before": null, "after": {"id": 7, "state": "new"}, "op": "c", "transaction": null,
     "source": {"connector": "mariadb", "name": "src", "db": "shop", "table": "orders",
                "file": "binlog.000003", "pos": 4711, "row": 0, "snapshot": "false", ...}}

Beside rows there are statements (`ddl`), the begin and end of transactions (`status`), heartbeats,
and records without a value. With schemas, each is the `payload` of an object that has its `schema`.
A line of a file may be an object of `topic`, `key` and `value` (or `payload`, as kcat writes it).

The place of a row is the binlog's file, byte and row; for PostgreSQL the end of the commit before
its transaction, and its own LSN. A row that gets another key is two records at one place: the
delete comes first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from purgatory.cdc.change import (
    BOOTSTRAP_INSERT,
    DELETE,
    INSERT,
    TRANSACTION_END,
    UPDATE,
    Change,
    Origin,
    decode_json,
)
from purgatory.cdc.ddl.statements import (
    Role,
    SchemaChange,
    schema_changes,
    statement_role,
    stop_step,
)
from purgatory.cdc.ddl.tokens import SqlMode
from purgatory.cdc.debezium.schema_types import Column, columns_of, is_unavailable
from purgatory.cdc.quarantine import MALFORMED, WRONG_TYPE, InvalidChangeError

Columns = Mapping[str, Column]

_KINDS = {"c": INSERT, "u": UPDATE, "d": DELETE, "r": BOOTSTRAP_INSERT}
_CONNECTORS = ("mysql", "mariadb", "postgresql")
_TIMES = {"ts_ms", "ts_us", "ts_ns"}
_NO_SNAPSHOT = (None, False, "false", "incremental")
_SCHEMA, _PAYLOAD = '{"schema":', ',"payload":'
_BITS = 32
_UNKNOWN = "Debezium does not send the values of its existing rows"
_FILE_AND_BYTE = re.compile(r"file=.*?(\d+),pos=(\d+)")
_POSTGRES_ID = re.compile(r"(\d+):(\d+)")
_MARIADB_GTID = re.compile(r"(\d+)-\d+-(\d+)")
_MYSQL_GTID = re.compile(r"(.+):(\d+)")


def is_envelope(document: Mapping[str, Any]) -> bool:
    """Whether a record is plainly Debezium's."""
    names = document.keys()
    return (
        {"op", "source"} <= names
        or {"ddl", "source"} <= names
        or {"status", "id", "event_count"} <= names
        or {"schema", "payload"} == names
        or ({"topic", "key"} <= names and bool({"value", "payload"} & names))
        or (bool(names) and names <= _TIMES)
    )


def split_schema(value: bytes) -> tuple[Columns | None, Any] | None:
    """The columns and the payload of a record with a schema; None if it must be parsed whole.

    The schema is parsed once for many records.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    end = text.find(_PAYLOAD)
    while end > 0:
        # A schema's default values may have such a field, too.
        try:
            columns = _parse_columns(text[len(_SCHEMA) : end])
            return columns, decode_json(text[end + len(_PAYLOAD) : -1])
        except (ValueError, ArithmeticError, RecursionError):
            end = text.find(_PAYLOAD, end + 1)
    return None


@lru_cache(maxsize=1024)
def _parse_columns(schema: str) -> Columns | None:
    return _columns_or_none(decode_json(schema))


def _columns_or_none(schema: Any) -> Columns | None:
    return None if schema is None else columns_of(schema)


def parse_envelope(
    document: Any,
    key: bytes | None = None,
    topic: str = "",
    columns: Columns | None = None,
) -> Change:
    """The change of a decoded record.

    Args:
        key: of the record; its fields are the primary key.
        topic: of the record.
        columns: if they were split from the document already.

    Raises:
        InvalidChangeError: it is not in Debezium's format, or has values of no type.
    """
    key_document = _decode(key)
    is_file = topic.startswith("file:")
    if isinstance(document, dict) and {"topic", "key"} <= document.keys():
        inner = "value" if "value" in document else "payload"
        key_document, document = _decode(document["key"]), _decode(document.get(inner), True)
        is_file = False
    if isinstance(document, dict) and document.keys() == {"schema", "payload"}:
        columns, document = _columns_or_none(document["schema"]), document["payload"]
    if document is None:
        return _mark()
    if not isinstance(document, dict):
        raise InvalidChangeError(MALFORMED, f"a {type(document).__name__}, and not an object")
    if "status" in document and "id" in document:
        return _transaction(document)
    if "op" in document or "ddl" in document:
        source = _source(document)
        if document.get("op") == "m":
            return _mark()
        if "op" not in document:
            return _statement(document, source, topic)
        names = None if is_file and key is None else _key_names(key_document)
        return _row(document, source, columns, names, topic)
    if document.keys() <= _TIMES:
        return _mark()
    raise InvalidChangeError(
        MALFORMED,
        "no envelope of Debezium, with op and source (a transform such as ExtractNewRecordState "
        "removes them: leave it out)",
    )


def _decode(value: Any, is_strict: bool = False) -> Any:
    if not isinstance(value, bytes | str):
        return value
    try:
        return decode_json(value.decode() if isinstance(value, bytes) else value)
    except (ValueError, ArithmeticError, RecursionError) as error:
        if is_strict:
            raise InvalidChangeError(MALFORMED, f"no JSON: {str(error)[:200]}") from None
        return None


def _key_names(key: Any) -> Sequence[str]:
    if isinstance(key, dict) and key.keys() == {"schema", "payload"}:
        key = key["payload"]
    # A router adds the name of the row's former topic.
    return [name for name in key if not name.startswith("__dbz__")] if isinstance(key, dict) else []


def _mark() -> Change:
    """A record that changes nothing."""
    return Change("heartbeat", "", "", {}, {}, None, None, None, False, None, None, None, False, 1)


def _source(document: Mapping[str, Any]) -> Mapping[str, Any]:
    source = document.get("source")
    if not isinstance(source, dict):
        raise InvalidChangeError(MALFORMED, "source is missing")
    connector = source.get("connector")
    if connector not in _CONNECTORS:
        raise InvalidChangeError(
            MALFORMED, f"the connector {str(connector)[:60]!r} is none of {', '.join(_CONNECTORS)}"
        )
    return source


def _integer(source: Mapping[str, Any], name: str) -> int:
    value = source.get(name)
    if value is None:
        return 0
    if type(value) is not int or not -(2**62) <= value < 2**62:
        raise InvalidChangeError(MALFORMED, f"{name} must be a number, and is {str(value)[:60]!r}")
    return value


def _text(source: Mapping[str, Any], name: str) -> str:
    value = source.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidChangeError(MALFORMED, f"{name} is missing")
    return _stored(name, value)


def _stored(name: str, text: str) -> str:
    """A text that each target can store."""
    if "\0" in text or not text.isascii():
        try:
            text.replace("\0", "\ud800").encode()
        except UnicodeEncodeError:
            raise InvalidChangeError(MALFORMED, f"{name} is {text[:60]!r}") from None
    return text


def _row(
    document: Mapping[str, Any],
    source: Mapping[str, Any],
    columns: Columns | None,
    key: Sequence[str] | None,
    topic: str,
) -> Change:
    op = document["op"]
    is_postgres = source["connector"] == "postgresql"
    database, table = _text(source, "schema" if is_postgres else "db"), _text(source, "table")
    if not isinstance(op, str) or op not in ("t", *_KINDS):
        raise InvalidChangeError(
            MALFORMED, f"op is {str(op)[:60]!r}, which is none of c, u, d, r, t"
        )
    xid, xoffset = _transaction_of(document, source) if op != "r" else (None, None)
    position, place = _place(source, 0 if op == "d" else 1, xoffset)
    origin = Origin(
        _server(source),
        place,
        _integer(source, "ts_ms"),
        is_apart=op != "t" and topic.endswith(f".{database}.{table}"),
    )
    if op == "t":
        # A transaction of MySQL ends at it, and has no end in the log.
        xid = xid if is_postgres else None
        return Change(
            "table-truncate", database, table, {}, {}, None, xid, xoffset, False, position, None,
            None, False, 1, origin,
        )  # fmt: skip
    row = document.get("before" if op == "d" else "after")
    before = document.get("before")
    if not isinstance(row, dict) or not isinstance(before, dict | None):
        raise InvalidChangeError(MALFORMED, f"op is {op}, and the row is {str(row)[:60]!r}")
    if op == "d":
        wanted = {name: row[name] for name in key if name in row} if key else row
        data = _values(wanted, columns, op)
    else:
        data = _values(row, columns, op)
        origin = origin._replace(
            columns={name: columns[name].kind if name in columns else None for name in row}
            if columns
            else dict.fromkeys(row),
            unknown=[name for name, column in columns.items() if not column.is_known_in_old_rows]
            if columns
            else (),
        )
        if op == "r":
            snapshot = _snapshot(source)
            # Rows of an incremental snapshot are read while changes come.
            origin = origin._replace(snapshot=snapshot, place=place if snapshot else ())
    old: dict[str, Any] = {}
    if op == "u" and before and key:
        old = _values({name: before[name] for name in key if name in before}, columns, "d")
    return Change(
        _KINDS[op], database, table, data, old, key, xid, xoffset, False, position, None, None,
        False, 1, origin,
    )  # fmt: skip


def _values(row: Mapping[str, Any], columns: Columns | None, op: str) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for name, value in row.items():
        if value is not None and type(value) in (str, list, dict) and is_unavailable(value):
            if op == "u":
                continue
            raise InvalidChangeError(
                WRONG_TYPE,
                f"{name}: its value is not in the log: set the table's REPLICA IDENTITY FULL",
            )
        if value is None or columns is None or name not in columns:
            data[name] = value
            continue
        try:
            data[name] = columns[name].convert(value)
        except InvalidChangeError as error:
            raise InvalidChangeError(error.reason, f"{name}: {error.detail}") from None
    return data


def _place(
    source: Mapping[str, Any], rank: int, xoffset: int | None
) -> tuple[tuple[int, int] | None, tuple[int, ...]]:
    """The position, by which transactions are ordered, and the place."""
    if source["connector"] == "postgresql":
        commit = 0
        try:
            first = json.loads(source.get("sequence") or "[null]")[0]
            commit = int(first) if first is not None else 0
        except (ValueError, TypeError, LookupError, OverflowError):
            pass
        lsn = _integer(source, "lsn")
        # A COPY has many rows at one LSN.
        number = rank if xoffset is None else xoffset
        position = commit or lsn
        return (position >> _BITS, position % 2**_BITS), (commit, lsn, number) if lsn else ()
    file, byte = _file_number(source.get("file")), _integer(source, "pos")
    if file is None:
        return None, ()
    return (file, byte), (file, byte, _integer(source, "row"), rank)


def _server(source: Mapping[str, Any]) -> str:
    """The name of the log: files of another server have other numbers."""
    return f"{_text(source, 'name')} {_integer(source, 'server_id')}"


def _file_number(file: object) -> int | None:
    match = re.search(r"(\d{1,18})\Z", file) if isinstance(file, str) else None
    return None if match is None else int(match[1])


def _snapshot(source: Mapping[str, Any]) -> str:
    """The snapshot's name: all its rows have one place."""
    if source.get("snapshot") in _NO_SNAPSHOT:
        return ""
    _, place = _place(source, 0, 0)
    return f"{_text(source, 'name')} {':'.join(map(str, place))}"


def _transaction_of(
    document: Mapping[str, Any], source: Mapping[str, Any]
) -> tuple[str | None, int | None]:
    """Name and number of a row's transaction; without metadata, the source may still name it."""
    transaction = document.get("transaction")
    if isinstance(transaction, dict):
        name, _, _ = _transaction_id(_text(transaction, "id"))
        return name, _integer(transaction, "total_order") - 1
    gtid = source.get("gtid") or source.get("txId")
    return (None if gtid is None else _stored("gtid", str(gtid))), None


def _transaction_id(text: str) -> tuple[str, str, tuple[int, ...]]:
    """The transaction's name, the series that its number is of, and the number."""
    if match := _POSTGRES_ID.fullmatch(text):
        # Each record has another LSN here.
        return match[1], "lsn", (int(match[2]),)
    if match := _FILE_AND_BYTE.fullmatch(text):
        return text, "file", (int(match[1]), int(match[2]))
    if match := _MARIADB_GTID.fullmatch(text) or _MYSQL_GTID.fullmatch(text):
        return text, match[1], (int(match[2]),)
    return text, text, (0,)


def _transaction(document: Mapping[str, Any]) -> Change:
    count = _integer(document, "event_count")
    if document["status"] != "END" or not count:
        return _mark()
    name, series, number = _transaction_id(_text(document, "id"))
    origin = Origin(f"end of {series}", number, _integer(document, "ts_ms"), changes=count)
    return _mark()._replace(kind=TRANSACTION_END, xid=name, origin=origin)


def _statement(document: Mapping[str, Any], source: Mapping[str, Any], topic: str) -> Change:
    sql = _text(document, "ddl") if document.get("ddl") else ""
    database = document.get("databaseName")
    is_snapshot = source.get("snapshot") not in _NO_SNAPSHOT
    mode = SqlMode.MYSQL if source["connector"] == "mysql" else SqlMode.NONE
    if statement_role(sql, mode) is not Role.SCHEMA:
        return _mark()
    found = schema_changes(sql, database if isinstance(database, str) else "", mode)
    if is_snapshot:
        found = [change for change in found if change.kind == "table-create"]
    if source["connector"] == "mariadb":
        found = [change.with_json_as_text() for change in found]
    position, place = _place(source, 0, None)
    name = _text(source, "name")
    is_apart = topic == name
    if is_apart:
        # The rows show it, in their topics.
        found = [change for change in found if not _is_shown_by_rows(change)]
    origin = Origin(
        _server(source),
        () if is_snapshot else place,
        _integer(source, "ts_ms"),
        snapshot=_snapshot(source),
        is_apart=is_apart,
    )
    position = None if is_snapshot else position
    changes = [_schema_change(change, position, origin) for change in found]
    return changes[0]._replace(others=changes[1:]) if changes else _mark()


def _is_shown_by_rows(change: SchemaChange) -> bool:
    steps = change.all_steps
    return (
        change.kind == "table-alter"
        and steps is not None
        and all(step["do"] in ("add-column", "drop-column") for step in steps)
    )


def _schema_change(
    change: SchemaChange, position: tuple[int, int] | None, origin: Origin
) -> Change:
    steps = change.all_steps
    return Change(
        change.kind, change.database, change.table or "", {}, {}, None, None, None, False,
        position, change.definition(), steps and [_step(step) for step in steps],
        change.if_absent, 1, origin,
    )  # fmt: skip


def _step(step: dict[str, Any]) -> dict[str, Any]:
    """A step of a log in which the rows do not follow it."""
    if step["do"] == "resend-table":
        return stop_step(_UNKNOWN)
    return {**step, "unknown": _UNKNOWN} if step.get("resent") else step
