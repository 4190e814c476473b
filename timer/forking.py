"""Forks: a child has one thread, and locks that the parent's other threads held for ever.

A pre-forking server makes its timers and purgatories before it forks, or after; either works. In
each child they are empty, with locks of their own; a thread starts with the first task.

Ground rules
------------
* In the child there is one thread, so ``_reset`` needs no lock, and takes none.
* Registered instances are weakly referenced.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class _ForkAware(Protocol):
    def _after_fork(self) -> None:
        """Reset the state and the locks in the child."""


_instances: weakref.WeakSet[_ForkAware] = weakref.WeakSet()


def register(instance: _ForkAware) -> None:
    """Reset ``instance`` in the child of every fork."""
    _instances.add(instance)


def registered() -> list[object]:
    """Return the registered instances that are alive, in any order."""
    while True:
        try:
            return list(_instances)
        except RuntimeError:
            continue  # another thread made one just now


def _reset() -> None:
    for instance in list(_instances):
        instance._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset)
