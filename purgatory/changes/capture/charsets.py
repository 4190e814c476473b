"""The databases' character sets, as Python's codecs."""

from __future__ import annotations

import codecs
import re

from pymysqlreplication.constants.CHARSET import charset_by_id

from purgatory.changes.capture.errors import CaptureError

_CODECS = {
    "ascii": "ascii",
    "big5": "big5hkscs",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "cp932": "cp932",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "euckr": "cp949",
    "gb18030": "gb18030",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "koi8r": "koi8-r",
    "koi8u": "koi8-u",
    # MySQL's latin1 is Windows' cp1252, with the five bytes that cp1252 leaves out as controls.
    "latin1": "cp1252",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "latin7": "iso8859-13",
    "macce": "mac_latin2",
    "macroman": "mac_roman",
    "sjis": "shift_jis",
    "tis620": "tis-620",
    "ucs2": "utf-16-be",
    "ujis": "euc_jp",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "utf8": "utf-8",
    "utf8mb3": "utf-8",
    "utf8mb4": "utf-8",
}
BINARY = "binary"
_QUOTES_WITHIN = {"big5", "cp932", "gb18030", "gbk", "sjis"}
_BY_SERVER = re.compile(r"CREATE (OR REPLACE )?TABLE (IF NOT EXISTS )?`.*` \(\n  `")


def charset_of_collation(collation: str | None) -> str:
    """Return the character set of a collation, as in ``latin1_swedish_ci``.

    Collations without a known name are the newest ones, which are of Unicode only.
    """
    return collation.partition("_")[0] if collation else "utf8mb4"


def decode_text(raw: bytes, charset: str) -> str:
    """Decode what a column holds.

    Raises:
        CaptureError: the character set isn't known here, or the bytes aren't of it.
    """
    codec = _CODECS.get(charset)
    if codec is None:
        raise CaptureError(f"the character set {charset} isn't known: convert to utf8mb4")
    try:
        return raw.decode(codec, "purgatory_control" if charset == "latin1" else "strict")
    except UnicodeDecodeError as error:
        raise CaptureError(f"bytes that are no {charset} text: {error.reason}") from None


def decode_statement(raw: bytes, collation: int) -> str:
    """Decode a statement of the binlog.

    Args:
        collation: the number of that of its session's character_set_client.

    Raises:
        CaptureError: the character set isn't known here, or the bytes aren't of it.
    """
    known = charset_by_id(collation, "mysql") or charset_by_id(collation, "mariadb")
    charset = f"number {collation}" if known is None else str(known.name)
    if raw.isascii() and charset != "swe7":
        return raw.decode("ascii")
    # Of a binary session, the server takes names for UTF-8.
    text = decode_text(raw, "utf8mb4" if charset == BINARY else charset)
    if charset in _QUOTES_WITHIN and any(
        letter.encode(_CODECS[charset])[1:] == b"`" for letter in set(text) if letter > "\x7f"
    ):
        # Between backquotes, the server does not read such a letter as it was written.
        raise CaptureError(f"a {charset} text with letters whose second byte is a backquote")
    if not charset.startswith("utf8") and _BY_SERVER.match(text) and _is_utf8(raw):
        raise CaptureError(f"it may be in {charset}, or in UTF-8, as the server writes it itself")
    return text


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _as_control(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return error.object[error.start : error.end].decode("latin-1"), error.end


codecs.register_error("purgatory_control", _as_control)
