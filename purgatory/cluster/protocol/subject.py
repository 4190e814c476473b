"""The principal of a client's certificate: its subject, as Kafka writes it by default.

The format is RFC 2253: the last part first, "CN=ann,O=Example,C=DE".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_RFC_2253_KEYWORDS = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""Attributes with an RFC 2253 keyword in Java. Others keep OpenSSL's name; Java has an OID."""

_SPECIAL = re.compile(r'([,=+<>#;"\\])')


def certificate_subject(certificate: Mapping[str, Any]) -> str:
    """Return the subject of a certificate, as `ssl.SSLSocket.getpeercert` gives it."""
    parts: Sequence[Sequence[tuple[str, str]]] = certificate.get("subject", ())
    return ",".join("+".join(_part(*attribute) for attribute in part) for part in reversed(parts))


def _part(name: str, value: str) -> str:
    escaped = _SPECIAL.sub(r"\\\1", value)
    if value.startswith(" "):
        escaped = f"\\{escaped}"
    if len(value) > 1 and value.endswith(" "):
        escaped = f"{escaped[:-1]}\\ "
    return f"{_RFC_2253_KEYWORDS.get(name, name)}={escaped}"
