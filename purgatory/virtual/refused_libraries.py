"""Libraries with sockets and threads of their own in C, which a world refuses by their names.

Python's audit hooks don't see the sockets of such a library. Its calls would reach the machine's
network, and wait on the machine's clock for events of the world. Each call that makes a connection
therefore raises a `SandboxError` with an alternative.

Ground rules
------------
* Only the thread that entered the world is refused; others have the libraries unchanged.
* Classes are patched, not modules' names, so that references made before are patched as well. A
  class of C can't be patched: the type of the class is replaced instead, as `built_in_function`
  replaces addresses. The interpreter's lock is held: each replacement is one store. Only classes
  without a vectorcall can be refused so: with one, Python would bypass their types.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial, wraps
from importlib.machinery import ModuleSpec
from inspect import getattr_static
from threading import get_ident
from types import ModuleType
from typing import Any, Final, NamedTuple

from purgatory.virtual.built_in_function import can_patch
from purgatory.virtual.errors import SandboxError


class Refusal(NamedTuple):
    """A class whose instances can't be made, or can't connect, in a world."""

    name: str
    """The name by which programs call it."""
    module: str
    class_name: str
    method: str
    """The method that raises; ``""``: all calls of the class, which is one of C."""
    advice: str
    allowed_by: tuple[str, ...] = ()
    """The kinds of `World(allow=)` that permit the class; none: it is always refused."""


_GRPC: Final = (
    "grpcio connects and serves with sockets and threads of its own, in C, which have no part in a "
    "virtual world: have a stand-in call the servicer's methods there, and test gRPC outside"
)
_PSYCOPG: Final = (
    "psycopg connects by libpq, with sockets of its own, in C, which have no part in a virtual "
    "world: use a driver on asyncio's connections there, such as asyncpg, or a stand-in for the "
    "database"
)
_CONFLUENT: Final = (
    "confluent-kafka connects by librdkafka, with sockets and threads of its own, in C, which have "
    "no part in a virtual world: use aiokafka there, and confluent-kafka with `purgatory cluster`"
)
_SOCKETS: Final = ("sockets",)
_BOTH: Final = ("sockets", "threads")
_INIT: Final = "__init__"
_CONNECT: Final = "_connect_gen"
_C: Final = "confluent_kafka"

REFUSALS: Final = (
    Refusal("grpc.aio.Channel", "grpc.aio._channel", "Channel", _INIT, _GRPC),
    Refusal("grpc.aio.Server", "grpc.aio._server", "Server", _INIT, _GRPC),
    Refusal("grpc.Channel", "grpc._channel", "Channel", _INIT, _GRPC, _BOTH),
    Refusal("grpc.Server", "grpc._server", "_Server", _INIT, _GRPC, _BOTH),
    Refusal(
        "psycopg.AsyncConnection",
        "psycopg.connection_async",
        "AsyncConnection",
        _CONNECT,
        _PSYCOPG,
    ),
    Refusal("psycopg.Connection", "psycopg.connection", "Connection", _CONNECT, _PSYCOPG, _SOCKETS),
    *(
        Refusal(f"{_C}.{kind}", f"{_C}.cimpl", kind, "", _CONFLUENT, _BOTH)
        for kind in ("Producer", "Consumer", "ShareConsumer")
    ),
    Refusal(f"{_C}.admin.AdminClient", f"{_C}.cimpl", "_AdminClientImpl", "", _CONFLUENT, _BOTH),
)
"""The classes that connect or listen. Names that a version of a library lacks are skipped."""


class _Entered:
    """The thread of the world that is entered, and the kinds that it allows."""

    thread_id = 0
    allowed: frozenset[str] = frozenset()


def _check(refusal: Refusal) -> None:
    """Raise SandboxError on the world's thread, unless the world allows the class."""
    if get_ident() != _Entered.thread_id:
        return
    advice = f"{refusal.name}: {refusal.advice}"
    if refusal.allowed_by:
        if _Entered.allowed.issuperset(refusal.allowed_by):
            return
        advice = f"{advice}; or allow it: World(allow={list(refusal.allowed_by)!r})"
    raise SandboxError(advice)


