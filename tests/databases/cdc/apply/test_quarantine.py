"""Inapplicable changes are quarantined with their offset and reason, and no others."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from purgatory.cdc import Applied, ApplyOptions, Target, apply_batch
from purgatory.cdc.apply.exactly_once import Writer
from purgatory.cdc.apply.transactions import drain_pending
from purgatory.cdc.quarantine import REASONS
from purgatory.cdc.targets.sqlite import SqliteTarget
from tests.databases.cdc.change_log import TOPIC, quarantined, raw, record, rows_of

DEFINITION: Any = {
    "def": {
        "database": "shop",
        "table": "orders",
        "columns": [
            {"name": "id", "type": "bigint"},
            {"name": "n", "type": "bigint"},
            {"name": "day", "type": "datetime"},
            {"name": "flag", "type": "boolean"},
            {"name": "raw", "type": "blob"},
            {"name": "text", "type": "text"},
            {"name": "share", "type": "double"},
        ],
        "primary-key": ["id"],
    }
}

BAD_BYTES = {
    b"": "malformed",
    b"{": "malformed",
    b"[1]": "malformed",
    b"null": "malformed",
    b'"text"': "malformed",
    b"\xff\xfe": "malformed",
    b"{}": "malformed",
    b'{"type": "insert"}': "malformed",
    b'{"type": "explode", "database": "shop", "table": "orders"}': "malformed",
    b'{"type": ["insert"], "database": "shop", "table": "orders"}': "malformed",
    b'{"type": "insert", "database": "shop", "table": "orders"}': "malformed",
    b'{"type": "insert", "database": "shop", "table": 5, "data": {}}': "malformed",
    b'{"type": "insert", "database": "shop", "table": "orders", "data": [1]}': "malformed",
    b'{"type": "insert", "database": "shop", "table": "orders", "data": {"id": NaN}}': "malformed",
    b"[" * 100_000: "malformed",
    b'{"x": ' + b"1" * 5_000 + b"}": "malformed",
    b'{"x": 1e99999999999999999999}': "malformed",
}

BAD_DATA: list[tuple[dict[str, object], str]] = [
    ({"n": 1}, "missing key"),
    ({"id": None}, "missing key"),
    ({"id": 2, "n": "many"}, "wrong type"),
    ({"id": 2, "n": 1.5}, "wrong type"),
    ({"id": 2, "n": {"a": 1}}, "wrong type"),
    ({"id": 2, "n": 2**63}, "value too large"),
    ({"id": 2, "n": 10**400}, "value too large"),
    ({"id": "two"}, "wrong type"),
    ({"id": 2, "flag": 7}, "wrong type"),
    ({"id": 2, "flag": [1]}, "wrong type"),
    ({"id": 2, "day": 20261121}, "wrong type"),
    ({"id": 2, "raw": "not base 64"}, "wrong type"),
    ({"id": 2, "text": "\ud800"}, "wrong type"),
    ({"id": 2, "share": "half"}, "wrong type"),
]


@pytest.mark.parametrize("bad", BAD_BYTES, ids=lambda bad: repr(bad[:30]))
def test_invalid_bytes_are_quarantined(target: Target, bad: bytes) -> None:
    log = [record(0, data={"id": 1}), raw(1, bad), record(2, data={"id": 2})]
    assert apply_batch(target, TOPIC, 0, log) == Applied(applied=2, quarantined=1)
    assert quarantined(target) == [(1, BAD_BYTES[bad])]
    [row] = target.select_own("purgatory_quarantine")
    assert bytes(row[5]) == bad
    assert rows_of(target) == [{"id": 1}, {"id": 2}]


def test_unfit_values_are_quarantined_with_their_reasons(target: Target) -> None:
    log = [record(0, type="table-create", data=None, **DEFINITION)]
    for number, (data, _) in enumerate(BAD_DATA):
        log.append(record(2 * number + 1, data=data))
        log.append(record(2 * number + 2, data={"id": 100 + number, "text": "good"}))
    became = apply_batch(target, TOPIC, 0, log)
    assert quarantined(target) == [
        (2 * number + 1, reason) for number, (_, reason) in enumerate(BAD_DATA)
    ]
    assert became == Applied(applied=len(BAD_DATA) + 1, quarantined=len(BAD_DATA))
    assert [row["id"] for row in rows_of(target)] == [100 + n for n in range(len(BAD_DATA))]
    assert {reason for _, reason in quarantined(target)} <= set(REASONS)


@pytest.mark.parametrize("column", ["share", "wide"])
def test_number_beyond_its_column_type_is_quarantined(target: Target, column: str) -> None:
    # The number is text here, since Python writes no such number; a new column has decimals.
    log = [record(0, type="table-create", data=None, **DEFINITION), record(1, data={"id": 1})]
    value = json.dumps({"database": "shop", "table": "orders", "type": "insert",
                        "primary_key_columns": ["id"], "data": {"id": 2, column: "#"}})  # fmt: skip
    log.append(raw(2, value.replace('"#"', "1e999999999").encode()))
    assert apply_batch(target, TOPIC, 0, log) == Applied(applied=2, quarantined=1)
    assert quarantined(target) == [(2, "value too large")]


@pytest.mark.parametrize(
    "number", ["12345678901234567890.123", "1e-400", "1.0", "1e5000", "1" + "0" * 400 + ".5"]
)
def test_a_number_in_json_keeps_all_its_digits(target: Target, number: str) -> None:
    value = json.dumps({"database": "shop", "table": "orders", "type": "insert",
                        "primary_key_columns": ["id"],
                        "data": {"id": 1, "j": {"x": ["#", "é"]}}})  # fmt: skip
    apply_batch(target, TOPIC, 0, [raw(0, value.replace('"#"', number).encode())])
    [[text]] = target._run("SELECT CAST(j AS text) FROM orders").fetchall()
    found = json.loads(text, parse_float=Decimal, parse_int=Decimal)
    assert found == {"x": [Decimal(number), "é"]}


def test_row_refused_by_the_database_is_found_among_thousands(target: Target) -> None:
    target._run(
        "CREATE TABLE orders (id bigint PRIMARY KEY, n bigint CHECK (n <> 13), "
        "mail text NOT NULL UNIQUE)"
    )
    log = [
        record(
            offset,
            data={"id": offset, "n": 13 if offset in (7, 1500) else 0, "mail": str(offset)}
            if offset != 900
            else {"id": 900, "n": 0, "mail": "899"},
        )
        for offset in range(2000)
    ]
    assert apply_batch(target, TOPIC, 0, log) == Applied(applied=1997, quarantined=3)
    assert quarantined(target) == [(7, "refused"), (900, "refused"), (1500, "refused")]
    assert len(rows_of(target)) == 1997


def test_text_longer_than_its_column_is_too_large(target: Target, url: str) -> None:
    if url.startswith("sqlite"):
        target._run("CREATE TABLE orders (id bigint PRIMARY KEY, t text)")
        options = ApplyOptions(max_value_bytes=1000)
    else:
        target._run("CREATE TABLE orders (id bigint PRIMARY KEY, t varchar(5), s smallint)")
        options = ApplyOptions()
    log = [record(0, data={"id": 1, "t": "x" * 2000}), record(1, data={"id": 2, "t": "short"})]
    assert apply_batch(target, TOPIC, 0, log, options) == Applied(applied=1, quarantined=1)
    assert quarantined(target) == [(0, "value too large")]


def test_unknown_tables_and_columns_are_quarantined(target: Target) -> None:
    target._run("CREATE TABLE orders (id bigint PRIMARY KEY)")
    log = [
        record(0, data={"id": 1}),
        record(1, data={"id": 1}, table="other"),
        record(2, data={"id": 2, "more": 1}),
        record(3, data={"id": 3, "more": None}),
    ]
    became = apply_batch(target, TOPIC, 0, log, ApplyOptions(create=False))
    assert became == Applied(applied=2, quarantined=2)
    assert quarantined(target) == [(1, "unknown table"), (2, "unknown column")]


def test_table_with_another_key_or_source_is_not_written_to(target: Target) -> None:
    target._run("CREATE TABLE keyed (a bigint PRIMARY KEY, id bigint)")
    target._run("CREATE TABLE bare (id bigint)")
    log = [
        record(0, table="keyed", data={"a": 1, "id": 1}),
        record(1, table="bare", data={"id": 1}),
        record(2, data={"id": 1}),
        record(3, database="archive", data={"id": 2}),
        record(4, table="purgatory_offsets", data={"id": 2}),
        record(5, table="nokey", primary_key_columns=[], data={"id": 2}),
    ]
    assert apply_batch(target, TOPIC, 0, log) == Applied(applied=1, quarantined=5)
    assert quarantined(target) == [
        (0, "unknown table"),
        (1, "unknown table"),
        (3, "unknown table"),
        (4, "unknown table"),
        (5, "missing key"),
    ]
    assert rows_of(target) == [{"id": 1}]


def test_name_reserved_by_sqlite_is_quarantined(target: Target) -> None:
    log = [record(0, table="SQLite_x", data={"id": 1}), record(1, data={"id": 2, "sqlite_y": 1})]
    apply_batch(target, TOPIC, 0, log)
    reserved = isinstance(target, SqliteTarget)
    assert quarantined(target) == ([(0, "unknown table")] if reserved else [])
    assert rows_of(target) == [{"id": 2, "sqlite_y": 1}]


def test_text_with_character_0_is_stored_where_allowed(target: Target) -> None:
    log = [
        record(0, type="table-create", data=None, **DEFINITION),
        record(1, data={"id": 1, "text": "a\0b"}),
        record(2, data={"id": 2, "text": "c"}),
        record(3, table="notes", data={"id": 1, "note": {"a": "\0"}}),
        record(4, table="notes", data={"id": 2, "note": {"a": "\\u0000"}}),
    ]
    apply_batch(target, TOPIC, 0, log)
    texts = [row["text"] for row in rows_of(target)]
    notes = [row["note"] for row in rows_of(target, "notes")]
    if isinstance(target, SqliteTarget):
        assert texts == ["a\0b", "c"]
        assert [json.loads(note)["a"] for note in notes] == ["\0", "\\u0000"]
        assert quarantined(target) == []
    else:
        assert texts == ["c"]
        assert [note["a"] for note in notes] == ["\\u0000"]
        assert quarantined(target) == [(1, "wrong type"), (3, "wrong type")]


def test_case_sensitive_database_distinguishes_names_by_case(
    target: Target,
) -> None:
    log = [
        record(0, data={"id": 1, "Group": "a"}),
        record(1, data={"id": 2, "Group": "b", "group": "c"}),
        # Another key than the table's is not the reason here.
        record(2, table="Orders", data={"id": 3, "n": 1}, primary_key_columns=["n"]),
        record(3, data={"id": 4, "Group": "d"}),
    ]
    apply_batch(target, TOPIC, 0, log)
    if isinstance(target, SqliteTarget):
        assert quarantined(target) == [(1, "unknown column"), (2, "unknown table")]
        details = [row[4] for row in target.select_own("purgatory_quarantine")]
        assert details == [
            "group is the same name as Group to the target",
            "the target's table Orders is shop.orders's: give shop.Orders another name (--tables)",
        ]
        assert [row["id"] for row in rows_of(target)] == [1, 4]
    else:
        assert quarantined(target) == []
        assert [row["id"] for row in rows_of(target)] == [1, 2, 4]
        assert [row["id"] for row in rows_of(target, "Orders")] == [3]


def test_redelivered_bad_change_is_quarantined_once(target: Target) -> None:
    log = [raw(0, b"?"), record(1, data={"id": 1})]
    for _ in range(3):
        apply_batch(target, TOPIC, 0, log)
    assert quarantined(target) == [(0, "malformed")]


def test_reason_names_the_column_and_the_problem(target: Target) -> None:
    log = [
        record(0, type="table-create", data=None, **DEFINITION),
        record(1, data={"id": 1, "n": "many"}),
    ]
    apply_batch(target, TOPIC, 0, log)
    [row] = target.select_own("purgatory_quarantine")
    assert row[4] == "n: 'many' is not a whole number"
    assert json.loads(bytes(row[5]))["data"] == {"id": 1, "n": "many"}


def test_null_in_a_key_is_told_apart_from_a_missing_column(target: Target) -> None:
    rows = [{"id": 1, "n": 1}, {"id": None, "n": 2}, {"n": 3}]
    log = [record(0, type="table-create", data=None, **DEFINITION)]
    log += [record(offset, data=row) for offset, row in enumerate(rows, 1)]
    apply_batch(target, TOPIC, 0, log)
    assert [row[4] for row in target.select_own("purgatory_quarantine")] == [
        "id of the primary key is null, as zero and impossible dates are",
        "the row lacks id of the primary key",
    ]


def test_unstorable_names_and_numbers_do_not_stop_the_run(target: Target) -> None:
    odd = "\ud800"
    log = [
        record(0, data={"id": 1}, primary_key_columns=[odd]),
        record(1, data={"id": 1, odd: 1}),
        record(2, data={"id": 1}, table=odd),
        record(3, data={"id": 1}, table="a\0b"),
        record(4, data={"id": 1, "a\0b": 1}),
        record(5, data={"id": 1}, position="b." + "9" * 5000 + ":4", xoffset=-5),
        record(6, data={"id": 2}, xid=10**30, xoffset=10**30, position="b.1:" + "9" * 18),
        record(7, data={"id": 3}, table=""),
        record(8, data={"": 1, "id": 3}),
    ]
    became = apply_batch(target, TOPIC, 0, log, ApplyOptions(audit_log=True))
    assert became == Applied(applied=2, quarantined=7)
    assert [offset for offset, _ in quarantined(target)] == [0, 1, 2, 3, 4, 7, 8]
    assert len(rows_of(target)) == 2
    assert len(target.select_own("purgatory_effects")) == len(log)


def test_columns_that_the_target_itself_has_let_the_rest_go_on(target: Target) -> None:
    columns = [{"name": "id", "type": "bigint"}, {"name": "xmin", "type": "double"}]
    boxes: Any = {
        "def": {"database": "shop", "table": "boxes", "primary-key": ["id"], "columns": columns}
    }
    log = [
        record(0, type="table-create", data=None, table="boxes", **boxes),
        record(1, table="boxes", data={"id": 1, "xmin": 0.5}),
        record(2, data={"id": 2, "n": 1}),
        record(3, data={"id": 3, "n": 1, "ctid": "a"}),
        record(4, data={"id": 4, "n": 1}),
    ]
    refused = [] if isinstance(target, SqliteTarget) else [0, 1, 3]
    apply_batch(target, TOPIC, 0, log[:1])
    drain_pending(Writer(target, ApplyOptions()), TOPIC, by_transaction=False)
    apply_batch(target, TOPIC, 0, log)
    assert quarantined(target) == [(offset, "unknown column") for offset in refused]
    assert [row["id"] for row in rows_of(target)] == [n for n in (2, 3, 4) if n not in refused]
