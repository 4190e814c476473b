"""Random faults of a cluster in a world, and of the network to it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from purgatory.cluster import Fault
from purgatory.kafka import faults
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults.active_faults import fault_text
from purgatory.virtual.chaos import DrawnFault, Kind, call_after
from purgatory.virtual.cluster import WorldCluster
from purgatory.virtual.network import VirtualNetwork

_CLIENT: Final = "client"
_MAX_FREE_BYTES: Final = 20_000
"""The maximal free space of a disk that is about to fill up."""

_MAX_LOSS: Final = 0.05
_ERRORS: Final = ("NOT_LEADER_OR_FOLLOWER", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "REQUEST_TIMED_OUT")
"""Errors after which producers retry."""

_DAY_MS: Final = 86_400_000


Draw = Callable[[int, float], DrawnFault]
"""Draws a fault of one kind, for a broker and a duration in seconds."""


class ClusterKinds:
    """The kinds of faults in a cluster, and in the network to it.

    Args:
        rng: draws the details of a fault.
        cluster: the target.
        network: the network between it and its clients.
    """

    def __init__(self, rng: random.Random, cluster: WorldCluster, network: VirtualNetwork) -> None:
        self._rng = rng
        self._cluster = cluster
        self._network = network

    def kinds(self) -> Iterator[Kind]:
        """Yield all kinds, each for one broker."""
        brokers = list(self._cluster.brokers)
        for name, draw in self.default_kinds.items():
            yield Kind(name, draw, brokers)
        for name, draw in self.opt_in_kinds.items():
            yield Kind(name, draw, brokers, is_default=False)

    @property
    def default_kinds(self) -> Mapping[str, Draw]:
        """The kinds that are drawn by default; those of disks if there are virtual disks."""
        kinds = {**self._broker_faults(), **self._response_faults(), **self._network_faults()}
        if self._cluster.has_virtual_disk:
            kinds |= {"cut_power": self._cut_power, "fill_disk": self._fill_disk}
        return kinds

    @property
    def opt_in_kinds(self) -> Mapping[str, Draw]:
        """The kinds that are drawn only by name."""
        return {
            # Records with its timestamps may count as old, and be deleted.
            "jump_clock": self._cluster_fault(
                lambda broker, s: faults.JumpClock(
                    broker, self._randint(-_DAY_MS, _DAY_MS), for_s=s
                )
            ),
            "lose_requests": self._cluster_fault(
                lambda broker, s: faults.LoseRequests(broker, self._randint(1, 3), for_s=s)
            ),
            # Clients may truncate, or read records again.
            "lower_leader_epochs": self._cluster_fault(
                lambda broker, s: faults.LowerLeaderEpochs(broker, for_s=s)
            ),
        }

    def _randint(self, least: int, most: int) -> int:
        return self._rng.randint(least, most)

    def _broker_faults(self) -> dict[str, Draw]:
        kinds = {
            "kill": self._cluster_fault(lambda broker, s: faults.Kill(broker, for_s=s)),
            "pause": self._cluster_fault(lambda broker, s: faults.Pause(broker, for_s=s)),
            "stall_follower": self._cluster_fault(
                lambda broker, s: faults.StallFollower(broker, for_s=s)
            ),
            "slow_follower": self._cluster_fault(
                lambda broker, s: faults.SlowFollower(broker, self._randint(1, 3_000), for_s=s)
            ),
            "cut_link": self._cluster_fault(self._cut_link),
            "freeze_metadata": self._cluster_fault(
                lambda broker, s: faults.FreezeMetadata(broker, for_s=s)
            ),
            "load_coordinator": self._cluster_fault(
                lambda broker, s: faults.LoadCoordinator(broker, for_s=s)
            ),
        }
        if self._cluster.config.topics:
            kinds["shrink_isr"] = self._cluster_fault(self._shrink_isr)
        return kinds

    def _response_faults(self) -> dict[str, Draw]:
        return {
            "lose_responses": self._cluster_fault(
                lambda broker, s: faults.LoseResponses(broker, 1, for_s=s)
            ),
            "truncate_responses": self._cluster_fault(
                lambda broker, s: faults.TruncateResponses(broker, 1, for_s=s)
            ),
            "delay_responses": self._cluster_fault(
                lambda broker, s: faults.DelayResponses(
                    broker, by_ms=self._randint(1, 2_000), for_s=s
                )
            ),
            "slow_responses": self._cluster_fault(
                lambda broker, s: faults.SlowResponses(
                    broker, bytes_per_s=self._randint(1_000, 100_000), for_s=s
                )
            ),
            "duplicate_responses": self._cluster_fault(
                lambda broker, s: faults.DuplicateResponses(broker, self._randint(1, 3), for_s=s)
            ),
            "refuse_produces": self._cluster_fault(
                lambda broker, s: faults.RefuseProduces(broker, self._randint(1, 5), for_s=s)
            ),
            "return_error": self._cluster_fault(self._return_error),
            "throttle": self._cluster_fault(
                lambda broker, s: faults.Throttle(
                    broker, throttle_ms=self._randint(1, 2_000), for_s=s
                )
            ),
        }

    def _network_faults(self) -> dict[str, Draw]:
        return {
            "cut_connections": self._cluster_fault(lambda broker, s: faults.CutConnections(broker)),
            "partition": self._partition,
            "reset": self._reset,
            "forget": self._forget,
            "loss": self._loss,
        }

    def _cluster_fault(self, fault_of: Callable[[int, float], Fault]) -> Draw:
        """Draw a fault of the cluster, which is skipped if it doesn't apply at its time."""

        def draw(broker: int, for_s: float) -> DrawnFault:
            fault = fault_of(broker, for_s)
            return DrawnFault(fault_text(fault), lambda: self._begin(fault))

        return draw

    async def _begin(self, fault: Fault) -> None:
        if isinstance(fault, faults.ShrinkIsr):
            with suppress(ClusterError):  # the broker leads that partition, or holds none of it
                await self._cluster.fault.begin(fault)
            return
        broker = getattr(fault, "broker", None)
        if isinstance(fault, faults.Kill) and self._cluster.live_broker(fault.broker) is None:
            return  # the broker is dead already
        if broker is None or self._cluster.live_broker(broker) is not None:
            await self._cluster.fault.begin(fault)

    def _cut_link(self, broker: int, for_s: float) -> Fault:
        other_brokers = [other for other in self._cluster.brokers if other != broker]
        if not other_brokers:
            return faults.Pause(broker, for_s=for_s)
        return faults.CutLink(broker, self._rng.choice(other_brokers), for_s=for_s)

    def _shrink_isr(self, broker: int, for_s: float) -> Fault:
        topic = self._rng.choice(self._cluster.config.topics)
        partition = self._randint(0, topic.partitions - 1)
        return faults.ShrinkIsr(topic.name, partition, broker, for_s=for_s)

    def _return_error(self, broker: int, for_s: float) -> Fault:
        return faults.ReturnError(
            broker,
            self._randint(1, 3),
            api="Produce",
            error=self._rng.choice(_ERRORS),
            after=self._rng.random() < 0.5,
            for_s=for_s,
        )

    def _loss(self, broker: int, for_s: float) -> DrawnFault:
        """Losses of segments on all connections, whatever the broker."""
        probability = self._rng.uniform(0.001, _MAX_LOSS)

        def begin() -> None:
            call_after(self._network, for_s, self._network.lose(probability).end)

        return DrawnFault(f"{probability:.1%} of segments are lost for {for_s:.3f} s", begin)

    def _partition(self, broker: int, for_s: float) -> DrawnFault:
        def begin() -> None:
            call_after(
                self._network, for_s, self._network.partition(_CLIENT, f"broker {broker}").end
            )

        return DrawnFault(f"partition of the client from broker {broker} for {for_s:.3f} s", begin)

    def _cut_power(self, broker: int, for_s: float) -> DrawnFault:
        def begin() -> object:
            return self._cluster.cut_power(broker, for_s=for_s)

        return DrawnFault(f"power cut of broker {broker} for {for_s:.3f} s", begin)

    def _fill_disk(self, broker: int, for_s: float) -> DrawnFault:
        free_bytes = self._rng.randint(0, _MAX_FREE_BYTES)

        def begin() -> None:
            volume = self._cluster.disk(broker)
            volume.fill(free_bytes)
            call_after(self._network, for_s, volume.remove_limit)

        text = f"disk of broker {broker} full after {free_bytes} bytes, for {for_s:.3f} s"
        return DrawnFault(text, begin)

    def _reset(self, broker: int, for_s: float) -> DrawnFault:
        name = f"broker {broker}"
        return DrawnFault(f"reset of connections to {name}", lambda: self._network.reset(name))

    def _forget(self, broker: int, for_s: float) -> DrawnFault:
        name = f"broker {broker}"
        return DrawnFault(f"{name} forgets its connections", lambda: self._network.forget(name))
