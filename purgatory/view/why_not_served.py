"""Whether anything can listen at an address; why not, in words for who gave it."""

from __future__ import annotations

import errno
import os
import socket

from purgatory.settings.addresses import host_and_port, without_brackets
from purgatory.view.errors import ViewError


def check_place(host: str, port: int) -> None:
    """Listen at a place and let it go again, for who is to serve there only later.

    Raises:
        ViewError: nothing can.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            without_brackets(host), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except (OSError, UnicodeError) as error:
        raise not_served(host, port, error) from None


def not_served(host: str, port: int, error: OSError | UnicodeError) -> ViewError:
    """Return the error of a view that can't be served there."""
    where = host_and_port(host, port)
    return ViewError(f"the view can't be served at {where}: {why_not_served(error)}")


def why_not_served(error: OSError | UnicodeError) -> str:
    """Say why nothing can listen at an address, and what could."""
    if isinstance(error, UnicodeError):
        return "that is no name of a machine"
    number = error.errno
    if number == errno.EADDRINUSE:
        return "the port is taken; port 0 takes a free one"
    if number == errno.EADDRNOTAVAIL:
        return "it is no address of this machine; 127.0.0.1 is, and 0.0.0.0 stands for all it has"
    if number is not None and number > 0:  # the system's; others are of who looks up names
        return os.strerror(number)
    return str(error.strerror or error)
