"""How much of something an audit takes at once, and shows."""

from __future__ import annotations

SPLIT = 250_000
"""How many offsets, sequence numbers or polls a range holds: some tens of megabytes in a window."""

SPLIT_US = 10_000_000
"""How much time a range of one key's effects holds, in microseconds."""

WITNESSES = 10
"""How many cases of each run and anomaly are shown with their rows."""


def check_limits(witnesses: int, split: int, split_us: int) -> None:
    """Refuse numbers that make no sense.

    Raises:
        ValueError: which one, and what it may be.
    """
    for name, number, least in (("witnesses", witnesses, 0), ("split", split, 1)):
        if number < least:
            raise ValueError(f"{name} must be at least {least}, and is {number}")
    if split_us < 1:
        raise ValueError(f"split_us must be at least 1 microsecond, and is {split_us}")
