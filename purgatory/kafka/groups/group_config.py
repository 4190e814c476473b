"""What groups are allowed."""

from __future__ import annotations

from typing import NamedTuple


class GroupConfig(NamedTuple):
    """What groups are allowed. Times are in milliseconds.

    Args:
        initial_rebalance_delay_ms: how long the first member of a group waits for others.
        min_session_timeout_ms, max_session_timeout_ms: what members may ask for.
        max_size: how many members a group may have.
        consumer_session_timeout_ms: how long a member of a group of the consumer protocol may give
            no sign of life.
        consumer_heartbeat_interval_ms: how often it is told to give one.
    """

    initial_rebalance_delay_ms: int = 3_000
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
