"""The errors of a virtual world."""

from __future__ import annotations


class WorldError(Exception):
    """An operation that a virtual world does not support; the message suggests another."""


class SandboxError(WorldError, RuntimeError):
    """The application used a real socket, thread or subprocess inside the world."""


class DeadlockError(WorldError):
    """No callback is ready or scheduled, and the application has not finished.

    The message has the stack of each task that waits.
    """


class LivelockError(WorldError):
    """Callbacks ran again and again, and the time did not advance but for their number.

    The message names them, and has the stack of each task that waits.
    """


class WorldTimeoutError(WorldError, TimeoutError):
    """The application did not finish within its virtual time limit.

    The message has the stack of each task that waits.
    """


class PropertyError(WorldError, AssertionError):
    """A property that must hold always, or at some time, did not; ``property`` is its name."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.property = name
