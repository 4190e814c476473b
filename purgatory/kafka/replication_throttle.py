"""How quickly replicas are copied that are throttled (KIP-73): while they are moved, say.

A throttle is a broker's, one for what it leads and one for what it follows; which replicas it holds
is said for each topic. What was copied counts, whether in sync or not; only who isn't is held, so
that none falls out of the ISR for it.

Ground rules: one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
"""What brokers call the rates, in bytes a second."""
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
"""What topics call the lists of whom they are for."""

_LOOK_AGAIN_MS = 1_000


def is_listed(replicas: str, partition: int, broker_id: int) -> bool:
    """Whether a list names a broker's replica: "0:1,2:3", of the brokers 1 and 3, or "*", all."""
    return replicas == "*" or f"{partition}:{broker_id}" in replicas.split(",")


class ReplicationThrottle:
    """Holds what is copied to a rate, on average.

    Args:
        now_ms: tells the time, in milliseconds.

    ``rate_bytes_per_s`` is None while there is no limit; 0 lets nothing pass.
    """

    __slots__ = ("_free_at_ms", "_now_ms", "rate_bytes_per_s")

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self._free_at_ms = 0.0
        self.rate_bytes_per_s: int | None = None

    def set_rate(self, bytes_per_s: int | None) -> None:
        """Go on at another rate: what was copied at the former one is forgotten."""
        if bytes_per_s != self.rate_bytes_per_s:
            self.rate_bytes_per_s = bytes_per_s
            self._free_at_ms = 0.0

    def count(self, size_bytes: int) -> None:
        """Note that so much was copied. O(1)."""
        if self.rate_bytes_per_s:
            begun_ms = max(self._free_at_ms, self._now_ms())
            self._free_at_ms = begun_ms + size_bytes * 1_000 / self.rate_bytes_per_s

    def wait_ms(self) -> float:
        """Return how long nothing more may be copied, 0 if something may. O(1)."""
        if self.rate_bytes_per_s is None:
            return 0
        if self.rate_bytes_per_s == 0:
            return _LOOK_AGAIN_MS
        return max(0.0, self._free_at_ms - self._now_ms())
