"""What stops a capture, told in one line."""

from __future__ import annotations


class CaptureError(Exception):
    """The capture can't begin or go on; the message names what is wrong, where, and what helps.

    What is in the topic already stays right: a capture that is started again goes on behind it.
    """
