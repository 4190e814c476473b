"""Values of different databases in one form, to compare them."""

from __future__ import annotations

import datetime
import json
import re
from decimal import Decimal
from typing import Any

_DECIMAL = re.compile(r"-?\d+\.\d+")
_ZEROS = re.compile(r"(:\d\d)\.?(\d*?)0*\Z")


def plain(value: Any) -> Any:
    """A value as a text, as short as can be; null and lists stay."""
    match value:
        case None:
            return None
        case bool() | int():
            return str(int(value))
        case float():
            return plain(Decimal(repr(value)))
        case Decimal():
            text = format(value, "f")
            return text.rstrip("0").rstrip(".") if "." in text else text
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
        case datetime.datetime():
            if value.tzinfo is not None:
                value = value.astimezone(datetime.UTC).replace(tzinfo=None)
            return plain(value.isoformat(" "))
        case datetime.timedelta():
            seconds, sign = value.total_seconds(), "-" if value.total_seconds() < 0 else ""
            whole, fraction = divmod(abs(round(seconds * 1_000_000)), 1_000_000)
            minutes, second = divmod(whole, 60)
            return plain(f"{sign}{minutes // 60:02}:{minutes % 60:02}:{second:02}.{fraction:06}")
        case list() | dict():
            return json.dumps(value, sort_keys=True)
        case str() if value[:1] in ("[", "{"):
            return json.dumps(json.loads(value), sort_keys=True)
        case str() if _DECIMAL.fullmatch(value):
            return plain(Decimal(value))
        case str():
            return _ZEROS.sub(lambda m: m[1] + ("." + m[2] if m[2] else ""), value)
    return plain(str(value))
