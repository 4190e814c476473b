"""A relay by the pub/sub of Redis, or Valkey: a channel for each key, and two connections.

A process gets only the messages of keys that it watches. On a cluster the channels are sharded
(Redis 7): a message goes to the node that has its channel's slot, not to all nodes.

Redis drops the connection of a subscriber that reads too slowly; it is made again, and all watched
keys are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

from purgatory.shared.relay import Relay, RelayError, cancel, finish

_MOST_CHANNELS = 500
"""In one command."""


class RedisRelay(Relay):
    """Pub/sub of one Redis, or of a cluster.

    Args:
        url: what redis-py connects to: ``redis://``, ``rediss://`` or ``unix://``.
        prefix: of the channels; processes with the same one hear each other.
        heartbeat: seconds after which the server is asked if it is there, and as many for its
            response: a dead connection is noticed within twice that.
        cluster: whether it is a Redis Cluster.

    `attach` raises RelayError if the password is wrong, the user may not subscribe, it is no
    cluster although it should be one, or redis-py is missing.
    """

    def __init__(
        self, url: str, prefix: str = "purgatory:", heartbeat: float = 5.0, *, cluster: bool = False
    ) -> None:
        super().__init__()
        if not heartbeat > 0:
            raise ValueError(f"heartbeat must be more than 0 seconds, not {heartbeat}")
        self._url = url
        self.prefix = prefix
        self._heartbeat_s = heartbeat
        self._is_cluster = cluster
        self._client: Any = None
        self._links: dict[str, _Link] = {}
        self._ended: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"RedisRelay(prefix={self.prefix!r})"

    async def listen(self) -> None:
        try:
            from redis import exceptions
        except ImportError:
            raise RelayError(
                "a RedisRelay needs redis-py: pip install 'kafka-purgatory[redis]'"
            ) from None
        self._ended = asyncio.get_running_loop().create_future()
        self._client = self._make_client()
        nodes: list[Any] = []
        try:
            async with asyncio.timeout(2 * self._heartbeat_s):
                await self._client.initialize()
                if self._is_cluster:
                    nodes = list(self._client.nodes_manager.startup_nodes.values())
                # It hears of the server's end, although nobody waits.
                await self._subscribe(self._node_of(self.prefix), [self.prefix])
                await self.subscribe(self.keys(), ())
            self.connected()
            await self._ended
        except (exceptions.RedisError, exceptions.RedisClusterException) as error:
            cause = error.__cause__ or error  # a cluster's client wraps what it meets
            if isinstance(cause, (exceptions.AuthenticationError, exceptions.NoPermissionError)):
                raise RelayError(f"Redis refuses the relay: {cause}") from error
            if "Cluster mode is not enabled" in str(error):
                raise RelayError(
                    "there is no Redis Cluster at this URL: use RedisRelay without cluster=True"
                ) from error
            raise
        finally:
            client, self._client = self._client, None
            links, self._links = self._links, {}
            if self._ended.done() and not self._ended.cancelled():
                self._ended.exception()  # that of what came first is raised
            await finish(self._close_all(client, links, nodes))

    async def _close_all(self, client: Any, links: dict[str, _Link], nodes: list[Any]) -> None:
        for link in links.values():
            await link.close()
        # The client of a cluster forgets the node that failed, without closing its connections.
        closing = [client.aclose(), *(node.disconnect() for node in nodes)]
        await asyncio.gather(*closing, return_exceptions=True)

    def _make_client(self) -> Any:
        from redis import asyncio as redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        options: dict[str, Any] = {
            "socket_timeout": self._heartbeat_s,
            "socket_connect_timeout": self._heartbeat_s,
            "retry": Retry(NoBackoff(), 0),  # one that ended is noticed, and all is read again
        }
        if self._is_cluster:
            return redis.RedisCluster.from_url(self._url, **options)
        return redis.Redis.from_url(self._url, **options)

    async def subscribe(self, added: Collection[str], removed: Collection[str]) -> None:
        for keys, change in ((added, self._subscribe), (removed, self._unsubscribe)):
            by_node: dict[str, list[str]] = {}
            for key in keys:
                channel = self.prefix + key
                by_node.setdefault(self._node_of(channel), []).append(channel)
            for node, channels in by_node.items():
                for first in range(0, len(channels), _MOST_CHANNELS):
                    await change(node, channels[first : first + _MOST_CHANNELS])

    def _node_of(self, channel: str) -> str:
        """The address of the primary that has a channel's slot; nothing without a cluster."""
        return str(self._client.get_node_from_key(channel).name) if self._is_cluster else ""

    async def _subscribe(self, node: str, channels: list[str]) -> None:
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = self._make_link(node)
        async with asyncio.timeout(self._heartbeat_s):
            await link.subscribe(channels)

    async def _unsubscribe(self, node: str, channels: list[str]) -> None:
        link = self._links.get(node)
        if link is not None:
            await link.unsubscribe(channels)

    def _make_link(self, node: str) -> _Link:
        if not node:
            pubsub = self._client.pubsub()
        else:
            from redis import asyncio as redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff

            found = self._client.get_node(node_name=node)
            options = {**found.connection_kwargs, "retry": Retry(NoBackoff(), 0)}
            pubsub = redis.Redis(
                connection_pool=redis.ConnectionPool(
                    connection_class=found.connection_class, **options
                )
            ).pubsub()
        ended = self._ended
        assert ended is not None, "there is a session"
        return _Link(pubsub, bool(node), self._heartbeat_s, self._received_message, ended)

    def _received_message(self, channel: str, data: bytes) -> None:
        if not channel.startswith(self.prefix):
            return
        try:
            number = int(data) if data else None
        except ValueError:
            return  # somebody else's, on the same channel
        self.receive(channel[len(self.prefix) :], number)

    async def publish(self, numbers: Mapping[str, int | None]) -> None:
        from redis.exceptions import ConnectionError as ConnectionEnded

        try:
            await self._write(numbers)
        except ConnectionEnded:  # that of messages may end alone; what is sent twice does no harm
            await self._write(numbers)

    async def _write(self, numbers: Mapping[str, int | None]) -> None:
        if self._is_cluster:
            for key, number in numbers.items():
                await self._client.spublish(self.prefix + key, "" if number is None else number)
            return
        pipeline = self._client.pipeline(transaction=False)
        for key, number in numbers.items():
            pipeline.publish(self.prefix + key, "" if number is None else number)
        await pipeline.execute()

    async def close(self) -> None:
        """Nothing outlives `listen`."""


