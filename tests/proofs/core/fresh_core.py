"""Fresh copies of the core whose threads can be scheduled, and whose source can be changed first.

``load_core`` imports ``timer`` and ``purgatory`` once more from their source files, beside the
ordinary ones, together with the programs. Their locks are those of ``cooperative_locks``;
``switch_points`` lists the other points at which threads may be switched. Their logs are discarded.

``load_native_core`` does so with the native parts: copies of the extension modules, each of which
is a library of its own to the system's loader, and so has a state of its own.
"""

from __future__ import annotations

import ctypes
import importlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any
from unittest.mock import MagicMock

from tests.proofs.core import cooperative_locks
from tests.proofs.core.scheduler import SCHEDULER
from tests.proofs.core.switch_points import give_points, instrumented

WORLD = "tests.unit.core.schedule_world"
PROGRAMS = tuple(
    f"tests.unit.core.{name}"
    for name in (
        "schedule_programs",
        "threshold_programs",
        "users_lock_programs",
        "closing_programs",
    )
)
CALLS = "tests.unit.core.schedule_calls"
BUSY_RUN = "tests.unit.core.busy_run"
TABLE = "tests.proofs.calls"
FRESH_TESTS = frozenset({"tests.unit.core.probe", WORLD, *PROGRAMS, CALLS, TABLE, BUSY_RUN})

Patches = Mapping[str, Mapping[str, str]]
"""By module: texts to replace in its source, with their replacements."""

StandIns = Mapping[str, Mapping[str, object]]
"""By standard module: replacements of some of its attributes."""

COOPERATIVE: StandIns = {
    "threading": {
        "Lock": cooperative_locks.CooperativeLock,
        "RLock": cooperative_locks.CooperativeRLock,
        "StateLock": cooperative_locks.CooperativeStateLock,
    },
    "time": {"sleep": cooperative_locks.sleep, "monotonic": cooperative_locks.monotonic},
    "structlog": {"is_configured": lambda: True, "get_logger": MagicMock()},
}

STATE_MODULE = "purgatory.core.state"
STATE_LOCK = {"from purgatory.core.locks import StateLock": "from threading import StateLock"}
"""The state's lock has a stand-in of its own: under it no other thread may run."""

TIME_MODULE = "timer.machine_time"
_SLEEPS = "    time.sleep = _sleep"
COOPERATIVE_TIME = {_SLEEPS: f"{_SLEEPS}\n    time.monotonic = _programs_time.monotonic"}
"""The core's own clock is the stand-in, too."""

CHOICE_MODULE = "timer.backend"
PURE = {'in ("", "0")': "in ()"}
"""The fresh core is the one in pure Python, whatever all others use."""


def load_core(patches: Patches | None = None) -> ModuleType:
    """Return ``schedule_calls``, with all programs, over a fresh, perhaps patched, core.

    Raises:
        ValueError: a patch does not fit its module's source exactly once.
    """
    *_, calls = load_fresh([WORLD, *PROGRAMS, CALLS], COOPERATIVE, patches, scheduled=True)
    return calls


def load_native_core(
    mutants: Mapping[str, Path] | None = None, every_step: bool = False
) -> ModuleType:
    """Return ``schedule_calls``, with all programs, over a fresh native core.

    Args:
        mutants: by module: the library that stands in for an extension module.
        every_step: whether the pure Python above the native parts has switch points too, beside
            those in calls of the native parts.
    """
    SCHEDULER.throw_threads_away()  # see ``on_no_chain``
    with on_no_chain():
        *_, calls = load_fresh(
            [WORLD, *PROGRAMS, CALLS], COOPERATIVE, scheduled=every_step, extensions=mutants or {}
        )
    return calls


@contextmanager
def on_no_chain() -> Iterator[None]:
    """Let this thread forget for a while which callbacks it is in the middle of.

    A native core keeps that in the thread's state, under a name that all copies share, and takes
    another copy's entry for its own.
    """
    state_of_thread = ctypes.pythonapi.PyThreadState_GetDict
    state_of_thread.restype = ctypes.py_object
    state: dict[Any, Any] = state_of_thread()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(state))  # it was lent, not given

    def take_chains() -> dict[Any, Any]:
        found = [key for key, value in state.items() if type(value).__name__ == "Trampoline"]
        return {key: state.pop(key) for key in found}

    kept = take_chains()
    yield
    take_chains()
    state.update(kept)


