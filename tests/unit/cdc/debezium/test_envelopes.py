"""Debezium's envelopes as changes."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.cdc import Change, InvalidChangeError, Record
from purgatory.cdc.column_types import ColumnType
from purgatory.cdc.formats import LogFormat, parse_record

MARIADB = {
    "connector": "mariadb",
    "name": "src",
    "ts_ms": 1000,
    "snapshot": "false",
    "db": "shop",
    "table": "orders",
    "gtid": "0-1-17",
    "file": "binlog.000003",
    "pos": 4711,
    "row": 1,
}
POSTGRES = {
    "connector": "postgresql",
    "name": "src",
    "ts_ms": 1000,
    "snapshot": "false",
    "db": "postgres",
    "schema": "shop",
    "table": "orders",
    "sequence": '["4294967299","4294967400"]',
    "txId": 746,
    "lsn": 4294967400,
}
TRANSACTION = {"id": "746:4294967400", "total_order": 2, "data_collection_order": 1}
FIELDS = [
    {"type": "int32", "optional": False, "field": "id"},
    {"type": "int32", "optional": True, "name": "io.debezium.time.Date", "field": "made"},
]
SCHEMA = {"type": "struct", "fields": [{"type": "struct", "fields": FIELDS, "field": "after"}]}


def encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def parse(
    value: object, key: object = None, log_format: LogFormat = "auto", topic: str = "changes"
) -> Change:
    """The change of a record; its key has the column id by default."""
    record = Record(topic, 0, 0, encode(key or {"id": 7}), encode(value))
    change = parse_record(record, log_format)
    assert change is not None
    return change


def row(op: str = "c", source: Any = None, **fields: Any) -> dict[str, Any]:
    return {
        "before": None,
        "after": {"id": 7, "made": 0},
        "source": source or MARIADB,
        "transaction": None,
        "op": op,
        "ts_ms": 2000,
        **fields,
    }


@pytest.mark.parametrize(
    ("op", "kind"),
    [("c", "insert"), ("u", "update"), ("r", "bootstrap-insert"), ("d", "delete")],
)
def test_operation_is_a_kind_of_change(op: str, kind: str) -> None:
    change = parse(row(op, before={"id": 7, "made": 1}))
    assert (change.kind, change.source, change.primary_key) == (kind, "shop.orders", ["id"])
    assert change.data == ({"id": 7} if op == "d" else {"id": 7, "made": 0})


def test_truncate_has_no_row() -> None:
    change = parse(row("t", POSTGRES, after=None, transaction=TRANSACTION))
    assert (change.kind, change.source, change.xid) == ("table-truncate", "shop.orders", "746")
    assert parse(row("t", after=None, transaction={"id": "0-1-17", "total_order": 1})).xid is None


def test_schema_gives_types_and_values() -> None:
    change = parse({"schema": SCHEMA, "payload": row()}, {"schema": {}, "payload": {"id": 7}})
    assert change.data == {"id": 7, "made": "1970-01-01"}
    assert change.primary_key == ["id"]
    assert change.origin is not None
    assert change.origin.columns == {"id": ColumnType.BIGINT, "made": ColumnType.DATE}
    assert change.origin.unknown == ["id"]


def test_schema_may_have_a_payload_of_its_own() -> None:
    default = {**FIELDS[1], "default": {"a": {}, "payload": {}}}
    fields = [{"type": "struct", "fields": [FIELDS[0], default], "field": "after"}]
    change = parse({"schema": {"fields": fields}, "payload": row()})
    assert change.data == {"id": 7, "made": "1970-01-01"}


def test_places_grow_along_the_log() -> None:
    def place(value: Any) -> tuple[int, ...]:
        origin = parse(value).origin
        assert origin is not None
        return origin.place

    assert place(row()) == (3, 4711, 1, 1)
    deleted = place(row("d", before={"id": 7}))
    assert deleted < place(row()) < place(row(source={**MARIADB, "row": 2}))
    assert place(row()) < place(row(source={**MARIADB, "file": "binlog.1000000", "pos": 4}))
    assert place(row(source=POSTGRES)) == (4294967299, 4294967400, 1)
    assert place(row(source=POSTGRES, transaction=TRANSACTION)) == (4294967299, 4294967400, 1)
    assert place(row("r", {**MARIADB, "snapshot": "incremental"})) == ()


def test_transaction_is_named_as_its_end_names_it() -> None:
    change = parse(row(source=POSTGRES, transaction=TRANSACTION))
    assert (change.xid, change.xoffset, change.position) == ("746", 1, (1, 3))
    end = {"status": "END", "id": "746:4294968000", "event_count": 2, "ts_ms": 1000}
    assert parse(end).xid == "746"
    assert parse(end).origin is not None
    assert parse(row()).xid == "0-1-17"
    assert parse(row("r")).xid is None
    mysql = {**MARIADB, "connector": "mysql", "gtid": None}
    assert parse(row(source=mysql)).xid is None
    named = {"id": "file=binlog.000003,pos=4000", "total_order": 1}
    assert parse(row(source=mysql, transaction=named)).xid == "file=binlog.000003,pos=4000"


@pytest.mark.parametrize(
    "value",
    [
        {"ts_ms": 1000},
        {"status": "BEGIN", "id": "0-1-17", "event_count": None, "ts_ms": 1000},
        {"status": "END", "id": "0-1-17", "event_count": 0, "ts_ms": 1000},
        {"source": MARIADB, "ddl": "USE `shop`", "databaseName": "shop"},
        {"source": MARIADB, "ddl": None, "databaseName": "shop"},
        {"op": "m", "source": POSTGRES, "message": {}},
        {"schema": None, "payload": None},
        {"topic": "a", "key": None, "value": None},
    ],
)
def test_debezium_record_of_another_kind_changes_nothing(value: Any) -> None:
    assert parse(value).kind == "heartbeat"


@pytest.mark.parametrize(
    "placeholder",
    [
        "__debezium_unavailable_value",
        "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
        ["__debezium_unavailable_value"],
    ],
)
def test_value_that_stays_is_left_out_of_an_update(placeholder: Any) -> None:
    after = {"id": 7, "body": placeholder}
    change = parse(row("u", POSTGRES, after=after))
    assert change.data == {"id": 7}
    assert change.origin is not None
    assert change.origin.columns is not None
    assert set(change.origin.columns) == {"id", "body"}
    with pytest.raises(InvalidChangeError, match="body: its value is not in the log"):
        parse(row("c", POSTGRES, after=after))


def test_statement_is_read_by_the_own_parser() -> None:
    sql = "ALTER TABLE shop.orders ADD COLUMN note TEXT, ADD COLUMN n INT NOT NULL"
    change = parse({"source": MARIADB, "ddl": sql, "databaseName": "shop", "ts_ms": 1})
    assert (change.kind, change.source, change.position) == (
        "table-alter",
        "shop.orders",
        (3, 4711),
    )
    assert change.steps is not None
    assert ["unknown" in step for step in change.steps] == [False, True]


def test_statement_may_change_several_tables() -> None:
    change = parse({"source": MARIADB, "ddl": "DROP TABLE a, b", "databaseName": "shop"})
    assert [change.table, *(other.table for other in change.others)] == ["a", "b"]


def test_snapshot_creates_tables_and_drops_none() -> None:
    source = {**MARIADB, "snapshot": "true"}
    for sql in ("DROP TABLE IF EXISTS `shop`.`a`", "DROP DATABASE IF EXISTS `shop`"):
        assert parse({"source": source, "ddl": sql, "databaseName": "shop"}).kind == "heartbeat"
    sql = "CREATE TABLE `a` (`id` int(11) NOT NULL, `j` json, PRIMARY KEY (`id`))"
    change = parse({"source": source, "ddl": sql, "databaseName": "shop"})
    assert change.kind == "table-create"
    assert change.definition is not None
    assert [column["type"] for column in change.definition["columns"]] == ["int", "longtext"]
    assert change.origin is not None
    assert change.origin.snapshot == "src 3:4711:1:0"


def test_topic_of_statements_leaves_columns_to_the_rows() -> None:
    value = {"source": MARIADB, "ddl": "ALTER TABLE a DROP COLUMN b", "databaseName": "shop"}
    assert parse(value, topic="src").kind == "heartbeat"
    value["ddl"] = "ALTER TABLE a RENAME COLUMN b TO c"
    change = parse(value, topic="src")
    assert change.origin is not None
    assert change.origin.is_apart


def test_line_of_a_file_has_topic_key_and_value() -> None:
    expected = parse(row())
    line = {"topic": "src.shop.orders", "key": {"id": 7}, "value": row()}
    assert parse(line, topic="file:/a") == expected
    kcat = {"topic": "a", "partition": 0, "key": '{"id": 7}', "payload": json.dumps(row())}
    assert parse(kcat, topic="file:/a") == expected
    record = Record("file:/a", 0, 0, None, encode(row()))
    change = parse_record(record)
    assert change is not None
    assert change.primary_key is None


def test_key_without_the_names_of_routers() -> None:
    key = {"id": 7, "__dbz__physicalTableIdentifier": "src.shop.orders"}
    assert parse(row(), key).primary_key == ["id"]
    record = Record("changes", 0, 0, None, encode(row()))
    change = parse_record(record)
    assert change is not None
    assert change.primary_key == []


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (row("x"), "op is 'x'"),
        (row(after=None), "op is c, and the row is 'None'"),
        (row("d"), "op is d, and the row is 'None'"),
        (row("u", before=7), "op is u"),
        (row(source={**MARIADB, "connector": "oracle"}), "the connector 'oracle' is none of"),
        (row(source={**MARIADB, "db": None}), "db is missing"),
        (row(source={**MARIADB, "pos": "x"}), "pos must be a number"),
        (row(source={**MARIADB, "ts_ms": 1.5}), "ts_ms must be a number"),
        (row(source=7), "source is missing"),
        (row(transaction={"id": 7}), "id is missing"),
        ({"schema": 7, "payload": row()}, "no schema"),
        ({"schema": SCHEMA, "payload": [7]}, "a list, and not an object"),
        ({"schema": SCHEMA, "payload": row(after={"id": 7, "made": "x"})}, "made: 'x' is not"),
        ({"topic": "a", "key": None, "payload": "{"}, "no JSON"),
        ({"status": "END", "id": None, "event_count": 1}, "id is missing"),
    ],
)
def test_envelope_of_another_shape_is_refused(value: Any, said: str) -> None:
    with pytest.raises(InvalidChangeError, match=said):
        parse(value)


def test_flattened_row_is_refused_as_debeziums() -> None:
    with pytest.raises(InvalidChangeError, match="ExtractNewRecordState"):
        parse({"id": 7, "made": 0}, log_format="debezium")


def test_maxwells_record_is_no_envelope() -> None:
    value = {
        "type": "insert",
        "database": "a",
        "table": "b",
        "data": {"op": 1},
        "source": 1,
        "op": 1,
    }
    assert parse(value).kind == "insert"
    with pytest.raises(InvalidChangeError, match="type is"):
        parse(row(), log_format="maxwell")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
_PLACES = (
    ("source",), ("op",), ("after",), ("before",), ("transaction",), ("source", "pos"),
    ("source", "file"), ("source", "snapshot"), ("source", "sequence"), ("source", "lsn"),
    ("source", "table"), ("transaction", "id"), ("transaction", "total_order"),
)  # fmt: skip


@given(st.sampled_from((MARIADB, POSTGRES)), st.sampled_from(_PLACES), _JSON)
def test_envelope_is_read_or_refused_whatever_its_values(
    source: Any, place: tuple[str, ...], value: Any
) -> None:
    document = row("u", dict(source), transaction=dict(TRANSACTION), before={"id": 7})
    inner = document
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    with suppress(InvalidChangeError):
        parse(document)
