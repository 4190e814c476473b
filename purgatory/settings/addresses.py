"""Addresses as people write them: an IPv6 address stands in brackets before its port."""

from __future__ import annotations

import ipaddress
import re

CLUSTER_PORT = 9092
"""The default port of a cluster."""

CONTROL_PORT = 9990
"""The default port of the control of a cluster or a proxy."""


def host_and_port(host: str, port: int) -> str:
    """Return "127.0.0.1:9092", or "[::1]:9092"."""
    host = without_brackets(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def without_brackets(host: str) -> str:
    """Return an address to listen on or to connect to: the system takes no brackets."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def split_host_and_port(text: str, default_port: str = "") -> tuple[str, str]:
    """Return the two parts of what `host_and_port` makes; the host is without its brackets.

    An address that has several colons and no brackets is a host alone.
    """
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]") or (":" in host and not host.endswith("]")):
        host, port = text, default_port
    return without_brackets(host), port or default_port


def is_anywhere(host: str) -> bool:
    """Whether a host stands for all addresses of a machine: to listen on, not to connect to."""
    try:
        return not host or ipaddress.ip_address(without_brackets(host)).is_unspecified
    except ValueError:
        return False


def is_host(text: str) -> bool:
    """Whether a text is a name or an address of a host, and has no port."""
    if ":" not in text:
        return re.fullmatch(r"[^\s\[\]]{1,255}", text) is not None
    try:
        return bool(ipaddress.IPv6Address(without_brackets(text)))
    except ValueError:
        return False
