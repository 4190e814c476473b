"""A port for a server that a test kills and starts again."""

from __future__ import annotations

import random
import socket

_FIRST, _LAST = 15_000, 32_000
"""Below those that the system gives to whoever connects: such a port may be taken by a connection
of another test while the server is dead, and then it never starts again."""


def lasting_port() -> int:
    """Return an unused port of the loopback address that is unlikely to be assigned."""
    chance = random.SystemRandom()
    while True:
        port = chance.randint(_FIRST, _LAST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
