"""SaslHandshake, SaslAuthenticate, and the SCRAM credentials of users.

After a handshake of version 0, as of librdkafka 2.0, the messages are frames without a header.
Their responses are such frames, too, or the end of the connection.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, NamedTuple

from purgatory.cluster.broker_services import BrokerServices
from purgatory.cluster.errors import BadRequestError
from purgatory.cluster.protocol.connection import Connection, Response
from purgatory.cluster.protocol.wire import API_VERSIONS, Request
from purgatory.core.recent_errors import Logger
from purgatory.kafka import ErrorCode
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.security.sasl import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    Credentials,
    Login,
    LoginError,
    PlainLogin,
    ScramCredential,
    ScramLogin,
    ScramMechanism,
    UserMechanism,
    derive_credential,
)

HANDSHAKE, AUTHENTICATE = 17, 36
BEFORE_AUTHENTICATION = frozenset({API_VERSIONS, HANDSHAKE, AUTHENTICATE})
"""The APIs that are served to clients before their authentication."""

_PLAIN = "PLAIN"
_MAX_LOGGED = 30
"""The logged characters of a mechanism's name."""

_log = Logger("purgatory.cluster")


async def handshake(broker: BrokerServices, request: Request, connection: Connection) -> Response:
    """Agree on a mechanism."""
    known = request.body.mechanism in connection.listener.sasl
    if known:
        credentials = broker.cluster.security.credentials
        if request.body.mechanism == _PLAIN:
            connection.login = PlainLogin(credentials.is_password)
        else:
            hashed = ScramMechanism(request.body.mechanism)
            connection.login = ScramLogin(hashed, lambda user: credentials.scram(user, hashed))
        if request.api_version == 0:
            connection.take_token = partial(_take_token, connection, connection.login)
    return {
        "error_code": 0 if known else _handshake_error(connection, request.body.mechanism),
        "mechanisms": connection.listener.sasl,
    }


def _handshake_error(connection: Connection, mechanism: str) -> int:
    listener = connection.listener
    reason = f"it takes {' or '.join(listener.sasl)}"
    if not listener.sasl:
        reason = f"it takes clients with security.protocol={listener.security_protocol}, without "
        reason += "authentication"
    _log.warning(
        "sasl_mechanism_refused",
        peer=connection.peer,
        listener=listener.name,
        mechanism=mechanism[:_MAX_LOGGED],
        reason=reason,
    )
    return ErrorCode.UNSUPPORTED_SASL_MECHANISM if listener.sasl else ErrorCode.ILLEGAL_SASL_STATE


