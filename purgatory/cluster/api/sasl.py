"""SaslHandshake and SaslAuthenticate: who a client is, by user name and password.

After a handshake of version 0, as librdkafka 2.0 makes it, the messages come by themselves: frames
that are no requests. They are answered by such frames, or by the end of the connection.
"""

from __future__ import annotations

from functools import partial

from purgatory.cluster.broker import Broker
from purgatory.cluster.errors import BadRequestError
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import API_VERSIONS, Request
from purgatory.core.recent_errors import Logger
from purgatory.kafka.security.sasl import (
    Credentials,
    Login,
    LoginError,
    PlainLogin,
    ScramLogin,
    ScramMechanism,
)

HANDSHAKE, AUTHENTICATE = 17, 36

BEFORE_AUTHENTICATION = frozenset({API_VERSIONS, HANDSHAKE, AUTHENTICATE})
"""The APIs that are served to clients that didn't say yet who they are."""

_PLAIN = "PLAIN"
_UNSUPPORTED_MECHANISM = 33
_ILLEGAL_STATE = 34
_AUTHENTICATION_FAILED = 58

_SHOWN = 30
"""How many characters of a mechanism's name are logged."""

_log = Logger("purgatory.cluster")


async def handshake(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Agree on a mechanism."""
    known = request.body.mechanism in connection.listener.sasl
    if known:
        connection.login = _login(broker.cluster.security.credentials, request.body.mechanism)
        if request.api_version == 0:
            connection.take_token = partial(_take_token, connection, connection.login)
    return {
        "error_code": 0 if known else _why_not(connection, request.body.mechanism),
        "mechanisms": connection.listener.sasl,
    }


def _why_not(connection: Connection, mechanism: str) -> int:
    listener = connection.listener
    reason = f"it takes {' or '.join(listener.sasl)}"
    if not listener.sasl:
        reason = f"it takes clients with security.protocol={listener.security_protocol}, who say "
        reason += "nothing of who they are"
    _log.warning(
        "sasl_mechanism_refused",
        peer=connection.peer,
        listener=listener.name,
        mechanism=mechanism[:_SHOWN],
        reason=reason,
    )
    return _UNSUPPORTED_MECHANISM if listener.sasl else _ILLEGAL_STATE


def _login(credentials: Credentials, mechanism: str) -> Login:
    if mechanism == _PLAIN:
        return PlainLogin(credentials.is_password)
    hashed = ScramMechanism(mechanism)
    return ScramLogin(hashed, lambda user: credentials.scram(user, hashed))


async def authenticate(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Take the client's next message."""
    login = connection.login
    if login is None or login.is_over:
        return _refused(_ILLEGAL_STATE, "a handshake comes before it")
    try:
        answer = _answer(connection, login, bytes(request.body.auth_bytes))
    except LoginError:
        # What exactly is wrong is in the log: it is nothing that a stranger should know.
        return _refused(_AUTHENTICATION_FAILED, "the user or the password is wrong")
    return {"error_code": 0, "error_message": None, "auth_bytes": answer, "session_lifetime": 0}


def _take_token(connection: Connection, login: Login, token: bytes) -> bytes:
    try:
        answer = _answer(connection, login, token)
    except LoginError as error:
        raise BadRequestError(str(error)) from None
    if not login.is_over:
        connection.take_token = partial(_take_token, connection, login)
    return answer


def _answer(connection: Connection, login: Login, message: bytes) -> bytes:
    """Return what the message is answered; the connection is the user's once that is over.

    Raises:
        LoginError: the client may not come in. It may begin again, with a handshake.
    """
    try:
        answer = login.answer(message)
    except LoginError as error:
        connection.login = None
        _log.warning(
            "authentication_failed", peer=connection.peer, user=login.user, reason=str(error)
        )
        raise
    if login.is_over:
        connection.principal = f"User:{login.user}"
    return answer


def is_authenticated(connection: Connection) -> bool:
    """Whether the client has said who it is, where it is asked."""
    if not connection.listener.sasl:
        return True
    return connection.login is not None and connection.login.is_over


def _refused(code: int, message: str) -> Answer:
    return {
        "error_code": code,
        "error_message": message,
        "auth_bytes": b"",
        "session_lifetime": 0,
    }
