"""What `inspect`, and with it editors and docs, tell of how an operation is made natively."""

from __future__ import annotations

from inspect import Signature, signature

from purgatory.core.lock_like import LockLike


def _init(delay_ms: int, lock: LockLike | None = None) -> None:
    """Take what ``DelayedOperation.__init__`` takes."""


class NativeSignature:
    """The ``__signature__`` of a class, and of all that are made like it.

    Args:
        native: the class whose ``__init__`` says nothing of its arguments.
    """

    def __init__(self, native: type) -> None:
        self._native = native

    def __get__(self, instance: object, owner: type) -> Signature:
        if owner.__init__ is not self._native.__init__:  # type: ignore[misc]
            raise AttributeError("__signature__")  # it has its own, which can be asked
        return signature(_init)
