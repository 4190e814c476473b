"""The server's character sets: its conversion to Unicode, which Python's codecs differ from.

A snapshot's values are converted by the server, the binlog's here: were the two not the same, a key
could have two forms, and its row would never be deleted. The tables are the servers' own answers
(`tests/databases/cdc/capture/test_character_sets.py` asks it for every byte and pair of bytes).
As there, a letter that has no Unicode becomes a question mark.
"""

from __future__ import annotations

import codecs
import re
from functools import cache

from pymysqlreplication.constants.CHARSET import charset_by_id

from purgatory.cdc.capture.errors import CaptureError

BINARY = "binary"
_UNICODE = {
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "utf8": "utf-8",
    "utf8mb3": "utf-8",
    "utf8mb4": "utf-8",
}
_SINGLE = {
    "ascii": "ascii",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "koi8r": "koi8-r",
    "koi8u": "koi8-u",
    "latin1": "cp1252",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "latin7": "iso8859-13",
    "macce": "mac_latin2",
    "macroman": "mac_roman",
    "tis620": "tis-620",
}
_JIS = rb"[\0-\x7f]|\x8e[\xa1-\xdf]|\x8f[\xa1-\xfe]{2}|[\xa1-\xfe]{2}"
_SHIFT_JIS = rb"[\0-\x7f\xa1-\xdf]|[\x81-\x9f\xe0-\xfc][\x40-\x7e\x80-\xfc]"
_MULTIPLE = {
    "big5": ("big5", rb"[\0-\x7f]|[\xa1-\xf9][\x40-\x7e\xa1-\xfe]"),
    "cp932": ("cp932", _SHIFT_JIS),
    "eucjpms": ("euc_jp", _JIS),
    "euckr": ("cp949", rb"[\0-\x7f]|[\x81-\xfe][\x41-\x5a\x61-\x7a\x81-\xfe]"),
    "gb18030": (
        "gb18030",
        rb"[\0-\x7f]|[\x81-\xfe](?:[\x40-\x7e\x80-\xfe]|[\x30-\x39][\x81-\xfe][\x30-\x39])",
    ),
    "gb2312": ("gb2312", rb"[\0-\x7f]|[\xa1-\xf7][\xa1-\xfe]"),
    "gbk": ("gbk", rb"[\0-\x7f]|[\x81-\xfe][\x40-\x7e\x80-\xfe]"),
    "sjis": ("shift_jis", _SHIFT_JIS),
    "ujis": ("euc_jp", _JIS),
}
"""Python's codec, and a letter's bytes."""
_UCA1400 = ("utf8mb3", "utf8mb4", "ucs2", "utf16", "utf32")
_FIRST_UCA1400, _LAST_UCA1400 = 2048, 4095
_NEWER = {579: "utf8mb3", 611: "utf8mb4"}
"""Other collations of MariaDB 11.8 that mysql-replication doesn't know."""


def collation_charset(collation: str | None) -> str:
    """The character set of a collation such as ``latin1_swedish_ci``."""
    return collation.partition("_")[0] if collation else "utf8mb4"


def charset_name(collation: int) -> str:
    """The character set of a collation's number in the binlog.

    Raises:
        CaptureError: it is unknown.
    """
    known = charset_by_id(collation, "mysql") or charset_by_id(collation, "mariadb")
    if known is not None:
        return str(known.name)
    if collation in _NEWER:
        return _NEWER[collation]
    if _FIRST_UCA1400 <= collation <= _LAST_UCA1400:
        # Such a number has the character set in bits 8 to 10; the collation is in the others.
        number = collation - _FIRST_UCA1400 >> 8
        if number < len(_UCA1400):
            return _UCA1400[number]
    if 255 <= collation < 512:
        # MySQL's newest.
        return "utf8mb4"
    raise CaptureError(f"the character set of collation {collation} is unknown: convert to utf8mb4")


