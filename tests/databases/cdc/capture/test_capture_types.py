"""Every type, from the binlog and from a snapshot."""

from __future__ import annotations

import base64
import json
import random
import struct
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from purgatory.cdc.capture import capture_changes
from purgatory.cdc.capture.charsets import decode_text
from purgatory.cdc.capture.errors import CaptureError
from purgatory.cdc.capture.records import json_text
from purgatory.cdc.capture.values import query_converter, shortest_float
from tests.databases.cdc.capture.capturing import Capturing
from tests.databases.cdc.capture.test_capture_sources import global_settings
from tests.databases.cdc.captured import in_source_order, read_topic
from tests.databases.cdc.mariadb import is_mysql


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


# The column's type, the inserted literal, and the captured value.
VALUES: list[tuple[str, str, Any]] = [
    ("TINYINT", "-128", -128),
    ("TINYINT UNSIGNED", "255", 255),
    ("SMALLINT", "-32768", -32768),
    ("SMALLINT UNSIGNED", "65535", 65535),
    ("MEDIUMINT", "-8388608", -8388608),
    ("MEDIUMINT UNSIGNED", "16777215", 16777215),
    ("INT", "-2147483648", -2147483648),
    ("INT UNSIGNED", "4294967295", 4294967295),
    ("BIGINT", "-9223372036854775808", -(2**63)),
    ("BIGINT UNSIGNED", "18446744073709551615", 2**64 - 1),
    ("BOOLEAN", "TRUE", 1),
    ("BIT(1)", "1", 1),
    ("BIT(13)", "b'1000000000101'", 4101),
    ("BIT(64)", "b'1000000000000000000000000000000000000000000000000000000000000001'", 2**63 + 1),
    ("DECIMAL(10,2)", "-0.05", Decimal("-0.05")),
    ("DECIMAL(10,0)", "-9999999999", -9999999999),
    ("DECIMAL(65,30)", "-12345678901234567890123456789012345.000000000000000000000000000001",
     Decimal("-12345678901234567890123456789012345.000000000000000000000000000001")),
    ("DECIMAL(12,11)", "1.50000000001", Decimal("1.50000000001")),
    ("FLOAT", "1.1", Decimal("1.1")),
    ("FLOAT", "16777217", 16777216),
    ("FLOAT", "-3.4028235e38", Decimal("-3.4028235e+38")),
    ("DOUBLE", "0.1", Decimal("0.1")),
    ("DOUBLE", "1.7976931348623157e308", Decimal("1.7976931348623157e+308")),
    ("DATE", "'2024-02-29'", "2024-02-29"),
    ("DATE", "'0999-01-01'", "0999-01-01"),
    ("DATE", "'0000-00-00'", None),
    ("DATE", "'2024-00-10'", None),
    ("DATETIME", "'9999-12-31 23:59:59'", "9999-12-31 23:59:59"),
    ("DATETIME(1)", "'2024-01-02 03:04:05.6'", "2024-01-02 03:04:05.6"),
    ("DATETIME(3)", "'2024-01-02 03:04:05.006'", "2024-01-02 03:04:05.006"),
    ("DATETIME(6)", "'2024-01-02 03:04:05.000007'", "2024-01-02 03:04:05.000007"),
    ("DATETIME", "'0000-00-00 00:00:00'", None),
    ("TIMESTAMP(6) NULL", "'2024-01-02 03:04:05.999999'", "2024-01-02 03:04:05.999999"),
    ("TIMESTAMP NULL", "'2038-01-19 03:14:07'", "2038-01-19 03:14:07"),
    ("TIMESTAMP NULL", "'0000-00-00 00:00:00'", None),
    ("TIME", "'-838:59:59'", "-838:59:59"),
    ("TIME(1)", "'-00:00:00.5'", "-00:00:00.5"),
    ("TIME(2)", "'-00:00:01.56'", "-00:00:01.56"),
    ("TIME(3)", "'-12:59:59.999'", "-12:59:59.999"),
    ("TIME(6)", "'-00:00:00.000001'", "-00:00:00.000001"),
    ("TIME(6)", "'100:00:00.999999'", "100:00:00.999999"),
    ("YEAR", "2155", 2155),
    ("YEAR", "0", 0),
    ("CHAR(5)", "'aé'", "aé"),
    ("VARCHAR(300)", "'naïve 😀 \\\\ \\\" \\n'", 'naïve 😀 \\ " \n'),
    ("VARCHAR(20) CHARACTER SET latin1", "'é€'", "é€"),
    ("CHAR(20) CHARACTER SET utf16", "'é😀'", "é😀"),
    ("TEXT CHARACTER SET cp1251", "'Привет'", "Привет"),
    ("TINYTEXT", "''", ""),
    ("LONGTEXT", "REPEAT('x', 70000)", "x" * 70000),
    ("BINARY(4)", "x'00610000'", encoded(b"\0a\0\0")),
    ("VARBINARY(300)", "x'00ff00'", encoded(b"\0\xff\0")),
    ("BLOB", "x'ff00fe'", encoded(b"\xff\0\xfe")),
    ("LONGBLOB", "REPEAT(x'ff', 70000)", encoded(b"\xff" * 70000)),
    ("ENUM('new', 'paid')", "'paid'", "paid"),
    ("ENUM('new', 'prêt') CHARACTER SET latin1", "'prêt'", "prêt"),
    ("ENUM('a', 'b')", "''", ""),
    ("SET('x', 'y', 'ž')", "'ž,x'", "x,ž"),
    ("SET('x', 'y')", "''", ""),
    ("JSON", '\'{"a": [1, null, "é"]}\'', '{"a": [1, null, "é"]}'),
    ("POINT", "POINT(1, 2)", encoded(struct.pack("<IBIdd", 0, 1, 1, 1.0, 2.0))),
    ("INT", "NULL", None),
    ("BLOB", "NULL", None),
    ("SET('x')", "NULL", None),
]  # fmt: skip


