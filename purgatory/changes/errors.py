"""What can go wrong when changes are applied, in words for the person who asked for it."""

from __future__ import annotations


class ChangesError(Exception):
    """The work can't go on; the message says what was wrong, where, and what would be right."""


class TargetError(ChangesError):
    """The target database can't be reached or used."""


class StoppedOnBadError(ChangesError):
    """A change could not be applied, and it was asked to stop there; what came before it is in."""


class BadChangeError(Exception):
    """One change that can't be applied; it belongs into the quarantine.

    Args:
        reason: one of the constants of `quarantine`.
        detail: what exactly, in a few words.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
