"""One order in all processes: sets, futures, state of three libraries, garbage collection.

* Python's sets iterate by hashes, which each process draws again for strings. `OrderedSet` iterates
  in insertion order; aiokafka's modules find it under the names ``set`` and ``frozenset``.
* Futures and tasks have a number as their hash, not an address, from its first use on; the locks,
  events, queues and streams of asyncio that are made in a world, from the beginning.
* aiokafka's C code reads the system's time for a record without one, and numbers the producers of a
  process for their names: here records have a time, and the producers of a world are numbered.
* asyncpg numbers the prepared statements of a process: here, of a world.
* aiohttp masks the frames of WebSockets with a generator that is made at its import: here, the
  generator is seeded anew.
* The garbage collector runs at iterations of the loop, not after so many new objects: a
  ``__del__`` runs at the same moment in each run.

Ground rules: only the thread that entered a world touches it.
"""

from __future__ import annotations

import asyncio
import gc
import random
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from itertools import count
from typing import Any, Final

_SORTED = (str, bytes, tuple)
_BUILTIN_SET_TYPES = (set, frozenset)


def _ordered_members(members: Iterable[Any]) -> Iterable[Any]:
    if type(members) in _BUILTIN_SET_TYPES and isinstance(next(iter(members), None), _SORTED):
        try:
            return sorted(members)
        except TypeError:  # tuples of objects that can't be compared
            return sorted(members, key=repr)
    return members


class _SetType(type):
    """Every set counts as an instance, since instance checks don't depend on order."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, set)


class _FrozenSetType(type):
    """As for instances."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, frozenset)


class _Ordered:
    """The methods of both kinds of sets."""

    __slots__ = ()

    _members: dict[Any, None]

    def _build(self, members: Iterable[Any]) -> Any:
        kind: Any = type(self)
        return kind(members)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._members)

    def __reduce__(self) -> Any:
        return self.__class__, (list(self._members),)

    def __repr__(self) -> str:
        return f"{{{', '.join(map(repr, self._members))}}}" if self._members else "set()"

    def copy(self) -> Any:
        return self._build(self)

    def union(self, *others: Iterable[Any]) -> Any:
        members = dict(self._members)
        for other in others:
            members.update(dict.fromkeys(_ordered_members(other)))
        return self._build(members)

    def difference(self, *others: Iterable[Any]) -> Any:
        excluded = set().union(*others)
        return self._build([member for member in self._members if member not in excluded])

    def intersection(self, *others: Iterable[Any]) -> Any:
        common = set(self._members).intersection(*others)
        return self._build(member for member in self._members if member in common)

    def symmetric_difference(self, other: Iterable[Any]) -> Any:
        others = self._build(other)
        return self.difference(others).union(others.difference(self._members))

    def __or__(self, other: Any) -> Any:
        return self.union(other) if _is_set(other) else NotImplemented

    def __and__(self, other: Any) -> Any:
        return self.intersection(other) if _is_set(other) else NotImplemented

    def __sub__(self, other: Any) -> Any:
        return self.difference(other) if _is_set(other) else NotImplemented

    def __xor__(self, other: Any) -> Any:
        return self.symmetric_difference(other) if _is_set(other) else NotImplemented

    def __ror__(self, other: Any) -> Any:
        return self._build(other).union(self) if _is_set(other) else NotImplemented

    def __rand__(self, other: Any) -> Any:
        return self._build(other).intersection(self) if _is_set(other) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return self._build(other).difference(self) if _is_set(other) else NotImplemented

    def __rxor__(self, other: Any) -> Any:
        return self._build(other).symmetric_difference(self) if _is_set(other) else NotImplemented


class OrderedFrozenSet(_Ordered, frozenset[Any], metaclass=_FrozenSetType):
    """A frozen set that iterates in insertion order."""

    __slots__ = ("_members",)

    def __new__(cls, members: Iterable[Any] = ()) -> Any:
        unique = dict.fromkeys(_ordered_members(members))
        instance = super().__new__(cls, unique)
        instance._members = unique
        return instance


