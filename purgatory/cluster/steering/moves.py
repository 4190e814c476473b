"""Moves of roles without a death: of leaders, coordinators, and the controller.

    cluster.move.leader("orders", 0, to=2)
    cluster.move.coordinator(group_id="billing", to=3)

A move is an election: it takes a replica that is in sync. The regular election of preferred leaders
(``auto_leader_rebalance``) moves leaders back after some minutes, as in Kafka.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from purgatory.cluster.metadata import Peer
from purgatory.cluster.steering import PARTITIONS
from purgatory.cluster.steering.waits import Missing, Wait, WatchedCluster
from purgatory.kafka import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition, group_partition
from purgatory.kafka.controller import Controller
from purgatory.kafka.errors import ClusterError


class MovingCluster(Protocol):
    """The cluster whose roles are moved."""

    controller: Controller

    @property
    def brokers(self) -> Mapping[int, Peer]:
        """All brokers by id."""

    def live_broker(self, broker_id: int) -> Peer | None:
        """Return a live broker, or None."""

    def offsets_partitions(self) -> int:
        """Return the number of partitions of ``__consumer_offsets``."""

    def transactions_partitions(self) -> int:
        """Return the number of partitions of ``__transaction_state``."""


class MoveMethods(ABC):
    """Each method moves a role to a live broker. One that has it already keeps it.

    Each raises `ClusterError`, without an effect, if the broker can't take it.
    """

    @abstractmethod
    def _call(self, move: Callable[[Moves], None]) -> None:
        """Move something."""

    def leader(self, topic: str, partition: int, *, to: int) -> None:
        """Elect a replica that is in sync as a partition's leader."""
        self._call(lambda moves: moves.move_leader(TopicPartition(topic, partition), to))

    def coordinator(
        self, *, to: int, group_id: str | None = None, transactional_id: str | None = None
    ) -> None:
        """Move the coordinator of a group, or of a transactional id, with those beside it."""
        self._call(lambda moves: moves.move_coordinator(to, group_id, transactional_id))

    def controller(self, *, to: int) -> None:
        """Have clients told that this broker is the controller, while it lives."""
        self._call(lambda moves: moves.move_controller(to))


class Moves(MoveMethods):
    """The moves of one cluster."""

    def __init__(self, cluster: MovingCluster) -> None:
        self._cluster = cluster

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._cluster.brokers)} brokers>"

    def _call(self, move: Callable[[Moves], None]) -> None:
        move(self)

    def move_leader(self, key: TopicPartition, broker_id: int) -> None:
        """As `leader`."""
        state = self._cluster.controller.state_of(key) if type(key.partition) is int else None
        if state is None:
            names = ", ".join(self._cluster.controller.topics) or "none"
            raise ClusterError(f"there is no partition {key}; topics are {names}")
        self._check_live(broker_id)
        if broker_id not in state.isr:
            raise ClusterError(
                f"broker {broker_id} can't lead {key}: in sync are {sorted(state.isr)}, "
                f"of the replicas {list(state.replicas)}"
            )
        self._cluster.controller.move_leader(key, broker_id)

    def move_coordinator(
        self, broker_id: int, group_id: str | None, transactional_id: str | None
    ) -> None:
        """As `coordinator`."""
        if isinstance(group_id, str) and transactional_id is None:
            number = group_partition(group_id, self._cluster.offsets_partitions())
            self.move_leader(TopicPartition(OFFSETS_TOPIC, number), broker_id)
        elif isinstance(transactional_id, str) and group_id is None:
            number = group_partition(transactional_id, self._cluster.transactions_partitions())
            self.move_leader(TopicPartition(TRANSACTIONS_TOPIC, number), broker_id)
        else:
            raise ClusterError("group_id or transactional_id: one of them, as a name")

    def move_controller(self, broker_id: int) -> None:
        """As `controller`."""
        self._check_live(broker_id)
        self._cluster.controller.active_controller = broker_id

    def _check_live(self, broker_id: int) -> None:
        if type(broker_id) is not int or self._cluster.live_broker(broker_id) is None:
            live = [broker.broker_id for broker in self._cluster.brokers.values() if broker.alive]
            known = ", ".join(map(str, live)) or "none"
            raise ClusterError(f"to={broker_id!r}: a live broker, of {known}")


def parse_move(arguments: Mapping[str, Any]) -> Callable[[MoveMethods], None]:
    """Return a move from a mapping: its kind, "leader", "coordinator" or "controller", and
    the arguments of that method.

    Raises:
        ClusterError: there is no such kind, or these are not its arguments.
    """
    given = dict(arguments)
    kind = given.pop("kind", None)
    kinds = {
        "leader": ("topic", "partition", "to"),
        "coordinator": ("group_id", "transactional_id", "to"),
        "controller": ("to",),
    }
    if not isinstance(kind, str) or kind not in kinds:
        raise ClusterError(f"there is no move {kind!r}; there are {', '.join(kinds)}")
    takes = kinds[kind]
    if not set(given) <= set(takes) or "to" not in given:
        raise ClusterError(f"{kind}: it takes {', '.join(takes)}")

    def move(moves: MoveMethods) -> None:
        try:
            getattr(moves, kind)(**given)
        except TypeError:
            raise ClusterError(f"{kind}: it takes {', '.join(takes)}") from None

    return move


@dataclass(frozen=True)
class BrokerIsEmpty(Wait):
    """Wait until a broker has no replica any more."""

    kind, keys = "broker_is_empty", (PARTITIONS,)
    broker: int

    def watch(self, cluster: WatchedCluster) -> Missing:
        def missing() -> str | None:
            kept = [str(key) for key, state in _replicas(cluster.controller, self.broker)]
            return f"it has {', '.join(kept)}" if kept else None

        return missing


def _replicas(controller: Controller, broker_id: int) -> Sequence[tuple[TopicPartition, Any]]:
    return [(key, state) for key, state in controller.partitions() if broker_id in state.replicas]


def empty_broker(controller: Controller, broker_id: int) -> None:
    """Begin to move a broker's replicas to the live others, and place no new ones there.

    Raises:
        ClusterError: it is the last one that lives, or there is no such broker.
    """
    others = [other for other in sorted(controller.live) if other != broker_id]
    if broker_id not in controller.broker_ids:
        known = ", ".join(map(str, controller.broker_ids))
        raise ClusterError(f"there is no broker {broker_id!r}; there are {known}")
    if not others:
        raise ClusterError(f"broker {broker_id} is the last one that lives")
    controller.broker_ids = tuple(one for one in controller.broker_ids if one != broker_id)
    for number, (key, state) in enumerate(_replicas(controller, broker_id)):
        free = [other for other in others if other not in state.replicas]
        instead = [free[number % len(free)]] if free else []
        kept = [replica for replica in state.replicas if replica != broker_id]
        controller.reassign(key, [*kept, *instead])
