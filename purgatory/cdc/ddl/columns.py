"""Column definitions in CREATE TABLE and ALTER TABLE: type, nullability, default, key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from purgatory.cdc.ddl.steps import find_column
from purgatory.cdc.ddl.tokens import Kind, SqlError, SqlMode, Token, Tokens

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
_AS_BINARY = {
    "char": "binary",
    "varchar": "varbinary",
    "tinytext": "tinyblob",
    "text": "blob",
    "mediumtext": "mediumblob",
    "longtext": "longblob",
}
_DEFAULT_ARGUMENTS = {"char": "1", "binary": "1", "bit": "1", "decimal": "10,0"}
_PREFIXES = {"N", "DATE", "TIME", "TIMESTAMP"}
"""Prefixes of a string literal of another type or character set."""
_ORACLE_TYPES = {"blob": "longblob", "date": "datetime"}
_UNITS = {Token(Kind.WORD, unit) for unit in ("CHAR", "char", "BYTE", "byte")}
_SCHEMA_MODES = {
    "mariadb_schema": SqlMode.NONE,
    "oracle_schema": SqlMode.ORACLE,
    "maxdb_schema": SqlMode.MAXDB,
}


@dataclass
class ColumnDefinition:
    """A column, as a statement defines it.

    Args:
        type_name: as in `information_schema`, without arguments.
        arguments: of the type, such as ``10,2``.
        default: the tokens of its default; empty if it has none.
    """

    name: str
    type_name: str = ""
    arguments: str = ""
    unsigned: bool = False
    charset: str | None = None
    explicit_null: bool | None = None
    default: Sequence[Token] = ()
    is_generated: bool = False
    auto_increment: bool = False
    is_key: bool = False

    @property
    def type_text(self) -> str:
        """The type with its arguments, as MySQL writes it."""
        text = self.type_name + (f"({self.arguments})" if self.arguments else "")
        text += " unsigned" if self.unsigned else ""
        return text if self.charset is None else f"{text} character set {self.charset}"

    @property
    def nullable(self) -> bool:
        return self.explicit_null is not False and not self.is_key and not self.auto_increment

    def to_maxwell(self) -> dict[str, Any]:
        """The column in Maxwell's ``def``."""
        return {
            "name": self.name,
            "type": self.type_name,
            "column-type": self.type_text,
            "signed": not self.unsigned,
        }

    def add_step(self) -> dict[str, Any]:
        """The step that adds the column; existing rows may need its values from the source."""
        step = self._step("add-column")
        return step if self._is_null_in_old_rows else {**step, "resent": True}

    def change_step(self, old: str) -> dict[str, Any]:
        """The step that makes a column this one; the source may have converted its values."""
        was = {} if old == self.name else {"was": old}
        return {**self._step("change-column"), **was, "resent": True}

    def _step(self, kind: str) -> dict[str, Any]:
        return {"do": kind, "name": self.name, "type": self.type_text, "nullable": self.nullable}

    @property
    def _is_null_in_old_rows(self) -> bool:
        if self.is_generated or not self.nullable:
            return False
        if Tokens(self.default).words(2) == ["NULL"]:
            return True
        # A session's settings may give a timestamp a default.
        return not self.default and (self.type_name != "timestamp" or bool(self.explicit_null))


def parse_column(tokens: Tokens, mode: SqlMode) -> ColumnDefinition:
    """Parse a column definition.

    Raises:
        SqlError: it isn't understood.
    """
    column = ColumnDefinition(tokens.name())
    _parse_type(tokens, column, mode)
    while tokens and tokens.word != "PARTITION":
        _parse_attribute(tokens, column)
    if column.charset == "binary" and column.type_name in _AS_BINARY:
        column.type_name, column.charset = _AS_BINARY[column.type_name], None
    return column


