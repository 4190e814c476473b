"""Envelopes written by hand: what a recording has seldom, and what can't be applied."""

from __future__ import annotations

import json
from typing import Any

import pytest

from purgatory.cdc import ApplyOptions, ChangesError, QuarantineStopError, Record, Target
from purgatory.cdc.apply.exactly_once import Writer
from purgatory.cdc.apply.transactions import apply_rows, apply_transactions, drain_pending
from tests.databases.cdc.change_log import quarantined
from tests.databases.cdc.debezium.recordings import plain_rows

_TYPES = {"id": "int32", "n": "int32", "m": "int32", "g": "struct"}


class Log:
    """A topic of Debezium's records.

    Args:
        connector: of the source.
        with_schemas: whether records have their schemas.
    """

    def __init__(self, connector: str = "postgresql", with_schemas: bool = True) -> None:
        self._connector = connector
        self._with_schemas = with_schemas
        self.records: list[Record] = []

    def row(
        self,
        op: str,
        place: int,
        *,
        xid: int | None = None,
        partition: int = 0,
        snapshot: str = "false",
        required: tuple[str, ...] = ("id",),
        time_ms: int | None = None,
        number: int | None = None,
        **row: Any,
    ) -> None:
        """Add a row of the table orders at a place of the log."""
        source = {
            "connector": self._connector, "name": "src", "db": "shop", "schema": "shop",
            "table": "orders", "snapshot": snapshot, "txId": xid, "lsn": place,
            "ts_ms": place if time_ms is None else time_ms, "sequence": f'["{xid or 0}","{place}"]',
            "file": "binlog.000001", "pos": place, "row": 0,
        }  # fmt: skip
        after = None if op in "dt" else row
        document: dict[str, Any] = {
            "before": row if op == "d" else None, "after": after, "op": op, "source": source,
        }  # fmt: skip
        if number is not None:
            document["transaction"] = {"id": f"{xid}:{place}", "total_order": number}
        key = {"id": row["id"]} if "id" in row else None
        self.add(document, key, partition, self._schema(row, required))

    def _schema(self, row: dict[str, Any], required: tuple[str, ...]) -> dict[str, Any]:
        fields = [
            {"type": _TYPES[name], "optional": name not in required, "field": name} for name in row
        ]
        return {"type": "struct", "fields": [{"field": "after", "fields": fields}]}

    def end(self, xid: int, place: int, count: int, partition: int = 0) -> None:
        """Add the end of a transaction."""
        self.add(
            {"status": "END", "id": f"{xid}:{place}", "event_count": count, "ts_ms": place},
            None,
            partition,
            {"type": "struct", "fields": []},
        )

    def add(self, document: Any, key: Any = None, partition: int = 0, schema: Any = None) -> None:
        """Add a record."""
        if self._with_schemas and schema is not None:
            document = {"schema": schema, "payload": document}
        offset = sum(record.partition == partition for record in self.records)
        texts = [
            None if value is None else json.dumps(value, separators=(",", ":")).encode()
            for value in (key, document)
        ]
        self.records.append(Record("changes", partition, offset, *texts))

    def apply(self, target: Target, options: ApplyOptions | None = None) -> None:
        """Apply what was not applied yet, row by row."""
        writer = Writer(target, options or ApplyOptions())
        drain_pending(writer, "changes", by_transaction=False)
        for record in self.records:
            apply_rows(writer, "changes", record.partition, [record])

    def apply_transactions(self, target: Target) -> None:
        """Apply what was not applied yet, by transaction."""
        apply_transactions(Writer(target), self.records)


def rows(target: Target) -> list[tuple[str | None, ...]]:
    """The rows of orders, each by the order of its columns' names."""
    found = plain_rows(target, "orders")
    return [tuple(value for _, value in sorted(row.items())) for row in found]


def test_older_change_has_no_effect(target: Target) -> None:
    log = Log()
    log.row("c", 10, id=1, n=1)
    log.row("u", 20, id=1, n=2)
    log.row("c", 10, id=1, n=1)
    log.apply(target)
    assert rows(target) == [("1", "2")]
    log.row("u", 20, id=1, n=2)
    log.row("d", 30, id=1)
    log.row("u", 20, id=1, n=2)
    log.apply(target)
    assert rows(target) == []


def test_log_that_begins_anew_has_later_times(target: Target) -> None:
    log = Log()
    log.row("c", 1000, id=1, n=1)
    log.row("c", 4, time_ms=2000, id=2, n=2)
    log.row("u", 5, time_ms=2000, id=2, n=3)
    log.apply(target)
    assert rows(target) == [("1", "1"), ("2", "3")]


def test_copied_rows_have_one_place(target: Target) -> None:
    log = Log()
    for key in (1, 2, 3):
        log.row("c", 10, id=key, n=key)
    log.apply(target)
    assert len(rows(target)) == 3


