"""Changes of schemas take effect at their place between the rows of all partitions, or stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import pytest

from purgatory.cdc import Applied, ApplyOptions, QuarantineStopError, Record, Target
from purgatory.cdc.apply.exactly_once import Writer
from purgatory.cdc.apply.options import TableSpec
from purgatory.cdc.apply.transactions import apply_rows, apply_transactions, drain_pending
from tests.databases.cdc.change_log import TOPIC, quarantined, raw, record, rows_of

COLUMNS = [
    {"name": "id", "type": "bigint", "column-type": "bigint(20)"},
    {"name": "n", "type": "int", "column-type": "int(11)"},
    {"name": "text", "type": "varchar", "column-type": "varchar(10)"},
]
CREATE: dict[str, Any] = {
    "type": "table-create",
    "def": {"database": "shop", "table": "orders", "columns": COLUMNS, "primary-key": ["id"]},
}
PARTITIONS = 2


class Log:
    """Writes a log of two partitions, as `purgatory capture` does: even keys go to the first."""

    def __init__(self) -> None:
        self.records: list[list[Record]] = [[] for _ in range(PARTITIONS)]
        self._position = 0

    def row(self, key: int, **fields: Any) -> None:
        """One transaction of one row."""
        self.transaction((key, fields))

    def transaction(self, *rows: tuple[int, dict[str, Any]], table: str = "orders") -> None:
        self._position += 100
        for xoffset, (key, fields) in enumerate(rows):
            kind = fields.pop("type", "insert")
            self._append(
                key % PARTITIONS,
                type=kind,
                table=fields.pop("table", table),
                xid=self._position,
                xoffset=xoffset,
                commit=xoffset == len(rows) - 1,
                data={"id": key, **fields},
            )

    def schema(self, kind: str, *steps: dict[str, Any], **fields: Any) -> None:
        """A schema change, recorded in all partitions."""
        self._position += 100
        said: dict[str, Any] = {"steps": list(steps)} if steps else {}
        for partition in range(PARTITIONS):
            self._append(
                partition,
                **{"type": kind, "data": None, "partitions": PARTITIONS, "xoffset": 0, **said},
                **fields,
            )

    def mark(self, value: bytes | None = b'{"type": "heartbeat", "database": "purgatory"}') -> None:
        """A record without a position, in both partitions."""
        for partition, there in enumerate(self.records):
            there.append(raw(len(there), value, partition=partition))

    def _append(self, partition: int, **fields: Any) -> None:
        there = self.records[partition]
        position = f"binlog.000001:{self._position}"
        there.append(record(len(there), partition=partition, position=position, **fields))

    @property
    def partitions(self) -> list[list[Record]]:
        return self.records


def by_row(writer: Writer, batches: Sequence[Sequence[Record]]) -> Applied:
    # A run begins with the pending changes of the last one.
    total = drain_pending(writer, TOPIC, by_transaction=False)
    for batch in batches:
        if batch:
            total += apply_rows(writer, TOPIC, batch[0].partition, batch)
    return total


def by_transaction(writer: Writer, batches: Sequence[Sequence[Record]]) -> Applied:
    total = drain_pending(writer, TOPIC, by_transaction=True)
    for batch in batches:
        total += apply_transactions(writer, batch)
    return total


Way = Callable[[Writer, Sequence[Sequence[Record]]], Applied]
both_ways = pytest.mark.parametrize("way", [by_row, by_transaction])


def created() -> Log:
    log = Log()
    log.schema("table-create", **{"def": CREATE["def"]})
    return log


def change(**step: Any) -> dict[str, Any]:
    return step


@both_ways
def test_truncate_removes_only_earlier_rows_of_all_partitions(target: Target, way: Way) -> None:
    log = created()
    for key in range(6):
        log.row(key, n=1)
    log.mark()
    log.schema("table-truncate")
    for key in range(4, 8):
        log.row(key, n=2)
    first, second = log.partitions
    # The second partition is read when the first is at its end.
    applied = way(Writer(target), [first[:2], first[2:], second[:3], second[3:]])
    assert [(row["id"], row["n"]) for row in rows_of(target)] == [(n, 2) for n in range(4, 8)]
    assert applied == Applied(applied=16)
    assert quarantined(target) == []
    assert target.select_own("purgatory_pending") == []


@both_ways
def test_heartbeat_does_not_change_the_order_between_partitions(target: Target, way: Way) -> None:
    log = created()
    log.row(1, n=1)
    log.mark()
    log.mark(None)
    log.mark(b"{")
    log.transaction((1, {"type": "delete"}), (2, {"n": 1}))
    first, second = log.partitions
    applied = way(Writer(target), [[*first, *second]] if way is by_transaction else [first, second])
    assert [row["id"] for row in rows_of(target)] == [2]
    assert applied.quarantined == 2


def test_heartbeat_keeps_the_order_of_a_row_in_two_partitions(
    target: Target,
) -> None:
    def moved(partition: int, byte: int, **fields: Any) -> Record:
        return record(0, partition=partition, position=f"b.000001:{byte}", xid=byte, xoffset=0,
                      commit=True, **fields)  # fmt: skip

    log = [
        moved(0, 200, type="update", data={"id": 2, "n": 2}, old={"id": 1}),
        raw(1, b'{"type": "heartbeat", "database": "purgatory"}', partition=0),
        moved(1, 100, data={"id": 1, "n": 1}),
    ]
    apply_transactions(Writer(target), log)
    assert rows_of(target) == [{"id": 2, "n": 2}]


@both_ways
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_statement_of_many_column_changes_is_applied(
    target: Target, way: Way, order: Sequence[int]
) -> None:
    log = created()
    log.row(0, n=1, text="a")
    log.row(1, n=2, text="b")
    steps = [
        change(do="change-column", was="n", name="text", type="bigint(20)", resent=True),
        change(do="drop-column", name="text"),
        change(do="add-column", name="n", type="int(11)", nullable=True),
    ]
    log.schema("table-alter", *(steps[number] for number in order))
    log.row(2, text=2**40, n=8)
    assert way(Writer(target), reversed_partitions(log)) == Applied(applied=7)
    assert [(row["id"], row["text"], row["n"]) for row in rows_of(target)] == [
        (0, 1, None),
        (1, 2, None),
        (2, 2**40, 8),
    ]


def reversed_partitions(log: Log) -> list[list[Record]]:
    return list(reversed(log.partitions))


@both_ways
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_columns_may_take_names_that_others_give_up(
    target: Target, way: Way, order: Sequence[int]
) -> None:
    log = created()
    log.row(1, n=1, text="a", a=2)
    names = [("n", "Text"), ("text", "A"), ("a", "b")]
    steps = [
        change(do="rename-column", name=old, to=new)
        for old, new in (names[number] for number in order)
    ]
    log.schema("table-alter", *steps)
    way(Writer(target), log.partitions)
    assert rows_of(target) == [{"id": 1, "Text": 1, "A": "a", "b": 2}]


@both_ways
def test_columns_and_tables_swap_names(target: Target, way: Way) -> None:
    log = created()
    definition = {**CREATE["def"], "table": "other"}
    log.schema("table-create", table="other", **{"def": definition})
    log.transaction((0, {"n": 1, "text": "a"}), (1, {"n": 2, "text": "b", "table": "other"}))
    log.schema(
        "table-alter",
        change(do="rename-column", name="n", to="text"),
        change(do="rename-column", name="text", to="n"),
    )
    for old, new in (("orders", "tmp"), ("other", "orders"), ("tmp", "other")):
        step = change(do="rename-table", database="shop", table=new)
        log.schema("table-alter", step, table=old)
    log.row(3, table="orders", n=3, text="c")
    way(Writer(target), reversed_partitions(log))
    assert [(row["id"], row["n"], row["text"]) for row in rows_of(target)] == [
        (1, 2, "b"),
        (3, 3, "c"),
    ]
    assert [(row["id"], row["n"], row["text"]) for row in rows_of(target, "other")] == [(0, "a", 1)]


def test_pending_and_repeated_records_create_no_table(target: Target) -> None:
    log = created()
    log.row(0, n=1)
    log.row(1, n=1)
    log.schema("table-alter", change(do="rename-table", database="shop", table="sales"))
    log.row(0, table="sales", n=2)
    log.row(2, table="sales", n=2)
    first, second = log.partitions
    writer = Writer(target)
    by_row(writer, [first[:1], second[:1], first[1:3], first[3:]])
    # The first partition is behind the new name, and waits for the second.
    assert target.table("sales") is None
    by_row(writer, [second, first, second])
    assert [(row["id"], row["n"]) for row in rows_of(target, "sales")] == [(0, 2), (1, 1), (2, 2)]
    assert target.table("orders") is None


@both_ways
def test_converted_rows_are_deleted_and_columns_change_in_place(target: Target, way: Way) -> None:
    log = created()
    log.row(0, n=1)
    log.row(1, n=1)
    steps = [change(do="resend-rows", resent=True), change(do="rename-column", name="n", to="m")]
    log.schema("table-alter", *steps)
    log.row(1, m=2)
    way(Writer(target), reversed_partitions(log))
    assert [(row["id"], row["m"]) for row in rows_of(target)] == [(1, 2)]


@both_ways
def test_recreated_table_has_its_new_columns(target: Target, way: Way) -> None:
    log = created()
    log.row(0, n=1)
    log.row(1, n=1)
    log.schema("table-drop")
    columns = [COLUMNS[0], {"name": "n", "type": "text", "column-type": "text"}]
    log.schema("table-create", **{"def": {**CREATE["def"], "columns": columns}})
    log.row(1, n="many")
    log.schema("database-drop", database="archive", table=None)
    way(Writer(target), reversed_partitions(log))
    assert rows_of(target) == [{"id": 1, "n": "many"}]
    log.schema("database-drop", table=None)
    log.schema("table-create", **{"def": CREATE["def"]})
    way(Writer(target), log.partitions)
    assert rows_of(target) == []


@both_ways
def test_a_table_like_another_has_its_columns_and_its_key(target: Target, way: Way) -> None:
    log = created()
    like = change(do="create-like", database="shop", table="orders")
    log.schema("table-create", like, table="copy")
    log.row(1, table="copy", n=1)
    way(Writer(target), log.partitions)
    made, model = target.table("copy"), target.table("orders")
    assert made is not None
    assert model is not None
    assert made.columns == model.columns
    assert [row["id"] for row in rows_of(target, "copy")] == [1]


@both_ways
@pytest.mark.parametrize("is_like", [False, True])
def test_create_if_not_exists_keeps_the_table(target: Target, way: Way, is_like: bool) -> None:
    narrow = [COLUMNS[0], {**COLUMNS[1], "name": "m"}]
    definition = {**CREATE["def"], "table": "narrow", "columns": narrow}
    log = Log()
    # The first one finds no table.
    log.schema("table-create", **{"def": CREATE["def"], "if": "absent"})
    log.schema("table-create", table="narrow", **{"def": definition})
    log.row(1, n=1, text="0123456789")
    like = [change(do="create-like", database="shop", table="narrow")] if is_like else []
    log.schema("table-create", *like, **{"def": definition, "if": "absent"})
    way(Writer(target), reversed_partitions(log))
    assert rows_of(target) == [{"id": 1, "n": 1, "text": "0123456789"}]


@both_ways
def test_database_with_a_dot_in_its_name_is_distinct(target: Target, way: Way) -> None:
    log = Log()
    for database, table in (("shop", "a"), ("shop.eu", "b"), ("shop", "eu.b"), ("shop\\", "c")):
        definition = {**CREATE["def"], "database": database, "table": table}
        log.schema("table-create", database=database, table=table, **{"def": definition})
    log.schema(
        "table-alter",
        change(do="rename-table", database="shop.eu", table="d"),
        database="shop.eu",
        table="b",
    )
    way(Writer(target), log.partitions)
    mapped = [row[:2] for row in target.select_own("purgatory_tables")]
    assert sorted(mapped) == [
        ("a", "shop.a"),
        ("c", r"shop\\.c"),
        ("d", r"shop\.eu.d"),
        ("eu.b", "shop.eu.b"),
    ]
    log.schema("database-drop", database="shop", table=None)
    way(Writer(target), log.partitions)
    left = [name for name in ("a", "c", "d", "eu.b") if target.table(name) is not None]
    assert left == ["c", "d"]


NOT_APPLIED: list[tuple[str, list[dict[str, Any]], str]] = [
    ("table-alter", [change(do="stop", why="EXCHANGE PARTITION")], "EXCHANGE PARTITION"),
    ("table-alter", [change(do="explode")], "the step 'explode' is not known"),
    ("table-alter", [change(do="drop-column", name="id")], "would lose id of its primary key"),
    (
        "table-alter",
        [change(do="rename-column", name="n", to="text")],
        "has a column text already",
    ),
    (
        "table-alter",
        [change(do="change-column", name="n", type="tinyint(4)", unknown="it can't be read back")],
        "it can't be read back",
    ),
    (
        "table-alter",
        [change(do="resend-rows", unknown="they can't be read back")],
        "orders is converted, and they can't be read back",
    ),
    (
        "table-alter",
        # As a capture of before wrote it.
        [change(do="change-type", name="n", type="bigint(20)")],
        "the step 'change-type' is not known",
    ),
    (
        "table-alter",
        [change(do="add-column", name="more", type="int", unknown="its default is not known")],
        "its default is not known",
    ),
    (
        "table-create",
        [change(do="create-like", database="shop", table="nowhere")],
        "like shop.nowhere",
    ),
]


@both_ways
@pytest.mark.parametrize(("kind", "steps", "why"), NOT_APPLIED)
def test_inapplicable_schema_change_stops_and_can_be_skipped(
    target: Target, way: Way, kind: str, steps: list[dict[str, Any]], why: str
) -> None:
    log = created()
    log.row(0, n=None)
    log.row(1, n=1)
    log.schema(kind, *steps)
    log.row(0, n=5)
    log.row(1, n=6)
    for _ in range(2):
        with pytest.raises(
            QuarantineStopError, match=f"not applied: .*{why}.*--skip-ddl"
        ) as raised:
            way(Writer(target), reversed_partitions(log))
        assert "\n" not in str(raised.value)
        assert [row["n"] for row in rows_of(target)] == [None, 1]
        assert quarantined(target) == []
    place = str(raised.value).rpartition("--skip-ddl ")[2].rstrip(")")
    options = ApplyOptions(skip_ddl=frozenset({place}))
    way(Writer(target, options), reversed_partitions(log))
    assert [row["n"] for row in rows_of(target)] == [5, 6]
    assert [reason for _, reason in quarantined(target)] == ["not applied"]
    assert target.select_own("purgatory_pending") == []


def test_drop_of_unknown_order_among_partitions_stops(target: Target) -> None:
    writer = Writer(target)
    apply_rows(writer, TOPIC, 1, [record(0, partition=1, data={"id": 1})])
    log = [record(0, data={"id": 2}), record(1, type="table-drop", data=None)]
    with pytest.raises(
        QuarantineStopError,
        match="its order among the changes in the other partitions is not known",
    ):
        apply_rows(writer, TOPIC, 0, log)
    assert [row["id"] for row in rows_of(target)] == [1, 2]


@both_ways
def test_another_table_of_the_same_name_is_left_alone(target: Target, way: Way) -> None:
    target._run("CREATE TABLE orders (id INT PRIMARY KEY, mine INT)")
    target._run("INSERT INTO orders VALUES (1, 7)")
    log = Log()
    log.schema("table-truncate")
    log.schema("table-alter", change(do="drop-column", name="mine"))
    log.schema("table-alter", change(do="add-column", name="n", type="int", nullable=True))
    log.schema("table-alter", change(do="rename-table", database="shop", table="gone"))
    log.schema("table-drop")
    log.schema("database-drop")
    way(Writer(target), log.partitions)
    assert rows_of(target) == [{"id": 1, "mine": 7}]
    log.schema("table-truncate")
    given = ApplyOptions(tables={"shop.orders": TableSpec(name="orders")})
    way(Writer(target, given), log.partitions)
    assert rows_of(target) == []
