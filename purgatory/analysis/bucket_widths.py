"""How wide the buckets of time are into which a run is cut, whichever engine counts in them."""

from __future__ import annotations

MOST_POINTS = 400
"""The most buckets that a run is cut into; fewer than 2/5 of that only if it is that short."""


def bucket_width_us(duration_us: int) -> int:
    """The width of a run's buckets: 1, 2 or 5 times a power of ten, at most `MOST_POINTS` of them.

    Args:
        duration_us: the length of the run, in microseconds.
    """
    unit = 1
    while True:
        for factor in (1, 2, 5):
            if factor * unit * MOST_POINTS >= duration_us:
                return factor * unit
        unit *= 10
