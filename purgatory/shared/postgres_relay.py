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
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from purgatory.shared.relay import Relay, RelayError

if TYPE_CHECKING:
    import psycopg

_REFUSALS = (
    "authentication failed",
    "does not exist",
    "no such database",  # pgbouncer
    "no password supplied",
    "no pg_hba.conf entry",
)
_NOTIFY = "SELECT pg_notify(%s, payload) FROM unnest(%s::text[]) AS payload"


class PostgresRelay(Relay):
    """LISTEN and NOTIFY of one database.

    Args:
        dsn: what psycopg connects to; not a pooler's address.
        channel: processes with the same one hear each other.
        heartbeat: seconds without a word from the server after which it is asked, and as many for
            its response: a dead connection is noticed within twice that.
        session_pooling: whether the DSN is that of a pooler that keeps a session's server for it.

    `attach` raises RelayError if the DSN is that of another pooler, the password is wrong, or the
    database does not exist; it does not if nothing answers there: that may start later.
    """

    def __init__(
        self,
        dsn: str,
        channel: str = "purgatory",
        heartbeat: float = 5.0,
        *,
        session_pooling: bool = False,
    ) -> None:
        super().__init__()
        if not heartbeat > 0:
            raise ValueError(f"heartbeat must be more than 0 seconds, not {heartbeat}")
        self._dsn = dsn
        self.channel = channel
        self._heartbeat_s = heartbeat
        self._session_pooling = session_pooling
        self._outgoing: list[tuple[list[str], asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._connection: psycopg.AsyncConnection[Any] | None = None

    def __repr__(self) -> str:
        return f"PostgresRelay(channel={self.channel!r})"

    async def listen(self) -> None:
        connection = await self._connect()
        try:
            self._connection = connection
            connection.add_notify_handler(lambda message: self._received_text(message.payload))
            from psycopg import sql

            listen = sql.SQL("LISTEN {}").format(sql.Identifier(self.channel))
            await self._execute(connection, listen)
            self.connected()
            await self._serve(connection)
        finally:
            self._connection = None
            outgoing, self._outgoing = self._outgoing, []
            for _, sent in outgoing:
                if not sent.done():
                    sent.set_exception(ConnectionError("the connection to PostgreSQL ended"))
            connection.pgconn.finish()  # at once: close() would wait for a server that is gone

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        try:
            import psycopg
        except ImportError:
            raise RelayError(
                "a PostgresRelay needs psycopg: pip install 'kafka-purgatory[postgres]'"
            ) from None
        try:
            async with asyncio.timeout(2 * self._heartbeat_s):
                connection = await psycopg.AsyncConnection.connect(
                    self._dsn, autocommit=True, application_name=f"purgatory {os.getpid()}"
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
            found = await cursor.fetchone()
        except BaseException:
            connection.pgconn.finish()
            raise
        if found != (connection.info.backend_pid,) and not self._session_pooling:
            connection.pgconn.finish()
            raise RelayError(
                "this DSN is a pooler's, and LISTEN does not work through one that pools "
                "transactions or statements: give PostgresRelay the server's own address, or "
                "session_pooling=True if a session keeps its server"
            )
        return connection

    async def _execute(
        self, connection: psycopg.AsyncConnection[Any], statement: Any, arguments: Any = None
    ) -> psycopg.AsyncCursor[Any]:
        """Execute a statement within a heartbeat; otherwise the connection has ended.

        psycopg would have a cancelled statement cancelled by the server, and wait until it is. So
        one is never cancelled: the end of its socket makes it fail.
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

    async def _serve(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Send what waits, take what comes, and ask the server if it is there."""
        loop = asyncio.get_running_loop()
        descriptor = connection.fileno()
        heard_s = time.monotonic()
        while True:
            self._wake.clear()
            if self._outgoing:
                await self._send_outgoing(connection)
                heard_s = time.monotonic()
                continue
            # Between two statements psycopg reads nothing, and has no reader of its own.
            loop.add_reader(descriptor, self._wake.set)
            try:
                silent_s = time.monotonic() - heard_s
                async with asyncio.timeout(max(0.0, self._heartbeat_s - silent_s)):
                    await self._wake.wait()
            except TimeoutError:
                loop.remove_reader(descriptor)
                await self._execute(connection, "SELECT 1")
                heard_s = time.monotonic()
                continue
            finally:
                loop.remove_reader(descriptor)
            connection.pgconn.consume_input()
            while message := connection.pgconn.notifies():
                heard_s = time.monotonic()
                self._received_text(message.extra.decode())

    async def _send_outgoing(self, connection: psycopg.AsyncConnection[Any]) -> None:
        outgoing, self._outgoing = self._outgoing, []
        payloads = [payload for some, _ in outgoing for payload in some]
        error: BaseException | None = None
        try:
            await self._execute(connection, _NOTIFY, (self.channel, payloads))
        except BaseException as failure:
            error = failure
            raise
        finally:
            for _, sent in outgoing:
                if not sent.done():
                    if error is None:
                        sent.set_result(None)
                    else:
                        sent.set_exception(ConnectionError(f"PostgreSQL: {error!r}"))

    def _received_text(self, payload: str) -> None:
        try:
            key, number = json.loads(payload)
        except (ValueError, TypeError, RecursionError):
            return  # somebody else's, on the same channel
        self.receive(key, number)

    async def subscribe(self, added: Collection[str], removed: Collection[str]) -> None:
        """All processes get all messages."""

    async def publish(self, numbers: Mapping[str, int | None]) -> None:
        sent = asyncio.get_running_loop().create_future()
        self._outgoing.append(([self._payload(*pair) for pair in numbers.items()], sent))
        self._wake.set()
        await sent

    async def notify_in(self, transaction: Any, key: str, number: int | None = None) -> None:
        """Tell all processes of a number if, and when, a transaction commits.

        Args:
            transaction: a connection or cursor of psycopg's (``AsyncConnection``), in its
                transaction. For another client, use `notify_args`.
        """
        await transaction.execute("SELECT pg_notify(%s, %s)", self.notify_args(key, number))

    def notify_args(self, key: str, number: int | None = None) -> tuple[str, str]:
        """Return the arguments of ``SELECT pg_notify($1, $2)``, for other clients than psycopg."""
        return self.channel, self._payload(self.sent_key(key), number)

    @staticmethod
    def _payload(key: str, number: int | None) -> str:
        return json.dumps([key, number])

    async def close(self) -> None:
        """Nothing outlives `listen`."""
