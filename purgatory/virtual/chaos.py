"""Random faults in a world: a plan that the seed draws before the world begins.

The kinds that are drawn by default leave a healthy application its promises: what was acknowledged
by all in-sync replicas, two of them at least, is there, in its order. The others break what the
promises rest on, and are drawn where they are named. The plan is drawn at once, so that a run
without some of its faults has the others as they were: that is how a failure is shrunk.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from purgatory.cluster import Fault
from purgatory.kafka import faults
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults.active_faults import fault_text
from purgatory.settings.problems import known_names
from purgatory.virtual.clocks import US_PER_S
from purgatory.virtual.cluster import WorldCluster
from purgatory.virtual.errors import WorldError
from purgatory.virtual.network import VirtualNetwork

_CLIENT: Final = "client"
_MOST_ROOM_BYTES: Final = 20_000
"""How much there is room for at most on a disk that is about to fill up."""

_MOST_LOSS: Final = 0.05
_ERRORS: Final = ("NOT_LEADER_OR_FOLLOWER", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "REQUEST_TIMED_OUT")
"""What producers are answered, and send again after."""

_DAY_MS: Final = 86_400_000


class Drawn(NamedTuple):
    """A fault before it has a number."""

    text: str
    begin: Callable[[], object]


Draw = Callable[[int, float], Drawn]
"""Draws a fault of one kind, of a broker, that lasts so many seconds."""


class ChaosKinds:
    """The kinds of faults in a cluster, and in the network to it.

    Args:
        chance: decides what a kind leaves open.
        cluster: in which things go wrong.
        network: between it and its clients.
    """

    def __init__(
        self, chance: random.Random, cluster: WorldCluster, network: VirtualNetwork
    ) -> None:
        self._chance = chance
        self._cluster = cluster
        self._network = network

    @property
    def usual(self) -> Mapping[str, Draw]:
        """What is drawn where no kinds are named: of disks where there are."""
        kinds = {**self._of_brokers(), **self._of_answers(), **self._of_network()}
        if self._cluster.has_virtual_disk:
            kinds |= {"cut_power": self._cut_power, "fill_disk": self._fill_disk}
        return kinds

    @property
    def named(self) -> Mapping[str, Draw]:
        """What is drawn only where it is named."""
        return {
            # Records stamped by it may be taken for old, and deleted.
            "jump_clock": self._of(
                lambda broker, s: faults.JumpClock(broker, self._any(-_DAY_MS, _DAY_MS), for_s=s)
            ),
            # Clients may cut off what they have read, or read it again.
            "lower_leader_epochs": self._of(
                lambda broker, s: faults.LowerLeaderEpochs(broker, for_s=s)
            ),
        }

    def _any(self, least: int, most: int) -> int:
        return self._chance.randint(least, most)

    def _of_brokers(self) -> dict[str, Draw]:
        kinds = {
            "kill": self._of(lambda broker, s: faults.Kill(broker, for_s=s)),
            "pause": self._of(lambda broker, s: faults.Pause(broker, for_s=s)),
            "stall_follower": self._of(lambda broker, s: faults.StallFollower(broker, for_s=s)),
            "slow_follower": self._of(
                lambda broker, s: faults.SlowFollower(broker, self._any(1, 3_000), for_s=s)
            ),
            "cut_link": self._of(self._cut_link),
            "freeze_metadata": self._of(lambda broker, s: faults.FreezeMetadata(broker, for_s=s)),
            "load_coordinator": self._of(lambda broker, s: faults.LoadCoordinator(broker, for_s=s)),
        }
        if self._cluster.config.topics:
            kinds["shrink_isr"] = self._of(self._shrink_isr)
        return kinds

    def _of_answers(self) -> dict[str, Draw]:
        return {
            "lose_responses": self._of(lambda broker, s: faults.LoseResponses(broker, 1, for_s=s)),
            "truncate_responses": self._of(
                lambda broker, s: faults.TruncateResponses(broker, 1, for_s=s)
            ),
            "delay_responses": self._of(
                lambda broker, s: faults.DelayResponses(broker, by_ms=self._any(1, 2_000), for_s=s)
            ),
            "slow_responses": self._of(
                lambda broker, s: faults.SlowResponses(
                    broker, bytes_per_s=self._any(1_000, 100_000), for_s=s
                )
            ),
            "duplicate_responses": self._of(
                lambda broker, s: faults.DuplicateResponses(broker, self._any(1, 3), for_s=s)
            ),
            "refuse_produces": self._of(
                lambda broker, s: faults.RefuseProduces(broker, self._any(1, 5), for_s=s)
            ),
            "return_error": self._of(self._return_error),
            "throttle": self._of(
                lambda broker, s: faults.Throttle(broker, throttle_ms=self._any(1, 2_000), for_s=s)
            ),
        }

    def _of_network(self) -> dict[str, Draw]:
        return {
            "cut_connections": self._of(lambda broker, s: faults.CutConnections(broker)),
            "partition": self._partition,
            "reset": self._reset,
            "forget": self._forget,
            "loss": self._loss,
        }

    def _of(self, fault_of: Callable[[int, float], Fault]) -> Draw:
        """A draw of a fault of the cluster's. What it can't have just then, it does not get."""

        def draw(broker: int, for_s: float) -> Drawn:
            fault = fault_of(broker, for_s)
            return Drawn(fault_text(fault), lambda: self._begin(fault))

        return draw

    async def _begin(self, fault: Fault) -> None:
        if isinstance(fault, faults.ShrinkIsr):
            with suppress(ClusterError):  # the broker leads that partition, or holds none of it
                await self._cluster.fault.begin(fault)
            return
        broker = getattr(fault, "broker", None)
        if isinstance(fault, faults.Kill) and self._cluster.live_broker(fault.broker) is None:
            return  # it is dead already
        if broker is None or self._cluster.live_broker(broker) is not None:
            await self._cluster.fault.begin(fault)

    def _cut_link(self, broker: int, for_s: float) -> Fault:
        others = [one for one in self._cluster.brokers if one != broker]
        if not others:
            return faults.Pause(broker, for_s=for_s)
        return faults.CutLink(broker, self._chance.choice(others), for_s=for_s)

    def _shrink_isr(self, broker: int, for_s: float) -> Fault:
        topic = self._chance.choice(self._cluster.config.topics)
        partition = self._any(0, topic.partitions - 1)
        return faults.ShrinkIsr(topic.name, partition, broker, for_s=for_s)

    def _return_error(self, broker: int, for_s: float) -> Fault:
        return faults.ReturnError(
            broker,
            self._any(1, 3),
            api="Produce",
            error=self._chance.choice(_ERRORS),
            after=self._chance.random() < 0.5,
            for_s=for_s,
        )

    def _loss(self, broker: int, for_s: float) -> Drawn:
        """A time in which segments are lost, on whatever connection: of no broker by itself."""
        probability = self._chance.uniform(0.001, _MOST_LOSS)

        def begin() -> None:
            self._later(for_s, self._network.lose(probability).end)

        return Drawn(f"{probability:.1%} of segments are lost for {for_s:.3f} s", begin)

    def _later(self, after_s: float, call: Callable[[], object]) -> None:
        until_us = self._network.clock.now_us + round(after_s * US_PER_S)
        self._network.loop.call_at_us(until_us, call)

    def _partition(self, broker: int, for_s: float) -> Drawn:
        def begin() -> None:
            self._later(for_s, self._network.partition(_CLIENT, f"broker {broker}").end)

        return Drawn(f"partition of the client from broker {broker} for {for_s:.3f} s", begin)

    def _cut_power(self, broker: int, for_s: float) -> Drawn:
        def begin() -> object:
            return self._cluster.cut_power(broker, for_s=for_s)

        return Drawn(f"power cut of broker {broker} for {for_s:.3f} s", begin)

    def _fill_disk(self, broker: int, for_s: float) -> Drawn:
        after_bytes = self._chance.randint(0, _MOST_ROOM_BYTES)

        def begin() -> None:
            volume = self._cluster.disk(broker)
            volume.fill(after_bytes)
            self._later(for_s, volume.make_room)

        text = f"disk of broker {broker} full after {after_bytes} bytes, for {for_s:.3f} s"
        return Drawn(text, begin)

    def _reset(self, broker: int, for_s: float) -> Drawn:
        name = f"broker {broker}"
        return Drawn(f"reset of connections to {name}", lambda: self._network.reset(name))

    def _forget(self, broker: int, for_s: float) -> Drawn:
        name = f"broker {broker}"
        return Drawn(f"{name} forgets its connections", lambda: self._network.forget(name))


class ChaosPlan:
    """Draws faults for a cluster and the network to it.

    Args:
        chance: decides all.
        cluster: in which things go wrong.
        network: between it and its clients.
        longest_s: how long a fault lasts at most.
    """

    def __init__(
        self,
        chance: random.Random,
        cluster: WorldCluster,
        network: VirtualNetwork,
        longest_s: float,
    ) -> None:
        self._chance = chance
        self._brokers = list(cluster.brokers)
        self._longest_s = longest_s
        self._kinds = ChaosKinds(chance, cluster, network)

    def draw(self, count: int, kinds: Iterable[str] | None) -> Sequence[Drawn]:
        """Return so many faults.

        Raises:
            WorldError: one of the kinds is none, or there are none.
        """
        usual, named = self._kinds.usual, self._kinds.named
        chosen = list(usual) if kinds is None else list(kinds)
        known = {**usual, **named}
        if unknown := [one for one in chosen if one not in known]:
            raise WorldError(f"kinds: there is no {unknown[0]!r}; {known_names(unknown[0], known)}")
        if not chosen:
            raise WorldError("kinds: at least one is needed")
        return [
            known[self._chance.choice(chosen)](
                self._chance.choice(self._brokers),
                self._chance.uniform(0.05, 1.0) * self._longest_s,
            )
            for _ in range(count)
        ]
