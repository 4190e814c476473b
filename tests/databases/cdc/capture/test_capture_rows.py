"""Transactions, updates, keys and changes of schemas, from a real binlog."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from purgatory.cdc.capture import CaptureError, capture_changes
from purgatory.cdc.capture.records import json_text, key_partition
from purgatory.cdc.capture.source import TableFilter
from purgatory.cdc.capture.transaction_rows import TransactionRows
from purgatory.cdc.change import parse_change
from tests.databases.cdc.capture.capturing import Capturing
from tests.databases.cdc.captured import Captured, in_source_order
from tests.databases.cdc.mariadb import numbers


def begun(capturing: Capturing, *tables: str) -> Capturing:
    capturing.run(*tables)
    capturing.capture()
    return capturing


def changes(records: list[Captured]) -> list[tuple[str, object, int, bool]]:
    return [
        (
            record.value["type"],
            record.value["data"]["id"],
            record.value["xoffset"],
            record.value.get("commit", False),
        )
        for record in records
    ]


ORDERS = "CREATE TABLE orders (id INT PRIMARY KEY, state VARCHAR(20), amount DECIMAL(10,2))"


def test_rows_share_their_xid_and_the_last_has_commit(
    capturing: Capturing,
) -> None:
    begun(capturing, ORDERS)
    capturing.run(
        "BEGIN",
        "INSERT INTO orders VALUES (1, 'new', 1.50), (2, 'new', 2)",
        "SAVEPOINT a",
        "INSERT INTO orders VALUES (9, 'never', 0)",
        "ROLLBACK TO a",
        "DELETE FROM orders WHERE id = 1",
        "COMMIT",
        "BEGIN",
        "INSERT INTO orders VALUES (8, 'never', 0)",
        "ROLLBACK",
        "INSERT INTO orders VALUES (3, 'new', 3)",
    )
    capturing.capture()
    found = in_source_order(capturing.records())
    assert changes(found) == [
        ("insert", 1, 0, False),
        ("insert", 2, 1, False),
        ("delete", 1, 2, True),
        ("insert", 3, 0, True),
    ]
    first, second = ({record.value["xid"] for record in part} for part in (found[:3], found[3:]))
    assert len(first) == len(second) == 1
    assert max(first) < min(second)


def test_update_has_the_old_values(capturing: Capturing) -> None:
    begun(capturing, ORDERS, "INSERT INTO orders VALUES (1, 'new', 1.50)")
    capturing.run(
        "UPDATE orders SET state = NULL WHERE id = 1",
        "UPDATE orders SET amount = 1.50, state = 'x'",
    )
    capturing.capture()
    first, second = in_source_order(capturing.records())
    assert first.value["old"] == {"state": "new"}
    assert first.value["data"]["state"] is None
    assert second.value["old"] == {"state": None}
    assert first.value["primary_key_columns"] == ["id"]
    assert first.value["database"] == capturing.name
    assert parse_change(json_text(first.value)).old == {"state": "new"}


def test_changed_key_moves_its_row_between_partitions(
    capturing: Capturing,
) -> None:
    begun(capturing, ORDERS, "INSERT INTO orders VALUES (1, 'new', 1)")
    capturing.run("UPDATE orders SET id = id + 100, state = 'moved'")
    capturing.capture()
    gone, come = in_source_order(capturing.records())
    assert (gone.value["type"], gone.value["data"]["id"]) == ("delete", 1)
    assert gone.value["data"]["state"] == "new"
    assert (come.value["type"], come.value["data"]["id"]) == ("insert", 101)
    assert come.value["data"]["state"] == "moved"
    assert gone.value["xid"] == come.value["xid"]
    assert (gone.key, come.key) == (
        {"database": capturing.name, "table": "orders", "pk.id": 1},
        {"database": capturing.name, "table": "orders", "pk.id": 101},
    )


def test_record_key_has_the_columns_of_the_primary_key(
    capturing: Capturing,
) -> None:
    begun(
        capturing,
        "CREATE TABLE pairs (v INT, b VARCHAR(9), a INT, PRIMARY KEY (a, b))",
        "CREATE TABLE loose (id INT)",
    )
    capturing.run("INSERT INTO pairs VALUES (1, 'é', 2)", "INSERT INTO loose VALUES (1), (2), (3)")
    capturing.capture()
    pair, *loose = in_source_order(capturing.records())
    assert pair.key == {"database": capturing.name, "table": "pairs", "pk.a": 2, "pk.b": "é"}
    assert {record.partition for record in loose} == {loose[0].partition}
    assert [record.value["data"]["id"] for record in loose] == [1, 2, 3]
    assert loose[0].value["primary_key_columns"] == []


def test_keys_go_to_the_same_partitions_as_with_kafkas_clients() -> None:
    # Taken from Kafka's Java client: murmur2 of these, as a positive number.
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    for key, hashed in known.items():
        assert key_partition(key, 7919) == (hashed & 0x7FFFFFFF) % 7919


def test_schema_change_is_in_every_partition_between_the_rows(
    capturing: Capturing,
) -> None:
    begun(capturing, ORDERS)
    capturing.run(
        "INSERT INTO orders VALUES (1, 'new', 1)",
        "ALTER TABLE orders ADD COLUMN note TEXT AFTER id, DROP COLUMN amount",
        "INSERT INTO orders VALUES (2, 'note', 'new')",
        "RENAME TABLE orders TO purchases",
        "INSERT INTO purchases VALUES (3, 'note', 'new')",
        "CREATE TABLE IF NOT EXISTS gone (id INT PRIMARY KEY)",
        "DROP TABLE gone, purchases",
    )
    capturing.capture()
    records = capturing.records()
    for partition in range(3):
        told = [r.value for r in records if r.partition == partition and r.key is None]
        assert [(value["type"], value["table"], value.get("if")) for value in told] == [
            ("table-alter", "orders", None),
            ("table-alter", "orders", None),
            ("table-create", "gone", "absent"),
            ("table-drop", "gone", None),
            ("table-drop", "purchases", None),
        ]
    rows = in_source_order(records)
    assert [list(record.value["data"]) for record in rows] == [
        ["id", "state", "amount"],
        ["id", "note", "state"],
        ["id", "note", "state"],
    ]


def test_altered_table_has_its_definition(capturing: Capturing) -> None:
    begun(capturing, ORDERS)
    capturing.run("ALTER TABLE orders ADD COLUMN big BIGINT UNSIGNED, RENAME TO purchases")
    capturing.capture()
    [told, *_] = [record.value for record in capturing.records() if record.key is None]
    assert told["type"] == "table-alter"
    assert told["table"] == "orders"
    assert told["def"]["table"] == "purchases"
    assert told["def"]["primary-key"] == ["id"]
    width = "" if capturing.mariadb.rows("SELECT VERSION() LIKE '9.%%'")[0][0] else "(20)"
    assert told["def"]["columns"][-1] == {
        "name": "big",
        "type": "bigint",
        "column-type": f"bigint{width} unsigned",
        "signed": False,
    }
    assert parse_change(json_text(told)).kind == "table-alter"


def test_only_named_tables_are_captured(capturing: Capturing) -> None:
    begun(capturing, ORDERS, "CREATE TABLE other (id INT PRIMARY KEY)")
    capturing.run("INSERT INTO other VALUES (1)", "INSERT INTO orders VALUES (2, 'a', 1)")
    chosen = TableFilter(capturing.name, frozenset({"other"}))
    capture_changes(replace(capturing.config, tables=chosen))
    assert changes(in_source_order(capturing.records())) == [("insert", 1, 0, True)]


def test_missing_table_is_named(capturing: Capturing) -> None:
    chosen = TableFilter(capturing.name, frozenset({"ordres"}))
    with pytest.raises(CaptureError, match="the source has no table ordres"):
        capture_changes(replace(capturing.config, tables=chosen))


def test_table_dropped_before_a_restart_has_its_last_changes(
    capturing: Capturing, capsys: pytest.CaptureFixture[str]
) -> None:
    capturing.run(ORDERS, "CREATE TABLE kept (id INT PRIMARY KEY)")
    chosen = replace(
        capturing.config, tables=TableFilter(capturing.name, frozenset({"orders", "kept"}))
    )
    capture_changes(chosen)
    capturing.run(
        "INSERT INTO orders VALUES (1, 'new', 1)",
        "DROP TABLE orders",
        "INSERT INTO kept VALUES (1)",
    )
    capture_changes(chosen)
    records = capturing.records()
    assert len(changes(in_source_order(records))) == 2
    assert {record.value["type"] for record in records} == {"insert", "table-drop"}
    assert "the source has no table orders" in capsys.readouterr().err


def test_statement_instead_of_rows_stops_the_capture(
    capturing: Capturing,
) -> None:
    begun(capturing, ORDERS)
    capturing.run(
        "SET SESSION binlog_format = 'STATEMENT'", "INSERT INTO orders VALUES (1, 'lost', 1)"
    )
    with pytest.raises(CaptureError, match=r"binlog\.\d+:\d+: a statement in place of rows"):
        capturing.capture()


def test_rows_without_all_columns_stop_the_capture(capturing: Capturing) -> None:
    begun(capturing, ORDERS, "INSERT INTO orders VALUES (1, 'new', 1)")
    capturing.run(
        "SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE orders SET state = 'b' WHERE id = 1"
    )
    with pytest.raises(CaptureError, match=r"shop\d+\.orders: a row without all its columns"):
        capturing.capture()


def test_prepared_transaction_is_captured_once_across_restarts(capturing: Capturing) -> None:
    begun(capturing, ORDERS)
    with capturing.mariadb.connect(capturing.name) as session, session.cursor() as cursor:
        for statement in (
            "XA START 'x'", "INSERT INTO orders VALUES (1, 'xa', 1)", "XA END 'x'", "XA PREPARE 'x'"
        ):  # fmt: skip
            cursor.execute(statement)
        capturing.run("INSERT INTO orders VALUES (2, 'a', 1)")
        capturing.capture()
        assert changes(in_source_order(capturing.records())) == [("insert", 2, 0, True)]
        cursor.execute("XA COMMIT 'x'")
    capturing.capture()
    capturing.capture()
    expected = [("insert", 2, 0, True), ("insert", 1, 0, True)]
    assert changes(in_source_order(capturing.records())) == expected


def test_transaction_beyond_the_rows_in_memory_is_captured_whole(
    capturing: Capturing, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_on_disk = partial(TransactionRows, max_in_memory=300)
    monkeypatch.setattr("purgatory.cdc.capture.binlog.TransactionRows", kept_on_disk)
    begun(capturing, "CREATE TABLE many (id INT PRIMARY KEY, text CHAR(10))")
    capturing.run(f"INSERT INTO many SELECT seq, 'x' FROM {numbers(1, 1000)} ORDER BY seq")
    assert capturing.capture() == 1000
    found = in_source_order(capturing.records())
    assert [record.value["data"]["id"] for record in found] == list(range(1, 1001))
    assert [record.value["xoffset"] for record in found if "commit" in record.value] == [999]
