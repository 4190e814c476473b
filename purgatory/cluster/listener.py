"""Where brokers listen, and what is asked of those who come there.

Each broker has all listeners of its cluster, one port for each; a client is told the addresses of
the listener that it came by.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from purgatory.core.recent_errors import Logger
from purgatory.kafka.errors import ClusterError
from purgatory.settings.addresses import host_and_port

_log = Logger("purgatory.cluster")

_NO_TLS = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")
"""How OpenSSL calls bytes that are no TLS."""

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
"""How a client can say who it is (SASL)."""

MECHANISMS: Sequence[Mechanism] = get_args(Mechanism)

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""How clients can come, as they call it."""


@dataclass(frozen=True)
class Tls:
    """What a listener speaks TLS by.

    Args:
        certificate: a file with the certificate chain (PEM).
        key: its key, if not in the same file.
        client_ca: a file with certificates; a client has to have one that they signed, and is who
            its subject says. None: clients are not asked for one.
        client_auth: "requested": a client without a certificate is let in, too, as nobody in
            particular.
    """

    certificate: Path
    key: Path | None = None
    client_ca: Path | None = None
    client_auth: Literal["required", "requested"] = "required"

    def context(self) -> ssl.SSLContext:
        """Read the files.

        Raises:
            ClusterError: one of them can't be used.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise ClusterError(f"certificate {self.certificate}: can't be used: {error}") from error
        if self.client_ca is None:
            return context
        try:
            context.load_verify_locations(self.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise ClusterError(f"client_ca {self.client_ca}: can't be used: {error}") from error
        required = self.client_auth == "required"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        return context


@dataclass(frozen=True)
class Listener:
    """Where each broker listens, and how.

    Args:
        name: which one, in what the cluster prints: "PLAINTEXT".
        first_port: of the first broker; the others have the ports after it. 0: the system chooses.
        host: where; None: where the cluster says.
        tls: speak TLS; None: plain connections.
        sasl: by which mechanisms clients say who they are; none: nobody is asked.
    """

    name: str
    first_port: int = 0
    host: str | None = None
    tls: Tls | None = None
    sasl: Sequence[Mechanism] = ()

    @property
    def security_protocol(self) -> str:
        """What clients call it: "SASL_SSL"."""
        return ("SASL_" if self.sasl else "") + ("SSL" if self.tls else "PLAINTEXT")


PLAINTEXT = Listener("PLAINTEXT")
"""A listener by which anybody may come."""


def log_failed_handshakes(context: ssl.SSLContext, listener: str) -> None:
    """Have each TLS handshake that fails logged in one line: asyncio drops who came in silence."""
    if context.sslobject_class is not ssl.SSLObject:
        return  # it is somebody's own, or was given to an earlier cluster

    class Handshake(ssl.SSLObject):
        """One client's, as the context makes it."""

        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except ssl.SSLError as error:
                if error.reason and not isinstance(error, ssl.SSLWantReadError):
                    _log.warning("tls_handshake_failed", listener=listener, reason=_why(error))
                raise

    context.sslobject_class = Handshake


def _why(error: ssl.SSLError) -> str:
    if error.reason == "HTTP_REQUEST":
        return "this looks like HTTP on a TLS listener"
    if error.reason in _NO_TLS:
        return "this looks like a plaintext client on a TLS listener"
    return str(error)


class Place(NamedTuple):
    """Where a broker listens for those who come by one listener."""

    host: str
    port: int

    def __str__(self) -> str:
        return host_and_port(self.host, self.port)
