"""A unit of delayed work, and the entry that holds it while it waits.

Ground rules
------------
* An entry has one home for life: the dict of the bucket that it was added to, under a number that
  no other entry gets there. ``bucket`` and ``number`` never change once it is in.
* *Whoever pops the entry out of its home decides the task's fate*: ``cancel``, or the timer, as it
  begins the task, or ``close``. ``dict.pop`` is one atomic step of the interpreter (and locks the
  dict where there is no global lock), so ``cancel`` needs no lock.
* All else that refers to entries (buckets into which they fall, the due ones) is a list of entries
  to look at: one that is no longer at home is passed over, and one that stands there twice is
  harmless.
* A task points at the one entry that counts. An entry at which its task does not point is a
  leftover of an ``add`` that was interrupted, or outrun by another: it is dropped wherever it is
  met.
* The private attributes of a task start with ``_timer_``: users derive from it, and theirs must not
  collide.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeAlias

from timer.backend import NATIVE, describe_as
from timer.durations import checked_delay_ms
from timer.errors import not_copied_error


class _PureTask:
    """A task's place on its timer, in pure Python."""

    __slots__ = ("__weakref__", "_timer_entry", "delay_ms")

    def __init__(self, delay_ms: int | timedelta) -> None:
        self.delay_ms: int = delay_ms if type(delay_ms) is int else checked_delay_ms(delay_ms)
        self._timer_entry: TimerTaskEntry | None = None

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
        if entry.bucket.pop(entry.number, None) is None:
            return False
        entry.task = None
        return True

    @property
    def _timer_waits(self) -> bool:
        """Whether it is on a timer, and was not begun."""
        entry = self._timer_entry
        return entry is not None and entry.waits


class _PureCall(_PureTask):
    """A task's place on its timer and the function that it calls, in pure Python."""

    # Not a method: the function is what is begun, with no step of ours before it.
    __slots__ = ("run",)

    run: Callable[[], object]

    def __init__(
        self, delay_ms: int | timedelta, function: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        self.delay_ms = delay_ms if type(delay_ms) is int else checked_delay_ms(delay_ms)
        self._timer_entry = None
        self.run = partial(function, *args) if args else function


if TYPE_CHECKING or not NATIVE:
    Task = _PureTask
    Call = _PureCall
else:
    from timer.native.task import NativeCall as Call
    from timer.native.task import NativeTask as Task

    describe_as(Task, _PureTask)


class TimerTask(Task, ABC):
    """Work to be done once, ``delay_ms`` milliseconds after it is given to a timer.

    Derive from it and define ``run``.

    Args:
        delay_ms: milliseconds from ``add`` to ``run``, or a timedelta; zero or less is due at once.

    Raises:
        TypeError: delay_ms is neither an integer nor a timedelta.
    """

    __slots__ = ()

    _timer_may_run_again: ClassVar[bool] = False
    """Whether ``run`` does no harm when it is called again after an interrupt broke it off."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        delays = [vars(kind)["delay_ms"] for kind in cls.__mro__ if "delay_ms" in vars(kind)]
        if delays[0] is not vars(Task)["delay_ms"]:
            raise TypeError(
                f"{cls.__qualname__} defines delay_ms, which is the timer's own: give the delay to "
                "super().__init__(delay_ms), or set it on the task"
            )

    @abstractmethod
    def run(self) -> None:
        """Do the work. Called once, by the timer's executor, with none of its locks held."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} delay_ms={self.delay_ms!r}>"

    def __reduce__(self) -> NoReturn:
        raise not_copied_error(self)


class CallLater(Call, TimerTask):  # type: ignore[misc]
    """A task that calls a function."""

    __slots__ = ()

    __reduce__ = TimerTask.__reduce__  # before that of the native task


class TimerTaskEntry:
    """A task with its absolute expiration, while it waits.

    Args:
        task: what is to be run.
        expiration_ms: when, in milliseconds of the timer's clock.
    """

    __slots__ = ("bucket", "expiration_ms", "number", "task")

    def __init__(self, task: TimerTask, expiration_ms: int) -> None:
        self.task: TimerTask | None = task
        self.expiration_ms = expiration_ms
        self.number = 0
        self.bucket: Entries = NOWHERE

    def __repr__(self) -> str:
        return f"<{type(self).__name__} expiration_ms={self.expiration_ms} of {self.task!r}>"

    @property
    def cancelled(self) -> bool:
        """Whether the task no longer points at this entry: cancelled, run, or added anew."""
        task = self.task
        return task is None or task._timer_entry is not self

    @property
    def waits(self) -> bool:
        """Whether the task's fate is open."""
        return self.number in self.bucket and not self.cancelled

    def remove(self) -> bool:
        """Take the entry out of its home, and say whether it was there. O(1)."""
        if self.bucket.pop(self.number, None) is None:
            return False
        # Entry and task would otherwise keep each other alive.
        self.task = None
        return True


Entries: TypeAlias = dict[int, TimerTaskEntry]
"""Waiting entries by number, in the order of insertion."""

NOWHERE: Entries = {}
"""The home of an entry that was not added yet; always empty."""
