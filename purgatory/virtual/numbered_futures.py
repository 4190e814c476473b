"""Futures and tasks whose hash is a number that the loop gives them.

What iterates over a set of them, as ``asyncio.wait`` does, does so in one order in all processes.
By default their hash would be their address. They have a number from when they are asked for it:
most are in no set.
"""

from __future__ import annotations

import asyncio
from typing import Any


def _number_of(one: NumberedFuture | NumberedTask) -> int:
    loop: Any = one.get_loop()
    one._number = number = int(loop.next_number())
    return number


class NumberedFuture(asyncio.Future[Any]):
    """A future of a `VirtualLoop`."""

    __slots__ = ("_number",)

    _number: int

    def __hash__(self) -> int:
        try:
            return self._number
        except AttributeError:
            return _number_of(self)


class NumberedTask(asyncio.Task[Any]):
    """A task of a `VirtualLoop`."""

    __slots__ = ("_number",)

    _number: int

    def __hash__(self) -> int:
        try:
            return self._number
        except AttributeError:
            return _number_of(self)