class OrderedSet(_Ordered, set[Any], metaclass=_SetType):
    """A set that iterates in insertion order."""

    __slots__ = ("_members",)

    def __init__(self, members: Iterable[Any] = ()) -> None:
        if members == ():  # as most begin
            self._members = {}
            return
        self._members = dict.fromkeys(_ordered_members(members))
        set.__init__(self, self._members)

    def add(self, member: Any) -> None:
        set.add(self, member)
        self._members[member] = None

    def discard(self, member: Any) -> None:
        set.discard(self, member)
        self._members.pop(member, None)

    def remove(self, member: Any) -> None:
        set.remove(self, member)
        del self._members[member]

    def pop(self) -> Any:
        for member in self._members:
            self.remove(member)
            return member
        raise KeyError("pop from an empty set")

    def clear(self) -> None:
        set.clear(self)
        self._members.clear()

    def update(self, *others: Iterable[Any]) -> None:
        for other in others:
            self._members.update(dict.fromkeys(_ordered_members(other)))
        set.update(self, self._members)

    def difference_update(self, *others: Iterable[Any]) -> None:
        members = self._members
        for member in set().union(*others):
            if member in members:
                del members[member]
                set.remove(self, member)

    def intersection_update(self, *others: Iterable[Any]) -> None:
        self._assign(self.intersection(*others))

    def symmetric_difference_update(self, other: Iterable[Any]) -> None:
        self._assign(self.symmetric_difference(other))

    def _assign(self, members: OrderedSet) -> None:
        self.clear()
        self.update(members)

    def __ior__(self, other: Any) -> Any:
        return self._apply(self.update, other)

    def __iand__(self, other: Any) -> Any:
        return self._apply(self.intersection_update, other)

    def __isub__(self, other: Any) -> Any:
        return self._apply(self.difference_update, other)

    def __ixor__(self, other: Any) -> Any:
        return self._apply(self.symmetric_difference_update, other)

    def _apply(self, change: Callable[[Any], None], other: Any) -> Any:
        if not _is_set(other):
            return NotImplemented
        change(other)
        return self


def _is_set(other: Any) -> bool:
    return isinstance(other, set | frozenset)


def _creation_number(member: NumberedFuture | NumberedTask) -> int:
    loop: Any = member.get_loop()
    member._number = number = int(loop.next_number())
    return number


class NumberedFuture(asyncio.Future[Any]):
    """A future of a `VirtualLoop`."""

    __slots__ = ("_number",)

    _number: int

    def __hash__(self) -> int:
        try:
            return self._number
        except AttributeError:
            return _creation_number(self)


class NumberedTask(asyncio.Task[Any]):
    """A task of a `VirtualLoop`. Its label tells it from other tasks of the same function."""

    __slots__ = ("_number", "label", "last_step", "priority", "process")

    _number: int
    label: int
    last_step: int
    """Of a `Story`."""
    priority: float
    process: Any
    """The `HostProcess` that it belongs to, if any."""

    def __hash__(self) -> int:
        try:
            return self._number
        except AttributeError:
            return _creation_number(self)


_NUMBERED: Final[tuple[type[Any], ...]] = (
    asyncio.Condition,
    asyncio.Event,
    asyncio.Lock,
    asyncio.Queue,
    asyncio.Semaphore,
    asyncio.StreamReader,
    asyncio.StreamWriter,
)


def _number_or_address(member: Any) -> int:
    number: int | None = vars(member).get("_number_in_world")
    return object.__hash__(member) if number is None else number