@pytest.fixture
def table_of_all_types(capturing: Capturing) -> Capturing:
    """A table with a column for each of VALUES, and a capture that begins before its row."""
    columns = ", ".join(f"c{number} {kind}" for number, (kind, _, _) in enumerate(VALUES))
    capturing.run(f"CREATE TABLE kinds (id INT PRIMARY KEY, {columns})")
    return capturing


def insert_all(capturing: Capturing) -> dict[str, Any]:
    literals = ", ".join(literal for _, literal, _ in VALUES)
    capturing.run(f"INSERT INTO kinds VALUES (1, {literals})")
    expected = {"id": 1} | {f"c{number}": value for number, (_, _, value) in enumerate(VALUES)}
    if is_mysql():
        [json_column] = [f"c{n}" for n, (kind, _, _) in enumerate(VALUES) if kind == "JSON"]
        expected[json_column] = json.loads(expected[json_column])
    return expected


def assert_captured(data: dict[str, Any], expected: dict[str, Any]) -> None:
    wrong = {
        f"{name}, {VALUES[int(name[1:])][0]}": (data[name], value)
        for name, value in expected.items()
        if data[name] != value
    }
    assert wrong == {}
    assert list(data) == list(expected)


def test_a_value_of_every_type_is_captured_from_the_binlog(table_of_all_types: Capturing) -> None:
    table_of_all_types.capture()
    expected = insert_all(table_of_all_types)
    table_of_all_types.capture()
    [record] = in_source_order(table_of_all_types.records())
    assert_captured(record.value["data"], expected)


def test_a_value_of_every_type_is_captured_by_a_snapshot(table_of_all_types: Capturing) -> None:
    expected = insert_all(table_of_all_types)
    table_of_all_types.capture(snapshot=True)
    [record] = in_source_order(table_of_all_types.records())
    assert record.value["type"] == "bootstrap-insert"
    assert_captured(record.value["data"], expected)


