"""A relay by the pub/sub of Redis, or Valkey: a channel for each key, and two connections.

A process gets only the messages of keys that it watches. On a cluster the channels are sharded
(Redis 7): a message goes to the node that has its channel's slot, not to all nodes.

Redis drops the connection of a subscriber that reads too slowly; it is made again, and all watched
keys are read.
"""

from __future__ import annotations

import asyncio
import math
import types
from collections import Counter
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
)
from contextlib import suppress
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from purgatory.shared.arguments import checked_heartbeat_s, checked_text
from purgatory.shared.relay import Relay, RelayError, cancel, finish

_MOST_CHANNELS = 500
"""In one command."""


class RedisRelay(Relay):
    """Pub/sub of one Redis, or of a cluster.

    Args:
        url: what redis-py connects to: ``redis://``, ``rediss://`` or ``unix://``.
        prefix: of the channels; processes with the same one, on the same database, hear each other.
        heartbeat: seconds after which the server is asked if it is there, and as many for its
            response: a dead connection is noticed within twice that.
        cluster: whether it is a Redis Cluster.

    Raises:
        RelayError: redis-py is missing.
        TypeError, ValueError: an argument can't work.

    `attach` raises RelayError if the password is wrong, the user may not subscribe, the server has
    no such database, or it is no cluster although it should be one.
    """

    def __init__(
        self,
        url: str,
        prefix: str = "purgatory:",
        heartbeat: float | timedelta = 5.0,
        *,
        cluster: bool = False,
    ) -> None:
        super().__init__()
        self._heartbeat_s = self._call_s = checked_heartbeat_s(heartbeat)
        self._is_cluster = cluster
        self._place = self._checked_place(checked_text("url", url))
        self.prefix = checked_text("prefix", prefix)
        # Redis' channels are the server's: those of another database have another name. No prefix
        # and database have that of others, for the first "@" is ours.
        quoted = self.prefix.replace("%", "%25").replace("@", "%40")
        self.channels = f"{quoted}@{self._place.get('db', 0)}:"
        """The prefix of all channels of this relay."""
        self._links: dict[str, _Link] = {}
        self._slots: dict[int, Any] = {}
        self._ended: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"RedisRelay({_address(self._place)!r}, prefix={self.prefix!r})"

    async def listen(self) -> None:
        from redis import exceptions

        self._ended = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(2 * self._heartbeat_s):
                if self._is_cluster:
                    self._slots = await self._find_slots()
                # This link notices the server's end, although no wait uses it.
                await self._subscribe(self._node_of(self.channels), [self.channels])
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
            if isinstance(cause, exceptions.ResponseError) and _is_for_good(str(cause)):
                raise RelayError(f"Redis refuses the relay: {cause}") from error
            raise
        finally:
            links, self._links = self._links, {}
            if self._ended.done() and not self._ended.cancelled():
                self._ended.exception()  # the first error is raised
            await finish(_close_all(links.values()))

    async def _find_slots(self) -> dict[int, Any]:
        """Return the primary of each slot, from one node. If that changes, the session ends."""
        from redis.asyncio import RedisCluster

        cluster = RedisCluster(**self._options())
        try:
            await cluster.initialize()
            return {slot: nodes[0] for slot, nodes in cluster.nodes_manager.slots_cache.items()}
        finally:
            await finish(_close_cluster(cluster))

    def _checked_place(self, url: str) -> dict[str, Any]:
        """Return what a URL says, as arguments of redis-py's connections."""
        try:
            from redis.asyncio import connection
        except ImportError:
            raise RelayError(
                "a RedisRelay needs redis-py: pip install 'kafka-purgatory[redis]'"
            ) from None
        try:
            place: dict[str, Any] = dict(connection.parse_url(url))
            path = urlsplit(url).path.strip("/")
            if urlsplit(url).scheme != "unix" and path and not path.isdecimal():
                raise ValueError(f"its database must be a number, not {path!r}")
            if place.get("db", 0) < 0:
                raise ValueError(f"its database must be a number from 0, not {place['db']}")
            if urlsplit(url).scheme == "unix" and not path:
                raise ValueError("it has no path of a socket")
            if self._is_cluster and (place.get("db") or "path" in place):
                raise ValueError("a cluster has one database, 0, and an address of TCP")
            self._pool(place).make_connection()  # as later, which does not connect yet
        except Exception as error:  # of an option that nobody knows, too
            raise ValueError(f"a RedisRelay can't use this URL: {error}") from error
        return place

    def _pool(self, place: Mapping[str, Any]) -> Any:
        from redis.asyncio import ConnectionPool

        return ConnectionPool(**{**place, **self._always()})

    def _options(self) -> dict[str, Any]:
        """Return the arguments of a cluster's client."""
        from redis.asyncio.connection import SSLConnection

        place = dict(self._place)
        is_secure = place.pop("connection_class", None) is SSLConnection
        address = {"host": "localhost", "port": 6379}  # as without a cluster
        return {**address, **place, "ssl": is_secure, **self._always()}

    def _always(self) -> dict[str, Any]:
        """Return what holds whatever the URL says."""
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        return {
            "protocol": 2,  # read sooner, and all that pub/sub needs
            "encoding": "utf-8",  # as those of other processes
            "decode_responses": False,
            "max_connections": 2**31,  # each link has two
            "health_check_interval": 0,  # the heartbeat is one
            "socket_timeout": None,  # each call here has a timeout of its own
            "socket_connect_timeout": self._heartbeat_s,
            "retry": Retry(NoBackoff(), 0),  # one that ended is noticed, and all is read again
        }

    async def subscribe(self, added: Collection[str], removed: Collection[str]) -> None:
        for keys, change in ((added, self._subscribe), (removed, self._unsubscribe)):
            by_node: dict[str, list[str]] = {}
            for key in keys:
                channel = self.channels + key
                by_node.setdefault(self._node_of(channel), []).append(channel)
            for node, channels in by_node.items():
                for first in range(0, len(channels), _MOST_CHANNELS):
                    await change(node, channels[first : first + _MOST_CHANNELS])

    def _node_of(self, channel: str) -> str:
        """The address of the primary that has a channel's slot; nothing without a cluster."""
        if not self._is_cluster:
            return ""
        from redis.crc import key_slot

        node = self._slots.get(key_slot(channel.encode()))
        if node is None:
            raise ConnectionError(f"no node of the cluster has the slot of {channel!r}")
        return str(node.name)

    async def _subscribe(self, node: str, channels: list[str]) -> None:
        async with asyncio.timeout(self._heartbeat_s):
            await self._link(node).subscribe(channels)

    async def _unsubscribe(self, node: str, channels: list[str]) -> None:
        await self._link(node).unsubscribe(channels)

    def _link(self, node: str) -> _Link:
        link = self._links.get(node)
        if link is None:
            if self._ended is None or self._ended.done():
                raise ConnectionError("the relay is not connected")
            link = self._links[node] = _Link(
                self._make_client(node),
                self._is_cluster,
                self._heartbeat_s,
                self._received_message,
                self._ended,
            )
        return link

    def _make_client(self, name: str) -> Any:
        from redis import asyncio as redis

        if not self._is_cluster:
            return redis.Redis.from_pool(self._pool(self._place))
        node = next(node for node in self._slots.values() if node.name == name)
        options = {**node.connection_kwargs, **self._always()}
        pool = redis.ConnectionPool(connection_class=node.connection_class, **options)
        return redis.Redis.from_pool(pool)

    def _received_message(self, channel: str, data: bytes) -> None:
        if not channel.startswith(self.channels):
            return
        try:
            number = int(data) if data else None
        except ValueError:
            return  # somebody else's, on the same channel
        self.receive(channel[len(self.channels) :], number)

    def publish(self, numbers: Mapping[str, int | None]) -> asyncio.Future[Any]:
        by_node: dict[str, dict[str, int | None]] = {}
        for key, number in numbers.items():
            channel = self.channels + key
            by_node.setdefault(self._node_of(channel), {})[channel] = number
        return asyncio.gather(*(self._link(node).publish(some) for node, some in by_node.items()))

    async def close(self) -> None:
        """Nothing outlives `listen`."""


