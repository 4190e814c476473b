"""A relay by PostgreSQL's LISTEN and NOTIFY, over one connection of psycopg for a process.

A payload is a key and a number, as text: never data, which has no room there. All processes listen
to one channel, for LISTEN and UNLISTEN of each key would cost a transaction each.

NOTIFY is part of the transaction that calls it: `notify_in` tells of a number if, and when, that
commits. Such commits take one lock of the whole server.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from purgatory.core.keys import checked_number
from purgatory.shared.arguments import check_key, checked_heartbeat_s, checked_text
from purgatory.shared.relay import Relay, RelayError, sent_key

if TYPE_CHECKING:
    import psycopg
    from psycopg.pq.abc import PGconn

_REFUSALS = (
    "authentication failed",
    "does not exist",
    "no such database",  # pgbouncer
    "no password supplied",
    "no pg_hba.conf entry",
)
_LONGEST_CHANNEL = 63
"""Bytes: LISTEN cuts a longer name, and pg_notify refuses it."""
_NOTIFY = b"SELECT pg_notify($1, $2)"
_NOTIFY_ALL = b"SELECT pg_notify($1, payload) FROM json_array_elements_text($2::json) AS payload"


class PostgresRelay(Relay):
    """LISTEN and NOTIFY of one database.

    Args:
        dsn: what psycopg connects to; not a pooler's address.
        channel: processes with the same one, on the same database, hear each other: 63 bytes of
            UTF-8 at most.
        heartbeat: seconds without a word from the server after which it is asked, and as many for
            its response: a dead connection is noticed within twice that.
        session_pooling: whether the DSN is that of a pooler that keeps a session's server for it.

    Raises:
        RelayError: psycopg is missing.
        TypeError, ValueError: an argument can't work.

    `attach` raises RelayError if the DSN is that of another pooler, the password is wrong, or the
    database does not exist; it does not if nothing answers there: that may start later.
    """

    def __init__(
        self,
        dsn: str,
        channel: str = "purgatory",
        heartbeat: float | timedelta = 5.0,
        *,
        session_pooling: bool = False,
    ) -> None:
        super().__init__()
        self._dsn = _checked_dsn(dsn)
        self.channel = _checked_channel(channel)
        self._heartbeat_s = checked_heartbeat_s(heartbeat)
        self._session_pooling = session_pooling
        self._session: _Session | None = None

    def __repr__(self) -> str:
        address = urlsplit(self._dsn)
        at = f"{address.hostname or ''}:{address.port or 5432}{address.path}"
        place = f"{at!r}, " if address.hostname else ""  # of other forms, which hide a password
        return f"PostgresRelay({place}channel={self.channel!r})"

    async def listen(self) -> None:
        connection, process = await self._connect()
        session = _Session(connection.pgconn, process, self._received_text)
        try:
            connection.add_notify_handler(lambda message: self._received_text(message.payload))
            import psycopg
            from psycopg import sql

            listen = sql.SQL("LISTEN {}").format(sql.Identifier(self.channel))
            try:
                await self._execute(connection, listen)
            except psycopg.DataError as error:  # a character that the database does not have
                raise RelayError(
                    f"this database can't have the channel {self.channel!r}: {str(error).strip()}"
                ) from error
            self._session = session
            session.start()
            self.connected()
            await session.run(self._heartbeat_s)
        finally:
            self._session = None
            session.stop()
            connection.pgconn.finish()  # at once: close() would wait for a server that is gone

    async def _connect(self) -> tuple[psycopg.AsyncConnection[Any], int]:
        """Connect; return the server's process beside the connection, which a pooler hides."""
        import psycopg

        try:
            async with asyncio.timeout(2 * self._heartbeat_s):
                connection = await psycopg.AsyncConnection.connect(
                    self._dsn,
                    autocommit=True,
                    application_name=f"purgatory {os.getpid()}",
                    client_encoding="UTF8",  # as payloads and channels are sent here
                )
        except psycopg.OperationalError as error:
            text = str(error)
            if any(refusal in text for refusal in _REFUSALS):
                reason = text.strip().splitlines()[-1].rpartition("FATAL: ")[2].strip()
                raise RelayError(
                    f"PostgreSQL refuses the relay: {reason}; give PostgresRelay the DSN of a user "
                    "and a database that are there, with the password"
                ) from error
            raise
        except psycopg.Error as error:
            raise RelayError(f"a PostgresRelay can't use this DSN: {str(error).strip()}") from error
        try:
            cursor = await self._execute(connection, "SELECT pg_backend_pid()")
            [process] = await cursor.fetchone() or [0]
        except BaseException:
            connection.pgconn.finish()
            raise
        if process != connection.info.backend_pid and not self._session_pooling:
            connection.pgconn.finish()
            raise RelayError(
                "this DSN is a pooler's, and LISTEN does not work through one that pools "
                "transactions or statements: give PostgresRelay the server's own address, or "
                "session_pooling=True if a session keeps its server"
            )
        return connection, process

    async def _execute(
        self, connection: psycopg.AsyncConnection[Any], statement: Any, arguments: Any = None
    ) -> psycopg.AsyncCursor[Any]:
        """Execute a statement within a heartbeat; otherwise the connection has ended.

        psycopg would have a cancelled statement cancelled by the server, and wait until it is.
        Hence no statement is cancelled: the end of its socket makes it fail.
        """
        running = asyncio.ensure_future(connection.execute(statement, arguments))
        try:
            await asyncio.wait({running}, timeout=self._heartbeat_s)
        finally:
            in_time = running.done()
            if not in_time:
                with socket.socket(fileno=os.dup(connection.fileno())) as its_socket:
                    its_socket.shutdown(socket.SHUT_RDWR)
                await asyncio.wait({running})
                running.exception()  # as expected
        if not in_time:
            raise TimeoutError(f"no response within {self._heartbeat_s} s")
        return running.result()

    def _received_text(self, payload: str) -> None:
        try:
            key, number = json.loads(payload)
        except (ValueError, TypeError, RecursionError):
            return  # somebody else's, on the same channel
        self.receive(key, number)

    async def subscribe(self, added: Collection[str], removed: Collection[str]) -> None:
        """All processes get all messages."""

    def publish(self, numbers: Mapping[str, int | None]) -> asyncio.Future[None]:
        if self._session is None:
            raise ConnectionError("the relay is not connected")
        payloads = [self._payload(*pair) for pair in numbers.items()]
        if len(payloads) == 1:
            return self._session.execute(_NOTIFY, self.channel, payloads[0])
        return self._session.execute(_NOTIFY_ALL, self.channel, json.dumps(payloads))

    async def notify_in(
        self, transaction: Any, name: str, key: str, number: int | None = None
    ) -> None:
        """Tell all processes of a number if, and when, a transaction commits.

        Args:
            transaction: a connection or cursor of psycopg's (``AsyncConnection``), in its
                transaction. For another client, use `notify_args`.
            name: of the purgatories in which it ends waits: "Fetch".
            key: theirs.
            number: of 64 bits; without it, as ``SharedPurgatory.notify``.

        Raises:
            TypeError, ValueError: as ``SharedPurgatory.advance``, before anything is executed.
        """
        await transaction.execute("SELECT pg_notify(%s, %s)", self.notify_args(name, key, number))

    def notify_args(self, name: str, key: str, number: int | None = None) -> tuple[str, str]:
        """Return the arguments of ``SELECT pg_notify($1, $2)``, for other clients than psycopg."""
        checked_text("name", name)
        check_key(key)
        if number is not None:
            number = checked_number("value", key, number)
        return self.channel, self._payload(sent_key(name, key), number)

    @staticmethod
    def _payload(key: str, number: int | None) -> str:
        return json.dumps([key, number])

    async def close(self) -> None:
        """Nothing outlives `listen`."""


