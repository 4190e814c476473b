"""Batches of changes take effect in order, once, in both databases."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from purgatory.cdc import (
    Applied,
    ApplyOptions,
    QuarantineStopError,
    TableSpec,
    Target,
    apply_batch,
    open_target,
)
from purgatory.cdc.apply.transactions import apply_rows
from purgatory.cdc.column_types import ColumnType
from tests.databases.cdc.change_log import (
    TOPIC,
    as_list,
    cut,
    quarantined,
    random_log,
    raw,
    record,
    rows_of,
)


def test_insert_update_and_delete_leave_the_sources_rows(target: Target) -> None:
    log = [
        record(0, data={"id": 1, "name": "a"}),
        record(1, data={"id": 2, "name": "b"}),
        record(2, type="update", data={"id": 1, "name": "c"}, old={"name": "a"}),
        record(3, type="delete", data={"id": 2, "name": "b"}),
        record(4, type="bootstrap-start", data={}),
        record(5, type="bootstrap-insert", data={"id": 3, "name": None}),
        record(6, type="bootstrap-complete", data={}),
        raw(7, None),
    ]
    assert apply_batch(target, TOPIC, 0, log) == Applied(applied=8)
    assert rows_of(target) == [{"id": 1, "name": "c"}, {"id": 3, "name": None}]


def test_redelivered_batch_is_skipped(target: Target) -> None:
    log, rows = random_log(1, 60)
    apply_batch(target, TOPIC, 0, log[:40])
    assert apply_batch(target, TOPIC, 0, log[:40]) == Applied(skipped=40)
    assert apply_batch(target, TOPIC, 0, log[20:]) == Applied(applied=20, skipped=20)
    assert rows_of(target) == as_list(rows)


def test_older_batch_does_not_restore_an_older_state(target: Target) -> None:
    log = [
        record(0, data={"id": 1, "n": 0}),
        record(1, type="update", data={"id": 1, "n": 1}, old={"n": 0}),
        record(2, type="delete", data={"id": 1, "n": 1}),
    ]
    apply_batch(target, TOPIC, 0, log)
    apply_batch(target, TOPIC, 0, log[:2])
    assert rows_of(target) == []


def test_partitions_and_topics_have_their_own_offsets(target: Target) -> None:
    apply_batch(target, TOPIC, 0, [record(0, data={"id": 1})])
    apply_batch(target, TOPIC, 1, [record(0, partition=1, data={"id": 2})])
    apply_batch(target, "other", 0, [record(0, data={"id": 3})._replace(topic="other")])
    assert rows_of(target) == [{"id": 1}, {"id": 2}, {"id": 3}]
    assert target.select_own("purgatory_offsets") == [
        (TOPIC, 0, 1),
        (TOPIC, 1, 1),
        ("other", 0, 1),
    ]


def test_changed_primary_key_moves_its_row(target: Target) -> None:
    log = [
        record(0, data={"id": 1, "name": "a"}),
        record(1, type="update", data={"id": 2, "name": "a"}, old={"id": 1}),
        record(2, data={"id": 1, "name": "new"}),
        record(3, type="update", data={"id": 3, "name": "b"}, old={"id": 2, "name": "a"}),
    ]
    apply_batch(target, TOPIC, 0, log)
    assert rows_of(target) == [{"id": 1, "name": "new"}, {"id": 3, "name": "b"}]


def test_rows_swapping_a_unique_value_are_applied_in_order(
    target: Target,
) -> None:
    # The statements of one kind run together, which here fails at first.
    target._run("CREATE TABLE orders (id bigint PRIMARY KEY, mail text UNIQUE)")
    log = [
        record(0, data={"id": 1, "mail": "x"}),
        record(1, type="delete", data={"id": 1, "mail": "x"}),
        record(2, data={"id": 2, "mail": "x"}),
    ]
    assert apply_batch(target, TOPIC, 0, log) == Applied(applied=3)
    assert rows_of(target) == [{"id": 2, "mail": "x"}]


@pytest.mark.parametrize("seed", range(6))
def test_random_batches_with_replays_give_the_sources_table(target: Target, seed: int) -> None:
    log, rows = random_log(seed, 400)
    for batch in cut(log, random.Random(seed)):
        apply_batch(target, TOPIC, 0, batch)
    assert rows_of(target) == as_list(rows)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32), number=st.integers(1, 60), keys=st.integers(1, 6), cuts=st.randoms()
)
def test_any_log_cut_and_replayed_equals_a_dict(
    seed: int, number: int, keys: int, cuts: random.Random
) -> None:
    target = open_target("sqlite:///:memory:")
    target.prepare()
    log, rows = random_log(seed, number, keys)
    for batch in cut(log, cuts):
        apply_batch(target, TOPIC, 0, batch)
    assert rows_of(target) == as_list(rows)
    assert target.select_own("purgatory_offsets") == [(TOPIC, 0, number)]
    target.close()


def test_types_come_from_the_first_values(target: Target) -> None:
    data = {
        "id": 7,
        "big": 2**63 - 1,
        "exact": 12345678901234567890.123,
        "flag": True,
        "text": "ü",
        "list": [1, {"a": None}],
        "nothing": None,
    }
    value = json.dumps(
        {
            "database": "shop",
            "table": "orders",
            "type": "insert",
            "primary_key_columns": ["id"],
            "data": data,
        }
    ).replace("1.2345678901234567e+19", "12345678901234567890.12300")
    apply_batch(target, TOPIC, 0, [raw(0, value.encode())])
    table = target.table("orders")
    assert table is not None
    assert table.columns == {
        "id": ColumnType.BIGINT,
        "big": ColumnType.BIGINT,
        "exact": ColumnType.NUMERIC,
        "flag": ColumnType.BOOLEAN,
        "text": ColumnType.TEXT,
        "list": ColumnType.JSON,
    }
    [row] = rows_of(target)
    assert row["big"] == 2**63 - 1
    assert str(row["exact"]) == "12345678901234567890.12300"
    assert row["flag"] == 1
    assert row["list"] in ([1, {"a": None}], '[1,{"a":null}]')


def test_types_come_from_the_definition_in_the_log(target: Target) -> None:
    columns = [
        {"name": "id", "type": "int", "signed": True},
        {"name": "wide", "type": "bigint", "signed": False},
        {"name": "price", "type": "decimal", "column-length": 12},
        {"name": "made", "type": "datetime"},
        {"name": "day", "type": "date"},
        {"name": "blob", "type": "varbinary"},
        {"name": "share", "type": "double"},
    ]
    definition: Any = {
        "database": "shop",
        "table": "orders",
        "columns": columns,
        "primary-key": ["id"],
    }
    define: Any = {"def": definition}
    data = {
        "id": 1,
        "wide": 2**64 - 1,
        "price": 3,
        "made": "2026-11-21 10:00:00.5",
        "day": "2026-11-21",
        "blob": "AAH/",
        "share": 1,
    }
    log = [
        record(0, type="table-create", data=None, **define),
        record(1, data=data),
    ]
    assert apply_batch(target, TOPIC, 0, log) == Applied(applied=2)
    [row] = rows_of(target)
    assert bytes(row["blob"]) == b"\0\1\xff"
    assert Decimal(row["wide"]) == 2**64 - 1
    assert Decimal(row["price"]) == 3
    assert str(row["made"]).startswith("2026-11-21 10:00:00.5")
    assert str(row["day"]) == "2026-11-21"
    assert row["share"] == 1.0


def test_a_new_column_in_the_middle_is_added_and_is_null_before(target: Target) -> None:
    log = [
        record(0, data={"id": 1}),
        record(1, data={"id": 2, "late": None}),
        record(2, data={"id": 3, "late": "x"}),
        record(3, type="update", data={"id": 1, "late": "y"}, old={"late": None}),
    ]
    assert apply_batch(target, TOPIC, 0, log) == Applied(applied=4)
    assert [(row["id"], row["late"]) for row in rows_of(target)] == [(1, "y"), (2, None), (3, "x")]


def test_dropped_column_keeps_its_values(target: Target) -> None:
    log = [
        record(0, data={"id": 1, "gone": "x"}),
        record(1, type="update", data={"id": 1, "n": 2}, old={"n": 1}),
    ]
    apply_batch(target, TOPIC, 0, log)
    assert rows_of(target) == [{"gone": "x", "id": 1, "n": 2}]


def test_table_widened_by_another_connection_is_accepted(target: Target, url: str) -> None:
    apply_batch(target, TOPIC, 0, [record(0, data={"id": 1})])
    other = open_target(url)
    from purgatory.cdc.apply.exactly_once import Writer

    first, second = Writer(target), Writer(other)
    apply_rows(first, TOPIC, 1, [record(0, partition=1, data={"id": 2})])
    apply_rows(second, TOPIC, 2, [record(0, partition=2, data={"id": 3, "a": 1})])
    apply_rows(first, TOPIC, 1, [record(1, partition=1, data={"id": 2, "a": 5, "b": "x"})])
    apply_rows(second, TOPIC, 2, [record(1, partition=2, data={"id": 3, "a": 6, "b": "y"})])
    assert [tuple(row.values()) for row in rows_of(target)] == [
        (None, None, 1),
        (5, "x", 2),
        (6, "y", 3),
    ]
    other.close()


def test_names_that_need_quotes_are_kept(target: Target) -> None:
    fields: Any = {"table": 'ord"ers %s; --', "primary_key_columns": ["select", "ö %"]}
    data = {"select": 1, "ö %": "k", 'a"b': "v"}
    log = [
        record(0, **fields, data=data),
        record(1, type="update", **fields, data={**data, 'a"b': "w"}, old={'a"b': "v"}),
        record(2, **fields, data={**data, "select": 2}),
        record(3, type="delete", **fields, data={**data, "select": 2}),
    ]
    assert apply_batch(target, TOPIC, 0, log) == Applied(applied=4)
    table = target.table('ord"ers %s; --')
    assert table is not None
    assert table.primary_key == ("select", "ö %")
    assert quarantined(target) == []


def test_specified_column_types_precede_types_of_values(target: Target) -> None:
    spec = TableSpec("copy", ("id",), {"id": ColumnType.TEXT, "later": ColumnType.BIGINT})
    log = [record(0, data={"id": 5}, primary_key_columns=None)]
    apply_batch(target, TOPIC, 0, log, ApplyOptions(tables={"shop.orders": spec}))
    assert rows_of(target, "copy") == [{"id": "5", "later": None}]


def test_record_key_names_the_primary_key_if_its_value_does_not(
    target: Target,
) -> None:
    key = b'{"database":"shop","table":"orders","pk.id":5}'
    log = [record(0, data={"id": 5}, primary_key_columns=None)._replace(key=key)]
    assert apply_batch(target, TOPIC, 0, log) == Applied(applied=1)


def test_stop_at_a_bad_change_keeps_earlier_changes(target: Target) -> None:
    log = [record(0, data={"id": 1}), raw(1, b"{"), record(2, data={"id": 2})]
    options = ApplyOptions(stop_on_quarantine=True)
    for _ in range(2):
        with pytest.raises(QuarantineStopError, match="changes, partition 0, offset 1: malformed"):
            apply_batch(target, TOPIC, 0, log, options)
        assert rows_of(target) == [{"id": 1}]
        assert quarantined(target) == []
    assert apply_batch(target, TOPIC, 0, log) == Applied(applied=1, skipped=1, quarantined=1)
    assert rows_of(target) == [{"id": 1}, {"id": 2}]


def test_stop_at_a_refused_change_keeps_earlier_changes(
    target: Target,
) -> None:
    target._run("CREATE TABLE orders (id bigint PRIMARY KEY, n bigint CHECK (n < 10))")
    log = [
        record(offset, data={"id": offset, "n": 99 if offset == 5 else 1}) for offset in range(8)
    ]
    with pytest.raises(QuarantineStopError, match="offset 5: refused"):
        apply_batch(target, TOPIC, 0, log, ApplyOptions(stop_on_quarantine=True))
    assert len(rows_of(target)) == 5
    assert target.select_own("purgatory_offsets") == [(TOPIC, 0, 5)]
