"""Logins by SASL: PLAIN, and the server's part of SCRAM (RFC 5802, RFC 7677).

With SCRAM the password is never sent, and the server keeps nothing that is enough to log in. A
client sends two messages. The first names the user; the response has the salt and the number of
iterations. The second proves that the client knows the password; the response proves that the
server knows the user. Channel bindings are not offered. Names and passwords are used as they are,
without SASLprep, as in Kafka.

A user of the configuration has a password, for each mechanism. Credentials for SCRAM can be altered
while the cluster runs (AlterUserScramCredentials); PLAIN keeps the passwords.

Ground rules
------------
* One thread at a time calls it.
* Credentials of passwords are made when they are first needed: each takes milliseconds.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple, Protocol


class LoginError(Exception):
    """Wrong credentials, or a message that does not follow the mechanism."""


class Login(Protocol):
    """One client that logs in."""

    user: str
    """The user's name, once the client has sent it."""
    is_over: bool
    """Whether the client has authenticated."""

    def respond(self, message: bytes) -> bytes:
        """Return the response to the client's next message.

        Raises:
            LoginError: the login failed.
        """


class PlainLogin:
    """Authenticates a client that sends its name and password in plain text (PLAIN, RFC 4616).

    Args:
        is_password: returns whether a user has a password.
    """

    def __init__(self, is_password: Callable[[str, str], bool]) -> None:
        self.user = ""
        self.is_over = False
        self._is_password = is_password

    def respond(self, message: bytes) -> bytes:
        """Check a message of the form ``[authorization id] NUL user NUL password``."""
        try:
            authorization_id, self.user, password = message.decode().split("\0")
        except ValueError:  # UnicodeDecodeError is one
            raise LoginError("a message without user and password") from None
        if not self._is_password(self.user, password):
            raise LoginError(f"the user {self.user!r} or the password is wrong")
        if authorization_id not in ("", self.user):
            raise LoginError(f"user {self.user!r} may act for nobody else")
        self.is_over = True
        return b""


MIN_ITERATIONS = 4_096
MAX_ITERATIONS = 16_384
"""The limits of iterations of a hash, as in Kafka."""

_SALT_BYTES = 32


class ScramMechanism(Enum):
    """The hash that is used, by the mechanism's name."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def digest(self) -> str:
        """The name of the hash in `hashlib`."""
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"


class ScramCredential(NamedTuple):
    """A user's credential on the server, for one mechanism."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


def new_credential(mechanism: ScramMechanism, password: str) -> ScramCredential:
    """Make a credential of a password, with a new salt. Takes milliseconds."""
    salt = secrets.token_bytes(_SALT_BYTES)
    salted = hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, MIN_ITERATIONS)
    return derive_credential(mechanism, salted, salt, MIN_ITERATIONS)


