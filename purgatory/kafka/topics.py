"""The controller's state of topics and partitions."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.groups.offsets import OFFSETS_TOPIC
from purgatory.kafka.share_groups.share_state import SHARE_STATE_TOPIC
from purgatory.kafka.transactions.transaction_metadata import TRANSACTIONS_TOPIC

NO_LEADER = -1
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC})
"""The topics of the coordinators, which the cluster itself creates and writes."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NO_ID = UUID(int=0)


def invalid_topic_name_reason(name: str, topics: Iterable[str] = ()) -> str | None:
    """Return why the name of a new topic is invalid, by Kafka's rules, or None.

    Args:
        topics: the existing names: metrics write dots as underscores, so that names may not differ
            in these alone. O(topics), for a name with one of these.
    """
    if _NAME.fullmatch(name) is None or name in (".", ".."):
        return (
            f"{name!r} is no name of a topic: 1 to 249 letters, digits, dots, dashes, underscores"
        )
    if "." in name or "_" in name:
        normalized = name.replace(".", "_")
        for other in topics:
            if other != name and other.replace(".", "_") == normalized:
                return f"topic {name} collides with topic {other}: a dot counts as an underscore"
    return None


def topic_creation_error(name: str, topics: Iterable[str]) -> str | None:
    """Return why a topic of this name can't be created, or None.

    Args:
        topics: the existing names.
    """
    if name in INTERNAL_TOPICS:
        return f"topic {name} is the cluster's own, which creates it when it is needed"
    return invalid_topic_name_reason(name, topics)


class LogEnd(NamedTuple):
    """The end of a replica's log, and the leader epoch of its last record, -1 without one."""

    offset: int = 0
    epoch: int = -1


@dataclass
class PartitionState:
    """The controller's state of a partition: broker ids, in the order of the assignment.

    ``start_offset`` and ``committed_offset`` are the leader's log start and high watermark when
    they were last recorded: a log that ends before the latter has lost acknowledged records.
    ``is_clean``: whether the leader was in sync at its election.

    During a reassignment ``replicas`` has the new replicas, followed by those in ``removing``;
    ``adding`` are those of the new ones that weren't replicas before. The reassignment completes
    once all new ones are in sync.
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
        """The replicas after the reassignment."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    @property
    def original(self) -> tuple[int, ...]:
        """The replicas before the reassignment."""
        return tuple(broker for broker in self.replicas if broker not in self.adding)

    @property
    def is_moving(self) -> bool:
        """Whether a reassignment is under way."""
        return bool(self.adding or self.removing)

    def reassign_to(self, target: tuple[int, ...]) -> list[int]:
        """Begin a reassignment; return the replicas that a former one was still adding."""
        dropped = [broker for broker in self.adding if broker not in target]
        before = self.original
        self.removing = tuple(broker for broker in before if broker not in target)
        self.adding = tuple(broker for broker in target if broker not in before)
        self.replicas = target + self.removing
        self.isr = tuple(broker for broker in self.isr if broker not in dropped)
        return dropped

    def complete_move(self) -> tuple[int, ...]:
        """Complete the reassignment if all targets are in sync; return the removed replicas."""
        if not set(self.target) <= set(self.isr):
            return ()
        removed = self.removing
        self.replicas, self.adding, self.removing = self.target, (), ()
        self.isr = tuple(broker for broker in self.replicas if broker in self.isr)
        return removed

    def preferred_election_error(self, live: Container[int]) -> ErrorCode:
        """Return why the preferred leader can't be elected, or NONE."""
        preferred = self.replicas[0]
        if preferred == self.leader:
            return ErrorCode.ELECTION_NOT_NEEDED
        if preferred not in live or preferred not in self.isr:
            return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        return ErrorCode.NONE

    def unclean_election_error(self, live: Container[int]) -> ErrorCode:
        """Return why an unclean election is impossible, or NONE."""
        if self.leader != NO_LEADER:
            return ErrorCode.ELECTION_NOT_NEEDED
        if not any(broker in live for broker in self.replicas):
            return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        return ErrorCode.NONE


@dataclass
class Topic:
    """A topic: its partitions by number, and its settings by their Kafka names.

    ``topic_id`` is unique, also among topics that are created with the same name later.
    ``internal``: whether it is one of `INTERNAL_TOPICS`.
    """

    name: str
    partitions: list[PartitionState]
    configs: dict[str, str] = field(default_factory=dict)
    topic_id: UUID = _NO_ID
    internal: bool = field(init=False)

    def __post_init__(self) -> None:
        self.internal = self.name in INTERNAL_TOPICS
