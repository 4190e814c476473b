"""The tokenizer for MariaDB's and MySQL's SQL: words, names, strings and signs.

Statements in the binlog have been parsed by the server, so the tokenizer does not validate them.
The sql_mode of the session decides what a backslash and a double quote mean.
`docs/dependencies.md` explains why no library does it.

Executable comments are read. Those for other versions were made plain comments by the server when
it wrote the statement into the binlog.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Sequence
from typing import NamedTuple


class SqlMode(enum.IntFlag):
    """The flags of sql_mode, as in the binlog, that affect how a statement is read.

    MYSQL is none of them: the server is MySQL, to which MariaDB's executable comments are plain.
    """

    NONE = 0
    REAL_AS_FLOAT = 1
    ANSI_QUOTES = 1 << 2
    ORACLE = 1 << 9
    MSSQL = 1 << 10
    MAXDB = 1 << 12
    NO_BACKSLASH_ESCAPES = 1 << 20
    MYSQL = 1 << 63


class Kind(enum.Enum):
    """The kind of a token."""

    WORD = "word"
    NAME = "name"
    TEXT = "text"
    SIGN = "sign"


class Token(NamedTuple):
    """A token; the text of a name or a string is unquoted."""

    kind: Kind
    text: str


class SqlError(Exception):
    """A statement is not understood."""


_QUOTED = r"{0}(?:[^{0}\\]|\\.|{0}{0})*{0}"
_QUOTED_WITHOUT_ESCAPES = r"{0}(?:[^{0}]|{0}{0})*{0}"
_TOKEN = r"""(?P<skipped>[\ \t-\r]+ | \#[^\n]* | --(?=[\ \0-\x1f]|$)[^\n]*
             | /\*EXECUTED\d* | /\*(?!EXECUTED).*?\*/ | \*/ )
      | (?P<text>TEXT)
      | (?P<name>NAME)
      | (?P<word>\d+(?:\.\d+)?[eE][+-]\d+ | \d+\.\d+(?:[eE]\d+)? | [\w$@\u0080-\uffff]+)
      | (?P<sign>.)"""
_ESCAPES = {
    "0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_",
}  # fmt: skip
_ESCAPED = re.compile(r"\\(.)|''|\"\"", re.DOTALL)


@functools.cache
def _token_pattern(mode: SqlMode) -> re.Pattern[str]:
    quoted = _QUOTED_WITHOUT_ESCAPES if mode & SqlMode.NO_BACKSLASH_ESCAPES else _QUOTED
    texts, names = [quoted.format("'")], [_QUOTED_WITHOUT_ESCAPES.format("`")]
    if mode & SqlMode.ANSI_QUOTES:
        names.append(_QUOTED_WITHOUT_ESCAPES.format('"'))
    else:
        texts.append(quoted.format('"'))
    executed = "!" if mode & SqlMode.MYSQL else "M?!"
    pattern = (
        _TOKEN.replace("EXECUTED", executed)
        .replace("TEXT", "|".join(texts))
        .replace("NAME", "|".join(names))
    )
    return re.compile(pattern, re.DOTALL | re.VERBOSE)


def tokenize(sql: str, mode: SqlMode = SqlMode.NONE) -> list[Token]:
    """The tokens of a statement, including those in executable comments."""
    tokens = []
    escapes = not mode & SqlMode.NO_BACKSLASH_ESCAPES
    for match in _token_pattern(mode).finditer(sql):
        text = match.group()
        match match.lastgroup:
            case "text":
                tokens.append(Token(Kind.TEXT, _unquoted(text, escapes)))
            case "name":
                quote = text[0]
                tokens.append(Token(Kind.NAME, text[1:-1].replace(quote * 2, quote)))
            case "word":
                tokens.append(Token(Kind.WORD, text))
            case "sign":
                tokens.append(Token(Kind.SIGN, text))
    return tokens


def _unquoted(text: str, escapes: bool) -> str:
    quote = text[0]
    if not escapes:
        return text[1:-1].replace(quote * 2, quote)

    def unescape(token: re.Match[str]) -> str:
        if token[1] is None:
            return quote if token[0] == quote * 2 else token[0]
        return _ESCAPES.get(token[1], token[1])

    return _ESCAPED.sub(unescape, text[1:-1])


class Tokens:
    """A cursor over tokens."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._tokens)

    def peek(self, count: int) -> Sequence[Token]:
        """The next tokens, without advancing; `count` at most."""
        return self._tokens[self._at : self._at + count]

    def rest(self) -> Sequence[Token]:
        """All remaining tokens, without advancing."""
        return self._tokens[self._at :]

    def words(self, count: int) -> list[str]:
        """The next words in upper case, without advancing; `count` at most."""
        return [token.text.upper() if token.kind is Kind.WORD else "" for token in self.peek(count)]

    @property
    def word(self) -> str:
        """The next word in upper case; empty if the next token is none."""
        return self.words(1)[0] if self else ""

    def accept(self, *words: str) -> bool:
        """Advance if the next tokens are these words."""
        if self.words(len(words)) != list(words):
            return False
        self._at += len(words)
        return True

    def accept_any(self, *words: str) -> bool:
        """Advance if the next token is one of these words."""
        return bool(self) and self.word in words and self.accept(self.word)

    def is_sign(self, sign: str) -> bool:
        """Whether the next token is this sign."""
        return bool(self) and self._tokens[self._at] == Token(Kind.SIGN, sign)

    def accept_sign(self, sign: str) -> bool:
        """Advance if the next token is this sign."""
        is_next = self.is_sign(sign)
        self._at += is_next
        return is_next

    def next(self) -> Token:
        """Return the next token.

        Raises:
            SqlError: there is none.
        """
        if not self:
            raise SqlError("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def name(self) -> str:
        """Return a name.

        Raises:
            SqlError: the next token is none.
        """
        token = self.next()
        if token.kind is Kind.SIGN or not token.text:
            raise SqlError(f"a name is missing before {token.text!r}")
        return token.text

    def full_name(self, database: str) -> tuple[str, str]:
        """Return a table's name with its database, which may be this one."""
        first = self.name()
        return (first, self.name()) if self.accept_sign(".") else (database, first)

    def group(self) -> list[list[Token]] | None:
        """The tokens in parentheses, split at commas; None if no parenthesis is next."""
        if not self.accept_sign("("):
            return None
        depth, parts = 1, [[]]  # type: tuple[int, list[list[Token]]]
        while True:
            token = self.next()
            depth += _depth(token)
            if not depth:
                return parts
            _append(parts, token, depth == 1)

    def list(self) -> list[list[Token]]:
        """All remaining tokens, split at commas outside of parentheses."""
        depth, parts = 0, [[]]  # type: tuple[int, list[list[Token]]]
        while self:
            token = self.next()
            depth += _depth(token)
            _append(parts, token, depth == 0)
        return parts


def _depth(token: Token) -> int:
    return (token == Token(Kind.SIGN, "(")) - (token == Token(Kind.SIGN, ")"))


def _append(parts: list[list[Token]], token: Token, is_outermost: bool) -> None:
    if is_outermost and token == Token(Kind.SIGN, ","):
        parts.append([])
    else:
        parts[-1].append(token)
