"""What a line of JSON says of the columns of a table: as Spark's parser would have it, in Python.

Spark takes each field as text, and then the type from the text: a number may stand in quotes. These
rules are for the few lines that are not plain; `json_lines` has a fast way for the others.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from purgatory.analysis.duckdb_engine.scaled_numbers import BITS, scaled
from purgatory.analysis.traces.column_mapping import Source

MOST_DEEP = 998
"""How deep objects and lists may lie in each other, the line's own included."""

_MOST_DIGITS = 1_000
_WHOLE = re.compile(r"[\x00-\x20\x7f]*([+-]?[0-9]+)[\x00-\x20\x7f]*")
_IN_QUOTES = re.compile(rb'"(?:[^"\\]|\\.)*"')
_WRONG = object()


class JsonCells:
    """How the columns of one table come from lines of JSON.

    Args:
        kinds: the columns and their types in Spark's words.
        sources: the fields that they come from; those with a constant are left null. Those that
            take texts give the text of what is there, which is still to become the value.
    """

    def __init__(self, kinds: Mapping[str, str], sources: Mapping[str, Source]) -> None:
        self._columns = [(name, kind, sources[name]) for name, kind in kinds.items()]
        self._decoder = json.JSONDecoder(
            parse_int=_integer, parse_float=_double, parse_constant=_refuse
        )

    def of_line(self, line: bytes) -> tuple[list[Any] | None, str | None]:
        """The values of a line, and the first column whose value is of another type.

        There are no values where the line is not one object in JSON.
        """
        try:
            found = self._decoder.decode(line.decode("utf-8"))
        except (ValueError, RecursionError):
            return None, None
        if not isinstance(found, dict) or _too_deep(line):
            return None, None
        values, wrong = [], None
        for name, kind, source in self._columns:
            given = None if source.name is None else found.get(source.name)
            value = None if given is None else self._cell(given, kind, source)
            if value is _WRONG:
                value, wrong = None, wrong or name
            values.append(value)
        return values, wrong

    def _cell(self, given: Any, kind: str, source: Source) -> Any:
        if source.values is not None:
            return _storable(_text(given))
        if source.takes_texts and not isinstance(given, str):
            # An id: SQL takes it as text, whatever it is.
            number = _WRONG if isinstance(given, bool | dict | list) else _whole(given, 63)
            return _WRONG if number is _WRONG else str(number)
        if kind == "string" or source.takes_texts:
            return _storable(given) if isinstance(given, str) else _WRONG
        if kind == "boolean":
            return {"true": True, "false": False}.get(_text(given), _WRONG)
        if kind.startswith("array"):
            return self._texts(given)
        if isinstance(given, bool | dict | list):
            return _WRONG
        if source.scaled:
            number = scaled(given, source, kind)
            return _WRONG if number is None else number
        return _whole(given, BITS[kind])

    def _texts(self, given: Any) -> Any:
        """A list of texts, from a list or from the text of one, whatever follows in the text."""
        if isinstance(given, str) and given.startswith("["):
            try:
                given, _ = self._decoder.raw_decode(given)
            except (ValueError, RecursionError):
                return _WRONG
        if not isinstance(given, list):
            return _WRONG
        return [None if one is None else _storable(_text(one)) for one in given]


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError("the number has too many digits")
    return int(text)


def _double(text: str) -> float:
    if len(text) > _MOST_DIGITS:
        raise ValueError("the number has too many digits")
    return float(text)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")


def _too_deep(line: bytes) -> bool:
    if line.count(b"{") + line.count(b"[") <= MOST_DEEP:
        return False
    depth = deepest = 0
    for letter in _IN_QUOTES.sub(b"", line):
        depth += (letter in b"{[") - (letter in b"}]")
        deepest = max(depth, deepest)
    return deepest > MOST_DEEP


def _storable(text: str) -> str:
    """A text without halves of characters, each of which becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _whole(given: Any, bits: int) -> Any:
    if isinstance(given, str):
        found = _WHOLE.fullmatch(given)
        given = int(found[1]) if found and len(found[1]) <= _MOST_DIGITS else None
    fits = isinstance(given, int) and -(1 << bits) <= given < 1 << bits
    return given if fits else _WRONG


def _text(value: Any) -> str:
    """A value as text: a text as it is, anything else in JSON, with numbers as Java has them."""
    return value if isinstance(value, str) else _in_json(value)


def _in_json(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_in_json(k)}:{_in_json(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_in_json, value)) + "]"
    if isinstance(value, float):
        return _java_double(value)
    return json.dumps(value, ensure_ascii=False)


def _java_double(value: float) -> str:
    """A number as Java writes it: with a digit after the point, and E from ten million on."""
    if math.isinf(value):
        return f'"{"-" * (value < 0)}Infinity"'
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{'-' * sign}{digits[0]}.{rest}E{exponent + len(digits) - 1}"
