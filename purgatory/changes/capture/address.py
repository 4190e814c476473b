"""Where the source database is: ``mysql://user:password@host:port[/database]``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from purgatory.changes.capture.errors import CaptureError
from purgatory.settings.addresses import host_and_port

DEFAULT_PORT = 3306
_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class SourceAddress:
    """A MariaDB or MySQL server, and who connects to it.

    Args:
        database: the one whose tables are captured; None for all but the system's own.
    """

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str | None = None

    def connection_settings(self) -> dict[str, Any]:
        """Return what PyMySQL's ``connect`` is given."""
        return {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password,
            "charset": "utf8mb4",
            "connect_timeout": _TIMEOUT_S,
        }

    def __str__(self) -> str:
        return host_and_port(self.host, self.port)


def parse_source_address(text: str) -> SourceAddress:
    """Read an address; ``%`` escapes stand for characters that an address can't have.

    Raises:
        CaptureError: it isn't one.
    """
    wanted = "write mysql://USER:PASSWORD@HOST:PORT[/DATABASE]"
    try:
        parts = urlsplit(text)
        port = parts.port or DEFAULT_PORT
    except ValueError:
        raise CaptureError(f"--from: it can't be read as an address: {wanted}") from None
    if parts.scheme not in ("mysql", "mariadb") or not parts.hostname or not parts.username:
        raise CaptureError(f"--from: it is no database's address: {wanted}")
    database = unquote(parts.path.strip("/"))
    if "/" in database or parts.query or parts.fragment:
        raise CaptureError(f"--from: there is something behind the database: {wanted}")
    return SourceAddress(
        host=parts.hostname,
        port=port,
        user=unquote(parts.username),
        password=unquote(parts.password or ""),
        database=database or None,
    )