def test_snapshot_that_begins_anew_empties_its_table(target: Target) -> None:
    log = Log()
    log.row("r", 10, snapshot="first", id=1, n=1)
    log.row("r", 10, snapshot="true", id=2, n=1)
    log.row("c", 20, id=3, n=1)
    log.row("r", 30, snapshot="incremental", id=2, n=5)
    log.apply(target)
    assert rows(target) == [("1", "1"), ("2", "5"), ("3", "1")]
    log.row("r", 40, snapshot="first", id=2, n=2)
    log.row("r", 40, snapshot="last", id=3, n=2)
    log.row("u", 50, id=3, n=3)
    log.apply(target)
    assert rows(target) == [("2", "2"), ("3", "3")]


def test_second_snapshot_in_partitions_stops(target: Target) -> None:
    log = Log()
    log.row("r", 10, snapshot="first", id=1, n=1)
    log.row("r", 10, snapshot="last", partition=1, id=2, n=1)
    log.apply(target)
    log.row("r", 40, snapshot="first", id=2, n=2)
    with pytest.raises(QuarantineStopError, match="a snapshot in several partitions"):
        log.apply(target)
    log.apply(target, ApplyOptions(skip_ddl=frozenset(["changes:0:1"])))
    assert rows(target) == [("1", "1"), ("2", "2")]


def test_rows_show_columns_that_were_added_or_dropped(target: Target) -> None:
    log = Log()
    log.row("c", 10, id=1, n=1)
    log.row("c", 20, id=2, n=2, m=2)
    log.apply(target)
    assert rows(target) == [("1", None, "1"), ("2", "2", "2")]
    log.row("c", 30, id=3, m=3)
    log.apply(target)
    assert rows(target) == [("1", None), ("2", "2"), ("3", "3")]


@pytest.mark.parametrize("by_transaction", [False, True])
def test_new_name_of_a_column_stops_until_it_is_applied(
    target: Target, by_transaction: bool
) -> None:
    log = Log()
    log.row("c", 10, xid=1, number=1, id=1, n=1)
    log.end(1, 11, 1)
    log.row("c", 20, xid=2, number=1, id=2, m=2)
    log.end(2, 21, 1)
    apply = log.apply_transactions if by_transaction else log.apply
    for _ in range(2):
        with pytest.raises(QuarantineStopError, match="lost n and got m"):
            apply(target)
        assert rows(target) == [("1", "1")]
    target.rename_column("orders", "n", "m")
    apply(target)
    assert rows(target) == [("1", "1"), ("2", "2")]
    assert quarantined(target) == []


def test_added_column_with_values_in_older_rows_stops(target: Target) -> None:
    log = Log()
    log.row("c", 10, id=1, n=1)
    log.row("c", 20, required=("id", "m"), id=2, n=2, m=2)
    with pytest.raises(QuarantineStopError, match="got m, whose values in older rows"):
        log.apply(target)
    log.apply(target, ApplyOptions(skip_ddl=frozenset(["changes:0:1"])))
    assert rows(target) == [("1", None, "1"), ("2", "2", "2")]


def test_older_row_of_another_partition_keeps_the_new_columns(target: Target) -> None:
    log = Log()
    log.row("c", 10, id=1, n=1)
    log.row("c", 30, id=2, m=2, n=2)
    log.row("c", 40, id=3, m=3)
    log.row("c", 20, partition=1, id=4, n=4)
    log.row("c", 50, partition=1, id=5, m=5)
    log.apply(target)
    assert rows(target) == [("1", None), ("2", "2"), ("3", "3"), ("4", None), ("5", "5")]


def test_transaction_waits_for_its_end_in_another_partition(target: Target) -> None:
    log = Log()
    log.end(1, 30, 3, partition=1)
    log.row("c", 10, xid=1, number=1, id=1, n=1)
    log.apply_transactions(target)
    assert target.table("orders") is None
    log.row("c", 12, xid=1, number=2, id=2, n=1, partition=2)
    log.apply_transactions(target)
    assert target.table("orders") is None
    log.row("c", 14, xid=1, number=3, id=3, n=1)
    log.apply_transactions(target)
    assert len(rows(target)) == 3
    # Its end comes again, without its rows.
    log.end(1, 30, 3, partition=1)
    log.row("c", 40, xid=2, number=1, id=4, n=1)
    log.end(2, 50, 1, partition=1)
    log.apply_transactions(target)
    assert len(rows(target)) == 4
    assert target.select_own("purgatory_pending") == []


def test_transaction_that_comes_twice_in_part_is_whole(target: Target) -> None:
    log = Log()
    log.row("c", 10, xid=1, number=1, id=1, n=1)
    log.row("c", 10, xid=1, number=1, id=1, n=1)
    log.row("c", 12, xid=1, number=2, id=2, n=1)
    log.apply_transactions(target)
    assert target.table("orders") is None
    log.end(1, 30, 2)
    log.row("c", 12, xid=1, number=2, id=2, n=1)
    log.end(1, 30, 2)
    log.apply_transactions(target)
    assert len(rows(target)) == 2
    assert target.select_own("purgatory_pending") == []