def test_impossible_dates_are_null_in_the_binlog_and_a_snapshot(capturing: Capturing) -> None:
    capturing.run("CREATE TABLE t (id INT PRIMARY KEY, a DATE, b DATETIME, c DATETIME(3))")
    capturing.capture()
    values = "'2024-02-31', '2023-02-29 10:00:00', '2024-04-31 10:00:00.5'"
    days = "'2024-02-29', '2024-02-29 10:00:00', '2024-02-29 10:00:00.5'"
    capturing.run(
        "SET sql_mode = 'ALLOW_INVALID_DATES'", f"INSERT INTO t VALUES (1, {values}), (2, {days})"
    )
    capturing.capture()
    again = replace(capturing.config, topic=f"{capturing.name}-again", snapshot=True)
    capture_changes(again)
    read = read_topic(capturing.cluster.bootstrap_servers, again.topic)
    for found in (capturing.records(), read):
        assert [list(record.value["data"].values()) for record in in_source_order(found)] == [
            [1, None, None, None],
            [2, "2024-02-29", "2024-02-29 10:00:00", "2024-02-29 10:00:00.500"],
        ]


JSONS = [
    "JSON_OBJECT('a', CAST('2024-01-02 03:04:05.678' AS DATETIME(6)), 'b', CAST('2024-01-02' AS "
    "DATE), 'c', CAST('-101:00:00.5' AS TIME(6)), 'd', CAST(-1.10 AS DECIMAL(65,30)), "
    "'e', x'00ff', 'f', 123456789012345678901.5, 'g', 0.000, 'i', b'101')",
    "JSON_ARRAY(18446744073709551615, -9223372036854775808, -32769, 65536, 1e300, 0.1e0, -1, "
    "TRUE, NULL, 'é\"', JSON_OBJECT(), JSON_ARRAY())",
    "JSON_ARRAY(REPEAT('x', 70000), JSON_OBJECT('a', 70000, 'b', 7, 'c', JSON_ARRAY(1, TRUE)))",
    "'\"text\"'", "'7'", "'1.5'", "'null'", "'{}'", "NULL",
]  # fmt: skip


@pytest.mark.skipif(not is_mysql(), reason="MySQL's JSON is binary")
def test_json_of_every_type_is_the_servers_text(capturing: Capturing) -> None:
    capturing.run("CREATE TABLE t (id INT PRIMARY KEY, j JSON)")
    capturing.capture()
    for number, json_value in enumerate(JSONS):
        capturing.run(f"INSERT INTO t VALUES ({number}, {json_value})")
    capturing.capture()
    again = replace(capturing.config, topic=f"{capturing.name}-again", snapshot=True)
    capture_changes(again)
    read = read_topic(capturing.cluster.bootstrap_servers, again.topic)
    logged, shown = (
        {row.value["data"]["id"]: row.value["data"]["j"] for row in in_source_order(records)}
        for records in (capturing.records(), read)
    )
    assert logged == shown
    assert len(logged) == len(JSONS)
    assert logged[0]["a"] == "2024-01-02 03:04:05.678000"


@pytest.mark.skipif(not is_mysql(), reason="MySQL's only")
def test_part_of_a_json_value_stops_the_capture(capturing: Capturing) -> None:
    capturing.run("CREATE TABLE t (id INT PRIMARY KEY, j JSON)")
    capturing.capture()
    capturing.run(
        "SET binlog_row_value_options = 'PARTIAL_JSON'",
        "INSERT INTO t VALUES (1, JSON_OBJECT('a', REPEAT('x', 99)))",
        "UPDATE t SET j = JSON_SET(j, '$.a', 'y')",
    )
    with pytest.raises(CaptureError, match=r"\.t: an UPDATE with parts of JSON"):
        capturing.capture()


def test_vectors_are_bytes(capturing: Capturing) -> None:
    if capturing.mariadb.rows("SELECT VERSION() REGEXP '^(8|10|11[.][0-6])'")[0][0]:
        pytest.skip("the server has no VECTOR")
    columns = "a VARCHAR(9) CHARACTER SET latin1, v VECTOR(3), b TEXT, g POINT, n INT UNSIGNED"
    capturing.run(f"CREATE TABLE t (id INT PRIMARY KEY, {columns})")
    capturing.capture()
    vector = "x'0000803f0000004000004040'"
    capturing.run(f"INSERT INTO t VALUES (1, 'é', {vector}, 'ß', POINT(1, 2), 4000000000)")
    capturing.capture()
    [record] = in_source_order(capturing.records())
    row = record.value["data"]
    assert (row["a"], row["b"], row["n"]) == ("é", "ß", 4_000_000_000)
    assert row["v"] == encoded(struct.pack("<fff", 1, 2, 3))


