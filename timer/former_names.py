"""Names of earlier releases: each raises, with the name of today in the text, for two releases.

A name of a module stands in a table, and its module's ``__getattr__`` calls ``check_former``. A
method or an attribute of a class is a ``FormerName`` in that class, and an argument of a function a
``former_argument``. `purgatory` has a table of its own, and uses the rest from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

FORMER: Mapping[str, str] = {
    "timer.DelayQueue": "timer.delay_queue.DelayQueue",
    "timer.Histogram": "timer.histogram.Histogram",
    "timer.HistogramSnapshot": "timer.histogram.HistogramSnapshot",
    "timer.SingleThreadExecutor": "timer.executor.SingleThreadExecutor",
    "timer.TimerSnapshot": "timer.snapshot.TimerSnapshot",
    "timer.TimerTaskEntry": "timer.timer_task.TimerTaskEntry",
    "timer.TimerTaskList": "timer.timer_task_list.TimerTaskList",
    "timer.Wake": "timer.wake.Wake",
}
"""The full name of a former name in `timer`, and what to use."""


def check_former(table: Mapping[str, str], module: str, name: str) -> None:
    """Raise ImportError if a module had this name in an earlier release.

    An ImportError passes through `from module import name`, where Python puts a text of its own in
    place of an AttributeError's.
    """
    former = f"{module}.{name}"
    if former in table:
        raise ImportError(advice(former, table[former]), name=module)


def advice(former: str, instead: str) -> str:
    """Return the text of the error for a former name."""
    return f"{former} is gone; use {instead}"


class FormerName:
    """A method or attribute of an earlier release, in its class: any use raises AttributeError.

    Args:
        instead: what to use.
    """

    def __init__(self, instead: str) -> None:
        self._instead = instead
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"{owner.__name__}.{name}"

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        raise AttributeError(advice(self._name, self._instead))

    def __set__(self, instance: object, value: object) -> NoReturn:
        raise AttributeError(advice(self._name, self._instead))


def former_argument(name: str, instead: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator of a function that had an argument of this name.

    Args:
        name: the former argument; a call with it raises TypeError.
        instead: what to use.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            if name in kwargs:
                raise TypeError(advice(f"{function.__qualname__}({name}=)", f"{instead}="))
            return function(*args, **kwargs)

        return checked

    return decorate