class NumberedObjects:
    """Numbers new objects of asyncio's classes, for their hashes, between `begin` and `end`."""

    def __init__(self) -> None:
        self._next_number = count(1).__next__
        self._inits: dict[type[Any], Callable[..., None]] = {}

    def begin(self) -> None:
        """Begin. Idempotent."""
        if not self._inits:
            for kind in _NUMBERED:
                self._inits[kind] = kind.__init__
                setattr(kind, "__init__", self._numbering(kind.__init__))  # noqa: B010
                # The method stays: a set that outlives the world still has to find its members.
                setattr(kind, "__hash__", _number_or_address)  # noqa: B010

    def _numbering(self, init: Callable[..., None]) -> Callable[..., None]:
        @wraps(init)
        def numbering_init(member: Any, *arguments: Any, **named: Any) -> None:
            member._number_in_world = self._next_number()
            init(member, *arguments, **named)

        return numbering_init

    def end(self) -> None:
        """End. Idempotent."""
        for kind, init in self._inits.items():
            setattr(kind, "__init__", init)  # noqa: B010
        self._inits.clear()


_PACKAGE: Final = "aiokafka"
_IS_OF_PACKAGE: Final = re.compile(rf"{_PACKAGE}(\.|$)").match
_NAMES: Final[dict[str, Any]] = {"set": OrderedSet, "frozenset": OrderedFrozenSet}


class OrderedSets:
    """Gives aiokafka's modules ordered sets, between `begin` and `end`."""

    def __init__(self) -> None:
        self._modules: dict[str, Any] = {}
        self._module_count = 0

    def begin(self) -> None:
        """Begin, in the modules imported so far; a further call, in those imported since."""
        if _PACKAGE not in sys.modules or len(sys.modules) == self._module_count:
            return
        self._module_count = len(sys.modules)
        for name in filter(_IS_OF_PACKAGE, list(sys.modules)):
            module = sys.modules.get(name)
            if module is None or name in self._modules:  # None: the import is blocked
                continue
            if not _NAMES.keys() & vars(module).keys():
                self._modules[name] = module
                vars(module).update(_NAMES)

    def end(self) -> None:
        """End: restore Python's sets. Idempotent."""
        for module in self._modules.values():
            for name in _NAMES:
                vars(module).pop(name, None)
        self._modules = {}
        self._module_count = 0


_MODULE: Final = "aiokafka.producer.message_accumulator"
_PRODUCERS: Final = "aiokafka.producer.producer"
_COUNTER_NAME: Final = "_PRODUCER_CLIENT_ID_SEQUENCE"


class TimedRecords:
    """Gives aiokafka's records the world's time, between `begin` and `end`."""

    def __init__(self) -> None:
        self._builder: Any = None
        self._append: Callable[..., Any] | None = None
        self._producer: Any = None
        self._counted = 0

    def begin(self) -> None:
        """Begin, once aiokafka is imported. Idempotent."""
        module = sys.modules.get(_MODULE)
        if module is None or self._append is not None:
            return
        builder: Any = getattr(module, "BatchBuilder")  # noqa: B009 - it has no types
        append = builder.append

        def append_with_time(producer: Any, *, timestamp: int | None, **record: Any) -> Any:
            if timestamp is None:
                timestamp = time.time_ns() // 1_000_000
            return append(producer, timestamp=timestamp, **record)

        self._builder, self._append = builder, append
        builder.append = append_with_time
        producer = getattr(sys.modules.get(_PRODUCERS), "AIOKafkaProducer", None)
        if hasattr(producer, _COUNTER_NAME):
            self._producer, self._counted = producer, getattr(producer, _COUNTER_NAME)
            setattr(producer, _COUNTER_NAME, 0)

    def end(self) -> None:
        """End: restore aiokafka's functions."""
        if self._append is not None:
            self._builder.append, self._append = self._append, None
        if self._producer is not None:
            setattr(self._producer, _COUNTER_NAME, self._counted)
            self._producer = None


_WRITER: Final = "aiohttp._websocket.writer"


