"""SaslHandshake and SaslAuthenticate: who a client is, by user name and password (PLAIN).

After a handshake of version 0, as librdkafka 2.0 makes it, the credentials come by themselves: a
frame that is no request. They are answered by an empty one, or by the end of the connection.
"""

from __future__ import annotations

import hmac
from functools import partial

from purgatory.cluster.broker import Broker
from purgatory.cluster.errors import BadRequestError
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import API_VERSIONS, Request
from purgatory.core.fault_log import Logger

HANDSHAKE, AUTHENTICATE = 17, 36

BEFORE_AUTHENTICATION = frozenset({API_VERSIONS, HANDSHAKE, AUTHENTICATE})
"""The APIs that are served to clients that didn't say yet who they are."""

_PLAIN = "PLAIN"
_UNSUPPORTED_MECHANISM = 33
_ILLEGAL_STATE = 34
_AUTHENTICATION_FAILED = 58
_WRONG = "the user or the password is wrong"

_log = Logger("purgatory.cluster")


async def handshake(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Agree on PLAIN."""
    known = request.body.mechanism == _PLAIN and broker.cluster.config.users is not None
    connection.mechanism = _PLAIN if known else None
    if known and request.api_version == 0:
        connection.take_token = partial(_take_token, broker, connection)
    return {"error_code": 0 if known else _UNSUPPORTED_MECHANISM, "mechanisms": (_PLAIN,)}


async def authenticate(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Check the user's name and password."""
    if connection.mechanism is None:
        return _refused(_ILLEGAL_STATE, "a handshake comes before it")
    if not _authenticates(broker, connection, bytes(request.body.auth_bytes)):
        return _refused(_AUTHENTICATION_FAILED, _WRONG)
    return {
        "error_code": 0,
        "error_message": None,
        "auth_bytes": b"",
        "session_lifetime": 0,
    }


def _take_token(broker: Broker, connection: Connection, token: bytes) -> bytes:
    if not _authenticates(broker, connection, token):
        raise BadRequestError(_WRONG)
    return b""


def _authenticates(broker: Broker, connection: Connection, token: bytes) -> bool:
    """Whether a token has a user's name and password; the connection is that user's then."""
    users = broker.cluster.config.users or {}
    user, password = _credentials(token)
    # Compared also where there is no such user, so that the time it takes doesn't tell.
    known = users.get(user, "")
    if not hmac.compare_digest(password.encode(), known.encode()) or user not in users:
        _log.warning("authentication_failed", peer=connection.peer, user=user)
        return False
    connection.user = user
    return True


def _credentials(token: bytes) -> tuple[str, str]:
    """Return user and password of ``[whom to act for] NUL user NUL password``."""
    try:
        _, user, password = token.decode().split("\0")
    except ValueError:  # UnicodeDecodeError is one
        return "", ""
    return user, password


def _refused(code: int, message: str) -> Answer:
    return {
        "error_code": code,
        "error_message": message,
        "auth_bytes": b"",
        "session_lifetime": 0,
    }
