"""DescribeUserScramCredentials and AlterUserScramCredentials: users of SCRAM, while it runs."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from purgatory.cluster.broker import Broker
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka import ErrorCode
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.security.sasl import (
    LEAST_ITERATIONS,
    MOST_ITERATIONS,
    Credentials,
    ScramCredential,
    ScramMechanism,
    UserMechanism,
    credential_of,
)

_UNSUPPORTED_MECHANISM = 33
_RESOURCE_NOT_FOUND = 91
_DUPLICATE_RESOURCE = 92
_UNACCEPTABLE_CREDENTIAL = 93

_MECHANISMS = {1: ScramMechanism.SHA_256, 2: ScramMechanism.SHA_512}
_NUMBERS = {mechanism: number for number, mechanism in _MECHANISMS.items()}

_Change = tuple[UserMechanism, ScramCredential | None]


class _Refused(NamedTuple):
    code: int
    message: str


async def describe_user_scram_credentials(
    broker: Broker, request: Request, connection: Connection
) -> Answer:
    """Tell for which mechanisms users have credentials; all users, where none is named."""
    credentials = broker.cluster.security.credentials
    asked = [user.name for user in request.body.users or ()]
    named = Counter(asked or credentials.users_with_scram())
    return {
        "throttle_time": 0,
        "error_code": 0,
        "error_message": None,
        "results": [_described(credentials, user, count) for user, count in named.items()],
    }


def _described(credentials: Credentials, user: str, times_named: int) -> dict[str, Any]:
    found = credentials.scram_of(user)
    code, message = 0, None
    if times_named > 1:
        code, message = _DUPLICATE_RESOURCE, f"{user} is named {times_named} times"
    elif not found:
        code, message = _RESOURCE_NOT_FOUND, f"{user} has no SCRAM credentials"
    return {
        "user": user,
        "error_code": code,
        "error_message": message,
        "credential_infos": [
            {"mechanism": _NUMBERS[mechanism], "iterations": one.iterations}
            for mechanism, one in found.items()
            if not code
        ],
    }


async def alter_user_scram_credentials(
    broker: Broker, request: Request, connection: Connection
) -> Answer:
    """Set and delete credentials. What is asked for one user is done as a whole, or not at all."""
    body, security = request.body, broker.cluster.security
    asked = [*body.deletions, *body.upsertions]
    times = Counter((one.name, one.mechanism) for one in asked)
    changes: dict[str, list[_Change]] = {one.name: [] for one in asked}
    refused: dict[str, _Refused] = {}
    for one in asked:
        change = _change(security.credentials, one)
        if times[one.name, one.mechanism] > 1:
            change = _Refused(_DUPLICATE_RESOURCE, f"{one.name} is named twice for a mechanism")
        if isinstance(change, _Refused):
            refused.setdefault(one.name, change)
        else:
            changes[one.name].append(change)
    sound = [change for user, of in changes.items() if user not in refused for change in of]
    try:
        security.alter_credentials(dict(sound))
    except ClusterError as error:
        unsaved = _Refused(int(ErrorCode.KAFKA_STORAGE_ERROR), str(error))
        refused = dict.fromkeys(changes, unsaved) | refused
    return {
        "throttle_time": 0,
        "results": [_altered(user, refused.get(user)) for user in changes],
    }


def _change(credentials: Credentials, asked: Any) -> _Change | _Refused:
    mechanism = _MECHANISMS.get(asked.mechanism)
    if not asked.name:
        return _Refused(_UNACCEPTABLE_CREDENTIAL, "a user without a name")
    if mechanism is None:
        known = ", ".join(f"{number} ({one.value})" for number, one in _MECHANISMS.items())
        return _Refused(
            _UNSUPPORTED_MECHANISM, f"mechanism {asked.mechanism}: there are only {known}"
        )
    key = UserMechanism(asked.name, mechanism)
    if not hasattr(asked, "iterations"):
        if credentials.scram(*key) is None:
            return _Refused(_RESOURCE_NOT_FOUND, f"{asked.name} has none for {mechanism.value}")
        return key, None
    if not LEAST_ITERATIONS <= asked.iterations <= MOST_ITERATIONS:
        return _Refused(
            _UNACCEPTABLE_CREDENTIAL,
            f"{asked.iterations} iterations: {LEAST_ITERATIONS} to {MOST_ITERATIONS} are taken",
        )
    if not asked.salt or not asked.salted_password:
        return _Refused(_UNACCEPTABLE_CREDENTIAL, "an empty salt or password")
    salted, salt = bytes(asked.salted_password), bytes(asked.salt)
    return key, credential_of(mechanism, salted, salt, asked.iterations)


def _altered(user: str, refused: _Refused | None) -> dict[str, Any]:
    return {
        "user": user,
        "error_code": 0 if refused is None else refused.code,
        "error_message": None if refused is None else refused.message,
    }
