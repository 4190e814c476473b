"""A column as a statement defines it: its type, and what it is in rows that are there already."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any

from purgatory.changes.capture.column_values import shortest_float
from purgatory.changes.capture.sql_tokens import Kind, SqlError, Token, Tokens

_ALIASES = {
    "int1": "tinyint",
    "int2": "smallint",
    "int3": "mediumint",
    "middleint": "mediumint",
    "int4": "int",
    "integer": "int",
    "int8": "bigint",
    "dec": "decimal",
    "numeric": "decimal",
    "fixed": "decimal",
    "number": "decimal",
    "real": "double",
    "float4": "float",
    "float8": "double",
    "character": "char",
    "nchar": "char",
    "nvarchar": "varchar",
    "varchar2": "varchar",
    "varcharacter": "varchar",
    "clob": "longtext",
    "raw": "varbinary",
}
_INTEGERS = {"tinyint", "smallint", "mediumint", "int", "bigint"}
_TEXTS = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json"}
_BINARIES = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
_AS_BINARY = {
    "char": "binary",
    "varchar": "varbinary",
    "tinytext": "tinyblob",
    "text": "blob",
    "mediumtext": "mediumblob",
    "longtext": "longblob",
}
_USUAL_ARGUMENTS = {"char": "1", "binary": "1", "bit": "1", "decimal": "10,0"}
_PREFIXES = {"N", "DATE", "TIME", "TIMESTAMP"}
"""With what a text may begin that stands for itself."""
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_DATETIME = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[ T](\d{2}:\d{2}:\d{2})(?:\.(\d{1,6}))?)?")
_TIME = re.compile(r"(-?\d{2,3}:\d{2}:\d{2})(?:\.(\d{1,6}))?")


@dataclass
class ColumnDefinition:
    """A column, as a statement defines it.

    Args:
        type_name: of its type, without arguments, by the name that `information_schema` has.
        arguments: of its type, as in ``10,2``.
        default: the tokens of its default; empty if it has none.
    """

    name: str
    type_name: str = ""
    arguments: str = ""
    unsigned: bool = False
    charset: str | None = None
    says_null: bool | None = None
    default: Sequence[Token] = ()
    is_computed: bool = False
    is_numbered: bool = False
    is_key: bool = False
    labels: list[str] = field(default_factory=list)

    @property
    def words(self) -> str:
        """Its type in MySQL's words."""
        text = self.type_name + (f"({self.arguments})" if self.arguments else "")
        text += " unsigned" if self.unsigned else ""
        return text if self.charset is None else f"{text} character set {self.charset}"

    @property
    def nullable(self) -> bool:
        return self.says_null is not False and not self.is_key and not self.is_numbered

    def described(self) -> dict[str, Any]:
        """It, as Maxwell describes columns under ``def``."""
        return {
            "name": self.name,
            "type": self.type_name,
            "column-type": self.words,
            "signed": not self.unsigned,
        }

    def step(self, do: str) -> dict[str, Any]:
        """It as a step of a record."""
        return {"do": do, "name": self.name, "type": self.words, "nullable": self.nullable}

    def added(self) -> dict[str, Any]:
        """The step that adds it, with its value in the rows that are there."""
        step = self.step("add-column")
        try:
            fill = self._fill()
        except _UnknownError as error:
            return {**step, "unknown": str(error)}
        return step if fill is None else {**step, "fill": fill}

    def _fill(self) -> Any:
        if self.is_computed:
            raise _UnknownError("its values are computed by the source")
        if self.is_numbered:
            raise _UnknownError("its values are numbered by the source")
        if self.type_name == "timestamp" and not (self.says_null and not self.default):
            raise _UnknownError("its values are times of the source")
        if [token.text.upper() for token in self.default] == ["NULL"]:
            return None
        if self.default:
            return self._value(_literal(self.default))
        return None if self.nullable else self._implicit()

    def _implicit(self) -> Any:
        """What a column that can't be null has without a default."""
        match self.type_name:
            case "date" | "datetime":
                return None
            case "enum":
                return self.labels[0]
            case "time":
                return self._value("00:00:00")
            case name if name in _TEXTS or name in _BINARIES or name == "set":
                return self._value("")
            case _:
                return self._value("0")

    def _value(self, literal: str | bytes) -> Any:
        """A literal as the column's values stand in JSON."""
        name = self.type_name
        if name in _BINARIES:
            raw = literal if isinstance(literal, bytes) else literal.encode()
            width = int(self.arguments) if name == "binary" else 0
            return base64.b64encode(raw.ljust(width, b"\0")).decode("ascii")
        if name == "bit" and isinstance(literal, bytes):
            return int.from_bytes(literal, "big")
        if isinstance(literal, bytes):
            raise _UnknownError("its default is of bytes")
        try:
            return self._plain_value(literal)
        except (InvalidOperation, ValueError):
            raise _UnknownError(f"its default {literal[:40]!r} is not understood") from None

    def _plain_value(self, text: str) -> Any:
        match self.type_name:
            case name if name in _INTEGERS or name in ("bit", "year"):
                return int(Decimal(text).quantize(Decimal(1), ROUND_HALF_UP))
            case "decimal":
                scale = int(self.arguments.partition(",")[2] or 0)
                return Decimal(text).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
            case "double":
                return float(text)
            case "float":
                return shortest_float(float(text))
            case "char":
                return text.rstrip(" ")
            case name if name in _TEXTS:
                return text
            case "enum" if text in self.labels:
                return text
            case "set" if set(filter(None, text.split(","))) <= set(self.labels):
                chosen = text.split(",")
                return ",".join(label for label in self.labels if label in chosen)
            case "date" if _DATE.fullmatch(text):
                return None if "-00" in text or text.startswith("0000") else text
            case "datetime" if match := _DATETIME.fullmatch(text):
                if "-00" in match[1] or text.startswith("0000"):
                    return None
                return f"{match[1]} {match[2] or '00:00:00'}" + self._fraction(match[3])
            case "time" if match := _TIME.fullmatch(text):
                return match[1] + self._fraction(match[2])
        raise ValueError(text)

    def _fraction(self, digits: str | None) -> str:
        width = int(self.arguments or 0)
        digits = digits or ""
        if len(digits.rstrip("0")) > width:
            raise ValueError(digits)
        return f".{digits.ljust(width, '0')[:width]}" if width else ""


