"""What stops a capture, told in one line."""

from __future__ import annotations


class CaptureError(Exception):
    """The capture can't begin or go on; the message names what is wrong, where, and what helps.

    What is in the topic already stays right: a capture that is started again goes on behind it.
    """

    passes = False
    """Whether the same may succeed when it's started again."""


class CaptureFaultError(CaptureError):
    """The source or the cluster is away, or broke off, and may come back."""

    passes = True


class ChangeRefusedError(CaptureError):
    """A change that can't be captured, or that the topic does not take: somebody has to look."""
