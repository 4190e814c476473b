"""How often something goes wrong, as it is written: "6/min"."""

from __future__ import annotations

import re
from math import isfinite
from typing import Final

_IN_A_MINUTE: Final = {"s": 60.0, "min": 1.0, "h": 1 / 60}


def rate_per_min(rate: str | float) -> float:
    """Return how often that is in a minute: "6/min", "0.1/s", "30/h", or a number, per minute.

    Raises:
        ValueError: it is no rate.
    """
    if isinstance(rate, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*/\s*(s|min|h)\s*", rate)
        if found is None:
            raise ValueError(f'rate: "6/min", "0.1/s" or "30/h", not {rate!r}')
        return float(found[1]) * _IN_A_MINUTE[found[2]]
    if not isfinite(rate) or rate < 0:
        raise ValueError(f"rate: a number from 0 of faults per minute, not {rate!r}")
    return float(rate)
