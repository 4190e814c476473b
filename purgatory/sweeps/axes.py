"""A swept setting: its values, or the range that they are drawn from, and its place in tables.

Ground rules: what is drawn for a point depends on the sample's seed, the point's number and the
setting's path alone. So a sample of more points begins with the same points, and one more setting
leaves the others as they were.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import pyarrow as pa

from purgatory.sweeps.setting_paths import Place, column_name

MOST_LEVELS = 30
"""How many different values a setting has in surfaces and answers; more of them are put in bins."""

_BINS = 10
_DIGITS = 6


@dataclass(frozen=True)
class Range:
    """Where a number is drawn from."""

    low: float
    high: float
    log: bool
    whole: bool

    def drawn(self, chance: Random) -> float | int:
        """A number of the range: whole, or of six digits, the same on every machine."""
        share = chance.random()
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            value = math.exp(low + share * (high - low))
        elif self.whole:
            return int(self.low) + int(share * (int(self.high) - int(self.low) + 1))
        else:
            value = self.low + share * (self.high - self.low)
        value = float(f"{min(max(value, self.low), self.high):.{_DIGITS}g}")
        return round(value) if self.whole else value

    def edges(self) -> list[float]:
        """The bounds of the bins that stand for the range in tables."""
        if self.log:
            factor = self.high / self.low
            return [self.low * factor ** (number / _BINS) for number in range(_BINS + 1)]
        width = self.high - self.low
        return [self.low + width * number / _BINS for number in range(_BINS + 1)]


@dataclass(frozen=True)
class Axis:
    """A swept setting.

    Args:
        path: as the sweep file has it.
        places: where it stands in the scenario's document.
        values: its values as the file has them; empty for a range.
        normal: the same as the scenario takes them, with which scenarios are compared.
        span: where it is drawn from, if it has no list of values.
        wraps: whether a plain number stands for a spread without a spread.
        floats: whether a whole number stands for a float.
    """

    path: str
    places: tuple[Place, ...]
    values: tuple[Any, ...]
    normal: tuple[Any, ...]
    span: Range | None = None
    wraps: bool = False
    floats: bool = False

    @property
    def column(self) -> str:
        """The name of its column."""
        return column_name(self.path)

    @property
    def type(self) -> pa.DataType:
        """The type of its column: text, unless all values are numbers or all are truth values."""
        if self.span is not None:
            return pa.int64() if self.span.whole else pa.float64()
        kinds = {type(value) for value in self.values}
        if kinds == {bool}:
            return pa.bool_()
        if kinds == {int}:
            return pa.int64()
        return pa.float64() if kinds <= {int, float} else pa.string()

    def shown(self, value: Any) -> Any:
        """A value as its column has it."""
        kind = self.type
        if kind == pa.string():
            return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        return float(value) if kind == pa.float64() else value

    def normalized(self, value: Any) -> Any:
        """A drawn value as the scenario takes it."""
        if self.wraps:
            return {"p50": float(value), "p75": float(value)}
        return float(value) if self.floats else value

    def drawn(self, seed: int, point: int) -> tuple[Any, Any]:
        """The value of a point of a sample: as it is shown, and as the scenario takes it."""
        chance = Random(f"{seed}:{point}:{self.path}")
        if self.span is not None:
            value = self.span.drawn(chance)
            return value, self.normalized(value)
        number = int(chance.random() * len(self.values))
        return self.values[number], self.normal[number]

    def levels(self) -> list[Level]:
        """What stands for its values in surfaces and answers, in order: small numbers first."""
        shown = list(dict.fromkeys(self.shown(value) for value in self.values))
        if self.type in (pa.int64(), pa.float64()):
            shown.sort()
        if self.span is None and len(shown) <= MOST_LEVELS:
            return [Level(text(value), value, value) for value in shown]
        if self.span is None and self.type == pa.string():
            return [Level(text(value), value, value) for value in shown]
        chosen = self.span or Range(shown[0], shown[-1], log=False, whole=False)
        edges = chosen.edges()
        return [Level(f"{text(low)} to {text(high)}", low, high) for low, high in pairwise(edges)]

    @property
    def binned(self) -> bool:
        """Whether its levels are bins."""
        return any(level.low != level.high for level in self.levels())


@dataclass(frozen=True)
class Level:
    """One value of a setting, or a bin of values from `low` up to `high`."""

    label: str
    low: Any
    high: Any

    @property
    def middle(self) -> float | None:
        """The number that stands for it on an axis; None if it is no number."""
        if isinstance(self.low, bool) or not isinstance(self.low, int | float):
            return None
        return float(self.low + self.high) / 2


def text(value: Any) -> str:
    """A value as a person writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return str(value)
