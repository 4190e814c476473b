"""The authentication of a row's clients, and the cluster's knowledge of them."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from purgatory.cluster import AclSpec, Authorization, Tls

CERTIFICATE = Path(__file__).parent / "certificate.pem"
"""A certificate that signs itself, for localhost and 127.0.0.1, with its key."""

ADMIN, USER = "admin", "ann"
_PASSWORDS = {ADMIN: "admin-secret", USER: "ann-secret"}


@dataclass(frozen=True)
class Security:
    """One way to authenticate.

    Args:
        cluster: arguments of the cluster's configuration.
        tls: the context of clients; None: plain connections.
        passwords: of users; empty: clients don't log in.
    """

    cluster: Mapping[str, Any] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    passwords: Mapping[str, str] = field(default_factory=dict)

    def aiokafka(self) -> dict[str, Any]:
        """Return the arguments of aiokafka's clients."""
        if self.tls is not None:
            return {"security_protocol": "SSL", "ssl_context": self.tls}
        if not self.passwords:
            return {}
        return {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": USER,
            "sasl_plain_password": self.passwords[USER],
        }


def security_of(value: str) -> Security:
    """Return the security of a row's value: "none", "sasl", "tls" or "acls"."""
    if value == "tls":
        return Security({"tls": Tls(CERTIFICATE)}, ssl.create_default_context(cafile=CERTIFICATE))
    if value == "sasl":
        return Security({"users": _PASSWORDS}, passwords=_PASSWORDS)
    if value == "acls":
        authorization = Authorization([f"User:{ADMIN}"], False, _acls())
        more = {"users": _PASSWORDS, "authorization": authorization}
        return Security(more, passwords=_PASSWORDS)
    return Security()


def _acls() -> list[AclSpec]:
    """The entries that the clients of a row need."""
    principal = f"User:{USER}"
    return [
        AclSpec(principal, "READ", "TOPIC", "*"),
        AclSpec(principal, "WRITE", "TOPIC", "data"),
        AclSpec(principal, "READ", "GROUP", "readers"),
        AclSpec(principal, "WRITE", "TRANSACTIONAL_ID", "writer"),
        AclSpec(principal, "IDEMPOTENT_WRITE", "CLUSTER"),
    ]
