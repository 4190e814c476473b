"""Maxwell's JSON as typed changes."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.cdc import Change, InvalidChangeError, parse_change
from purgatory.cdc.change import parse_key_columns, source_name, source_table
from purgatory.cdc.column_types import ColumnType, column_type_by_name, infer_column_type

# As in Maxwell's own documents, where the last change of a transaction has no number.
UPDATE = (
    b'{"database":"test","table":"maxwell","type":"update","ts":1449786341,"xid":940786,'
    b'"commit":true,"position":"mysql-bin.000012:3106","primary_key_columns":["id"],'
    b'"data":{"id":1, "daemon": "Firebus!  Firebus!", "cost": 12.50},"old":{"daemon":"Stanislaw"}}'
)


def test_change_has_all_fields_of_maxwell() -> None:
    assert parse_change(UPDATE) == Change(
        kind="update",
        database="test",
        table="maxwell",
        data={"id": 1, "daemon": "Firebus!  Firebus!", "cost": Decimal("12.50")},
        old={"daemon": "Stanislaw"},
        primary_key=["id"],
        xid=940786,
        xoffset=None,
        commit=True,
        position=(12, 3106),
        definition=None,
        steps=None,
        if_absent=False,
        copies=1,
    )
    assert parse_change(UPDATE).source == "test.maxwell"
    assert str(parse_change(UPDATE).data["cost"]) == "12.50"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"database": None}, "database is missing"),
        ({"table": 7}, "table must be of type str, and is '7'"),
        ({"data": "x"}, "data must be of type dict, and is 'x'"),
        ({"old": []}, None),
        ({"old": ["x"]}, "old must be of type dict"),
        ({"xid": "7"}, "xid must be of type int"),
        ({"xid": True}, "xid must be of type int"),
        ({"primary_key_columns": "id"}, "primary_key_columns must be names"),
        ({"type": "replace"}, "type is 'replace', which is no change"),
        ({"type": "table-alter"}, "def is missing"),
        ({"position": "somewhere"}, None),
    ],
)
def test_invalid_field_is_named(fields: dict[str, Any], said: str | None) -> None:
    value = json.dumps({**json.loads(UPDATE), **fields})
    if said is None:
        parse_change(value)
        return
    with pytest.raises(InvalidChangeError, match=said):
        parse_change(value)


def test_versions_follow_the_binlog_or_else_the_offsets() -> None:
    def at(position: str | None, xoffset: int) -> Change:
        fields = {**json.loads(UPDATE), "position": position, "xoffset": xoffset}
        return parse_change(json.dumps(fields))

    places = [
        at("b.000001:4", 0),
        at("b.000001:4", 1),
        at("b.000001:900", 0),
        at("b.000001:4294967295", 9),
        at("b.000002:4", 0),
        at("b.000010:4", 100_000),
        at("b.131071:4294967295", 100_000),
    ]
    versions = [change.version(0) for change in places]
    assert versions == sorted(set(versions))
    assert versions[-1] < 2**63
    assert at(None, 3).version(17) == 17


@given(st.binary() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_record_is_a_change_or_an_error_whatever_its_bytes(value: bytes | str) -> None:
    with pytest.raises(InvalidChangeError):
        parse_change(value)


def test_a_records_key_names_the_columns_of_the_primary_key() -> None:
    assert parse_key_columns(b'{"database":"d","table":"t","pk.a":1,"pk.b":"x"}') == ["a", "b"]
    assert parse_key_columns(b'{"database":"d","table":"t"}') is None
    assert parse_key_columns(b"7") is None
    assert parse_key_columns(b"\xff") is None
    assert parse_key_columns(None) is None


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("INT", ColumnType.BIGINT),
        ("int(11) unsigned", ColumnType.BIGINT),
        ("bigint(20) unsigned", ColumnType.NUMERIC),
        ("Decimal(12,2)", ColumnType.NUMERIC),
        ("varchar(20)", ColumnType.TEXT),
        ("enum('a','b')", ColumnType.TEXT),
        ("datetime(6)", ColumnType.DATETIME),
        ("longblob", ColumnType.BINARY),
        ("vector", None),
        ("", None),
    ],
)
def test_types_follow_their_names_in_mysql(words: str, kind: ColumnType | None) -> None:
    assert column_type_by_name(words) is kind


def test_first_value_determines_the_type() -> None:
    assert infer_column_type(True) is ColumnType.BOOLEAN
    assert infer_column_type(2**63) is ColumnType.NUMERIC
    assert infer_column_type({}) is ColumnType.JSON
    assert infer_column_type(None) is None


_names = st.text("a.\\", max_size=4)


@given(_names, _names, _names, _names)
def test_full_names_of_tables_are_unique(
    database: str, table: str, other_database: str, other_table: str
) -> None:
    name, other = source_name(database, table), source_name(other_database, other_table)
    assert (name == other) == ((database, table) == (other_database, other_table))
    assert name.startswith(source_name(other_database, "")) == (database == other_database)
    assert source_table(name) == table
