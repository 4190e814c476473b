"""What goes wrong in a world at random: a plan that the seed draws before it begins.

The plan is drawn at once, so that a run with some of its faults left out has the others as they
were: that is how a failure is made smaller.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from purgatory.cluster import Fault
from purgatory.kafka import faults
from purgatory.kafka.fault_text import fault_text
from purgatory.virtual.errors import WorldError
from purgatory.virtual.virtual_network import VirtualNetwork
from purgatory.virtual.world_clock import US_PER_S
from purgatory.virtual.world_cluster import WorldCluster

_CLIENT: Final = "client"
_MOST_ROOM_BYTES: Final = 20_000
"""How much there is room for at most on a disk that is about to fill up."""


class Drawn(NamedTuple):
    """A fault before it has a number."""

    text: str
    begin: Callable[[], object]


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
        self._cluster = cluster
        self._network = network
        self._longest_s = longest_s
        self._draws: dict[str, Callable[[int, float], Drawn]] = {
            "kill": self._of(lambda broker, s: faults.Kill(broker, for_s=s)),
            "pause": self._of(lambda broker, s: faults.Pause(broker, for_s=s)),
            "stall_follower": self._of(lambda broker, s: faults.StallFollower(broker, for_s=s)),
            "cut_link": self._of(self._cut_link),
            "lose_answers": self._of(lambda broker, s: faults.LoseAnswers(broker, 1, for_s=s)),
            "tear_answers": self._of(lambda broker, s: faults.TearAnswers(broker, 1, for_s=s)),
            "cut_connections": self._of(lambda broker, s: faults.CutConnections(broker)),
            "refuse_produces": self._of(
                lambda broker, s: faults.RefuseProduces(broker, self._chance.randint(1, 5), for_s=s)
            ),
            "partition": self._partition,
            "reset": self._reset,
            "forget": self._forget,
        }
        if cluster.has_virtual_disk:
            self._draws |= {"cut_power": self._cut_power, "fill_disk": self._fill_disk}

    def draw(self, count: int, kinds: Iterable[str] | None) -> Sequence[Drawn]:
        """Return so many faults.

        Raises:
            WorldError: one of the kinds is none, or there are none.
        """
        chosen = list(self._draws) if kinds is None else list(kinds)
        if unknown := [one for one in chosen if one not in self._draws]:
            raise WorldError(
                f"kinds: there is no {unknown[0]!r}; there are {', '.join(self._draws)}"
            )
        if not chosen:
            raise WorldError("kinds: at least one is needed")
        brokers = list(self._cluster.brokers)
        return [
            self._draws[self._chance.choice(chosen)](
                self._chance.choice(brokers), self._chance.uniform(0.05, 1.0) * self._longest_s
            )
            for _ in range(count)
        ]

    def _of(self, fault_of: Callable[[int, float], Fault]) -> Callable[[int, float], Drawn]:
        """A draw of a fault of the cluster's. What it can't have just then, it does not get."""

        def draw(broker: int, for_s: float) -> Drawn:
            fault = fault_of(broker, for_s)
            return Drawn(fault_text(fault), lambda: self._begin(fault))

        return draw

    async def _begin(self, fault: Fault) -> None:
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

    def _partition(self, broker: int, for_s: float) -> Drawn:
        def begin() -> None:
            partition = self._network.partition(_CLIENT, f"broker {broker}")
            self._network.loop.call_at_us(
                self._network.clock.now_us + round(for_s * US_PER_S), partition.end
            )

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
            until_us = self._network.clock.now_us + round(for_s * US_PER_S)
            self._network.loop.call_at_us(until_us, volume.make_room)

        text = f"disk of broker {broker} full after {after_bytes} bytes, for {for_s:.3f} s"
        return Drawn(text, begin)

    def _reset(self, broker: int, for_s: float) -> Drawn:
        name = f"broker {broker}"
        return Drawn(f"reset of connections to {name}", lambda: self._network.reset(name))

    def _forget(self, broker: int, for_s: float) -> Drawn:
        name = f"broker {broker}"
        return Drawn(f"{name} forgets its connections", lambda: self._network.forget(name))