def test_transaction_may_truncate(target: Target) -> None:
    log = Log()
    log.row("c", 10, xid=1, number=1, id=1, n=1)
    log.end(1, 11, 1)
    log.row("c", 20, xid=2, number=1, id=2, n=1)
    log.row("t", 21, xid=2, number=2)
    log.row("c", 22, xid=2, number=3, id=3, n=1)
    log.apply_transactions(target)
    assert len(rows(target)) == 1
    log.end(2, 23, 3)
    log.apply_transactions(target)
    assert rows(target) == [("3", "1")]


def test_transaction_without_metadata_ends_at_the_next(target: Target) -> None:
    log = Log()
    log.row("c", 10, xid=1, id=1, n=1)
    log.row("c", 11, xid=1, id=2, n=1)
    log.add({"ts_ms": 12})
    log.apply_transactions(target)
    assert target.table("orders") is None
    log.row("c", 20, xid=2, id=3, n=1)
    log.apply_transactions(target)
    assert len(rows(target)) == 2


def test_transactions_need_metadata(target: Target) -> None:
    log = Log("mysql")
    log.row("c", 10, id=1, n=1)
    with pytest.raises(ChangesError, match=r"provide\.transaction\.metadata"):
        log.apply_transactions(target)
    log = Log()
    log.row("c", 10, xid=1, id=1, n=1)
    log.row("c", 11, xid=1, id=2, n=1, partition=1)
    with pytest.raises(ChangesError, match=r"provide\.transaction\.metadata"):
        log.apply_transactions(target)


def test_what_can_not_be_applied_is_quarantined(target: Target) -> None:
    log = Log()
    log.row("c", 10, id=1, n=1)
    log.row("c", 11, id=2, n="x")
    log.row("c", 11, id=4, n=1, g={"wkb": "AQ=="})
    log.row("c", 12, id=None, n=1)
    log.add({"id": 1, "n": 1})
    log.add([1])
    log.row("c", 13, id=3, n=3)
    log.apply(target)
    found = [row[3:5] for row in target.select_own("purgatory_quarantine")]
    assert [reason for reason, _ in found] == [
        "wrong type", "wrong type", "missing key", "malformed", "malformed",
    ]  # fmt: skip
    assert "g: struct has no type in the target" in found[1][1]
    assert rows(target)[-1] == ("3", "3")


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("ALTER TABLE orders ADD COLUMN a INT NOT NULL", "does not send the values"),
        ("ALTER TABLE orders MODIFY n BIGINT", "does not send the values"),
        ("ALTER TABLE orders CONVERT TO CHARACTER SET latin1", "does not send the values"),
        ("ALTER TABLE orders DROP PRIMARY KEY, ADD PRIMARY KEY (n)", "shop.orders"),
        ("RENAME TABLE other TO orders2", "other was renamed, and the target does not have it"),
        ("ALTER TABLE orders FROBNICATE", "not understood"),
    ],
)
def test_statement_whose_rows_are_unknown_stops(target: Target, sql: str, said: str) -> None:
    log = Log("mariadb")
    log.row("c", 10, id=1, n=1)
    source = {
        "connector": "mariadb",
        "name": "src",
        "file": "binlog.000001",
        "pos": 20,
        "ts_ms": 20,
    }
    log.add({"source": source, "ddl": sql, "databaseName": "shop", "tableChanges": []})
    with pytest.raises(QuarantineStopError, match=said):
        log.apply(target)
    assert rows(target) == [("1", "1")]


def test_statement_of_an_own_topic_stops_where_order_counts(target: Target) -> None:
    log = Log("mariadb")
    log.row("c", 10, id=1, n=1)
    source = {
        "connector": "mariadb",
        "name": "src",
        "file": "binlog.000001",
        "pos": 20,
        "ts_ms": 20,
    }
    document = {"source": source, "ddl": "DROP TABLE orders", "databaseName": "shop"}
    log.apply(target)
    record = Record("src", 0, 0, None, json.dumps(document).encode())
    with pytest.raises(QuarantineStopError, match="in the other topics is not known"):
        apply_rows(Writer(target), "src", 0, [record])


@pytest.mark.parametrize("end_partition", [0, 1])
def test_transaction_may_be_longer_than_a_chunk(
    target: Target, end_partition: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("purgatory.cdc.apply.transactions.CHUNK_RECORDS", 10)
    log = Log()
    if end_partition:
        log.end(1, 50, 35, partition=1)
    for number in range(35):
        log.row("c", 10 + number, xid=1, number=number + 1, id=number, n=1)
        if number % 7 == 0:
            log.apply_transactions(target)
    if not end_partition:
        assert target.table("orders") is None
        log.end(1, 50, 35)
    log.row("c", 60, xid=2, number=1, id=99, n=1)
    log.end(2, 61, 1)
    log.apply_transactions(target)
    assert len(rows(target)) == 36
    assert target.select_own("purgatory_pending") == []
