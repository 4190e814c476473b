"""JSON that keeps every digit of a decimal number, which the standard encoder can't."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def json_text(value: Any) -> str:
    """Write ``value`` as JSON, on one line; a `Decimal` is a number with all its digits."""
    if isinstance(value, str) or value is None or isinstance(value, bool | int | float):
        return _encode(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, Mapping):
        pairs = (f"{_encode(_name(name))}:{json_text(item)}" for name, item in value.items())
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return "[" + ",".join(json_text(item) for item in value) + "]"
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _name(name: object) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
