"""SCRAM: the exchange that RFC 7677 shows, and refusals."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable

import pytest

from purgatory.kafka.security.sasl import (
    Credentials,
    LoginError,
    PlainLogin,
    ScramCredential,
    ScramLogin,
    ScramMechanism,
    UserMechanism,
    derive_credential,
    new_credential,
)

_SHA_256, _SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512

# RFC 7677, section 3.
_SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
_CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
_SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
_FIRST = f"n,,n=user,r={_CLIENT_NONCE}".encode()
_WITHOUT_PROOF = f"c=biws,r={_CLIENT_NONCE}{_SERVER_NONCE}"
_PROOF = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="


def _rfc_user(user: str) -> ScramCredential | None:
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", _SALT, 4096)
    return derive_credential(_SHA_256, salted, _SALT, 4096) if user == "user" else None


def _login() -> ScramLogin:
    return ScramLogin(_SHA_256, _rfc_user, lambda: _SERVER_NONCE)


def test_exchange_is_that_of_the_rfc() -> None:
    login = _login()
    said = login.respond(_FIRST).decode()
    assert said == f"r={_CLIENT_NONCE}{_SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert not login.is_over
    said = login.respond(f"{_WITHOUT_PROOF},p={_PROOF}".encode()).decode()
    assert said == "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert (login.is_over, login.user) == (True, "user")


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=user",
        b"n,,r=x,n=user",
        b"n,,n=,r=x",
        b"n,,n=user,r=",
        b"p=tls-unique,,n=user,r=x",
        b"n,a=root,n=user,r=x",
        b"n,,n=nobody,r=x",
        b"n,,m=ext,n=user,r=x",
        b"\xff\xfe",
        b"," * 1_000,
    ],
)
def test_invalid_first_message_is_refused(first: bytes) -> None:
    login = _login()
    with pytest.raises(LoginError):
        login.respond(first)
    assert not login.is_over


@pytest.mark.parametrize(
    "final",
    [
        "",
        _WITHOUT_PROOF,
        f"{_WITHOUT_PROOF},p=",
        f"{_WITHOUT_PROOF},p=!!!",
        f"{_WITHOUT_PROOF},p=AAAA",
        f"{_WITHOUT_PROOF},p={'A' * 43}=",
        f"{_WITHOUT_PROOF},x=1,p={_PROOF}",  # another message than the one that was signed
        f"{_WITHOUT_PROOF.replace('biws', 'eSws')},p={_PROOF}",  # "y,,", and it said "n,,"
        f"c=biws,r={_CLIENT_NONCE},p={_PROOF}",
        f"c=biws,r={_CLIENT_NONCE}{_SERVER_NONCE}x,p={_PROOF}",
        f"p={_PROOF},{_WITHOUT_PROOF}",
    ],
)
def test_invalid_final_message_is_refused(final: str) -> None:
    login = _login()
    login.respond(_FIRST)
    with pytest.raises(LoginError):
        login.respond(final.encode())
    assert not login.is_over


def _final(mechanism: ScramMechanism, first: str, said: str, password: str) -> str:
    """The messages of a client with the right password."""
    fields = dict(field.split("=", 1) for field in said.split(","))
    salt, count = base64.b64decode(fields["s"]), int(fields["i"])
    salted = hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, count)
    client_key = hmac.digest(salted, b"Client Key", mechanism.digest)
    stored_key = hashlib.new(mechanism.digest, client_key).digest()
    without_proof = f"c=biws,r={fields['r']}"
    signed = f"{first.removeprefix('n,,')},{said},{without_proof}".encode()
    signature = hmac.digest(stored_key, signed, mechanism.digest)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}"


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("name", ["ann", "a=2Cb=3Dc", "Ä nn"])
def test_names_and_passwords_are_used_unchanged(mechanism: ScramMechanism, name: str) -> None:
    user = name.replace("=2C", ",").replace("=3D", "=")
    credentials = Credentials({user: "pä, ss=\N{NO-BREAK SPACE}"})
    for password, is_right in (("pä, ss=\N{NO-BREAK SPACE}", True), ("pa, ss= ", False)):
        login = ScramLogin(mechanism, lambda one: credentials.scram(one, mechanism))
        first = f"n,,n={name},r=abc"
        said = login.respond(first.encode()).decode()
        final = _final(mechanism, first, said, password).encode()
        if is_right:
            assert login.respond(final).startswith(b"v=")
            assert (login.user, login.is_over) == (user, True)
        else:
            with pytest.raises(LoginError, match="wrong password"):
                login.respond(final)


def test_proof_can_not_be_replayed() -> None:
    credentials = Credentials({"ann": "secret"})
    find: Callable[[str], ScramCredential | None] = lambda user: credentials.scram(user, _SHA_256)  # noqa: E731
    first = "n,,n=ann,r=abc"
    heard = ScramLogin(_SHA_256, find)
    final = _final(_SHA_256, first, heard.respond(first.encode()).decode(), "secret")
    heard.respond(final.encode())
    replayed = ScramLogin(_SHA_256, find)
    replayed.respond(first.encode())
    with pytest.raises(LoginError, match="nonce"):
        replayed.respond(final.encode())


@pytest.mark.parametrize("message", [b"\0ann\0wrong", b"\0bob\0secret", b"x\0ann\0secret", b"ann"])
def test_plain_accepts_the_right_password(message: bytes) -> None:
    credentials = Credentials({"ann": "secret"})
    login = PlainLogin(credentials.is_password)
    with pytest.raises(LoginError):
        login.respond(message)
    assert not login.is_over
    for sound in (b"\0ann\0secret", b"ann\0ann\0secret"):
        login = PlainLogin(credentials.is_password)
        assert (login.respond(sound), login.is_over, login.user) == (b"", True, "ann")


def test_credentials_are_set_and_deleted() -> None:
    credentials = Credentials({"ann": "secret"})
    assert credentials.users_with_scram() == ["ann"]
    assert set(credentials.scram_credentials("ann")) == {_SHA_256, _SHA_512}
    bobs = new_credential(_SHA_512, "other")
    credentials.altered[UserMechanism("bob", _SHA_512)] = bobs
    credentials.altered[UserMechanism("ann", _SHA_256)] = None
    assert credentials.users_with_scram() == ["ann", "bob"]
    assert set(credentials.scram_credentials("ann")) == {_SHA_512}
    assert credentials.scram_credentials("bob") == {_SHA_512: bobs}
    credentials.altered[UserMechanism("ann", _SHA_512)] = None
    assert credentials.users_with_scram() == ["bob"]
    assert credentials.scram("ann", _SHA_512) is None
