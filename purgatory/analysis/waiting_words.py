"""What the tables of waits say in words, whichever engine computes them."""

from __future__ import annotations

from typing import Literal, get_args

ALL = "all"
"""Stands in the columns `kind` and `outcome` of a row over all kinds and over all outcomes."""

ALL_TOPICS = "*"
"""Stands in the column `topic` of a row over all topics; Kafka lets no topic have that name."""

OUTCOMES = ("immediate", "completed", "expired", "cancelled", "failed", "pending", ALL)
"""The outcomes that a trace knows, in the order in which they are shown."""

Exactness = Literal["exact", "approximate"]
"""How percentiles are computed."""


def check_waits(window_us: int | None, percentiles: str) -> None:
    """Refuse a window of no length, and a word for percentiles that has no meaning.

    Raises:
        ValueError: it is one of these.
    """
    if window_us is not None and window_us <= 0:
        raise ValueError(f"window_us must be a positive number of microseconds, not {window_us}")
    if percentiles not in get_args(Exactness):
        raise ValueError(f"percentiles must be 'exact' or 'approximate', not {percentiles!r}")


def check_number(number: int) -> None:
    """Refuse to show fewer than one of something.

    Raises:
        ValueError: a number below 1.
    """
    if number < 1:
        raise ValueError(f"number must be at least 1, not {number}")
