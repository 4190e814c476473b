"""A fault of a cluster that has begun: since when, how often it struck, and when it ended.

Ground rules
------------
* One thread at a time calls it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from types import TracebackType
from typing import Any, Self

from purgatory.kafka.faults import CountedFault, Fault


class Endable(ABC):
    """Ends with ``end()``, or at the end of a ``with`` block."""

    @abstractmethod
    def end(self) -> None:
        """Let things go right again. Ending twice has no effect."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()


class BegunFault(Endable):
    """A fault that has begun.

    Args:
        number: from 1 on, in the order in which they began.
        fault: what goes wrong.
        now_s: tells the time, in seconds.
        on_end: is told when it has ended.
        random: its chance.
    """

    def __init__(
        self,
        number: int,
        fault: Fault,
        now_s: Callable[[], float],
        on_end: Callable[[BegunFault], None],
        random: Random,
    ) -> None:
        self.number = number
        self.fault = fault
        self.random = random
        self.began_s = now_s()
        self.ended_s: float | None = None
        self.uses = 0
        self._now_s = now_s
        self._on_end = on_end

    @property
    def active(self) -> bool:
        """Whether it is still in force."""
        return self.ended_s is None

    def end(self) -> None:
        """Let things go right again. Ending twice has no effect."""
        if self.active:
            self.forget()
            self._on_end(self)

    def forget(self) -> None:
        """Take it for ended, and tell nobody."""
        self.ended_s = self._now_s()

    def use(self) -> None:
        """Note that it struck; the last of ``count`` strikes ends it."""
        self.uses += 1
        if isinstance(self.fault, CountedFault) and self.uses == self.fault.count:
            self.end()

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "number": self.number,
            "kind": self.fault.kind,
            "settings": self.fault.settings,
            "began_s": self.began_s,
            "ended_s": self.ended_s,
            "uses": self.uses,
        }