class _Link:
    """The subscriptions at one node. What ends it ends the session."""

    def __init__(
        self,
        pubsub: Any,
        is_sharded: bool,
        heartbeat_s: float,
        receive: Callable[[str, bytes], None],
        ended: asyncio.Future[None],
    ) -> None:
        self._pubsub = pubsub
        self._is_sharded = is_sharded
        self._heartbeat_s = heartbeat_s
        self._receive = receive
        self._ended = ended
        self._confirmed: dict[str, asyncio.Future[None]] = {}
        self._reader: asyncio.Task[None] | None = None

    async def subscribe(self, channels: list[str]) -> None:
        """Subscribe, and return once the node has said so of each channel."""
        loop = asyncio.get_running_loop()
        confirmed = {channel: loop.create_future() for channel in channels}
        self._confirmed |= confirmed
        for some in self._commands(channels):
            await (self._pubsub.ssubscribe if self._is_sharded else self._pubsub.subscribe)(*some)
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        await asyncio.gather(*confirmed.values())

    async def unsubscribe(self, channels: list[str]) -> None:
        unsubscribe = self._pubsub.sunsubscribe if self._is_sharded else self._pubsub.unsubscribe
        for some in self._commands(channels):
            await unsubscribe(*some)

    def _commands(self, channels: list[str]) -> list[list[str]]:
        """Divide channels into those of one command: on a cluster, those of one slot."""
        if not self._is_sharded:
            return [channels]
        from redis.crc import key_slot

        by_slot: dict[int, list[str]] = {}
        for channel in channels:
            by_slot.setdefault(key_slot(channel.encode()), []).append(channel)
        return list(by_slot.values())

    async def _read(self) -> None:
        try:
            await self._read_messages()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            for confirmed in self._confirmed.values():
                if not confirmed.done():
                    confirmed.set_exception(error)
            if not self._ended.done():
                self._ended.set_exception(error)

    async def _read_messages(self) -> None:
        loop = asyncio.get_running_loop()
        heard_s, is_asked = loop.time(), False
        while True:
            wait_s = max(0.001, heard_s + self._heartbeat_s * (1 + is_asked) - loop.time())
            message = await self._pubsub.get_message(timeout=wait_s)
            if message is not None:
                heard_s, is_asked = loop.time(), False
                self._take(message["type"], _text(message["channel"]), message["data"])
            elif loop.time() >= heard_s + self._heartbeat_s * (1 + is_asked):
                if is_asked:
                    raise ConnectionError(f"no response within {self._heartbeat_s} s")
                await self._pubsub.ping()
                is_asked = True

    def _take(self, kind: str, channel: str, data: Any) -> None:
        if kind in ("message", "smessage"):
            self._receive(channel, data if isinstance(data, bytes) else str(data).encode())
        elif kind in ("subscribe", "ssubscribe"):
            confirmed = self._confirmed.pop(channel, None)
            if confirmed is not None and not confirmed.done():
                confirmed.set_result(None)
        elif kind == "sunsubscribe" and channel.encode() in self._pubsub.shard_channels:
            raise ConnectionError(f"the slot of {channel!r} has moved to another node")

    async def close(self) -> None:
        await cancel(self._reader)
        for confirmed in self._confirmed.values():
            confirmed.cancel()
        await asyncio.gather(self._pubsub.aclose(), return_exceptions=True)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
