"""Futures and tasks whose hash is a number that the loop gives them.

What iterates over a set of them, as ``asyncio.wait`` does, does so in one order in all processes.
By default their hash would be their address.
"""

from __future__ import annotations

import asyncio
from typing import Any


class NumberedFuture(asyncio.Future[Any]):
    """A future with a number, which it is given as soon as it is made."""

    __slots__ = ("number",)

    number: int

    def __hash__(self) -> int:
        return self.number


class NumberedTask(asyncio.Task[Any]):
    """A task with a number, which it has to have before it is initialized."""

    __slots__ = ("number",)

    number: int

    def __hash__(self) -> int:
        return self.number
