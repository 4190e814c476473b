"""An in-memory relay of one process that loses, duplicates, delays and reorders messages by a seed.

Connections are cut; connecting, subscribing and publishing fail; then all work again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from random import Random

from purgatory.shared.relay import Relay


@dataclass
class Chances:
    """The rate of each misbehaviour, from 0 to 1."""

    loss: float = 0.0
    double: float = 0.0
    refusal: float = 0.0
    """Of a connection, a subscription, or a call of `publish`."""
    latency_s: float = 0.01
    """The longest time that a message, or a call, takes."""


class Hub:
    """Carries messages between relays, as well as `chances` let it."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.chances = Chances()
        self.is_down = False
        self.connected: list[MisbehavingRelay] = []

    def happens(self, chance: float) -> bool:
        return self.random.random() < chance

    def latency_s(self) -> float:
        return self.random.uniform(0, self.chances.latency_s)

    async def call(self, what: str) -> None:
        """Take the time of a call, which fails if the hub is down or refuses it."""
        await asyncio.sleep(self.latency_s())
        if self.is_down or self.happens(self.chances.refusal):
            raise ConnectionError(f"the hub refuses to {what}")

    def send(self, numbers: Mapping[str, int | None]) -> None:
        loop = asyncio.get_running_loop()
        for relay in self.connected:
            for key, number in numbers.items():
                for _ in range(1 + self.happens(self.chances.double)):
                    if not self.happens(self.chances.loss):
                        loop.call_later(self.latency_s(), relay.deliver, key, number)

    def cut_all(self) -> None:
        """End all connections."""
        for relay in self.connected:
            relay.cut()


class MisbehavingRelay(Relay):
    """A process's relay."""

    def __init__(self, hub: Hub, name: str) -> None:
        super().__init__()
        self.hub = hub
        self.name = name
        self.subscribed: set[str] = set()
        self.times_closed = 0
        self._cut: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"MisbehavingRelay({self.name})"

    async def listen(self) -> None:
        await self.hub.call("connect")
        self._cut = asyncio.get_running_loop().create_future()
        self.hub.connected.append(self)
        try:
            keys = self.keys()
            await self.hub.call("subscribe")
            self.subscribed.update(keys)
            await asyncio.sleep(self.hub.latency_s())  # until it hears that it did
            self.connected()
            await self._cut
        finally:
            self.hub.connected.remove(self)
            self.subscribed.clear()

    def cut(self) -> None:
        """End the connection."""
        if self._cut is not None and not self._cut.done():
            self._cut.set_exception(ConnectionError("cut"))
            self._cut.exception()  # it may be cut before anybody waits for that

    def deliver(self, key: str, number: int | None) -> None:
        if self in self.hub.connected and key in self.subscribed:
            self.receive(key, number)

    async def subscribe(self, added: Collection[str], removed: Collection[str]) -> None:
        await self.hub.call("subscribe")
        self.subscribed.update(added)
        self.subscribed.difference_update(removed)
        await asyncio.sleep(self.hub.latency_s())

    async def publish(self, numbers: Mapping[str, int | None]) -> None:
        await self.hub.call("publish")
        self.hub.send(numbers)

    async def close(self) -> None:
        self.times_closed += 1

    def watched(self) -> set[str]:
        """The keys that purgatories watch, as they are sent."""
        return set(self._watched)
