"""Each letter of each character set, from the binlog, as the server itself converts it."""

from __future__ import annotations

import pytest

from purgatory.cdc.capture.charsets import charset_name, decode_text
from purgatory.cdc.capture.errors import CaptureError
from tests.databases.cdc.capture.capturing import Capturing
from tests.databases.cdc.captured import rows_of
from tests.databases.cdc.mariadb import MariaDb, is_mysql, numbers


def converted(mariadb: MariaDb, charset: str, prefix: str, size: int) -> dict[bytes, str | None]:
    """The server's conversion of all letters of so many bytes behind a prefix."""
    first = 0 if size == 1 else 256
    letter = f"CONCAT(UNHEX('{prefix}'), UNHEX(LPAD(HEX(seq), {2 * size}, '0')))"
    found = mariadb.rows(
        f"SELECT {letter}, CONVERT(CONVERT({letter} USING {charset}) USING utf8mb4) "
        f"FROM {numbers(first, 256**size - 1)}"
    )
    # MySQL cuts bytes off that are no letter.
    return {raw: text for raw, text in found if text or not is_mysql()}


def test_letters_are_those_of_the_server(mariadb: MariaDb) -> None:
    sets = mariadb.rows("SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS")
    for charset, most in sets:
        if charset == "binary" or charset.startswith(("utf", "ucs")):
            continue
        single = converted(mariadb, charset, "", 1)
        wrong = {}
        for raw, text in single.items():
            if most == 1 or raw < b"\x80" or text != "?":
                wrong[raw] = (text, decode_text(raw, charset))
        pairs: dict[bytes, str | None] = {}
        if most > 1:
            pairs |= converted(mariadb, charset, "", 2)
        if most == 3:
            pairs |= converted(mariadb, charset, "8F", 2)
        for raw, text in pairs.items():
            # A pair of which the server makes several letters is none.
            is_pair = raw[0] > 127 and single.get(raw[:1], "?") == "?"
            is_half = charset == "gb18030" and raw[1:].isdigit()
            if text is not None and len(text) == 1 and is_pair and not is_half:
                wrong[raw] = (text, decode_text(raw, charset))
        assert {raw: both for raw, both in wrong.items() if both[0] != both[1]} == {}, charset


def test_letters_of_four_bytes_are_those_of_the_server(mariadb: MariaDb) -> None:
    if not mariadb.rows("SHOW CHARACTER SET LIKE 'gb18030'"):
        pytest.skip("MariaDB has no gb18030")
    places = "CHAR(48 + seq DIV 1260), CHAR(129 + seq DIV 10 MOD 126), CHAR(48 + seq MOD 10)"
    # The first four have the letters up to U+FFFF; those from 90 on have the others, in order.
    for first in ["81", "82", "83", "84", "90", "E3", "FE"]:
        letter = f"CONCAT(UNHEX('{first}'), {places})"
        found = mariadb.rows(
            f"SELECT {letter}, CONVERT(CONVERT({letter} USING gb18030) USING utf8mb4) "
            f"FROM {numbers(0, 12_599)}"
        )
        assert {raw: decode_text(raw, "gb18030") for raw, _ in found} == dict(found), first


def test_collations_have_the_character_set_of_the_server(mariadb: MariaDb) -> None:
    table = "information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
    is_newest = mariadb.is_mariadb("10.10")
    if not is_newest:
        table = "information_schema.COLLATIONS"
    found = mariadb.rows(f"SELECT ID, CHARACTER_SET_NAME FROM {table} WHERE ID IS NOT NULL")
    assert len(found) > 250
    assert not is_newest or {number for number, _ in found if number >= 2048}
    names = {number: {"utf8": "utf8mb3"}.get(name, name) for number, name in found}
    assert {number: charset_name(number) for number, _ in found} == names
    with pytest.raises(CaptureError, match="collation 5000 is unknown"):
        charset_name(5000)


CHARSETS = ["cp1251", "koi8u", "greek", "dec8", "swe7", "sjis", "ujis", "big5", "ucs2", "utf32"]


def test_keys_in_any_character_set_are_the_same_in_both_ways(capturing: Capturing) -> None:
    for charset in CHARSETS:
        capturing.run(
            f"CREATE TABLE {charset} (id VARCHAR(9) CHARACTER SET {charset} PRIMARY KEY, v INT)",
            f"INSERT IGNORE INTO {charset} SELECT CONVERT(CHAR(seq) USING {charset}), 1 "
            f"FROM {numbers(32, 126)}",
            f"INSERT IGNORE INTO {charset} SELECT CHAR(seq + 160 USING {charset}), 1 "
            f"FROM {numbers(1, 60)}",
            f"INSERT IGNORE INTO {charset} "
            f"SELECT CONVERT(CHAR(seq USING utf32) USING {charset}), 1 "
            f"FROM {numbers(1024, 1160)}",
        )
    capturing.capture(snapshot=True)
    for charset in CHARSETS:
        capturing.run(f"DELETE FROM {charset}")
    capturing.capture()
    records = capturing.records()
    for charset in CHARSETS:
        assert rows_of(records, charset) == {}, charset
