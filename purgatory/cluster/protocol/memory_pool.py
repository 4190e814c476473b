"""The limits of a broker for its clients, and the memory that it holds for all of them."""

from __future__ import annotations

from typing import Protocol

from purgatory.core.recent_errors import Logger
from purgatory.settings.typed_duration import OrTimedelta, default, timed_dataclass

_log = Logger("purgatory.cluster")


class Client(Protocol):
    """The connection of a client that may not read its responses."""

    @property
    def peer(self) -> str: ...

    def abort(self) -> None: ...


@timed_dataclass
class Limits:
    """The limits of a broker for its clients.

    Args:
        frame_bytes: the longest request.
        queued_bytes: a client's waiting requests, beyond which nothing is read from it.
        held_bytes: the requests of all clients of a broker together, with the responses that
            clients don't read.
        connections: the clients of a broker at the same time.
        frame_s: the time until a request is complete: clients wait no more than a minute for its
            response.
        idle_s: the time without a received byte, or without a read byte of a response, after which
            a connection is closed; Kafka's ``connections.max.idle.ms``. A wait for a response is
            not idle.
    """

    frame_bytes: int = 100 * 1024 * 1024
    queued_bytes: int = 1024 * 1024
    connections: int = 10_000
    held_bytes: int = 1024 * 1024 * 1024
    frame_s: OrTimedelta[float] = default(60.0)
    idle_s: OrTimedelta[float] = default(600.0)


class MemoryPool:
    """The memory that a broker holds for all its clients.

    Counted are requests that are incomplete, wait or are being served, and unread responses.
    """

    __slots__ = ("total", "unsent")

    def __init__(self) -> None:
        self.total = 0
        self.unsent: dict[Client, int] = {}
        """The responses in it, by the connections that don't read them; oldest first."""

    def add_unsent(self, connection: Client, size: int) -> None:
        """Register a response that a client does not read."""
        self.unsent[connection] = size
        self.total += size

    def drop_unsent(self, connection: Client) -> None:
        """Unregister a response. Has no effect if it is not registered."""
        self.total -= self.unsent.pop(connection, 0)

    def make_room(self, most_bytes: int) -> None:
        """Close connections that do not read responses, oldest first, until the limit is kept."""
        while self.total > most_bytes and self.unsent:
            connection = next(iter(self.unsent))
            _log.warning(
                "unread_response_dropped",
                peer=connection.peer,
                unread_bytes=self.unsent[connection],
                held_bytes=self.total,
            )
            self.drop_unsent(connection)
            connection.abort()
