"""How a client says who it is: by messages, each of which is answered until that is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class LoginError(Exception):
    """A client that isn't who it says, or doesn't speak the mechanism; the message says which."""


class Login(Protocol):
    """One client that logs in."""

    user: str
    """Who the client says it is, once it has said so."""
    is_over: bool
    """Whether it has proved it."""

    def answer(self, message: bytes) -> bytes:
        """Return the answer to the client's next message.

        Raises:
            LoginError: the client may not come in.
        """


class PlainLogin:
    """A client that sends its name and password as they are (PLAIN, RFC 4616).

    Args:
        is_password: tells whether a user has a password.
    """

    def __init__(self, is_password: Callable[[str, str], bool]) -> None:
        self.user = ""
        self.is_over = False
        self._is_password = is_password

    def answer(self, message: bytes) -> bytes:
        """Take ``[whom to act for] NUL user NUL password``."""
        try:
            acts_for, self.user, password = message.decode().split("\0")
        except ValueError:  # UnicodeDecodeError is one
            raise LoginError("a message without user and password") from None
        if not self._is_password(self.user, password):
            raise LoginError(f"the user {self.user!r} or the password is wrong")
        if acts_for not in ("", self.user):
            raise LoginError(f"user {self.user!r} may act for nobody else")
        self.is_over = True
        return b""