def decode_text(raw: bytes, charset: str) -> str:
    """Decode a column's value as the server does.

    Raises:
        CaptureError: the character set is unknown, or the bytes are invalid in it.
    """
    codec = _UNICODE.get(charset)
    if codec is None:
        return _decode_letters(raw, charset)
    try:
        text = raw.decode(codec)
    except UnicodeDecodeError as error:
        raise CaptureError(f"bytes that are no {charset} text: {error.reason}") from None
    if charset == "ucs2" and text and max(text) > "\uffff":
        raise CaptureError("bytes that are no ucs2 text: surrogates")
    return text


def _decode_letters(raw: bytes, charset: str) -> str:
    if charset in _MULTIPLE:
        if raw.isascii():
            return raw.decode("ascii")
        table = _table(charset)
        return "".join([table[letter] for letter in letters(raw, charset)])
    if charset in _SINGLE or charset in _WITHOUT_CODEC:
        return codecs.charmap_decode(raw, "strict", _single_table(charset))[0]
    raise CaptureError(f"the character set {charset} is unknown: convert to utf8mb4")


def letters(raw: bytes, charset: str) -> list[bytes]:
    """The letters of a text in a character set with several bytes per letter.

    Raises:
        CaptureError: the bytes are invalid in it.
    """
    pattern = _letter_pattern(charset)
    found = pattern.findall(raw)
    if sum(map(len, found)) != len(raw):
        raise CaptureError(f"bytes that are no {charset} text")
    return found


@cache
def _letter_pattern(charset: str) -> re.Pattern[bytes]:
    return re.compile(_MULTIPLE[charset][1], re.DOTALL)


@cache
def _single_table(charset: str) -> str:
    """The 256 letters of a character set."""
    own = _WITHOUT_CODEC.get(charset)
    if own is not None:
        return "".join(map(chr, range(256 - len(own)))) + own
    changed = _changes(charset)
    return "".join(
        changed.get(byte) or bytes([byte]).decode(_SINGLE[charset], "purgatory_question")
        for byte in range(256)
    )


class _Letters(dict[bytes, str]):
    """The letters of a character set that were looked up."""

    def __init__(self, codec: str, changed: dict[int, str]) -> None:
        self._codec = codec
        self._changed = changed

    def __missing__(self, letter: bytes) -> str:
        changed = self._changed.get(int.from_bytes(letter, "big"))
        text = self[letter] = changed or letter.decode(self._codec, "purgatory_question")
        return text


@cache
def _table(charset: str) -> _Letters:
    return _Letters(_MULTIPLE[charset][0], _changes(charset))


def _changes(charset: str) -> dict[int, str]:
    return {
        first + number: chr(ord(letter) + number)
        for first, count, letter in _CHANGED.get(charset, ())
        for number in range(count)
    }


