"""The time of a world, and the clocks and random numbers that programs see in it.

While a world runs, ``time``, ``datetime.now``, ``random``, ``uuid`` and ``os.urandom`` follow the
world, whoever holds a reference to them. On other threads, and afterwards, they are the system's.

Ground rules
------------
* Whole microseconds, which only the world's loop lets pass, on its own thread.
* One world of a process is patched in at a time, for the thread that entered it.
* ``random``'s own generator is the application's: its state is restored at the end.
"""

from __future__ import annotations

import datetime
import os
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from typing import Any

from purgatory.virtual.built_in_function import BuiltInFunction
from purgatory.virtual.errors import WorldError
from timer import Clock, Wake

NS_PER_US = 1_000
US_PER_S = 1_000_000
MACHINE_UP_US = 86_400 * US_PER_S
"""What its monotonic clock says when a world begins: a day. Code that takes 0 for "never" then does
what it does on any machine."""


class WorldClock(Clock):
    """The monotonic clock of a world.

    Args:
        start_us: the time of day at which it begins, in microseconds since 1970.
    """

    def __init__(self, start_us: int) -> None:
        self.now_us = MACHINE_UP_US
        self._start_us = start_us

    @property
    def passed_us(self) -> int:
        """How long the world has been."""
        return self.now_us - MACHINE_UP_US

    @property
    def wall_us(self) -> int:
        """The time of day, in microseconds since 1970."""
        return self._start_us + self.now_us - MACHINE_UP_US

    def now_ns(self) -> int:
        return self.now_us * NS_PER_US

    def wait(self, wake: Wake, until_ns: int) -> bool:
        return False  # only the loop lets time pass


class WheelClock(Clock):
    """The same clock for a wheel whose ticks are microseconds: a timer calls them milliseconds.

    Args:
        clock: which one.
    """

    def __init__(self, clock: WorldClock) -> None:
        self._clock = clock

    def now_ns(self) -> int:
        return self._clock.now_us * US_PER_S

    def wait(self, wake: Wake, until_ns: int) -> bool:
        return False


_PLAIN_SEED = random.Random.seed


@dataclass
class ClockPatch:
    """What is seen of a world.

    Args:
        clock: its time.
        chance: where the application's random numbers come from.
        sleep: lets so many seconds pass.
    """

    clock: WorldClock
    chance: random.Random
    sleep: Callable[[float], None]


class _PatchedFunctions:
    """Which world is seen, and by whom."""

    sight: ClockPatch | None = None
    thread_id = 0


def _current_patch() -> ClockPatch | None:
    return _PatchedFunctions.sight if _PatchedFunctions.thread_id == get_ident() else None


def _now_s() -> float:
    sight = _current_patch()
    return _TIME.original() if sight is None else sight.clock.wall_us / US_PER_S


def _now_ns() -> int:
    sight = _current_patch()
    return _TIME_NS.original() if sight is None else sight.clock.wall_us * NS_PER_US


def _passed_s_of(name: str) -> BuiltInFunction:
    def passed_s() -> float:
        sight = _PatchedFunctions.sight if _PatchedFunctions.thread_id == get_ident() else None
        return built_in.original() if sight is None else sight.clock.now_us / US_PER_S

    built_in = BuiltInFunction(getattr(time, name), passed_s)
    return built_in


def _passed_ns_of(name: str) -> BuiltInFunction:
    def passed_ns() -> int:
        sight = _PatchedFunctions.sight if _PatchedFunctions.thread_id == get_ident() else None
        return built_in.original() if sight is None else sight.clock.now_us * NS_PER_US

    built_in = BuiltInFunction(getattr(time, name), passed_ns)
    return built_in


def _read_clock_of(name: str, per_s: int) -> BuiltInFunction:
    """A function of `time` that reads the clock that it is given the number of."""

    def read(given: Any) -> Any:
        number = given[0] if isinstance(given, tuple) else given
        sight = _current_patch()
        if sight is None or number not in _CLOCKS:
            return built_in.original(given)
        read_us = sight.clock.wall_us if number in _WALL_CLOCKS else sight.clock.now_us
        return read_us / US_PER_S if per_s == 1 else read_us * NS_PER_US

    built_in = BuiltInFunction(getattr(time, name), read)
    return built_in


def _clocks(*names: str) -> frozenset[int]:
    return frozenset(getattr(time, name) for name in names if hasattr(time, name))


_WALL_CLOCKS = _clocks("CLOCK_REALTIME", "CLOCK_TAI")

_CLOCKS = _WALL_CLOCKS | _clocks(
    "CLOCK_MONOTONIC", "CLOCK_MONOTONIC_RAW", "CLOCK_BOOTTIME", "CLOCK_UPTIME"
)


def _sleep(seconds: Any) -> None:
    sight = _current_patch()
    if sight is None:
        _SLEEP.original(seconds)
    elif seconds > 0:
        sight.sleep(seconds)


def _urandom(size: Any) -> bytes:
    sight = _current_patch()
    return _URANDOM.original(size) if sight is None else sight.chance.randbytes(max(size, 0))


def _filled_with_now(name: str, fill: Callable[[Any], Any]) -> BuiltInFunction:
    """A function of `time` that means now if it is not told when."""

    def filled(arguments: Any) -> Any:
        return built_in.original(arguments if _current_patch() is None else fill(arguments))

    built_in = BuiltInFunction(getattr(time, name), filled)
    return built_in


def _with_seconds(arguments: Any) -> Any:
    return arguments if arguments and arguments[0] is not None else (_now_s(),)