class WebSocketMasks:
    """Has aiohttp mask a WebSocket's frames with a world's random numbers, from `begin` to `end`.

    aiohttp has one generator for all, which it makes when it is imported.

    Args:
        new_rng: makes the source of the random numbers.
    """

    def __init__(self, new_rng: Callable[[], random.Random]) -> None:
        self._new_rng = new_rng
        self._generator: random.Random | None = None
        self._original_state: Any = None

    def begin(self) -> None:
        """Begin, once aiohttp is imported. Idempotent."""
        if self._generator is not None or _WRITER not in sys.modules:
            return
        writer: Any = getattr(sys.modules[_WRITER], "WebSocketWriter", object)
        generator = (getattr(writer.__init__, "__kwdefaults__", None) or {}).get("random")
        if isinstance(generator, random.Random):
            self._generator, self._original_state = generator, generator.getstate()
            generator.setstate(self._new_rng().getstate())

    def end(self) -> None:
        """End: restore the generator's state. Idempotent."""
        if self._generator is not None:
            self._generator.setstate(self._original_state)
            self._generator = None


_COUNTERS: Final = (("asyncpg.connection", "_uid"),)
"""A module's counters for names that it sends, such as of prepared statements."""


class ModuleCounters:
    """Has modules count from 0 in each world, between `begin` and `end`."""

    def __init__(self) -> None:
        self._originals: dict[tuple[str, str], int] = {}

    def begin(self) -> None:
        """Begin, for the modules that are imported. Idempotent."""
        for key in _COUNTERS:
            module = sys.modules.get(key[0])
            if key not in self._originals and hasattr(module, key[1]):
                self._originals[key] = getattr(module, key[1])
                setattr(module, key[1], 0)

    def end(self) -> None:
        """End: continue the former counts, or these if they are higher. Idempotent."""
        for (name, attribute), original in self._originals.items():
            module = sys.modules.get(name)
            setattr(module, attribute, max(original, getattr(module, attribute, 0)))
        self._originals.clear()


ITERATIONS: Final = 16_384
"""The iterations of the loop between two collections of the youngest generation."""

_OLDER: Final = 8
_ALL: Final = 32
"""The collections until one includes the middle generation, and all generations."""

_GC_THRESHOLD: Final = 200_000
"""The threshold of Python's own collections, for iterations that make very many objects."""


class WorldCollector:
    """Collects cyclic garbage between `begin` and `end`, unless the collector is disabled."""

    def __init__(self) -> None:
        self._original_threshold: tuple[int, int, int] | None = None
        self._collections = 0
        self._collects_at_end = False
        self._is_frozen = False

    def begin(self) -> None:
        """Raise the threshold of Python's garbage collector. Idempotent."""
        if self._original_threshold is None:
            self._original_threshold = gc.get_threshold()
            if self._original_threshold[0]:
                gc.set_threshold(
                    max(_GC_THRESHOLD, self._original_threshold[0]), *self._original_threshold[1:]
                )

    def collect(self) -> None:
        """Collect garbage, after each `ITERATIONS`."""
        if not gc.isenabled() or not gc.get_threshold()[0]:
            return
        self._collections += 1
        gc.collect(0 if self._collections % _OLDER else 1 if self._collections % _ALL else 2)

    def freeze(self) -> None:
        """Collect only objects made from now on, so that `end` can collect in little time.

        Where the application has frozen its objects, that is so already, and stays so.
        """
        self._collects_at_end = True
        if not gc.get_freeze_count():
            gc.freeze()
            self._is_frozen = True

    def end(self) -> None:
        """Restore the threshold, and collect the rest of dead hosts. Idempotent.

        Resources that a crashed process left open cause no warnings.
        """
        if self._collects_at_end:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                gc.collect()
            self._collects_at_end = False
        if self._is_frozen:
            gc.unfreeze()
            self._is_frozen = False
        if self._original_threshold is not None:
            gc.set_threshold(*self._original_threshold)
            self._original_threshold = None