@pytest.mark.mariadb
def test_times_in_the_old_format_keep_their_signs(capturing: Capturing) -> None:
    with global_settings(capturing.mariadb, mysql56_temporal_format=False):
        capturing.run("CREATE TABLE t (id INT PRIMARY KEY, a TIME, b DATETIME, c TIMESTAMP NULL)")
        with pytest.raises(CaptureError, match="SET GLOBAL mysql56_temporal_format = ON"):
            capturing.capture()
    capturing.capture()
    days = "'2024-01-02 03:04:05', '2024-01-02 03:04:05'"
    capturing.run(f"INSERT INTO t VALUES (1, '-123:45:06', {days}), (2, '123:45:06', 0, 0)")
    capturing.capture()
    found = [list(record.value["data"].values()) for record in in_source_order(capturing.records())]
    assert found == [
        [1, "-123:45:06", "2024-01-02 03:04:05", "2024-01-02 03:04:05"],
        [2, "123:45:06", None, None],
    ]


def test_random_decimals_and_times_survive_the_binlog(capturing: Capturing) -> None:
    choose = random.Random(11)
    rows = []
    for number in range(400):
        digits, scale = choose.randrange(31), choose.randrange(31)
        unscaled = choose.randrange(-(10 ** (digits + scale)), 10 ** (digits + scale) + 1)
        exact = Decimal(unscaled).scaleb(-scale)
        sign = choose.choice(["", "-"])
        time = f"{sign}{choose.randrange(839):02}:{choose.randrange(60):02}:"
        time += f"{choose.randrange(59):02}.{choose.randrange(1_000_000):06}"
        rows.append((number, exact, time))
    capturing.run("CREATE TABLE t (id INT PRIMARY KEY, exact DECIMAL(65,30), time TIME(6))")
    capturing.capture()
    values = ", ".join(f"({number}, {exact:f}, '{time}')" for number, exact, time in rows)
    capturing.run(f"INSERT INTO t VALUES {values}")
    capturing.capture()
    found = [record.value["data"] for record in in_source_order(capturing.records())]
    assert [(row["id"], row["exact"]) for row in found] == [row[:2] for row in rows]
    stored = capturing.mariadb.rows(f"SELECT CAST(time AS CHAR) FROM {capturing.name}.t")
    assert [row["time"] for row in found] == [text for (text,) in stored]


def test_float_has_the_fewest_digits_that_round_trip_in_32_bits() -> None:
    choose = random.Random(5)
    for _ in range(2000):
        [value] = struct.unpack("<f", struct.pack("<I", choose.randrange(0x7F800000)))
        shown = shortest_float(value)
        assert struct.pack("<f", shown) == struct.pack("<f", value)
        assert len(repr(shown)) <= len(repr(value))
    assert shortest_float(struct.unpack("<f", struct.pack("<f", 1.1))[0]) == 1.1


def test_json_of_mysql_is_nested_and_keeps_its_digits() -> None:
    value = query_converter("json")('{"a": 1.10, "b": [null, true]}')
    assert json_text({"j": value}) == '{"j":{"a":1.10,"b":[null,true]}}'


def test_text_invalid_in_its_character_set_is_refused() -> None:
    assert decode_text(b"\x81\xe9", "latin1") == "\x81é"
    # MySQL's is the standard of 2005, and Python's that of 2000.
    assert decode_text(b"\xa8\xbc\x81\x35\xf4\x37a", "gb18030") == "\u1e3f\ue7c7a"
    with pytest.raises(CaptureError, match="no utf8mb4 text"):
        decode_text(b"\xff", "utf8mb4")
    with pytest.raises(CaptureError, match="no sjis text"):
        decode_text(b"a\xff", "sjis")
    with pytest.raises(CaptureError, match="klingon is unknown"):
        decode_text(b"a", "klingon")
