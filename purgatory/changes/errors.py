"""What can go wrong when changes are applied, in words for the person who asked for it."""

from __future__ import annotations


class ChangesError(Exception):
    """The work can't go on; the message says what was wrong, where, and what would be right."""

    passes = False
    """Whether the same may succeed when it's started again."""


class FaultError(ChangesError):
    """What broke off may pass: brokers that don't answer, a worker that was killed."""

    passes = True


class TargetError(ChangesError):
    """The target database can't be reached or used."""


class TargetGoneError(TargetError):
    """The target database is away, and may come back."""

    passes = True


class StoppedOnBadError(ChangesError):
    """A change could not be applied, and it was asked to stop there; what came before it is in."""


class BadChangeError(Exception):
    """One change that can't be applied; it belongs into the quarantine.

    Args:
        reason: one of the constants of `set_aside`.
        detail: what exactly, in a few words.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