def _is_for_good(text: str) -> bool:
    """Whether a server will refuse the same again: for its URL, or since it is too old."""
    return any(part in text.lower() for part in ("db index", "client names", "unknown command"))


async def _close_cluster(cluster: Any) -> None:
    # The client forgets a node that failed without closing its connections.
    first = list(cluster.nodes_manager.startup_nodes.values())
    closing = [cluster.aclose(), *(node.disconnect() for node in first)]
    await asyncio.gather(*closing, return_exceptions=True)


async def _close_all(links: Iterable[_Link]) -> None:
    for link in links:
        await link.close()


def _address(place: Mapping[str, Any]) -> str:
    """The address of a server, without a password."""
    if "path" in place:
        return f"unix://{place['path']}"
    host, port = place.get("host", "localhost"), place.get("port", 6379)
    return f"redis://{host}:{port}/{place.get('db', 0)}"


class _Link:
    """A node's two connections: of subscriptions, and of what is sent.

    redis-py's connections are used without its clients, which do for each command what a session
    does once: take a connection from the pool, try again, measure, set timeouts.

    The session ends with the first connection, and when a slot has moved to another node.
    """

    def __init__(
        self,
        client: Any,
        is_sharded: bool,
        heartbeat_s: float,
        receive: Callable[[str, bytes], None],
        ended: asyncio.Future[None],
    ) -> None:
        self._client = client
        self._is_sharded = is_sharded
        self._heartbeat_s = heartbeat_s
        self._receive = receive
        self._ended = ended
        self._listening: Any = None
        self._sending: Any = None
        self._unsubscribing: Counter[str] = Counter()
        """Channels whose end this process asked for, and the node has yet to confirm."""
        self._confirmed: dict[str, asyncio.Future[None]] = {}
        self._heard_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    async def subscribe(self, channels: list[str]) -> None:
        """Subscribe, and return once the node has said so of each channel."""
        loop = asyncio.get_running_loop()
        if self._listening is None:
            self._listening = await self._client.connection_pool.get_connection()
            self._heard_s = loop.time()
            self._tasks = [
                asyncio.create_task(self._until_it_ends(call()))
                for call in (self._read_messages, self._ask_if_silent)
            ]
        confirmed = {channel: loop.create_future() for channel in channels}
        self._confirmed |= confirmed
        await self._send_subscriptions("SUBSCRIBE", channels)
        await asyncio.gather(*confirmed.values())

    async def unsubscribe(self, channels: list[str]) -> None:
        self._unsubscribing.update(channels)
        await self._send_subscriptions("UNSUBSCRIBE", channels)

    async def _send_subscriptions(self, command: str, channels: list[str]) -> None:
        if not self._is_sharded:
            await self._listening.send_command(command, *channels, check_health=False)
            return
        from redis.crc import key_slot

        by_slot: dict[int, list[str]] = {}  # a command has channels of one slot
        for channel in channels:
            by_slot.setdefault(key_slot(channel.encode()), []).append(channel)
        for some in by_slot.values():
            await self._listening.send_command(f"S{command}", *some, check_health=False)

    def publish(self, numbers: Mapping[str, int | None]) -> asyncio.Task[None]:
        """Write at once, if connected, and return a task that waits for the responses."""
        begun = None
        if self._sending is not None and self._sending.is_connected:
            begun = _begin(self._write(numbers))
        return asyncio.create_task(self._finish(numbers, begun))

    async def _finish(
        self, numbers: Mapping[str, int | None], begun: Awaitable[None] | None
    ) -> None:
        from redis import exceptions

        try:
            await (begun or self._write(numbers))
            await self._read_responses(len(numbers))
        except exceptions.ConnectionError:  # it may end alone; what is sent twice does no harm
            await self._write(numbers)
            await self._read_responses(len(numbers))
        except exceptions.MovedError as error:
            self._end(error)
            raise

    async def _write(self, numbers: Mapping[str, int | None]) -> None:
        if self._sending is None:
            self._sending = await self._client.connection_pool.get_connection()
        command = "SPUBLISH" if self._is_sharded else "PUBLISH"
        commands = [
            (command, channel, "" if number is None else number)
            for channel, number in numbers.items()
        ]
        await self._sending.send_packed_command(
            self._sending.pack_commands(commands), check_health=False
        )

    async def _read_responses(self, count: int) -> None:
        from redis import exceptions

        failure: Exception | None = None
        for _ in range(count):
            try:
                await self._sending.read_response(timeout=math.inf)
            except exceptions.ResponseError as error:
                failure = error  # the other responses are read before it is raised
        if failure is not None:
            raise failure

    async def _until_it_ends(self, reading: Coroutine[Any, Any, None]) -> None:
        try:
            await reading
        except asyncio.CancelledError:
            raise
        except Exception as error:
            for confirmed in self._confirmed.values():
                if not confirmed.done():
                    confirmed.set_exception(error)
            self._end(error)

    def _end(self, error: Exception) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)

    async def _read_messages(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            message = await self._listening.read_response(
                timeout=math.inf, push_request=True, disconnect_on_error=False
            )
            self._heard_s = loop.time()
            if isinstance(message, list) and len(message) == 3:  # a response to PING has less
                kind, channel, data = message
                self._take(_text(kind), _text(channel), data)

    async def _ask_if_silent(self) -> None:
        """Ask the node if it is there whenever it is silent.

        Raises:
            ConnectionError: it does not respond.
        """
        loop = asyncio.get_running_loop()
        while True:
            silent_s = loop.time() - self._heard_s
            if silent_s < self._heartbeat_s:
                await asyncio.sleep(self._heartbeat_s - silent_s)
                continue
            asked_s = loop.time()
            # If this finds no room, a subscription waits for some already, and fails in time.
            await self._listening.send_command("PING", check_health=False)
            await asyncio.sleep(self._heartbeat_s)
            if self._heard_s < asked_s:
                raise ConnectionError(f"no response within {self._heartbeat_s} s")

    def _take(self, kind: str, channel: str, data: Any) -> None:
        if kind in ("message", "smessage"):
            self._receive(channel, data if isinstance(data, bytes) else str(data).encode())
        elif kind in ("subscribe", "ssubscribe"):
            confirmed = self._confirmed.pop(channel, None)
            if confirmed is not None and not confirmed.done():
                confirmed.set_result(None)
        elif kind in ("unsubscribe", "sunsubscribe"):
            self._unsubscribing[channel] -= 1
            if self._unsubscribing[channel] < 0:
                raise ConnectionError(f"the slot of {channel!r} has moved to another node")
            if not self._unsubscribing[channel]:
                del self._unsubscribing[channel]

    async def close(self) -> None:
        for task in self._tasks:
            await cancel(task)
        for confirmed in self._confirmed.values():
            confirmed.cancel()
        await asyncio.gather(self._client.aclose(), return_exceptions=True)  # and its connections


def _begin(coroutine: Coroutine[Any, Any, None]) -> Awaitable[None]:
    """Run a coroutine until it first waits, and return the rest of it.

    redis-py's calls are coroutines, and a task would begin them only when the loop turns.
    """
    try:
        return _rest(coroutine, coroutine.send(None))
    except StopIteration:
        return _rest(None)
    except Exception as error:
        return _rest(None, error=error)


@types.coroutine
def _rest(
    coroutine: Coroutine[Any, Any, None] | None,
    awaited: object = None,
    error: Exception | None = None,
) -> Generator[object, None, None]:
    if error is not None:
        raise error
    with suppress(StopIteration):
        while coroutine is not None:
            try:
                yield awaited
            except BaseException as raised:
                awaited = coroutine.throw(raised)
            else:
                awaited = coroutine.send(None)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