async def authenticate(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Handle the client's next message."""
    login = connection.login
    if login is None or login.is_over:
        return _error_response(ErrorCode.ILLEGAL_SASL_STATE, "a handshake comes before it")
    try:
        response = _authenticate(connection, login, bytes(request.body.auth_bytes))
    except LoginError:
        # The log has the details, which a stranger should not know.
        return _error_response(
            ErrorCode.SASL_AUTHENTICATION_FAILED, "the user or the password is wrong"
        )
    return {"error_code": 0, "error_message": None, "auth_bytes": response, "session_lifetime": 0}


def _take_token(connection: Connection, login: Login, token: bytes) -> bytes:
    try:
        response = _authenticate(connection, login, token)
    except LoginError as error:
        raise BadRequestError(str(error)) from None
    if not login.is_over:
        connection.take_token = partial(_take_token, connection, login)
    return response


def _authenticate(connection: Connection, login: Login, message: bytes) -> bytes:
    """Return the response to a message; after the last one the connection has the user's principal.

    Raises:
        LoginError: the login failed. The client may retry, beginning with a handshake.
    """
    try:
        response = login.respond(message)
    except LoginError as error:
        connection.login = None
        _log.warning(
            "authentication_failed", peer=connection.peer, user=login.user, reason=str(error)
        )
        raise
    if login.is_over:
        connection.principal = f"User:{login.user}"
    return response


def is_authenticated(connection: Connection) -> bool:
    """Whether the client has authenticated, if its listener requires that."""
    if not connection.listener.sasl:
        return True
    return connection.login is not None and connection.login.is_over


def _error_response(code: int, message: str) -> Response:
    return {
        "error_code": code,
        "error_message": message,
        "auth_bytes": b"",
        "session_lifetime": 0,
    }


_MECHANISMS = {1: ScramMechanism.SHA_256, 2: ScramMechanism.SHA_512}
_NUMBERS = {mechanism: number for number, mechanism in _MECHANISMS.items()}
_Change = tuple[UserMechanism, ScramCredential | None]


class _Refused(NamedTuple):
    code: int
    message: str


async def describe_user_scram_credentials(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Return users' SCRAM mechanisms; of all users if the request names none."""
    credentials = broker.cluster.security.credentials
    requested = [user.name for user in request.body.users or ()]
    named = Counter(requested or credentials.users_with_scram())
    return {
        "throttle_time": 0,
        "error_code": 0,
        "error_message": "",
        "results": [_described(credentials, user, count) for user, count in named.items()],
    }


def _described(credentials: Credentials, user: str, request_count: int) -> dict[str, Any]:
    mechanisms = credentials.scram_credentials(user)
    code, message = 0, ""
    if request_count > 1:
        code, message = ErrorCode.DUPLICATE_RESOURCE, f"{user} is named {request_count} times"
    elif not mechanisms:
        code, message = ErrorCode.RESOURCE_NOT_FOUND, f"{user} has no SCRAM credentials"
    return {
        "user": user,
        "error_code": code,
        "error_message": message,
        "credential_infos": [
            {"mechanism": _NUMBERS[mechanism], "iterations": credential.iterations}
            for mechanism, credential in mechanisms.items()
            if not code
        ],
    }


async def alter_user_scram_credentials(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Set and delete credentials: all changes of a user, or none."""
    body, security = request.body, broker.cluster.security
    requested = [*body.deletions, *body.upsertions]
    request_counts = Counter((entry.name, entry.mechanism) for entry in requested)
    changes: dict[str, list[_Change]] = {entry.name: [] for entry in requested}
    refused: dict[str, _Refused] = {}
    for entry in requested:
        change = _change(security.credentials, entry)
        if request_counts[entry.name, entry.mechanism] > 1:
            change = _Refused(
                ErrorCode.DUPLICATE_RESOURCE, f"{entry.name} is named twice for a mechanism"
            )
        if isinstance(change, _Refused):
            refused.setdefault(entry.name, change)
        else:
            changes[entry.name].append(change)
    valid_changes = [
        change
        for user, user_changes in changes.items()
        if user not in refused
        for change in user_changes
    ]
    try:
        security.alter_credentials(dict(valid_changes))
    except ClusterError as error:
        unsaved = _Refused(int(ErrorCode.KAFKA_STORAGE_ERROR), str(error))
        refused = dict.fromkeys(changes, unsaved) | refused
    return {
        "throttle_time": 0,
        "results": [_altered(user, refused.get(user)) for user in changes],
    }


def _change(credentials: Credentials, requested: Any) -> _Change | _Refused:
    mechanism = _MECHANISMS.get(requested.mechanism)
    if not requested.name:
        return _Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "a user without a name")
    if mechanism is None:
        known = ", ".join(f"{number} ({name.value})" for number, name in _MECHANISMS.items())
        return _Refused(
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            f"mechanism {requested.mechanism}: there are only {known}",
        )
    key = UserMechanism(requested.name, mechanism)
    if not hasattr(requested, "iterations"):
        if credentials.scram(*key) is None:
            return _Refused(
                ErrorCode.RESOURCE_NOT_FOUND, f"{requested.name} has none for {mechanism.value}"
            )
        return key, None
    if not MIN_ITERATIONS <= requested.iterations <= MAX_ITERATIONS:
        return _Refused(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"{requested.iterations} iterations: {MIN_ITERATIONS} to {MAX_ITERATIONS} are taken",
        )
    salted, salt = bytes(requested.salted_password), bytes(requested.salt)
    return key, derive_credential(mechanism, salted, salt, requested.iterations)


def _altered(user: str, refused: _Refused | None) -> dict[str, Any]:
    return {
        "user": user,
        "error_code": 0 if refused is None else refused.code,
        "error_message": None if refused is None else refused.message,
    }
