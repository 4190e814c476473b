"""Servers that speak enough of a protocol for a client in a world: Redis's, NATS's, PostgreSQL's.

Each is the main of a host, on asyncio's streams: `await RedisServer().serve()`.
"""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict, deque
from contextlib import suppress

_Reply = None | int | bytes | str | list["_Reply"] | dict[bytes, "_Reply"]


class RedisError(Exception):
    """A command that Redis refuses with ``-ERR``."""


class RedisServer:
    """Redis: strings, lists with ``BLPOP``, and ``SUBSCRIBE``, in RESP2 and RESP3."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self._lists: defaultdict[bytes, deque[bytes]] = defaultdict(deque)
        self._pushed = asyncio.Condition()
        self._subscribers: defaultdict[bytes, list[_RedisConnection]] = defaultdict(list)

    async def serve(self, port: int = 6379) -> None:
        server = await asyncio.start_server(self._handle, port=port)
        await server.serve_forever()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _RedisConnection(reader, writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                name, *arguments = await connection.read_command()
                try:
                    await self._execute(connection, name.upper(), arguments)
                except RedisError as error:
                    writer.write(b"-ERR %s\r\n" % str(error).encode())
                await writer.drain()
        for subscribers in self._subscribers.values():
            if connection in subscribers:
                subscribers.remove(connection)
        writer.close()

    async def _execute(
        self, connection: _RedisConnection, name: bytes, arguments: list[bytes]
    ) -> None:
        match name, arguments:
            case b"HELLO", [version, *_]:
                connection.version = int(version)
                connection.send({b"server": b"redis", b"version": b"7.4.0", b"proto": int(version)})
            case b"CLIENT", [subcommand, *_] if subcommand.upper() == b"SETINFO":
                connection.send("OK")
            case b"PING", _:
                connection.send("PONG")
            case b"SET", [key, value, *_]:
                self.values[key] = value
                connection.send("OK")
            case b"GET", [key]:
                connection.send(self.values.get(key))
            case b"RPUSH", [key, *values]:
                self._lists[key].extend(values)
                async with self._pushed:
                    self._pushed.notify_all()
                connection.send(len(self._lists[key]))
            case b"BLPOP", [key, timeout]:
                connection.send(await self._pop(key, float(timeout)))
            case b"SUBSCRIBE", channels:
                for channel in channels:
                    self._subscribers[channel].append(connection)
                    connection.push([b"subscribe", channel, 1])
            case b"PUBLISH", [channel, message]:
                subscribers = self._subscribers[channel]
                for subscriber in subscribers:
                    subscriber.push([b"message", channel, message])
                connection.send(len(subscribers))
            case _:
                raise RedisError(f"unknown command {name.decode()!r}")

    async def _pop(self, key: bytes, timeout_s: float) -> _Reply:
        values = self._lists[key]
        try:
            async with asyncio.timeout(timeout_s or None), self._pushed:
                await self._pushed.wait_for(lambda: values)
        except TimeoutError:
            return None
        return [key, values.popleft()]


class _RedisConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.version = 2

    async def read_command(self) -> list[bytes]:
        count = int((await self._reader.readuntil(b"\r\n"))[1:])
        return [await self._read_bulk_string() for _ in range(count)]

    async def _read_bulk_string(self) -> bytes:
        size = int((await self._reader.readuntil(b"\r\n"))[1:])
        return (await self._reader.readexactly(size + 2))[:-2]

    def send(self, reply: _Reply) -> None:
        self._writer.write(self._encode(reply))

    def push(self, reply: list[_Reply]) -> None:
        """Send messages that answer no command."""
        encoded = self._encode(reply)
        self._writer.write(b">" + encoded[1:] if self.version >= 3 else encoded)

    def _encode(self, reply: _Reply) -> bytes:
        match reply:
            case None:
                return b"_\r\n" if self.version >= 3 else b"*-1\r\n"
            case int():
                return b":%d\r\n" % reply
            case str():
                return b"+%s\r\n" % reply.encode()
            case bytes():
                return b"$%d\r\n%s\r\n" % (len(reply), reply)
            case list():
                return b"*%d\r\n" % len(reply) + b"".join(map(self._encode, reply))
        if self.version < 3:
            return self._encode([part for pair in reply.items() for part in pair])
        parts = [self._encode(part) for pair in reply.items() for part in pair]
        return b"%%%d\r\n" % len(reply) + b"".join(parts)


_NATS_INFO = (
    b'INFO {"server_id":"stand-in","version":"2.10.0","proto":1,"headers":true,'
    b'"max_payload":1048576}\r\n'
)


class NatsServer:
    """NATS: subjects without wildcards but a last ``*``, and queue groups of one member."""

    def __init__(self) -> None:
        self._subscriptions: dict[tuple[asyncio.StreamWriter, bytes], bytes] = {}

    async def serve(self, port: int = 4222) -> None:
        server = await asyncio.start_server(self._handle, port=port)
        await server.serve_forever()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_NATS_INFO)
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                line = (await reader.readuntil(b"\r\n")).split()
                match line:
                    case [b"PING"]:
                        writer.write(b"PONG\r\n")
                    case [b"SUB", subject, *_, number]:
                        self._subscriptions[writer, number] = subject
                    case [b"UNSUB", number, *_]:
                        self._subscriptions.pop((writer, number), None)
                    case [b"PUB", subject, *reply_to, size]:
                        payload = await reader.readexactly(int(size) + 2)
                        self._publish(subject, b" ".join(reply_to), payload)
                await writer.drain()
        for key in [key for key in self._subscriptions if key[0] is writer]:
            del self._subscriptions[key]
        writer.close()

    def _publish(self, subject: bytes, reply_to: bytes, payload: bytes) -> None:
        for (writer, number), pattern in self._subscriptions.items():
            if pattern == subject or (pattern[-1:] == b"*" and subject.startswith(pattern[:-1])):
                words = [subject, number, *([reply_to] if reply_to else [])]
                head = b"MSG %s %d\r\n" % (b" ".join(words), len(payload) - 2)
                writer.write(head + payload)


_POSTGRES_SSL = 80877103
_POSTGRES_CANCEL = 80877102
_INT4 = 23
_READY = b"Z", b"I"


class PostgresServer:
    """PostgreSQL, whose only query is ``SELECT pg_sleep(4)``, which returns the 4."""

    def __init__(self) -> None:
        self._key = 0
        self._sleeping: dict[int, asyncio.Task[None]] = {}

    async def serve(self, port: int = 5432) -> None:
        server = await asyncio.start_server(self._handle, port=port)
        await server.serve_forever()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            if await self._begin(reader, writer):
                self._key += 1
                await self._serve_session(reader, writer, self._key)
        writer.close()

    async def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether a session begins."""
        while True:
            size, code = struct.unpack("!II", await reader.readexactly(8))
            rest = await reader.readexactly(size - 8)
            if code == _POSTGRES_SSL:
                writer.write(b"N")
            elif code == _POSTGRES_CANCEL:
                (key,) = struct.unpack("!I", rest[:4])
                if key in self._sleeping:
                    self._sleeping[key].cancel()
                return False
            else:
                return True

    async def _serve_session(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: int
    ) -> None:
        def send(*messages: tuple[bytes, bytes]) -> None:
            for kind, body in messages:
                writer.write(kind + struct.pack("!I", len(body) + 4) + body)

        statements: dict[bytes, bytes] = {}
        statement, is_failed = b"", False
        send(
            (b"R", struct.pack("!I", 0)),
            (b"S", b"server_version\x0017.0\x00"),
            (b"S", b"client_encoding\x00UTF8\x00"),
            (b"K", struct.pack("!II", key, 0)),
            _READY,
        )
        while True:
            kind, size = struct.unpack("!cI", await reader.readexactly(5))
            body = await reader.readexactly(size - 4)
            if kind == b"X":
                return
            if kind == b"S":
                is_failed = False
                send(_READY)
            elif is_failed:
                continue
            elif kind == b"Q":
                send((b"C", b"RESET\x00"), _READY)
            elif kind == b"P":
                name, query, _ = body.split(b"\0", 2)
                statements[name] = query
                send((b"1", b""))
            elif kind == b"D":
                column = b"pg_sleep\0" + struct.pack("!IHIhih", 0, 0, _INT4, 4, -1, 1)
                send((b"t", struct.pack("!H", 0)), (b"T", struct.pack("!H", 1) + column))
            elif kind == b"B":
                statement = statements[body.split(b"\0", 2)[1]]
                send((b"2", b""))
            elif kind == b"E":
                seconds = int(statement.partition(b"(")[2].rstrip(b")"))
                self._sleeping[key] = asyncio.create_task(asyncio.sleep(seconds))
                await asyncio.wait([self._sleeping[key]])
                if self._sleeping.pop(key).cancelled():
                    is_failed = True
                    send((b"E", b"SERROR\0C57014\0Mcanceling statement\0\0"))
                else:
                    row = struct.pack("!HIi", 1, 4, seconds)
                    send((b"D", row), (b"C", b"SELECT 1\0"))
            elif kind == b"C":
                send((b"3", b""))