def _checked_dsn(dsn: object) -> str:
    text = checked_text("dsn", dsn)
    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict, make_conninfo
        from psycopg.pq import PGconn
    except ImportError:
        raise RelayError(
            "a PostgresRelay needs psycopg: pip install 'kafka-purgatory[postgres]'"
        ) from None
    try:
        options: dict[str, Any] = conninfo_to_dict(text)
        int(options.get("connect_timeout") or 0)
    except (ProgrammingError, ValueError) as error:
        raise ValueError(f"a PostgresRelay can't use this DSN: {str(error).strip()}") from error
    # libpq checks the values when it connects: here it does to no socket, on no host.
    hosts = str(options.get("host") or options.pop("hostaddr", "")).split(",")
    options |= {"host": ",".join(["/nonexistent"] * len(hosts)), "hostaddr": None}
    connection = PGconn.connect_start(make_conninfo(**options).encode())
    reason = connection.error_message.decode(errors="replace").strip()
    connection.finish()
    if any(part in reason for part in ("invalid", "could not match", "not found")):
        raise ValueError(f"a PostgresRelay can't use this DSN: {reason}")
    return text


def _checked_channel(channel: object) -> str:
    text = checked_text("channel", channel)
    size = len(text.encode())
    if not 1 <= size <= _LONGEST_CHANNEL:
        raise ValueError(
            f"channel must have 1 to {_LONGEST_CHANNEL} bytes, as PostgreSQL's names have, "
            f"not {size}"
        )
    return text


