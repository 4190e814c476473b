"""What members of consumer groups ask by a heartbeat, and what they are answered."""

from __future__ import annotations

from typing import NamedTuple

from purgatory.kafka.consumer_groups.assignors import ASSIGNORS
from purgatory.kafka.consumer_groups.consumer_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    Subscription,
    Viewer,
)
from purgatory.kafka.consumer_groups.topic_id_partition import Partitions
from purgatory.kafka.errors import ErrorCode, GroupRefusal

_NO_TIMEOUT_MS = -1


class ConsumerHeartbeat(NamedTuple):
    """A sign of life, with what has changed since the one before it.

    Args:
        group_id, member_id: whose.
        epoch: the member's; `JOIN_EPOCH`, `LEAVE_EPOCH` and `STATIC_LEAVE_EPOCH` say what it wants.
        client_id, client_host: where it comes from.
        instance_id, rack_id, topic_names, topic_regex, assignor, rebalance_timeout_ms: what it
            says of itself; None, or -1, where that did not change.
        owned: what it owns; None where it doesn't say.
        makes_own_id: whether its member id is its own, and not from the coordinator.
        viewer: who gives it; None: somebody who sees all topics.
    """

    group_id: str
    member_id: str
    epoch: int
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    topic_names: tuple[str, ...] | None = None
    topic_regex: str | None = None
    assignor: str | None = None
    rebalance_timeout_ms: int = _NO_TIMEOUT_MS
    owned: Partitions | None = None
    makes_own_id: bool = True
    viewer: Viewer | None = None

    @property
    def leaves(self) -> bool:
        """Whether the member leaves, for a while or for good."""
        return self.epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH)

    @property
    def tells_all(self) -> bool:
        """Whether it says all that there is to say, as one that is sent anew does."""
        subscribes = self.topic_names is not None or self.topic_regex is not None
        return subscribes and self.owned is not None and self.rebalance_timeout_ms >= 0

    @property
    def tells_nothing(self) -> bool:
        """Whether it says nothing that may have changed."""
        return (
            self.rack_id is None
            and self.topic_names is None
            and self.topic_regex is None
            and self.assignor is None
            and self.rebalance_timeout_ms == _NO_TIMEOUT_MS
            and self.owned is None
        )

    def subscription(self, former: Subscription) -> Subscription:
        """Return what the member says of itself from now on."""
        names = None if self.topic_names is None else tuple(sorted(set(self.topic_names)))
        timeout_ms = self.rebalance_timeout_ms
        return Subscription(
            _newer(self.instance_id, former.instance_id),
            _newer(self.rack_id, former.rack_id),
            self.client_id,
            self.client_host,
            former.topic_names if names is None else names,
            _newer(self.topic_regex, former.topic_regex),
            former.rebalance_timeout_ms if timeout_ms == _NO_TIMEOUT_MS else timeout_ms,
            _newer(self.assignor, former.assignor),
            viewer=self.viewer if _newer(self.topic_regex, former.topic_regex) else None,
        )

    def check(self) -> None:
        """Refuse what says too little, or what can't be.

        Raises:
            GroupRefusal: INVALID_REQUEST or UNSUPPORTED_ASSIGNOR.
        """
        for name in ("group_id", "instance_id", "rack_id"):
            if getattr(self, name) == "":
                raise _invalid(f"{name} can't be empty")
        if not self.member_id and (self.makes_own_id or self.epoch != JOIN_EPOCH):
            raise _invalid("member_id can't be empty")
        if self.epoch < STATIC_LEAVE_EPOCH:
            raise _invalid(f"a member epoch of {self.epoch}")
        if self.epoch == STATIC_LEAVE_EPOCH and self.instance_id is None:
            raise _invalid("instance_id can't be null where a static member leaves for a while")
        if self.epoch == JOIN_EPOCH:
            self._check_join()
        if self.assignor is not None and self.assignor not in ASSIGNORS:
            raise GroupRefusal(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                message=f"{self.assignor} is none of the assignors {', '.join(ASSIGNORS)}",
            )

    def _check_join(self) -> None:
        if self.rebalance_timeout_ms < 0:
            raise _invalid("who joins has to say its rebalance timeout")
        if self.owned is None or self.owned:
            raise _invalid("who joins owns no partitions, and has to say so")
        if not self.topic_names and not self.topic_regex:
            raise _invalid("who joins has to subscribe to something")


def _newer(told: str | None, former: str | None) -> str | None:
    return former if told is None else told


def _invalid(message: str) -> GroupRefusal:
    return GroupRefusal(ErrorCode.INVALID_REQUEST, message=message)


class ConsumerHeartbeatAnswer(NamedTuple):
    """Tells a member its epoch, and what it may read if that is news to it; or an error."""

    error: ErrorCode
    member_id: str | None = None
    epoch: int = 0
    assignment: Partitions | None = None
    message: str | None = None
