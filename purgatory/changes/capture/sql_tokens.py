"""A statement of MariaDB's or MySQL's SQL as words, names, texts and signs.

Statements of the binlog were parsed by the server itself: what counts is to see which of them
change tables, and how. `docs/dependencies.md` says why no library does it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from typing import NamedTuple


class Kind(enum.Enum):
    """What a token is."""

    WORD = "word"
    NAME = "name"
    TEXT = "text"
    SIGN = "sign"


class Token(NamedTuple):
    """One token.

    Args:
        text: a word as it is written; of a name or a text, what is between the quotes.
    """

    kind: Kind
    text: str


class SqlError(Exception):
    """A statement is not understood; says where."""


_TOKEN = re.compile(
    r"""(?P<skipped>\s+ | \#[^\n]* | --(?=\s|$)[^\n]* | /\*M?!\d* | /\*(?!M?!).*?\*/ | \*/ )
      | (?P<text>'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*")
      | (?P<name>`(?:[^`]|``)+`)
      | (?P<word>\d+\.\d+(?:[eE][+-]?\d+)? | [\w$@]+)
      | (?P<sign>.)""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


def tokens_of(sql: str) -> list[Token]:
    """Return a statement's tokens, without its comments; those that servers execute are read."""
    found = []
    for match in _TOKEN.finditer(sql):
        text = match.group()
        match match.lastgroup:
            case "text":
                quote = text[0]
                inner = text[1:-1].replace(quote * 2, quote)
                inner = _ESCAPE.sub(lambda one: _ESCAPES.get(one[1], one[1]), inner)
                found.append(Token(Kind.TEXT, inner))
            case "name":
                found.append(Token(Kind.NAME, text[1:-1].replace("``", "`")))
            case "word":
                found.append(Token(Kind.WORD, text))
            case "sign":
                found.append(Token(Kind.SIGN, text))
    return found


class Tokens:
    """Tokens that are read one after the other."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._tokens)

    def words(self, count: int) -> list[str]:
        """The next words in capitals, without taking them; as many as there are."""
        ahead = self._tokens[self._at : self._at + count]
        return [token.text.upper() if token.kind is Kind.WORD else "" for token in ahead]

    @property
    def word(self) -> str:
        """The next word in capitals; empty if the next is none."""
        return self.words(1)[0] if self else ""

    def take(self, *words: str) -> bool:
        """Take the next tokens if they are these words."""
        if self.words(len(words)) != list(words):
            return False
        self._at += len(words)
        return True

    def take_any(self, *words: str) -> bool:
        """Take the next token if it is one of these words."""
        return bool(self) and self.word in words and self.take(self.word)

    def take_sign(self, sign: str) -> bool:
        """Take the next token if it is this sign."""
        if self and self._tokens[self._at] == Token(Kind.SIGN, sign):
            self._at += 1
            return True
        return False

    def next(self) -> Token:
        """Take the next token.

        Raises:
            SqlError: there is none.
        """
        if not self:
            raise SqlError("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def name(self) -> str:
        """Take a name.

        Raises:
            SqlError: the next token is none.
        """
        token = self.next()
        if token.kind is Kind.SIGN or not token.text:
            raise SqlError(f"a name is missing before {token.text!r}")
        return token.text

    def full_name(self, database: str) -> tuple[str, str]:
        """Take a table's name, with its database or in this one."""
        first = self.name()
        return (first, self.name()) if self.take_sign(".") else (database, first)

    def group(self) -> list[list[Token]] | None:
        """Take what stands in parentheses, cut at its commas; None if no parenthesis is next."""
        if not self.take_sign("("):
            return None
        depth, parts = 1, [[]]  # type: tuple[int, list[list[Token]]]
        while True:
            token = self.next()
            depth += _depth(token)
            if not depth:
                return parts
            _append(parts, token, depth == 1)

    def list(self) -> list[list[Token]]:
        """Take all that is left, cut at its commas outside of parentheses."""
        depth, parts = 0, [[]]  # type: tuple[int, list[list[Token]]]
        while self:
            token = self.next()
            depth += _depth(token)
            _append(parts, token, depth == 0)
        return parts


def _depth(token: Token) -> int:
    return (token == Token(Kind.SIGN, "(")) - (token == Token(Kind.SIGN, ")"))


def _append(parts: list[list[Token]], token: Token, outermost: bool) -> None:
    if outermost and token == Token(Kind.SIGN, ","):
        parts.append([])
    else:
        parts[-1].append(token)
