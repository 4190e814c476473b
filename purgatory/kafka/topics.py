"""The topics and partitions that the controller knows, and what follows from them alone."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from purgatory.kafka.errors import ErrorCode

NO_LEADER = -1
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NO_ID = UUID(int=0)


def invalid_topic_name_reason(name: str, topics: Iterable[str] = ()) -> str | None:
    """Say what is wrong with the name of a new topic, as Kafka has it; None: nothing is.

    Args:
        name: of the new one.
        topics: the names that there are: metrics write dots as underscores, so that no two may be
            the same but for that. O(topics), for a name with one of these.
    """
    if _NAME.fullmatch(name) is None or name in (".", ".."):
        return (
            f"{name!r} is no name of a topic: 1 to 249 letters, digits, dots, dashes, underscores"
        )
    if "." in name or "_" in name:
        unified = name.replace(".", "_")
        for other in topics:
            if other != name and other.replace(".", "_") == unified:
                return f"topic {name} collides with topic {other}: a dot counts as an underscore"
    return None


class LogEnd(NamedTuple):
    """Where a replica's log ends, and the leader epoch of its last record, -1 without one."""

    offset: int = 0
    epoch: int = -1


@dataclass
class PartitionState:
    """What the controller knows of a partition: broker ids, in the order of the assignment.

    ``start_offset`` and ``committed_offset`` are the leader's log start and high watermark when it
    was last asked: a log that ends before the latter has lost what was acknowledged. ``is_clean``
    says whether the leader was in sync when it was elected.

    While replicas are moved, ``replicas`` has the new ones and behind them those that are to go:
    ``adding`` and ``removing`` say which. They are moved once all new ones are in sync.
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    start_offset: int = 0
    committed_offset: int = 0
    is_clean: bool = True
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas that there are to be."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    @property
    def original(self) -> tuple[int, ...]:
        """The replicas that there were before any was moved."""
        return tuple(broker for broker in self.replicas if broker not in self.adding)

    @property
    def is_moving(self) -> bool:
        """Whether replicas are being moved."""
        return bool(self.adding or self.removing)

    def move_to(self, target: tuple[int, ...]) -> list[int]:
        """Begin to move; return who was to come and no longer is."""
        dropped = [one for one in self.adding if one not in target]
        before = self.original
        self.removing = tuple(broker for broker in before if broker not in target)
        self.adding = tuple(broker for broker in target if broker not in before)
        self.replicas = target + self.removing
        self.isr = tuple(broker for broker in self.isr if broker not in dropped)
        return dropped

    def complete_move(self) -> tuple[int, ...]:
        """End the move if all who are to stay are in sync; return who has gone."""
        if not set(self.target) <= set(self.isr):
            return ()
        gone = self.removing
        self.replicas, self.adding, self.removing = self.target, (), ()
        self.isr = tuple(broker for broker in self.replicas if broker in self.isr)
        return gone

    def preferred_election_error(self, live: Container[int]) -> ErrorCode:
        """Return why the first replica can't be made the leader, or NONE."""
        preferred = self.replicas[0]
        if preferred == self.leader:
            return ErrorCode.ELECTION_NOT_NEEDED
        if preferred not in live or preferred not in self.isr:
            return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        return ErrorCode.NONE

    def unclean_election_error(self, live: Container[int]) -> ErrorCode:
        """Return why no replica can be made the leader whatever it has, or NONE."""
        if self.leader != NO_LEADER:
            return ErrorCode.ELECTION_NOT_NEEDED
        if not any(broker in live for broker in self.replicas):
            return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        return ErrorCode.NONE


@dataclass
class Topic:
    """A topic: its partitions by number, and its settings by their Kafka names.

    No other topic has its ``topic_id``, nor has one that is created by its name later.
    """

    name: str
    partitions: list[PartitionState]
    configs: dict[str, str] = field(default_factory=dict)
    internal: bool = False
    topic_id: UUID = _NO_ID