def derive_credential(
    mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """Make a credential of a salted and hashed password."""
    client_key = hmac.digest(salted_password, b"Client Key", mechanism.digest)
    stored_key = hashlib.new(mechanism.digest, client_key).digest()
    server_key = hmac.digest(salted_password, b"Server Key", mechanism.digest)
    return ScramCredential(salt, iterations, stored_key, server_key)


class ScramLogin:
    """One client that logs in.

    Args:
        mechanism: the hash.
        find: returns a user's credential, None where there is none.
        new_nonce: returns printable ASCII, without a comma, that was never there before.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: Callable[[str], ScramCredential | None],
        new_nonce: Callable[[], str] = secrets.token_urlsafe,
    ) -> None:
        self.user = ""
        self.is_over = False
        self._digest = mechanism.digest
        self._find = find
        self._new_nonce = new_nonce
        self._credential: ScramCredential | None = None
        self._first_messages = ""
        self._nonce = ""
        self._header = b""

    def respond(self, message: bytes) -> bytes:
        """Return the response to the client's first or second message.

        Raises:
            LoginError: the login failed.
        """
        try:
            text = message.decode()
        except UnicodeDecodeError:
            raise LoginError("a message that is no UTF-8") from None
        if self._credential is None:
            return self._first_response(text).encode()
        return self._final_response(text, self._credential).encode()

    def _first_response(self, text: str) -> str:
        binding, _, rest = text.partition(",")
        identity, _, bare = rest.partition(",")
        if binding not in ("n", "y"):
            raise LoginError(f"a message that begins with {binding[:20]!r}: no channel is bound")
        fields = bare.split(",")
        name, nonce = _value("n", fields, 0), _value("r", fields, 1)
        self.user = name.replace("=2C", ",").replace("=3D", "=")
        if identity not in ("", f"a={name}"):
            raise LoginError(f"user {self.user!r} may act for nobody else")
        credential = self._find(self.user)
        if credential is None:
            raise LoginError(f"there is no user {self.user!r} for this mechanism")
        self._credential = credential
        self._header = f"{binding},{identity},".encode()
        self._nonce = nonce + self._new_nonce()
        salt = base64.b64encode(credential.salt).decode()
        server_first = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._first_messages = f"{bare},{server_first}"
        return server_first

    def _final_response(self, text: str, credential: ScramCredential) -> str:
        without_proof, _, proof_field = text.rpartition(",")
        fields = without_proof.split(",")
        if _decoded(_value("c", fields, 0)) != self._header:
            raise LoginError("the channel's header differs from the first message's")
        # As Kafka does: librdkafka before 2.2 says its own part of it twice.
        if not _value("r", fields, 1).endswith(self._nonce):
            raise LoginError("the nonce is not the one that was given out")
        proof = _decoded(_value("p", [proof_field], 0))
        auth_message = f"{self._first_messages},{without_proof}".encode()
        signature = hmac.digest(credential.stored_key, auth_message, self._digest)
        if len(proof) != len(signature):
            raise LoginError(f"a proof of {len(proof)} bytes")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        stored_key = hashlib.new(self._digest, client_key).digest()
        if not hmac.compare_digest(stored_key, credential.stored_key):
            raise LoginError(f"user {self.user!r} gave a wrong password")
        self.is_over = True
        server_signature = hmac.digest(credential.server_key, auth_message, self._digest)
        return f"v={base64.b64encode(server_signature).decode()}"


def _value(key: str, fields: list[str], at: int) -> str:
    """Return the value of the field that has to stand there."""
    if at >= len(fields) or not fields[at].startswith(f"{key}=") or len(fields[at]) == 2:
        raise LoginError(f"a message without {key}= where it belongs")
    return fields[at][2:]


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:  # binascii.Error is one
        raise LoginError("a value that is no base64") from None


class UserMechanism(NamedTuple):
    """A user and a mechanism: the key of a credential."""

    user: str
    mechanism: ScramMechanism


class Credentials:
    """Knows the users.

    Args:
        passwords: those of the configured users, by name.
    """

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords
        self._made: dict[UserMechanism, ScramCredential] = {}
        self.altered: dict[UserMechanism, ScramCredential | None] = {}
        """The credentials that were altered since; None: deleted."""

    def is_password(self, user: str, password: str) -> bool:
        """Whether a password is the user's; the time does not depend on whether the user exists."""
        stored_password = self._passwords.get(user, "")
        same = hmac.compare_digest(password.encode(), stored_password.encode())
        return same and user in self._passwords

    def scram(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """Return a user's credential for a mechanism, or None."""
        key = UserMechanism(user, mechanism)
        if key in self.altered:
            return self.altered[key]
        if user not in self._passwords:
            return None
        if key not in self._made:
            self._made[key] = new_credential(mechanism, self._passwords[user])
        return self._made[key]

    def scram_credentials(self, user: str) -> dict[ScramMechanism, ScramCredential]:
        """Return all credentials of a user."""
        found = {mechanism: self.scram(user, mechanism) for mechanism in ScramMechanism}
        return {
            mechanism: credential
            for mechanism, credential in found.items()
            if credential is not None
        }

    def users_with_scram(self) -> list[str]:
        """Return the users with SCRAM credentials, sorted."""
        users = {*self._passwords, *(key.user for key in self.altered)}
        return sorted(user for user in users if self._has_scram(user))

    def _has_scram(self, user: str) -> bool:
        return any(
            self.altered.get(key, user in self._passwords)
            for key in (UserMechanism(user, mechanism) for mechanism in ScramMechanism)
        )
