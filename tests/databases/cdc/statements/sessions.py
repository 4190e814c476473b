"""Sessions of a source, and how each of them writes names, texts and comments."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

CODECS = {
    "utf8mb4": "utf8", "utf8mb3": "utf8", "latin1": "cp1252", "latin2": "iso8859_2",
    "cp1251": "cp1251", "cp1250": "cp1250", "cp850": "cp850", "cp866": "cp866", "koi8r": "koi8_r",
    "greek": "iso8859_7", "gbk": "gbk", "gb2312": "gb2312", "sjis": "shift_jis", "cp932": "cp932",
    "big5": "big5", "ujis": "euc_jp", "eucjpms": "euc_jp", "euckr": "euc_kr",
    "hebrew": "iso8859_8", "tis620": "tis_620", "binary": "utf8", "ascii": "ascii",
    "latin5": "iso8859_9", "latin7": "iso8859_13", "macroman": "mac_roman", "swe7": "ascii",
    "dec8": "ascii", "armscii8": "ascii",
}  # fmt: skip
"""Character sets of clients, and the codec of Python that encodes their statements."""
_FREQUENT = ("utf8mb4", "utf8mb4", "utf8mb3", "latin1", "latin1", "cp1251", "gbk", "sjis", "big5")
_LETTERS = {
    "utf8": "éßя中ソ功😀É", "cp1252": "éßñ€Éœ", "iso8859_2": "łé", "cp1251": "яЖё№",
    "cp1250": "łé", "cp850": "éñ", "cp866": "яЖ", "koi8_r": "яЖ", "iso8859_7": "λΩ",
    "gbk": "中乗乣", "gb2312": "中文", "shift_jis": "ソ表能チ", "cp932": "ソ表①",
    "big5": "功許蓋", "euc_jp": "日本ソ", "euc_kr": "한글", "iso8859_8": "אב", "tis_620": "กข",
    "ascii": "az", "iso8859_9": "ğş", "iso8859_13": "ąė", "mac_roman": "é∞",
}  # fmt: skip
"""Among them those whose second byte is a backslash, a backquote or a vertical bar."""
_MODES = (
    "", "", "", "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION", "STRICT_ALL_TABLES", "ANSI_QUOTES",
    "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES,NO_BACKSLASH_ESCAPES", "ORACLE", "PIPES_AS_CONCAT", "ANSI",
    "IGNORE_SPACE", "REAL_AS_FLOAT", "TIME_ROUND_FRACTIONAL", "MAXDB", "MSSQL", "POSTGRESQL", "DB2",
    "NO_ZERO_DATE,NO_ZERO_IN_DATE,STRICT_ALL_TABLES", "NO_AUTO_VALUE_ON_ZERO", "TRADITIONAL",
    "ALLOW_INVALID_DATES", "HIGH_NOT_PRECEDENCE", "PAD_CHAR_TO_FULL_LENGTH",
    "NO_UNSIGNED_SUBTRACTION",
)  # fmt: skip
_ZONES = ("+00:00", "+00:00", "+00:00", "+05:30", "-08:00")
_DOUBLE_QUOTED = ("ANSI", "ORACLE", "MAXDB", "MSSQL", "POSTGRESQL", "DB2")
_RESERVED = (
    "key", "order", "group", "select", "index", "primary", "Table", "default", "check", "add",
)  # fmt: skip
_ONLY_IN_SOME_MODES = ("body", "number", "offset", "period", "system", "window")
_QUOTED = {word.lower() for word in (*_RESERVED, *_ONLY_IN_SOME_MODES)}
_WORDS = (
    "name", "n", "Total", "x1", "price", "v", "note", "Status", "date", "time", "year", "text",
    "type", "comment", "position", "first", "after", "value", "any", "level", "a$b", "2a", "_u",
    "columns", "enum", "json", "ignore_me", "ttl", *_ONLY_IN_SOME_MODES,
)  # fmt: skip
_STRANGE = (
    "two words", "a`b", 'd"q', "a.b", "a;b", "it's", "--e", "/*f*/", "c,d", "p)q", "%s", "b\\s",
    "né",
)  # fmt: skip


@dataclass(frozen=True)
class Session:
    """The settings of one connection to the source."""

    charset: str = "utf8mb4"
    sql_mode: str = ""
    time_zone: str = "+00:00"
    collation: str = ""
    more: Sequence[str] = ()

    @property
    def setup(self) -> list[str]:
        """The statements that set it up, in ASCII."""
        return [
            "SET lock_wait_timeout = 1, innodb_lock_wait_timeout = 1",
            f"SET time_zone = '{self.time_zone}'",
            f"SET NAMES {self.charset}",
            *([f"SET collation_connection = {self.collation}"] if self.collation else []),
            f"SET sql_mode = '{self.sql_mode}'",
            *self.more,
        ]

    @property
    def double_quotes_names(self) -> bool:
        """Whether names may stand in double quotes, and texts may not."""
        words = self.sql_mode.split(",")
        return "ANSI_QUOTES" in words or any(word in words for word in _DOUBLE_QUOTED)

    @property
    def backslash_escapes(self) -> bool:
        """Whether a backslash in a text begins an escape."""
        return "NO_BACKSLASH_ESCAPES" not in self.sql_mode

    def can_write(self, text: str) -> bool:
        """Whether its character set has all of a text."""
        try:
            text.encode(CODECS[self.charset])
        except UnicodeEncodeError:
            return False
        return True

    def encoded(self, sql: str) -> bytes:
        """A statement as its client sends it."""
        return sql.encode(CODECS[self.charset])


def any_session(chance: random.Random) -> Session:
    """Make a session; two of five are ordinary."""
    if chance.random() < 0.4:
        return Session(sql_mode=chance.choice(["", "STRICT_TRANS_TABLES"]))
    charset = chance.choice(_FREQUENT) if chance.random() < 0.8 else chance.choice(sorted(CODECS))
    more = []
    if chance.random() < 0.1:
        more.append("SET foreign_key_checks = 0")
    if chance.random() < 0.1:
        more.append("SET old_mode = ''")
    if chance.random() < 0.15:
        more.append("SET binlog_alter_two_phase = ON")
    if chance.random() < 0.1:
        more.append("SET binlog_direct_non_transactional_updates = ON")
    if chance.random() < 0.1:
        more.append("SET sql_select_limit = 2")
    collation = chance.choice(["latin1_swedish_ci", "utf8mb4_bin"]) if chance.random() < 0.1 else ""
    return Session(charset, chance.choice(_MODES), chance.choice(_ZONES), collation, more)


class Writing:
    """Writes the parts of a session's statements in one of their many forms.

    Args:
        folds_tables: whether the source takes names of tables without regard to case.
    """

    def __init__(self, chance: random.Random, session: Session, folds_tables: bool) -> None:
        self.chance = chance
        self.session = session
        self._folds_tables = folds_tables

    def new_name(self, taken: Callable[[str], bool]) -> str:
        """A name that nothing has yet; it may need quotes."""
        for _ in range(20):
            name = self._any_name()
            if self.session.can_write(name) and not taken(name):
                return name
        return f"n{self.chance.randrange(10**6)}"

    def _any_name(self) -> str:
        chance = self.chance
        match chance.randrange(12):
            case 0:
                return chance.choice(_RESERVED)
            case 1:
                return chance.choice(_STRANGE)
            case 2:
                letters = [
                    one for one in _LETTERS[CODECS[self.session.charset]] if ord(one) < 65536
                ]
                return f"{chance.choice(letters)}{chance.choice(letters)}{chance.randrange(9)}"
            case 3:
                return "".join(chance.choices(string.ascii_letters, k=chance.choice([1, 8, 60])))
            case _:
                return f"{chance.choice(_WORDS)}{chance.choice(['', '', '1', '_x', 'Y'])}"

    def column(self, name: str) -> str:
        """The name of a column that is there, in any case."""
        return self.quoted(self._other_case(name) if self.chance.random() < 0.35 else name)

    def table(self, name: str) -> str:
        """The name of a table that is there, with the database or without."""
        if self._folds_tables and self.chance.random() < 0.35:
            name = self._other_case(name)
        shown = self.quoted(name)
        match self.chance.randrange(12):
            case 0:
                return f"@db@.{shown}"
            case 1:
                return f"`@db@` . {shown}"
            case _:
                return shown

    def _other_case(self, name: str) -> str:
        swapped = "".join(
            one.swapcase() if len(one.swapcase()) == 1 and self.chance.random() < 0.7 else one
            for one in name
        )
        # No letter without a partner of its own: ß, dotless i.
        return (
            swapped if swapped.lower() == name.lower() and self.session.can_write(swapped) else name
        )

    def quoted(self, name: str) -> str:
        """A name as it may stand in a statement."""
        plain = name.replace("$", "").replace("_", "")
        needs = not plain.isalnum() or name[:1].isdigit() or any(ord(one) > 65535 for one in name)
        needs = needs or name.lower() in _QUOTED
        if not needs and self.chance.random() < 0.5:
            return name
        if self.session.double_quotes_names and self.chance.random() < 0.5:
            return '"' + name.replace('"', '""') + '"'
        return "`" + name.replace("`", "``") + "`"

    def text(self, value: str) -> str:
        """A text literal."""
        escaped = value.replace("'", "''")
        if self.session.backslash_escapes:
            escaped = escaped.replace("\\", "\\\\")
        return f"'{escaped}'"

    def letters(self) -> str:
        """A text with letters of the session's character set."""
        letters = [*_LETTERS[CODECS[self.session.charset]], "a", "'", "b", " "]
        return "".join(self.chance.choices(letters, k=self.chance.randrange(1, 5))).strip() or "x"

    def gap(self) -> str:
        """The text between two words."""
        if self.chance.random() < 0.88:
            return " "
        comment = self.chance.choice(
            [
                "c",
                "it's",
                "`",
                '"',
                "DROP COLUMN a,",
                "; DROP TABLE t",
                "-- x",
                "\\",
                "/ *",
                "!x",
                "''",
            ]
        )
        match self.chance.randrange(7):
            case 0:
                return f" -- {comment}\n"
            case 1:
                return f" # {comment}\n"
            case 2:
                return f"/*{comment} */"
            case 3:
                return "\n\t "
            case 4:
                return "/**/"
            case 5:
                return " /*!999999 , DROP COLUMN id */ "
            case _:
                return f" /* {self.letters()} */ " if self.chance.random() < 0.5 else "\r\n"

    def join(self, *parts: str) -> str:
        """Put words together; some become executable comments."""
        found = [part for part in parts if part]
        return found[0] + "".join(self.gap() + self._executable(part) for part in found[1:])

    def _executable(self, part: str) -> str:
        """The words as they are, or in a comment that the source executes."""
        if "/*" in part or "*/" in part or self.chance.random() >= 0.02:
            return part
        return self.chance.choice(["/*!{}*/", "/*!50000 {}*/", "/*M!100100 {} */"]).format(part)

    def maybe(self, words: str, share: float = 0.5) -> str:
        """The words, or nothing."""
        return words if self.chance.random() < share else ""
