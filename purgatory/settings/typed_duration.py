"""Durations as they are given: typed (250ms, 10s, 2min), as numbers, or as timedeltas.

A field of a `timed_dataclass` that is an ``OrTimedelta[float]`` is given as a number in the unit
that its name ends with (``lag_ms``, ``for_s``), or as a timedelta, and read as that number.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields
from datetime import timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING, Any, Generic, TypeVar, dataclass_transform

from purgatory.settings.problems import hint_at_arguments

T = TypeVar("T")

_UNITS_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
}
_TYPED = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.ASCII)


class Duration:
    """A length of time as it was typed, which `str` gives back.

    Args:
        text: a number, whole or with a fraction, and one of us, ms, s, m or min, and h; or a
            timedelta.

    Raises:
        ValueError: it is none, or is no whole number of microseconds, or below 0.
        TypeError: it is neither text nor a timedelta: a number has no unit.
    """

    __slots__ = ("_text", "us")

    def __init__(self, text: str | timedelta) -> None:
        if isinstance(text, timedelta):
            self.us = text // timedelta(microseconds=1)
            self._text = f"{self.us}us"
            if self.us < 0:
                raise ValueError(f"{text!r} is below 0")
            return
        if not isinstance(text, str):
            raise TypeError(
                f"{text!r} has no unit; give text or a timedelta: '250ms', '10s', '2min'"
            )
        found = _TYPED.fullmatch(text.strip())
        if found is None or found[2] not in _UNITS_US:
            raise ValueError(
                f"{text!r} is not a duration; give a number and its unit: "
                "500us, 250ms, 10s, 2min, 1h"
            )
        us = Decimal(found[1]) * _UNITS_US[found[2]]
        if us != int(us):
            raise ValueError(f"{text!r} is no whole number of microseconds")
        self._text = text
        self.us = int(us)

    @property
    def ms(self) -> float:
        """The duration in milliseconds."""
        return self.us / 1_000

    @property
    def whole_ms(self) -> int:
        """The duration in milliseconds, rounded down."""
        return self.us // 1_000

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return self.us / 1_000_000

    def __str__(self) -> str:
        return self._text


def duration_of(us: int) -> Duration:
    """Return a duration in the largest unit of which it is a whole number, such as 2min."""
    unit = max((size for size in _UNITS_US.values() if us % size == 0), default=1)
    name = [name for name, size in _UNITS_US.items() if size == unit][-1]
    return Duration(f"{us // unit}{name}")


def duration_text(us: int) -> str:
    """Return a duration in the unit that suits it, to four digits: "1.5 ms", "5.636 s", "2.5 min".

    ``duration`` in purgatory/view/page/units.js shows the same.
    """
    rounded = (  # first: 999,999 us are 1 s
        (float(_FOUR_DIGITS.create_decimal_from_float(us / size)), unit, below)
        for unit, size, below in _SHOWN_UNITS
    )
    return next(f"{number:,.15g} {unit}" for number, unit, below in rounded if abs(number) < below)


_FOUR_DIGITS = Context(prec=4, rounding=ROUND_HALF_UP)


_SHOWN_UNITS = (
    ("\N{MICRO SIGN}s", 1, 1_000),
    ("ms", 1_000, 1_000),
    ("s", 1_000_000, 120),
    ("min", 60_000_000, 120),
    ("h", 3_600_000_000, math.inf),
)


def duration_between(text: str, least: str, most: str, step: str = "1ms") -> Duration:
    """Return a typed duration that is a multiple of ``step`` from ``least`` to ``most``.

    Raises:
        ValueError: it is none; the message shows a valid one.
    """
    typed, shortest, longest, unit = map(Duration, (text, least, most, step))
    if typed.us < shortest.us:
        raise ValueError(f"'{typed}' is too short; it must be at least {least}")
    if typed.us > longest.us:
        raise ValueError(f"'{typed}' is too long; it must be at most {most}")
    if typed.us % unit.us:
        raise ValueError(f"'{typed}' is no multiple of {step}")
    return typed


if TYPE_CHECKING:

    class OrTimedelta(Generic[T]):
        """The type of a field that is given as ``T`` or as a timedelta, and read as ``T``."""

        def __get__(self, instance: object, owner: type | None = None) -> T: ...
        def __set__(self, instance: object, value: T | timedelta) -> None: ...

else:

    class OrTimedelta:
        """The type of a field that is given as one or as a timedelta, and read as one."""

        def __class_getitem__(cls, type_read: object) -> object:
            return type_read


def default(value: object) -> Any:
    """Return the default of a field that is an `OrTimedelta`."""
    return value


def as_number(value: timedelta, unit: timedelta) -> float:
    """Return a timedelta in a unit: an int, unless there is a fraction."""
    whole, rest = divmod(value, unit)
    return value / unit if rest else whole


_TIMED_UNITS = {"ms": timedelta(milliseconds=1), "s": timedelta(seconds=1)}


@dataclass_transform(field_specifiers=(field,))
def timed_dataclass(cls: type[T]) -> type[T]:
    """Return a frozen dataclass that takes timedeltas; for an int, a timedelta is rounded up."""
    check = getattr(cls, "__post_init__", None)

    def convert_and_check(self: Any) -> None:
        for name, unit, is_whole in durations:
            value = getattr(self, name)
            if isinstance(value, timedelta):
                number = as_number(value, unit)
                object.__setattr__(self, name, math.ceil(number) if is_whole else number)
        if check is not None:
            check(self)

    cls.__post_init__ = convert_and_check  # type: ignore[attr-defined]
    made = dataclass(frozen=True)(cls)
    durations = [
        (one.name, _TIMED_UNITS[one.name.rpartition("_")[2]], "int" in one.type)
        for one in fields(made)  # type: ignore[arg-type]
        if str(one.type).startswith(OrTimedelta.__name__)
    ]
    return hint_at_arguments()(made)
