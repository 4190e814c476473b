"""What a leader knows of one follower, all of it from that follower's fetches.

Ground rules: guarded by the lock of the partition that it belongs to.
"""

from __future__ import annotations

from purgatory.kafka.requests import UNKNOWN_OFFSET


class Follower:
    """How far a follower has the log, and since when it keeps up.

    Args:
        broker_id: the follower.
        last_caught_up_ms: when it counts as having caught up before its first fetch.
    """

    __slots__ = (
        "broker_id",
        "last_caught_up_ms",
        "last_fetch_leader_end_offset",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, broker_id: int, last_caught_up_ms: int) -> None:
        self.broker_id = broker_id
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.last_caught_up_ms = last_caught_up_ms
        self.last_fetch_ms = 0
        self.last_fetch_leader_end_offset = UNKNOWN_OFFSET

    def update(
        self, end_offset: int, start_offset: int, leader_end_offset: int, now_ms: int
    ) -> None:
        """Note a fetch from ``end_offset``.

        A follower has caught up when it asks from the leader's end; or when it asks from where the
        end was at its fetch before: then it had caught up at that time, though a steady producer
        keeps it from ever standing at the end.
        """
        if end_offset >= leader_end_offset:
            self.last_caught_up_ms = now_ms
        elif end_offset >= self.last_fetch_leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = end_offset
        self.log_start_offset = start_offset
        self.last_fetch_leader_end_offset = leader_end_offset
        self.last_fetch_ms = now_ms

    def lags(self, leader_end_offset: int, now_ms: int, max_lag_ms: int) -> bool:
        """Whether it is behind the leader's end, and didn't catch up for ``max_lag_ms``."""
        return (
            self.log_end_offset != leader_end_offset
            and now_ms - self.last_caught_up_ms > max_lag_ms
        )