class _Session:
    """A connection that listens, and executes one statement at a time meanwhile, by libpq.

    psycopg's own calls do either: while `notifies()` waits, nothing can be sent.
    """

    def __init__(self, connection: PGconn, process: int, receive: Callable[[str], None]) -> None:
        self._connection = connection
        self._process = process
        self._receive = receive
        self._waiting: deque[tuple[bytes, list[bytes], asyncio.Future[None]]] = deque()
        self._running: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._heard_s = self._loop.time()
        # libpq forgets the number when it closes the socket, and uvloop calls its reader for ever.
        self._socket = connection.socket

    def start(self) -> None:
        """Take messages from now on, and those that have come already."""
        self._loop.add_reader(self._socket, self._read)
        self._read()

    def stop(self) -> None:
        """Take no more; what was not executed has failed."""
        if not self._ended.done():
            self._ended.set_result(None)
        self._forget_socket()
        futures = [self._running, *(future for *_, future in self._waiting)]
        self._waiting.clear()
        for future in futures:
            if future is not None and not future.done():
                future.set_exception(ConnectionError("the connection to PostgreSQL ended"))

    async def run(self, heartbeat_s: float) -> None:
        """Ask the server if it is there whenever it is silent, until the connection ends.

        Raises:
            TimeoutError: it does not respond.
            psycopg.Error: the connection has ended.
        """
        asked_s: float | None = None
        while not self._ended.done():
            since_s = self._heard_s if asked_s is None else asked_s
            wait_s = max(0.0, since_s + heartbeat_s - self._loop.time())
            await asyncio.wait({self._ended}, timeout=wait_s)
            now_s = self._loop.time()
            if asked_s is not None and self._heard_s >= asked_s:
                asked_s = None
            elif asked_s is not None and now_s >= asked_s + heartbeat_s:
                raise TimeoutError(f"no response within {heartbeat_s} s")
            elif asked_s is None and now_s >= self._heard_s + heartbeat_s:
                asked_s = now_s
                self.execute(b"SELECT 1").add_done_callback(_retrieve)
        self._ended.result()

    def execute(self, statement: bytes, *arguments: str) -> asyncio.Future[None]:
        """Execute a statement after those before it."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((statement, [text.encode() for text in arguments], future))
        self._send_next()
        return future

    def _send_next(self) -> None:
        if self._running is not None or not self._waiting or self._ended.done():
            return
        statement, arguments, self._running = self._waiting.popleft()
        try:
            self._connection.send_query_params(statement, arguments)
            self._flush()
        except Exception as error:
            self._end(error)

    def _flush(self) -> None:
        """Write; what the socket has no room for is written once it has."""
        try:
            if self._connection.flush():
                self._loop.add_writer(self._socket, self._flush)
            else:
                self._loop.remove_writer(self._socket)
        except Exception as error:
            self._end(error)

    def _read(self) -> None:
        try:
            self._connection.consume_input()
            while True:
                # libpq finds a message that came behind a response once that was taken.
                while message := self._connection.notifies():
                    self._heard_s = self._loop.time()
                    if message.be_pid != self._process:  # its own, which this process has
                        self._receive(message.extra.decode(errors="replace"))
                if self._running is None or self._connection.is_busy():
                    return
                self._heard_s = self._loop.time()
                self._take_result(self._running)
        except Exception as error:
            self._end(error)

    def _take_result(self, running: asyncio.Future[None]) -> None:
        result = self._connection.get_result()
        if result is not None:
            if result.error_message:
                self._error = ConnectionError(result.error_message.decode(errors="replace").strip())
            return
        error, self._error, self._running = self._error, None, None
        if not running.done():
            if error is None:
                running.set_result(None)
            else:
                running.set_exception(error)
        self._send_next()

    def _forget_socket(self) -> None:
        """Take the socket off the loop, once: its number may soon be another's."""
        if self._socket >= 0:
            with suppress(Exception):  # it may be closed
                self._loop.remove_reader(self._socket)
            with suppress(Exception):
                self._loop.remove_writer(self._socket)
            self._socket = -1

    def _end(self, error: Exception) -> None:
        self._forget_socket()
        if not self._ended.done():
            self._ended.set_exception(error)
            self._ended.exception()  # not to be logged, should nobody wait for it any more


def _retrieve(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
