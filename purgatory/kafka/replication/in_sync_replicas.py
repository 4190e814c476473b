"""A leader's followers, and which of them are in sync.

A follower's state comes from its fetches alone. A change of the in-sync set is first proposed to
the controller, and in force once that accepts it. Meanwhile the high watermark is held back by the
larger of the two sets (the maximal ISR), since a new leader may be elected from either.

Ground rules: only the broker's loop touches these objects, by their partition.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from purgatory.kafka.log.leader_epoch_cache import UNKNOWN_OFFSET


class Follower:
    """A follower's copied part of the log, and the time since which it keeps up.

    Args:
        broker_id: the follower.
        last_caught_up_ms: the time at which it counts as caught up before its first fetch.
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
        """Record a fetch from ``end_offset``.

        A follower has caught up when it fetches from the leader's end. If it fetches from where the
        end was at its previous fetch, it had caught up at that time, though a steady producer keeps
        it from ever standing at the end.
        """
        if end_offset >= leader_end_offset:
            self.last_caught_up_ms = now_ms
        elif end_offset >= self.last_fetch_leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = end_offset
        self.log_start_offset = start_offset
        self.last_fetch_leader_end_offset = leader_end_offset
        self.last_fetch_ms = now_ms

    def is_lagging(self, leader_end_offset: int, now_ms: int, max_lag_ms: int) -> bool:
        """Whether it is behind the leader's end, and didn't catch up for ``max_lag_ms``."""
        return (
            self.log_end_offset != leader_end_offset
            and now_ms - self.last_caught_up_ms > max_lag_ms
        )


class IsrChange(NamedTuple):
    """A change of the in-sync set that the controller has to agree to."""

    leader_epoch: int
    isr: tuple[int, ...]


class InSyncReplicas:
    """The replicas of a partition as its leader ``broker_id`` sees them.

    Public attributes, to be read only: ``replicas`` and ``isr``, in the order of the assignment;
    ``followers`` by broker id; ``in_sync_followers``, those in the maximal ISR, which hold the
    high watermark back; ``pending``, the proposed change. On a follower only ``replicas`` is set.
    """

    __slots__ = ("_broker_id", "followers", "in_sync_followers", "isr", "pending", "replicas")

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.followers: dict[int, Follower] = {}
        self.in_sync_followers: tuple[Follower, ...] = ()
        self.pending: IsrChange | None = None

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The in-sync set, with members that are being added."""
        pending = self.pending
        if pending is None or len(pending.isr) < len(self.isr):
            return self.isr
        return pending.isr

    def assign(self, isr: Collection[int], replicas: tuple[int, ...], now_ms: int) -> None:
        """Set the assigned replicas and the ISR. Known followers keep their state."""
        self.replicas = replicas
        self.isr = tuple(broker_id for broker_id in replicas if broker_id in isr)
        self.pending = None
        self.followers = {
            broker_id: self.followers.get(broker_id)
            or Follower(broker_id, now_ms if broker_id in self.isr else 0)
            for broker_id in replicas
            if broker_id != self._broker_id
        }
        self._update_in_sync_followers()

    def forget_followers(self) -> None:
        """Clear the followers' state: this broker is not the leader."""
        self.isr = ()
        self.pending = None
        self.followers = {}
        self.in_sync_followers = ()

    def least_end_offset(self, leader_end_offset: int) -> int:
        """Return the least log end of the maximal ISR, -1 if one is unknown. O(ISR)."""
        least = leader_end_offset
        for follower in self.in_sync_followers:
            if follower.log_end_offset < least:
                least = follower.log_end_offset
        return least

    def may_expand(self, follower: Follower, required_offset: int) -> bool:
        """Whether a follower has caught up enough to join the ISR."""
        return (
            follower.log_end_offset >= required_offset
            and follower not in self.in_sync_followers
            and self.pending is None
        )

    def propose_expansion(self, replica_id: int, leader_epoch: int) -> IsrChange:
        """Propose an ISR with a follower that ``may_expand``."""
        return self._propose({*self.isr, replica_id}, leader_epoch)

    def propose_shrink(
        self, leader_epoch: int, leader_end_offset: int, now_ms: int, max_lag_ms: int
    ) -> IsrChange | None:
        """Propose an ISR without the followers that lag; None if none lags, or while another change
        is pending."""
        if self.pending is not None:
            return None
        lagging = {
            follower.broker_id
            for follower in self.in_sync_followers
            if follower.is_lagging(leader_end_offset, now_ms, max_lag_ms)
        }
        return self._propose(set(self.isr) - lagging, leader_epoch) if lagging else None

    def _propose(self, members: Collection[int], leader_epoch: int) -> IsrChange:
        isr = tuple(broker_id for broker_id in self.replicas if broker_id in members)
        self.pending = IsrChange(leader_epoch, isr)
        self._update_in_sync_followers()
        return self.pending

    def complete_change(self, change: IsrChange, accepted: bool) -> bool:
        """Complete the pending change; return False, without a change, if it is another one."""
        if self.pending is not change:
            return False
        self.pending = None
        if accepted:
            self.isr = change.isr
        self._update_in_sync_followers()
        return True

    def _update_in_sync_followers(self) -> None:
        members = self.maximal_isr
        self.in_sync_followers = tuple(
            follower for follower in self.followers.values() if follower.broker_id in members
        )

    def _check(self, leads: bool, leader_epoch: int) -> None:
        """Assert every invariant of the sets."""
        assert len(set(self.replicas)) == len(self.replicas), self.replicas
        assert set(self.isr) <= set(self.replicas), (self.isr, self.replicas)
        assert set(self.maximal_isr) >= set(self.isr)
        if not leads:
            assert not self.isr and not self.followers and self.pending is None
            assert not self.in_sync_followers
            return
        assert self._broker_id in self.isr, (self._broker_id, self.isr)
        assert set(self.followers) == set(self.replicas) - {self._broker_id}
        assert self.pending is None or self.pending.leader_epoch == leader_epoch
        in_sync = {follower.broker_id for follower in self.in_sync_followers}
        assert in_sync == set(self.maximal_isr) - {self._broker_id}