def load_fresh(
    names: Iterable[str],
    stand_ins: StandIns,
    patches: Patches | None = None,
    scheduled: bool = False,
    extensions: Mapping[str, Path] | None = None,
) -> list[ModuleType]:
    """Import these modules over a fresh core whose imports ``stand_ins`` replaces.

    Args:
        extensions: replacements of extension modules, if the core is to be native; else it is
            the one in pure Python, whatever all others use.
    """
    fixed: Patches = {STATE_MODULE: STATE_LOCK, TIME_MODULE: COOPERATIVE_TIME}
    if extensions is None:
        fixed = {**fixed, CHOICE_MODULE: PURE}
    finder = _Finder({**fixed, **(patches or {})}, scheduled, extensions or {})
    with _replaced(stand_ins), _without(_is_fresh):
        sys.meta_path.insert(0, finder)
        try:
            modules = [importlib.import_module(name) for name in names]
            for module in modules:
                _import_what_comes_when_asked_for(module)
            return modules
        finally:
            sys.meta_path.remove(finder)


def _import_what_comes_when_asked_for(module: ModuleType) -> None:
    """Later these names would come from the core that all others use."""
    for name, home in getattr(module, "_HOMES", {}).items():
        if home.startswith("core."):
            getattr(module, name)


def _is_fresh(name: str) -> bool:
    return name.partition(".")[0] in ("timer", "purgatory") or name in FRESH_TESTS


@contextmanager
def _without(unwanted: Callable[[str], bool]) -> Iterator[None]:
    """Forget these modules for a while, and put them back."""
    kept = {name: module for name, module in sys.modules.items() if unwanted(name)}
    packages = {name.rpartition(".")[0] for name in (__name__, *kept) if name.startswith("tests.")}
    kept_attributes = {name: dict(vars(sys.modules[name])) for name in packages}
    for name in kept:
        del sys.modules[name]
    try:
        yield
    finally:
        for name in [name for name in sys.modules if unwanted(name)]:
            del sys.modules[name]
        sys.modules.update(kept)
        for name, attributes in kept_attributes.items():
            vars(sys.modules[name]).update(attributes)


@contextmanager
def _replaced(stand_ins: StandIns) -> Iterator[None]:
    """Have modules that are imported meanwhile find stand-ins in these standard modules."""
    kept = {name: importlib.import_module(name) for name in stand_ins}
    for name, attributes in stand_ins.items():
        module = ModuleType(name)
        vars(module).update(vars(kept[name]))
        vars(module).update(attributes)
        sys.modules[name] = module
    try:
        yield
    finally:
        sys.modules.update(kept)


class _Finder(MetaPathFinder):
    def __init__(self, patches: Patches, scheduled: bool, extensions: Mapping[str, Path]) -> None:
        self._patches = patches
        self._scheduled = scheduled
        self._extensions = extensions

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if not _is_fresh(fullname) or spec is None or spec.origin is None:
            return spec
        if isinstance(spec.loader, ExtensionFileLoader):
            library = self._extensions.get(fullname, Path(spec.origin))
            spec.loader = _ExtensionLoader(fullname, str(library))
        else:
            patches = self._patches.get(fullname, {})
            spec.loader = _Loader(fullname, spec.origin, patches, self._scheduled)
        return spec


class _ExtensionLoader(ExtensionFileLoader):
    """Loads a copy of an extension module: of the same file, the system would load none."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        with tempfile.TemporaryDirectory() as folder:
            spec.origin = shutil.copy(self.path, folder)
            return super().create_module(spec)


class _Loader(SourceFileLoader):
    def __init__(
        self, fullname: str, path: str, replacements: Mapping[str, str], scheduled: bool
    ) -> None:
        super().__init__(fullname, path)
        self._replacements = replacements
        self._scheduled = scheduled

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text(encoding="utf-8")
        for old, new in self._replacements.items():
            if source.count(old) != 1:
                raise ValueError(f"{fullname} has {source.count(old)} times, not once: {old!r}")
            source = source.replace(old, new)
        return _compiled(source, self.path, self._scheduled)

    def exec_module(self, module: ModuleType) -> None:
        if self._scheduled:
            give_points(module)
        super().exec_module(module)


@cache
def _compiled(source: str, path: str, scheduled: bool) -> CodeType:
    """Return the code of a module, which most fresh cores share: they differ by a few patches."""
    if scheduled:
        return instrumented(source.encode(), path)
    code: CodeType = compile(source, path, "exec", dont_inherit=True)
    return code