class RefusedLibraries:
    """Refuses `REFUSALS` between `begin` and `end`, also in modules that are imported in between.

    Args:
        allowed: the kinds that the world allows.
    """

    def __init__(self, allowed: frozenset[str]) -> None:
        self._allowed = allowed
        self._restore: list[Callable[[], None]] = []
        self._finder = _Finder(self)

    def begin(self) -> None:
        """Begin on this thread."""
        _Entered.thread_id, _Entered.allowed = get_ident(), self._allowed
        sys.meta_path.insert(0, self._finder)
        for name in _BY_MODULE:
            if (module := sys.modules.get(name)) is not None:
                self.patch(module)

    def end(self) -> None:
        """Restore the classes. Idempotent."""
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
            _Entered.thread_id = 0
        while self._restore:
            self._restore[-1]()
            self._restore.pop()

    def patch(self, module: ModuleType) -> None:
        """Patch the classes of a module."""
        for refusal in _BY_MODULE[module.__name__]:
            kind = getattr(module, refusal.class_name, None)
            if not isinstance(kind, type):
                continue
            if not refusal.method and can_patch():
                self._restore.append(partial(_set_type, kind, type(kind)))
                _set_type(kind, _refused_type(kind, refusal))
                for subclass in _subclasses(kind):
                    self._patch_method(subclass, refusal._replace(method=_INIT))
            elif hasattr(kind, refusal.method):
                self._patch_method(kind, refusal)

    def _patch_method(self, kind: type, refusal: Refusal) -> None:
        name = refusal.method
        if name in vars(kind):
            self._restore.append(partial(setattr, kind, name, vars(kind)[name]))
        else:  # the class inherits it
            self._restore.append(partial(_remove_attribute, kind, name))
        setattr(kind, name, _refused_method(getattr_static(kind, name), refusal))


# Cached for all worlds: making a class takes longer than many a test.
@lru_cache(maxsize=64)
def _refused_method(found: Any, refusal: Refusal) -> Any:
    is_class_method = isinstance(found, classmethod)
    original: Any = found.__func__ if is_class_method else found

    @wraps(original)
    def refuse(*arguments: Any, **keywords: Any) -> Any:
        _check(refusal)
        return original(*arguments, **keywords)

    return classmethod(refuse) if is_class_method else refuse


@lru_cache(maxsize=64)
def _refused_type(kind: type, refusal: Refusal) -> type:
    class RefusedType(type(kind)):  # type: ignore[misc]
        __slots__ = ()

        def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
            _check(refusal)
            return super().__call__(*arguments, **keywords)

    return RefusedType


def _set_type(kind: type, type_of_kind: type) -> None:
    """Do as ``kind.__class__ = ...``, which Python permits only for Python's own classes."""
    _Object.from_address(id(kind)).type = id(type_of_kind)


def _subclasses(kind: type) -> Iterator[type]:
    subclasses: list[type] = type.__subclasses__(kind)
    for subclass in subclasses:
        yield subclass
        yield from _subclasses(subclass)


def _remove_attribute(kind: type, name: str) -> None:
    if name in vars(kind):
        delattr(kind, name)


_BY_MODULE: Final[dict[str, list[Refusal]]] = {}
for _refusal in REFUSALS:
    _BY_MODULE.setdefault(_refusal.module, []).append(_refusal)


class _Object(ctypes.Structure):
    """The beginning of CPython's PyObject."""

    _fields_ = (("references", ctypes.c_ssize_t), ("type", ctypes.c_void_p))


class _Finder:
    """Finds modules as other finders do, and patches them after their first import."""

    def __init__(self, refused: RefusedLibraries) -> None:
        self._refused = refused

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _BY_MODULE:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                loader: Any = spec.loader
                loader.exec_module = partial(self._load, loader.exec_module)
                return spec
        return None

    def _load(self, load: Callable[[ModuleType], object], module: ModuleType) -> None:
        load(module)
        if self in sys.meta_path:
            self._refused.patch(module)