def _parse_type(tokens: Tokens, column: ColumnDefinition, mode: SqlMode) -> None:
    national = tokens.accept("NATIONAL")
    word = tokens.name().lower()
    if word in _SCHEMA_MODES and tokens.accept_sign("."):
        mode, word = _SCHEMA_MODES[word], tokens.name().lower()
    column.type_name = _ALIASES.get(word, word)
    if mode & SqlMode.ORACLE:
        column.type_name = _ORACLE_TYPES.get(word, column.type_name)
    if mode & SqlMode.MAXDB and word == "timestamp":
        column.type_name = "datetime"
    if mode & SqlMode.REAL_AS_FLOAT and word == "real":
        column.type_name = "float"
    if word in ("bool", "boolean"):
        column.type_name, column.arguments = "tinyint", "1"
    elif word == "serial":
        column.type_name, column.unsigned = "bigint", True
        column.explicit_null, column.auto_increment = False, True
    elif word == "long":
        binary = tokens.accept("VARBINARY")
        if not binary and tokens.accept_any("VARCHAR", "VARCHARACTER", "CHAR", "CHARACTER"):
            tokens.accept("VARYING")
        column.type_name = "mediumblob" if binary else "mediumtext"
    elif word == "double":
        tokens.accept("PRECISION")
    if column.type_name == "char" and tokens.accept("VARYING"):
        column.type_name = "varchar"
    if national or word in ("nchar", "nvarchar"):
        column.charset = "utf8"
    if mode & SqlMode.ORACLE and word == "number" and not tokens.is_sign("("):
        column.type_name = "double"
    _parse_arguments(tokens, column)


def _parse_arguments(tokens: Tokens, column: ColumnDefinition) -> None:
    parts = tokens.group()
    if parts is None:
        column.arguments = column.arguments or _DEFAULT_ARGUMENTS.get(column.type_name, "")
        return
    # Without the unit in VARCHAR2(10 CHAR).
    texts = ["".join(token.text for token in part if token not in _UNITS) for part in parts]
    if column.type_name in ("enum", "set"):
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


def _parse_attribute(tokens: Tokens, column: ColumnDefinition) -> None:
    if tokens.accept_any("UNSIGNED", "ZEROFILL"):
        column.unsigned = True
    elif tokens.word in _CHARSETS:
        column.charset = _CHARSETS[tokens.next().text.upper()]
    elif tokens.accept("CHARACTER", "SET") or tokens.accept("CHARSET"):
        tokens.accept_sign("=")
        column.charset = tokens.name().lower()
    elif tokens.accept("COLLATE"):
        # A collation's name begins with its character set, except for MariaDB's newest ones.
        charset = tokens.name().lower().partition("_")[0]
        column.charset = column.charset or (charset if charset != "uca1400" else None)
    elif tokens.accept("NOT", "NULL"):
        column.explicit_null = False
    elif tokens.accept("NULL"):
        column.explicit_null = True
    elif tokens.accept("DEFAULT"):
        column.default = _skip_expression(tokens)
    elif tokens.accept("ON", "UPDATE"):
        _skip_expression(tokens)
    elif tokens.accept("AUTO_INCREMENT"):
        column.auto_increment = True
    elif tokens.accept("PRIMARY", "KEY") or tokens.accept("PRIMARY"):
        column.is_key = True
    elif tokens.accept("UNIQUE", "KEY"):
        pass
    elif tokens.accept("KEY"):
        column.is_key = True
    elif tokens.accept("GENERATED") or tokens.accept("AS"):
        column.is_generated = True
        tokens.group()
    elif tokens.accept("CHECK"):
        tokens.group()
    elif tokens.accept("REFERENCES"):
        _skip_reference(tokens)
    elif tokens.accept_any("WITH", "WITHOUT"):
        if not tokens.accept("SYSTEM", "VERSIONING"):
            raise SqlError(f"{column.name} is defined WITH {tokens.word}")
    elif tokens.accept("COMPRESSED"):
        if tokens.accept_sign("="):
            tokens.next()
    elif tokens.accept_any("REF_SYSTEM_ID", "SRID"):
        tokens.accept_sign("=")
        tokens.next()
    elif tokens.accept_any(*_WITH_NAME):
        # A comment may be empty.
        tokens.next() if tokens.word != "CHECK" else None
    elif not tokens.accept_any(*_FLAGS):
        raise SqlError(f"{column.name} is defined with {tokens.next().text!r}")


