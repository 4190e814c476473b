"""Rounding of waits where many are counted: exact below 10 ms, four digits above.

Waits are rounded down, so a percentile of rounded waits is never too large, and too small by at
most `MAX_RELATIVE_ERROR`. There are at most 9,000 different values per power of ten, however many
waits.

One rule holds for a single wait, for an array and in SQL: below each of `_ENDS_US`, waits are
rounded to multiples of the unit at its place in `_UNITS_US`.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

EXACT_BELOW_US = 10_000
MAX_RELATIVE_ERROR = 0.001
"""The largest error of a percentile above 10 ms, which is too small by at most this share."""

_UNITS_US: list[int] = [10**power for power in range(16)]
_ENDS_US = [EXACT_BELOW_US * unit for unit in _UNITS_US[:-1]]
"""The last unit has no end: it covers the rest of 64 bits."""


def round_us(wait_us: int) -> int:
    """A wait in microseconds, rounded. O(1)."""
    return wait_us - wait_us % _UNITS_US[bisect_right(_ENDS_US, wait_us)]


def round_array(waits_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Waits in microseconds, each rounded. O(waits)."""
    import numpy as np

    units = np.array(_UNITS_US)[np.searchsorted(_ENDS_US, waits_us, side="right")]
    rounded: npt.NDArray[np.int64] = waits_us - waits_us % units
    return rounded


def rounded_sql(column: str, exact_below_us: int = EXACT_BELOW_US) -> str:
    """Waits in microseconds, each rounded, in the SQL of the jobs.

    Args:
        column: the waits.
        exact_below_us: a power of ten; one with fewer zeros keeps fewer digits.
    """
    cases = "".join(
        f" when {column} < {exact_below_us * unit} then {column} - {column} % {unit}"
        for unit in _UNITS_US[:-1]
    )
    return f"case{cases} else {column} - {column} % {_UNITS_US[-1]} end"
