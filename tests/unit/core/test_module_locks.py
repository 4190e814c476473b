"""Locks that a module has for all that it makes are free in the child of a fork."""

from __future__ import annotations

import importlib
import pkgutil
import threading
from types import ModuleType

import pytest

import purgatory.core
import purgatory.debug
import purgatory.metrics
import purgatory.shared
import timer
from timer.locks import ScopedLock, _of_modules

PLAIN = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Semaphore)
PACKAGES = [timer, purgatory.core, purgatory.shared, purgatory.metrics, purgatory.debug]


def _modules(package: ModuleType) -> list[ModuleType]:
    return [
        importlib.import_module(found.name)
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
        if not found.ispkg
    ]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: str(package.__name__))
def test_no_lock_of_a_module_outlives_a_fork(package: ModuleType) -> None:
    for module in _modules(package):
        for name, value in vars(module).items():
            assert not isinstance(value, PLAIN), f"{module.__name__}.{name}"
            if isinstance(value, ScopedLock):
                assert value in _of_modules, f"{module.__name__}.{name}"
