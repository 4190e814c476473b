"""A relay by NATS: what a broker of your own takes. Needs `pip install nats-py`.

relay = NatsRelay("nats://localhost:4222")
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from purgatory.shared import Relay


class NatsRelay(Relay):
    def __init__(self, url: str, subject: str = "purgatory") -> None:
        super().__init__()
        self.url, self.subject = url, subject
        self._client: Client | None = None

    async def listen(self) -> None:
        ended = asyncio.Event()

        async def end() -> None:
            ended.set()

        async def receive(message: Msg) -> None:
            for key, number in json.loads(message.data):
                self.receive(key, number)

        # Without reconnects of its own: after one, all watched keys have to be read.
        self._client = await nats.connect(self.url, allow_reconnect=False, closed_cb=end)
        try:
            await self._client.subscribe(self.subject, cb=receive)
            await self._client.flush()
            self.connected()
            await ended.wait()
        finally:
            await self._client.close()

    async def subscribe(self, added: Collection[str], removed: Collection[str]) -> None:
        """All processes get all messages."""

    async def publish(self, numbers: Mapping[str, int | None]) -> None:
        assert self._client is not None
        await self._client.publish(self.subject, json.dumps(list(numbers.items())).encode())

    async def close(self) -> None:
        """Nothing outlives `listen`."""
