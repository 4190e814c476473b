"""JSON that keeps every digit of a decimal number.

The standard encoder can't write a `Decimal`, and pydantic's writes it as a text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any


def json_text(value: Any) -> str:
    """Write ``value`` as JSON, on one line; a `Decimal` is a number with all its digits.

    Raises:
        TypeError: something in it has no JSON form.
        ValueError: a number is infinite or none.
    """
    write = _WRITERS.get(type(value))
    return _other(value) if write is None else write(value)


def _mapping(value: Mapping[Any, Any]) -> str:
    return "{" + ",".join([_name(name) + json_text(item) for name, item in value.items()]) + "}"


def _sequence(value: Sequence[Any]) -> str:
    return "[" + ",".join([json_text(item) for item in value]) + "]"


@lru_cache(maxsize=4096)
def _name(name: object) -> str:
    # The names of a few columns come a million times.
    return encode_basestring(name.decode() if isinstance(name, bytes) else str(name)) + ":"


def _float(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"{value} is no number of JSON")
    return repr(value)


def _other(value: Any) -> str:
    # MySQL's own JSON has texts as bytes.
    if isinstance(value, bytes):
        return encode_basestring(value.decode())
    raise TypeError(f"{type(value).__name__} has no JSON form")


_WRITERS: Mapping[type, Callable[[Any], str]] = {
    str: encode_basestring,
    int: repr,
    bool: lambda value: "true" if value else "false",
    type(None): lambda value: "null",
    float: _float,
    Decimal: lambda value: format(value, "f"),
    dict: _mapping,
    list: _sequence,
    tuple: _sequence,
}