def _as_question(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "?", len(error.object)


codecs.register_error("purgatory_question", _as_question)

_CHANGED: dict[str, list[tuple[int, int, str]]] = {
    "cp1256": [
        (0x8A, 1, "?"), (0x8F, 1, "?"), (0x98, 1, "?"), (0x9A, 1, "?"), (0x9F, 1, "?"),
        (0xAA, 1, "?"), (0xC0, 1, "?"), (0xFF, 1, "?"),
    ],
    "cp866": [
        (0xFC, 1, "\u207f"), (0xFD, 1, "\xb2"),
    ],
    "greek": [
        (0xA1, 1, "\u02bd"), (0xA2, 1, "\u02bc"), (0xA4, 1, "?"), (0xA5, 1, "?"), (0xAA, 1, "?"),
    ],
    "hebrew": [
        (0xAF, 1, "\u203e"),
    ],
    "koi8u": [
        (0x95, 1, "\u2022"),
    ],
    "latin1": [
        (0x81, 1, "\x81"), (0x8D, 1, "\x8d"), (0x8F, 2, "\x8f"), (0x9D, 1, "\x9d"),
    ],
    "tis620": [
        (0xA0, 1, "\ufffd"), (0xDB, 1, "\ufffd"), (0xDC, 1, "\ufffd"), (0xDD, 1, "\ufffd"),
        (0xDE, 1, "\ufffd"), (0xFC, 1, "\ufffd"), (0xFD, 1, "\ufffd"), (0xFE, 1, "\ufffd"),
        (0xFF, 1, "\ufffd"),
    ],
    "big5": [
        (0xA15A, 1, "\ufffd"), (0xA1C3, 1, "\ufffd"), (0xA1C5, 1, "\ufffd"),
        (0xA1FE, 1, "\ufffd"), (0xA240, 1, "\ufffd"), (0xA2CC, 1, "\ufffd"),
        (0xA2CE, 1, "\ufffd"), (0xF9D6, 1, "\u7881"), (0xF9D7, 1, "\u92b9"),
        (0xF9D8, 1, "\u88cf"), (0xF9D9, 1, "\u58bb"), (0xF9DA, 1, "\u6052"),
        (0xF9DB, 1, "\u7ca7"), (0xF9DC, 1, "\u5afa"),
    ],
    "eucjpms": [
        (0xA1C1, 1, "\uff5e"), (0xA1C2, 1, "\u2225"), (0xA1DD, 1, "\uff0d"),
        (0xA1F1, 2, "\uffe0"), (0xA2CC, 1, "\uffe2"), (0xADA1, 20, "\u2460"),
        (0xADB5, 10, "\u2160"), (0xADC0, 1, "\u3349"), (0xADC1, 1, "\u3314"),
        (0xADC2, 1, "\u3322"), (0xADC3, 1, "\u334d"), (0xADC4, 1, "\u3318"),
        (0xADC5, 1, "\u3327"), (0xADC6, 1, "\u3303"), (0xADC7, 1, "\u3336"),
        (0xADC8, 1, "\u3351"), (0xADC9, 1, "\u3357"), (0xADCA, 1, "\u330d"),
        (0xADCB, 1, "\u3326"), (0xADCC, 1, "\u3323"), (0xADCD, 1, "\u332b"),
        (0xADCE, 1, "\u334a"), (0xADCF, 1, "\u333b"), (0xADD0, 3, "\u339c"),
        (0xADD3, 2, "\u338e"), (0xADD5, 1, "\u33c4"), (0xADD6, 1, "\u33a1"),
        (0xADDF, 1, "\u337b"), (0xADE0, 1, "\u301d"), (0xADE1, 1, "\u301f"),
        (0xADE2, 1, "\u2116"), (0xADE3, 1, "\u33cd"), (0xADE4, 1, "\u2121"),
        (0xADE5, 5, "\u32a4"), (0xADEA, 2, "\u3231"), (0xADEC, 1, "\u3239"),
        (0xADED, 1, "\u337e"), (0xADEE, 1, "\u337d"), (0xADEF, 1, "\u337c"),
        (0xADF0, 1, "\u2252"), (0xADF1, 1, "\u2261"), (0xADF2, 1, "\u222b"),
        (0xADF3, 1, "\u222e"), (0xADF4, 1, "\u2211"), (0xADF5, 1, "\u221a"),
        (0xADF6, 1, "\u22a5"), (0xADF7, 1, "\u2220"), (0xADF8, 1, "\u221f"),
        (0xADF9, 1, "\u22bf"), (0xADFA, 1, "\u2235"), (0xADFB, 2, "\u2229"),
        (0xF5A1, 94, "\ue000"), (0xF6A1, 94, "\ue05e"), (0xF7A1, 94, "\ue0bc"),
        (0xF8A1, 94, "\ue11a"), (0xF9A1, 94, "\ue178"), (0xFAA1, 94, "\ue1d6"),
        (0xFBA1, 94, "\ue234"), (0xFCA1, 94, "\ue292"), (0xFDA1, 94, "\ue2f0"),
        (0xFEA1, 94, "\ue34e"), (0x8FA2B7, 1, "\uff5e"), (0x8FA2C3, 1, "\uffe4"),
        (0x8FF3F3, 10, "\u2170"), (0x8FF3FD, 2, "\u2160"), (0x8FF4A1, 8, "\u2162"),
        (0x8FF4A9, 1, "\uff07"), (0x8FF4AA, 1, "\uff02"), (0x8FF4AB, 1, "\u3231"),
        (0x8FF4AC, 1, "\u2116"), (0x8FF4AD, 1, "\u2121"), (0x8FF4AE, 1, "\u70bb"),
        (0x8FF4AF, 1, "\u4efc"), (0x8FF4B0, 1, "\u50f4"), (0x8FF4B1, 1, "\u51ec"),
        (0x8FF4B2, 1, "\u5307"), (0x8FF4B3, 1, "\u5324"), (0x8FF4B4, 1, "\ufa0e"),
        (0x8FF4B5, 1, "\u548a"), (0x8FF4B6, 1, "\u5759"), (0x8FF4B7, 2, "\ufa0f"),
        (0x8FF4B9, 1, "\u589e"), (0x8FF4BA, 1, "\u5bec"), (0x8FF4BB, 1, "\u5cf5"),
        (0x8FF4BC, 1, "\u5d53"), (0x8FF4BD, 1, "\ufa11"), (0x8FF4BE, 1, "\u5fb7"),
        (0x8FF4BF, 1, "\u6085"), (0x8FF4C0, 1, "\u6120"), (0x8FF4C1, 1, "\u654e"),
        (0x8FF4C2, 1, "\u663b"), (0x8FF4C3, 1, "\u6665"), (0x8FF4C4, 1, "\ufa12"),
        (0x8FF4C5, 1, "\uf929"), (0x8FF4C6, 1, "\u6801"), (0x8FF4C7, 2, "\ufa13"),
        (0x8FF4C9, 1, "\u6a6b"), (0x8FF4CA, 1, "\u6ae2"), (0x8FF4CB, 1, "\u6df8"),
        (0x8FF4CC, 1, "\u6df2"), (0x8FF4CD, 1, "\u7028"), (0x8FF4CE, 2, "\ufa15"),
        (0x8FF4D0, 1, "\u7501"), (0x8FF4D1, 1, "\u7682"), (0x8FF4D2, 1, "\u769e"),
        (0x8FF4D3, 1, "\ufa17"), (0x8FF4D4, 1, "\u7930"), (0x8FF4D5, 4, "\ufa18"),
        (0x8FF4D9, 1, "\u7ae7"), (0x8FF4DA, 2, "\ufa1c"), (0x8FF4DC, 1, "\u7da0"),
        (0x8FF4DD, 1, "\u7dd6"), (0x8FF4DE, 1, "\ufa1e"), (0x8FF4DF, 1, "\u8362"),
        (0x8FF4E0, 1, "\ufa1f"), (0x8FF4E1, 1, "\u85b0"), (0x8FF4E2, 2, "\ufa20"),
        (0x8FF4E4, 1, "\u8807"), (0x8FF4E5, 1, "\ufa22"), (0x8FF4E6, 1, "\u8b7f"),
        (0x8FF4E7, 1, "\u8cf4"), (0x8FF4E8, 1, "\u8d76"), (0x8FF4E9, 3, "\ufa23"),
        (0x8FF4EC, 1, "\u90de"), (0x8FF4ED, 1, "\ufa26"), (0x8FF4EE, 1, "\u9115"),
        (0x8FF4EF, 2, "\ufa27"), (0x8FF4F1, 1, "\u9592"), (0x8FF4F2, 1, "\uf9dc"),
        (0x8FF4F3, 1, "\ufa29"), (0x8FF4F4, 1, "\u973b"), (0x8FF4F5, 1, "\u974d"),
        (0x8FF4F6, 1, "\u9751"), (0x8FF4F7, 3, "\ufa2a"), (0x8FF4FA, 1, "\u999e"),
        (0x8FF4FB, 1, "\u9ad9"), (0x8FF4FC, 1, "\u9b72"), (0x8FF4FD, 1, "\ufa2d"),
        (0x8FF4FE, 1, "\u9ed1"), (0x8FF5A1, 94, "\ue3ac"), (0x8FF6A1, 94, "\ue40a"),
        (0x8FF7A1, 94, "\ue468"), (0x8FF8A1, 94, "\ue4c6"), (0x8FF9A1, 94, "\ue524"),
        (0x8FFAA1, 94, "\ue582"), (0x8FFBA1, 94, "\ue5e0"), (0x8FFCA1, 94, "\ue63e"),
        (0x8FFDA1, 94, "\ue69c"), (0x8FFEA1, 94, "\ue6fa"),
    ],
    "gb18030": [
        (0xA8BC, 1, "\u1e3f"), (0x8135F437, 1, "\ue7c7"),
    ],
    "sjis": [
        (0x815F, 1, "\\"),
    ],
    "ujis": [
        (0xA1C0, 1, "\\"), (0xF5A1, 94, "\ue000"), (0xF6A1, 94, "\ue05e"),
        (0xF7A1, 94, "\ue0bc"), (0xF8A1, 94, "\ue11a"), (0xF9A1, 94, "\ue178"),
        (0xFAA1, 94, "\ue1d6"), (0xFBA1, 94, "\ue234"), (0xFCA1, 94, "\ue292"),
        (0xFDA1, 94, "\ue2f0"), (0xFEA1, 94, "\ue34e"), (0x8FF5A1, 94, "\ue3ac"),
        (0x8FF6A1, 94, "\ue40a"), (0x8FF7A1, 94, "\ue468"), (0x8FF8A1, 94, "\ue4c6"),
        (0x8FF9A1, 94, "\ue524"), (0x8FFAA1, 94, "\ue582"), (0x8FFBA1, 94, "\ue5e0"),
        (0x8FFCA1, 94, "\ue63e"), (0x8FFDA1, 94, "\ue69c"), (0x8FFEA1, 94, "\ue6fa"),
    ],
}  # fmt: skip
"""Letters that differ from Python's codec: the bytes of the first one of a sequence, the number of
letters in it, and the first one."""
_WITHOUT_CODEC = {
    "armscii8": (
        "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94"
        "\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f\xa0\u2741\xa7\u0589)(\xbb\xab\u2014."
        "\u055d,-\u055f\u2026\u055c\u055b\u055e\u0531\u0561\u0532\u0562\u0533\u0563\u0534"
        "\u0564\u0535\u0565\u0536\u0566\u0537\u0567\u0538\u0568\u0539\u0569\u053a\u056a\u053b"
        "\u056b\u053c\u056c\u053d\u056d\u053e\u056e\u053f\u056f\u0540\u0570\u0541\u0571\u0542"
        "\u0572\u0543\u0573\u0544\u0574\u0545\u0575\u0546\u0576\u0547\u0577\u0548\u0578\u0549"
        "\u0579\u054a\u057a\u054b\u057b\u054c\u057c\u054d\u057d\u054e\u057e\u054f\u057f\u0550"
        "\u0580\u0551\u0581\u0552\u0582\u0553\u0583\u0554\u0584\u0555\u0585\u0556\u0586\u2019"
        "'"
    ),
    "dec8": (
        "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94"
        "\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f\xa0\xa1\xa2\xa3?\xa5?\xa7\xa4\xa9\xaa"
        "\xab????\xb0\xb1\xb2\xb3?\xb5\xb6\xb7?\xb9\xba\xbb\xbc\xbd?\xbf\xc0\xc1\xc2\xc3\xc4"
        "\xc5\xc6\xc7\xc8\xc9\xca\xcb\xcc\xcd\xce\xcf?\xd1\xd2\xd3\xd4\xd5\xd6\u0152\xd8\xd9"
        "\xda\xdb\xdc\u0178?\xdf\xe0\xe1\xe2\xe3\xe4\xe5\xe6\xe7\xe8\xe9\xea\xeb\xec\xed\xee"
        "\xef?\xf1\xf2\xf3\xf4\xf5\xf6\u0153\xf8\xf9\xfa\xfb\xfc\xff??"
    ),
    "geostd8": (
        "\u20ac?\u201a?\u201e\u2026\u2020\u2021?\u2030?\u2039?????\u2018\u2019\u201c\u201d"
        "\u2022\u2013\u2014???\u203a????\xa0\xa1\xa2\xa3\xa4\xa5\xa6\xa7\xa8\xa9\xaa\xab\xac"
        "\xad\xae\xaf\xb0\xb1\xb2\xb3\xb4\xb5\xb6\xb7\xb8\xb9\xba\xbb\xbc\xbd\xbe\xbf\u10d0"
        "\u10d1\u10d2\u10d3\u10d4\u10d5\u10d6\u10f1\u10d7\u10d8\u10d9\u10da\u10db\u10dc\u10f2"
        "\u10dd\u10de\u10df\u10e0\u10e1\u10e2\u10f3\u10e3\u10e4\u10e5\u10e6\u10e7\u10e8\u10e9"
        "\u10ea\u10eb\u10ec\u10ed\u10ee\u10f4\u10ef\u10f0\u10f5???????????????????????\u2116?"
        "?"
    ),
    "hp8": (
        "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94"
        "\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f\xa0\xc0\xc2\xc8\xca\xcb\xce\xcf\xb4"
        "\u02cb\u02c6\xa8\u02dc\xd9\xdb\u20a4\xaf\xdd\xfd\xb0\xc7\xe7\xd1\xf1\xa1\xbf\xa4\xa3"
        "\xa5\xa7\u0192\xa2\xe2\xea\xf4\xfb\xe1\xe9\xf3\xfa\xe0\xe8\xf2\xf9\xe4\xeb\xf6\xfc"
        "\xc5\xee\xd8\xc6\xe5\xed\xf8\xe6\xc4\xec\xd6\xdc\xc9\xef\xdf\xd4\xc1\xc3\xe3\xd0\xf0"
        "\xcd\xcc\xd3\xd2\xd5\xf5\u0160\u0161\xda\u0178\xff\xde\xfe\xb7\xb5\xb6\xbe\u2014\xbc"
        "\xbd\xaa\xba\xab\u25a0\xbb\xb1?"
    ),
    "keybcs2": (
        "\u010c\xfc\xe9\u010f\xe4\u010e\u0164\u010d\u011b\u011a\u0139\xcd\u013e\u013a\xc4\xc1"
        "\xc9\u017e\u017d\xf4\xf6\xd3\u016f\xda\xfd\xd6\xdc\u0160\u013d\xdd\u0158\u0165\xe1"
        "\xed\xf3\xfa\u0148\u0147\u016e\xd4\u0161\u0159\u0155\u0154\xbc\xa1\xab\xbb\u2591"
        "\u2592\u2593\u2502\u2524\u2561\u2562\u2556\u2555\u2563\u2551\u2557\u255d\u255c\u255b"
        "\u2510\u2514\u2534\u252c\u251c\u2500\u253c\u255e\u255f\u255a\u2554\u2569\u2566\u2560"
        "\u2550\u256c\u2567\u2568\u2564\u2565\u2559\u2558\u2552\u2553\u256b\u256a\u2518\u250c"
        "\u2588\u2584\u258c\u2590\u2580\u03b1\xdf\u0393\u03c0\u03a3\u03c3\xb5\u03c4\u03a6"
        "\u0398\u03a9\u03b4\u221e\u03c6\u03b5\u2229\u2261\xb1\u2265\u2264\u2320\u2321\xf7"
        "\u2248\xb0\u2219\xb7\u221a\u207f\xb2\u25a0\xa0"
    ),
    "swe7": (
        "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11\x12\x13\x14"
        "\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f !\"#$%&'()*+,-./0123456789:;<=>?\xc9ABC"
        "DEFGHIJKLMNOPQRSTUVWXYZ\xc4\xd6\xc5\xdc_\xe9abcdefghijklmnopqrstuvwxyz\xe4\xf6\xe5"
        "\xfc????????????????????????????????????????????????????????????????????????????????"
        "?????????????????????????????????????????????????"
    ),
}  # fmt: skip
"""The letters from byte 128 on, of `swe7` from 0 on, of character sets that Python doesn't have."""