def _skip_expression(tokens: Tokens) -> list[Token]:
    """Skip a literal, a call, or an expression in parentheses; return its first tokens."""
    first = tokens.next()
    if first == Token(Kind.SIGN, "("):
        depth = 1
        while depth:
            token = tokens.next()
            depth += (token == Token(Kind.SIGN, "(")) - (token == Token(Kind.SIGN, ")"))
        return [first, first]
    words = [first]
    if first == Token(Kind.SIGN, "{"):
        while words[-1] != Token(Kind.SIGN, "}"):
            words.append(tokens.next())
    elif first.kind is Kind.SIGN:
        words.append(tokens.next())
        while words[-1].kind is Kind.SIGN:
            words.append(tokens.next())
    elif first.kind is Kind.WORD and first.text.upper() == "NEXT":
        words += [tokens.next() for _ in range(2)]
        tokens.full_name("")
    elif _is_prefix(first) and tokens and not tokens.word:
        words.append(tokens.next())
    if first.kind is Kind.WORD and tokens.group() is not None:
        words.append(Token(Kind.SIGN, "("))
    return words


def _is_prefix(token: Token) -> bool:
    """Whether a string of another type or character set follows."""
    return token.kind is Kind.WORD and (
        token.text.upper() in ("X", "B", *_PREFIXES) or token.text.startswith("_")
    )


def _skip_reference(tokens: Tokens) -> None:
    tokens.full_name("")
    tokens.group()
    while tokens.accept_any("MATCH", "ON"):
        tokens.accept_any("DELETE", "UPDATE")
        if not tokens.accept("NO", "ACTION") and not tokens.accept("SET", "NULL"):
            tokens.next()


_INDEXES = {"INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK"}
_NAMED_CONSTRAINTS = {"PRIMARY", "UNIQUE", "FOREIGN", "CHECK"}
"""A name may stand between CONSTRAINT and these."""


def parse_columns(
    items: Sequence[Sequence[Token]], mode: SqlMode
) -> tuple[list[ColumnDefinition], list[str]]:
    """Parse what stands in CREATE TABLE's parentheses: the columns, and the primary key's names.

    Raises:
        SqlError: a definition isn't understood.
    """
    columns: list[ColumnDefinition] = []
    key: list[str] = []
    periods: dict[str, list[str]] = {}
    for item in items:
        tokens = Tokens(item)
        if tokens.accept("CONSTRAINT"):
            tokens.accept("IF", "NOT", "EXISTS")
            if tokens.word not in _NAMED_CONSTRAINTS:
                tokens.name()
        match tokens.words(2):
            case ["PRIMARY", *_]:
                key = _key_columns(tokens)
            case ["PERIOD", "FOR"]:
                period, (start, end) = _period(tokens)
                # In the order that the binlog has them in a key WITHOUT OVERLAPS.
                periods[period.lower()] = [end, start]
            case _ if _is_index(tokens):
                pass
            case _:
                columns.append(parse_column(tokens, mode))
    names = [column.name for column in columns]
    parts = [part for name in key for part in periods.get(name.lower(), [name])]
    declared = [find_column(names, name) or name for name in parts]
    return columns, declared or [column.name for column in columns if column.is_key]


def _period(tokens: Tokens) -> tuple[str, list[str]]:
    """A period's name, and its two columns."""
    tokens.accept("PERIOD", "FOR")
    name = tokens.name()
    columns = [Tokens(part).name() for part in tokens.group() or ()]
    if len(columns) != 2:
        raise SqlError("PERIOD FOR without two columns")
    return name, columns


def _is_index(tokens: Tokens) -> bool:
    """Whether an index or a constraint is next, and not a column, which may be named `vector`."""
    if tokens.word != "VECTOR":
        return tokens.word in _INDEXES
    match tokens.peek(4)[1:]:
        case [Token(Kind.WORD, word), *_] if word.upper() in ("INDEX", "KEY", "IF"):
            return True
        case [Token(Kind.SIGN, "("), *_]:
            return True
        case [_, Token(Kind.SIGN, "("), Token(kind, name)]:
            # The arguments of a type are numbers or texts.
            return kind is Kind.NAME or (kind is Kind.WORD and not name[0].isdigit())
    return False


def _key_columns(tokens: Tokens) -> list[str]:
    while tokens:
        group = tokens.group()
        if group is not None:
            return [Tokens(part).name() for part in group]
        tokens.next()
    raise SqlError("PRIMARY KEY without columns")
