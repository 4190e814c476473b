"""A unit of delayed work, and the entry that holds it while it waits.

Ground rules
------------
* A waiting entry is in exactly one dict, under its number: its bucket's, or, once its bucket fell
  due, that of the entries which its timer has in hand. ``entry.held_in`` and ``entry.number`` say
  where. No two dicts of a timer ever use the same number, so a thread that reads one of the two
  from before a move and the other from after it finds nothing, rather than another entry.
* *Whoever pops the entry out of that dict decides the task's fate*: ``cancel``, or the timer, which
  moves it to another bucket or runs it. ``dict.pop`` is one atomic step of the interpreter (and
  locks the dict where there is no global lock), so ``cancel`` needs no lock of its own.
* The timer moves an entry from dict to dict under ``guard``, its lock. A ``cancel`` that found
  nothing to pop may have met such a move: it looks again under the guard, where the entry is either
  in a dict or gone for good.
* The private attribute of a task starts with ``_timer_``: users derive from it, and theirs must not
  collide.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import RLock
from typing import Any, TypeAlias


class TimerTask(ABC):
    """Work to be done once, ``delay_ms`` milliseconds after it is given to a timer.

    Derive from it and define ``run``. The delay is checked when the task is added.

    Args:
        delay_ms: milliseconds from ``add`` to ``run``; zero or less is due at once.
    """

    __slots__ = ("__weakref__", "_timer_entry", "delay_ms")

    def __init__(self, delay_ms: int) -> None:
        self.delay_ms = delay_ms
        self._timer_entry: TimerTaskEntry | None = None

    @abstractmethod
    def run(self) -> None:
        """Do the work. Called once, by the timer's executor, with none of its locks held."""

    def cancel(self) -> bool:
        """Take the task off its timer. O(1), from any thread.

        Returns:
            True: it was pending, and will never run. False: it ran, is running, was cancelled
            before, or is on no timer.
        """
        entry = self._timer_entry
        if entry is None:
            return False
        # entry.remove(), written out: this is where most timeouts end.
        if entry.held_in.pop(entry.number, None) is None and not entry.remove_under_guard():
            return False
        entry.task = None
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} delay_ms={self.delay_ms!r}>"


class CallLater(TimerTask):
    """A task that calls a function."""

    __slots__ = ("args", "function")

    def __init__(self, delay_ms: int, function: Callable[..., object], args: tuple[Any, ...]):
        self.delay_ms = delay_ms
        self._timer_entry = None
        self.function = function
        self.args = args

    def run(self) -> None:
        self.function(*self.args)


class TimerTaskEntry:
    """A task with its absolute expiration, while it waits.

    Args:
        task: what is to be run.
        expiration_ms: when, in milliseconds of the timer's clock.
        guard: the lock of the timer, under which the entry is moved.
    """

    __slots__ = ("expiration_ms", "guard", "held_in", "number", "task")

    def __init__(self, task: TimerTask, expiration_ms: int, guard: RLock) -> None:
        self.task: TimerTask | None = task
        self.expiration_ms = expiration_ms
        self.number = 0
        self.guard = guard
        self.held_in: Entries = NOWHERE

    @property
    def cancelled(self) -> bool:
        """Whether the task no longer points at this entry: cancelled, run, or added anew."""
        return self.task is None or self.task._timer_entry is not self

    def remove(self) -> bool:
        """Take the entry out of where it waits, and say whether it was there. O(1)."""
        if self.held_in.pop(self.number, None) is None and not self.remove_under_guard():
            return False
        # Entry and task would otherwise keep each other alive.
        self.task = None
        return True

    def remove_under_guard(self) -> bool:
        """Look again where no move can be under way. O(1)."""
        if self.task is None:
            return False
        with self.guard:
            return self.held_in.pop(self.number, None) is not None


Entries: TypeAlias = dict[int, TimerTaskEntry]
"""Waiting entries by number, in the order of insertion."""

NOWHERE: Entries = {}
"""Where an entry is held before it is placed; always empty."""