def _datetime_now(cls: Any, arguments: Any, count: int, names: Any) -> datetime.datetime:
    # `now(tz)` and `now(tz=tz)` pass the same first argument.
    zone = arguments[0] if count or names else None
    sight = _current_patch()
    if sight is None:
        found: datetime.datetime = cls.fromtimestamp(_TIME_NS.original() / 1e9, zone)
        return found
    return _moment(cls, sight, zone)


def _datetime_utcnow(cls: Any) -> datetime.datetime:
    sight = _current_patch()
    if sight is None:
        now: datetime.datetime = _UTCNOW.original(cls)
        return now
    return _moment(cls, sight, datetime.UTC).replace(tzinfo=None)


def _moment(cls: Any, sight: ClockPatch, zone: datetime.tzinfo | None) -> datetime.datetime:
    seconds, microseconds = divmod(sight.clock.wall_us, US_PER_S)
    moment: datetime.datetime = cls.fromtimestamp(seconds, zone)
    return moment.replace(microsecond=microseconds)


_TIME = BuiltInFunction(time.time, _now_s)
_TIME_NS = BuiltInFunction(time.time_ns, _now_ns)
_SLEEP = BuiltInFunction(time.sleep, _sleep)
_URANDOM = BuiltInFunction(os.urandom, _urandom)
_UTCNOW = BuiltInFunction(datetime.datetime.utcnow, _datetime_utcnow)

_FUNCTIONS = (
    _TIME,
    _TIME_NS,
    *(_passed_s_of(name) for name in ("monotonic", "perf_counter")),
    *(_passed_ns_of(name) for name in ("monotonic_ns", "perf_counter_ns")),
    *(
        _read_clock_of(name, per_s)
        for name, per_s in (("clock_gettime", 1), ("clock_gettime_ns", US_PER_S * NS_PER_US))
        if hasattr(time, name)
    ),
    _SLEEP,
    *(_filled_with_now(name, _with_seconds) for name in ("localtime", "gmtime", "ctime")),
    _filled_with_now("strftime", lambda given: given if given[1:] else (*given, time.localtime())),
    _filled_with_now("asctime", lambda given: given or (time.localtime(),)),
    BuiltInFunction(datetime.datetime.now, _datetime_now),
    _UTCNOW,
    _URANDOM,
)


def _seed(generator: random.Random, a: Any = None, version: int = 2) -> None:
    """`random.Random.seed`, but that nothing to begin with is the world's chance."""
    sight = _current_patch()
    if a is None and sight is not None:
        a = sight.chance.getrandbits(64)
    _PLAIN_SEED(generator, a, version)


class PatchedClocks:
    """A world that is seen on this thread between `begin` and `end`.

    Args:
        sight: what is seen.
    """

    def __init__(self, sight: ClockPatch) -> None:
        self._current_patch = sight
        self._random_state: Any = None
        self._uuid_state: Any = None

    def begin(self) -> None:
        """Have this thread see the world.

        Raises:
            WorldError: another world is seen.
        """
        if _PatchedFunctions.sight is not None:
            raise WorldError("another virtual world is entered: leave that one first")
        self._random_state = random.getstate()
        self._uuid_state = (uuid._node, uuid._last_timestamp, uuid._generate_time_safe)  # type: ignore[attr-defined]
        _PatchedFunctions.sight, _PatchedFunctions.thread_id = self._current_patch, get_ident()
        for function in _FUNCTIONS:
            function.exchange()
        random.Random.seed = _seed  # type: ignore[method-assign,assignment]
        random.seed(self._current_patch.chance.getrandbits(64))
        # A uuid1 is made of the time and the machine's address: here, of the world's.
        uuid._node = self._current_patch.chance.getrandbits(48) | 1 << 40  # type: ignore[attr-defined]
        uuid._last_timestamp = uuid._generate_time_safe = None  # type: ignore[attr-defined]

    def end(self) -> None:
        """Have it see what it saw before. Again: no effect."""
        if not self.is_seen:
            return
        random.setstate(self._random_state)
        uuid._node, uuid._last_timestamp, uuid._generate_time_safe = self._uuid_state  # type: ignore[attr-defined]
        _forget()  # last: an interrupt before it leaves what `end` does again

    @property
    def is_seen(self) -> bool:
        """Whether this world is the one that is seen."""
        return _PatchedFunctions.sight is self._current_patch


def real_monotonic_ns() -> int:
    """The machine's own monotonic clock, also in a world."""
    now_ns: int = _REAL_MONOTONIC_NS.original()
    return now_ns


def real_time() -> float:
    """The machine's own time of day, also in a world."""
    now_s: float = _TIME.original()
    return now_s


def real_perf_counter() -> float:
    """The machine's own performance counter, also in a world."""
    now_s: float = _REAL_PERF_COUNTER.original()
    return now_s


def real_sleep(seconds: float) -> None:
    """Sleep by the machine's clock, also in a world."""
    _SLEEP.original(seconds)


_REAL_PERF_COUNTER = next(one for one in _FUNCTIONS if one.name == "perf_counter")
_REAL_MONOTONIC_NS = next(one for one in _FUNCTIONS if one.name == "monotonic_ns")


def _forget() -> None:
    for function in _FUNCTIONS:
        function.restore()
    random.Random.seed = _PLAIN_SEED  # type: ignore[method-assign]
    _PatchedFunctions.sight, _PatchedFunctions.thread_id = None, 0


os.register_at_fork(after_in_child=_forget)
