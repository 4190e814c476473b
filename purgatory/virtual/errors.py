"""The errors of a virtual world."""

from __future__ import annotations


class WorldError(Exception):
    """Something can't be done in a virtual world, or not now; says what can."""


class SandboxError(WorldError, RuntimeError):
    """The application was about to leave the world: by a real socket, a thread, a subprocess."""


class DeadlockError(WorldError):
    """Nothing is ready, nothing will ever be due, and the application is not done.

    The message has the stack of each task that waits.
    """


class WorldTimeoutError(WorldError, TimeoutError):
    """The application was not done in the virtual time that it was given.

    The message has the stack of each task that waits.
    """
