"""Locks that a module has for all that it makes are free in the child of a fork."""

from __future__ import annotations

import importlib
import pkgutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType

import pytest

from timer.locks import ScopedLock, _of_modules

PLAIN = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Semaphore)
PACKAGES = ["timer", *(f"purgatory.{name}" for name in ("core", "shared", "metrics", "debug"))]


def _modules(package: str) -> Iterator[ModuleType]:
    path = importlib.import_module(package).__path__
    for found in pkgutil.iter_modules(path, f"{package}."):
        with suppress(ModuleNotFoundError):  # of an extra that is not installed
            yield importlib.import_module(found.name)


@pytest.mark.parametrize("package", PACKAGES)
def test_module_lock_is_free_after_a_fork(package: str) -> None:
    for module in _modules(package):
        for name, value in vars(module).items():
            assert not isinstance(value, PLAIN), f"{module.__name__}.{name}"
            if isinstance(value, ScopedLock):
                assert value in _of_modules, f"{module.__name__}.{name}"