class _UnknownError(Exception):
    """Why it is not known what a column has in the rows that are there."""


def _literal(tokens: Sequence[Token]) -> str | bytes:
    """What a default stands for, if it is a literal."""
    texts = [token.text for token in tokens]
    kinds = [token.kind for token in tokens]
    match kinds, texts:
        case [Kind.TEXT], [text]:
            return text
        case [Kind.WORD], [word] if word.upper() in ("TRUE", "FALSE"):
            return "1" if word.upper() == "TRUE" else "0"
        case [Kind.WORD], [word] if word[0].isdigit() and not word.lower().startswith("0x"):
            return word
        case [Kind.SIGN, Kind.WORD], [("+" | "-") as sign, word] if word[0].isdigit():
            return sign + word
        case [Kind.WORD, Kind.TEXT], [word, text] if word.lower() == "x":
            return bytes.fromhex(text)
        case [Kind.WORD, Kind.TEXT], [word, text] if word.lower() == "b" and text:
            return int(text, 2).to_bytes((len(text) + 7) // 8, "big")
        case [Kind.WORD, Kind.TEXT], [word, text] if word[0] == "_" or word.upper() in _PREFIXES:
            return text
    raise _UnknownError("its default is an expression of the source")


def column_definition(tokens: Tokens, name: str | None = None) -> ColumnDefinition:
    """Take a column: its name, unless it is given, its type, and what follows.

    Raises:
        SqlError: it isn't understood.
    """
    column = ColumnDefinition(tokens.name() if name is None else name)
    _take_type(tokens, column)
    while tokens and tokens.word != "PARTITION":
        _take_attribute(tokens, column)
    if column.charset == "binary" and column.type_name in _AS_BINARY:
        column.type_name, column.charset = _AS_BINARY[column.type_name], None
    return column


def _take_type(tokens: Tokens, column: ColumnDefinition) -> None:
    national = tokens.take("NATIONAL")
    word = tokens.name().lower()
    column.type_name = _ALIASES.get(word, word)
    if word in ("bool", "boolean"):
        column.type_name, column.arguments = "tinyint", "1"
    elif word == "serial":
        column.type_name, column.unsigned = "bigint", True
        column.says_null, column.is_numbered = False, True
    elif word == "long":
        binary = tokens.take("VARBINARY")
        if not binary and tokens.take_any("VARCHAR", "VARCHARACTER", "CHAR", "CHARACTER"):
            tokens.take("VARYING")
        column.type_name = "mediumblob" if binary else "mediumtext"
    elif word == "double":
        tokens.take("PRECISION")
    if column.type_name == "char" and tokens.take("VARYING"):
        column.type_name = "varchar"
    if national or word in ("nchar", "nvarchar"):
        column.charset = "utf8"
    _take_arguments(tokens, column)


def _take_arguments(tokens: Tokens, column: ColumnDefinition) -> None:
    parts = tokens.group()
    if parts is None:
        column.arguments = column.arguments or _USUAL_ARGUMENTS.get(column.type_name, "")
        return
    texts = ["".join(token.text for token in part) for part in parts]
    if column.type_name in ("enum", "set"):
        column.labels = texts
        texts = ["'" + text.replace("'", "''") + "'" for text in texts]
    column.arguments = ",".join(texts)
    if column.type_name == "decimal" and len(texts) == 1:
        column.arguments += ",0"
    if column.type_name == "float" and len(texts) == 1:
        column.type_name = "float" if int(texts[0]) <= 24 else "double"
        column.arguments = ""


_FLAGS = {
    "SIGNED", "BINARY", "INVISIBLE", "VISIBLE", "VIRTUAL", "PERSISTENT", "STORED", "ENABLE",
    "DISABLE", "FIRST", "UNIQUE", "ALWAYS", "RESTRICT", "CASCADE",
}  # fmt: skip
_WITH_NAME = {"AFTER", "COMMENT", "CONSTRAINT", "COLUMN_FORMAT", "STORAGE"}
_CHARSETS = {"BYTE": "binary", "ASCII": "latin1", "UNICODE": "ucs2"}


def _take_attribute(tokens: Tokens, column: ColumnDefinition) -> None:
    if tokens.take_any("UNSIGNED", "ZEROFILL"):
        column.unsigned = True
    elif tokens.word in _CHARSETS:
        column.charset = _CHARSETS[tokens.next().text.upper()]
    elif tokens.take("CHARACTER", "SET") or tokens.take("CHARSET"):
        tokens.take_sign("=")
        column.charset = tokens.name().lower()
    elif tokens.take("COLLATE"):
        # A collation is of one character set, which its name begins with; but for MariaDB's newest.
        charset = tokens.name().lower().partition("_")[0]
        column.charset = column.charset or (charset if charset != "uca1400" else None)
    elif tokens.take("NOT", "NULL"):
        column.says_null = False
    elif tokens.take("NULL"):
        column.says_null = True
    elif tokens.take("DEFAULT"):
        column.default = _take_expression(tokens)
    elif tokens.take("ON", "UPDATE"):
        _take_expression(tokens)
    elif tokens.take("AUTO_INCREMENT"):
        column.is_numbered = True
    elif tokens.take("PRIMARY", "KEY") or tokens.take("PRIMARY"):
        column.is_key = True
    elif tokens.take("UNIQUE", "KEY"):
        pass
    elif tokens.take("KEY"):
        column.is_key = True
    elif tokens.take("GENERATED") or tokens.take("AS"):
        column.is_computed = True
        tokens.group()
    elif tokens.take("CHECK"):
        tokens.group()
    elif tokens.take("REFERENCES"):
        _take_reference(tokens)
    elif tokens.take_any("WITH", "WITHOUT"):
        if not tokens.take("SYSTEM", "VERSIONING"):
            raise SqlError(f"{column.name} is defined WITH {tokens.word}")
    elif tokens.take_any("COMPRESSED", "REF_SYSTEM_ID", "SRID"):
        tokens.take_sign("=")
        if tokens and tokens.word.isalnum():
            tokens.next()
    elif tokens.take_any(*_WITH_NAME):
        tokens.name() if tokens.word != "CHECK" else None
    elif not tokens.take_any(*_FLAGS):
        raise SqlError(f"{column.name} is defined with {tokens.next().text!r}")


def _take_expression(tokens: Tokens) -> list[Token]:
    """A literal, a call, or something in parentheses."""
    first = tokens.next()
    if first == Token(Kind.SIGN, "("):
        depth = 1
        while depth:
            token = tokens.next()
            depth += (token == Token(Kind.SIGN, "(")) - (token == Token(Kind.SIGN, ")"))
        return [first, first]
    found = [first]
    if first.kind is Kind.SIGN:
        found.append(tokens.next())
    elif first.kind is Kind.WORD and first.text.upper() == "NEXT":
        found += [tokens.next() for _ in range(2)]
        tokens.full_name("")
    elif _is_prefix(first) and tokens and not tokens.word:
        found.append(tokens.next())
    if first.kind is Kind.WORD and tokens.group() is not None:
        found.append(Token(Kind.SIGN, "("))
    return found


def _is_prefix(token: Token) -> bool:
    """Whether what follows is of another kind than texts, or of another character set."""
    return token.kind is Kind.WORD and (
        token.text.upper() in ("X", "B", *_PREFIXES) or token.text.startswith("_")
    )


def _take_reference(tokens: Tokens) -> None:
    tokens.full_name("")
    tokens.group()
    while tokens.take_any("MATCH", "ON"):
        tokens.take_any("DELETE", "UPDATE")
        if not tokens.take("NO", "ACTION") and not tokens.take("SET", "NULL"):
            tokens.next()
