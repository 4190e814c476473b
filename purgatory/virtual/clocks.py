"""The time of a world, and the patched clocks and random numbers in it.

While a world is entered, ``time``, ``datetime.now``, ``random``, ``uuid`` and ``os.urandom`` are
the world's, also under references made before. Other threads, and the program afterwards, get the
system's.

Ground rules
------------
* Time is in whole microseconds; only the world's loop advances it, on its own thread.
* One world of a process is active at a time, for the thread that entered it.
* ``random``'s own generator is the application's: its state is restored at the end. Other threads
  have another one meanwhile, so that their draws change nothing in the world.
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
from timer import Clock
from timer.wake import Wake

NS_PER_US = 1_000
US_PER_S = 1_000_000
INITIAL_UPTIME_US = 86_400 * US_PER_S
"""The monotonic clock at the start of a world: a day, since some code takes 0 for "never"."""


class WorldClock(Clock):
    """The monotonic clock of a world.

    Args:
        start_us: the time of day at which it begins, in microseconds since 1970.
    """

    def __init__(self, start_us: int) -> None:
        self.now_us = INITIAL_UPTIME_US
        self.skew_us: Callable[[], int] | None = None
        """Returns how far the clock of the current host is ahead; None: all are right."""
        self._start_us = start_us

    @property
    def elapsed_us(self) -> int:
        """The time since the world began."""
        return self.now_us - INITIAL_UPTIME_US

    @property
    def wall_us(self) -> int:
        """The time of day on the current host, in microseconds since 1970."""
        wall_us = self._start_us + self.now_us - INITIAL_UPTIME_US
        return wall_us if self.skew_us is None else wall_us + self.skew_us()

    def now_ns(self) -> int:
        return self.now_us * NS_PER_US

    def wait(self, wake: Wake, until_ns: int) -> bool:
        return False  # only the loop advances time


class WheelClock(Clock):
    """The same clock for a wheel whose ticks are microseconds, which the timer calls
    milliseconds."""

    def __init__(self, clock: WorldClock) -> None:
        self._clock = clock

    def now_ns(self) -> int:
        return self._clock.now_us * US_PER_S

    def wait(self, wake: Wake, until_ns: int) -> bool:
        return False


_ORIGINAL_SEED = random.Random.seed
_SHARED_SEED = random.seed
_ORIGINAL_GETRANDBITS = random.getrandbits


@dataclass
class ClockPatch:
    """The time and random numbers of a world.

    Args:
        rng: the source of the application's random numbers.
        sleep: advances the time by so many seconds.
    """

    clock: WorldClock
    rng: random.Random
    sleep: Callable[[float], None]


class _PatchedFunctions:
    """The active patch and its thread."""

    patch: ClockPatch | None = None
    thread_id = 0
    other_threads_rng = random.Random()


def _current_patch() -> ClockPatch | None:
    return _PatchedFunctions.patch if _PatchedFunctions.thread_id == get_ident() else None


def _now_s() -> float:
    patch = _current_patch()
    return _TIME.original() if patch is None else patch.clock.wall_us / US_PER_S


def _now_ns() -> int:
    patch = _current_patch()
    return _TIME_NS.original() if patch is None else patch.clock.wall_us * NS_PER_US


def _monotonic_s_of(name: str) -> BuiltInFunction:
    def monotonic_s() -> float:
        patch = _PatchedFunctions.patch if _PatchedFunctions.thread_id == get_ident() else None
        return built_in.original() if patch is None else patch.clock.now_us / US_PER_S

    built_in = BuiltInFunction(getattr(time, name), monotonic_s)
    return built_in


def _monotonic_ns_of(name: str) -> BuiltInFunction:
    def monotonic_ns() -> int:
        patch = _PatchedFunctions.patch if _PatchedFunctions.thread_id == get_ident() else None
        return built_in.original() if patch is None else patch.clock.now_us * NS_PER_US

    built_in = BuiltInFunction(getattr(time, name), monotonic_ns)
    return built_in


def _read_clock_of(name: str, per_s: int) -> BuiltInFunction:
    """A function of `time` whose argument is a clock id."""

    def read(argument: Any) -> Any:
        number = argument[0] if isinstance(argument, tuple) else argument
        patch = _current_patch()
        if patch is None or number not in _CLOCKS:
            return built_in.original(argument)
        time_us = patch.clock.wall_us if number in _WALL_CLOCKS else patch.clock.now_us
        return time_us / US_PER_S if per_s == 1 else time_us * NS_PER_US

    built_in = BuiltInFunction(getattr(time, name), read)
    return built_in


def _clocks(*names: str) -> frozenset[int]:
    return frozenset(getattr(time, name) for name in names if hasattr(time, name))


_WALL_CLOCKS = _clocks("CLOCK_REALTIME", "CLOCK_TAI")

_CLOCKS = _WALL_CLOCKS | _clocks(
    "CLOCK_MONOTONIC", "CLOCK_MONOTONIC_RAW", "CLOCK_BOOTTIME", "CLOCK_UPTIME"
)


def _sleep(seconds: Any) -> None:
    patch = _current_patch()
    if patch is None:
        _SLEEP.original(seconds)
    elif seconds > 0:
        patch.sleep(seconds)


def _urandom(size: Any) -> bytes:
    patch = _current_patch()
    return _URANDOM.original(size) if patch is None else patch.rng.randbytes(max(size, 0))


def _draw() -> float:
    if _PatchedFunctions.patch is None or _current_patch() is not None:
        drawn: float = _RANDOM.original()
        return drawn
    return _PatchedFunctions.other_threads_rng.random()


def _draw_bits(k: int, /) -> int:
    """`random.getrandbits`, in Python: a replacement in C could not raise for a wrong argument."""
    if _PatchedFunctions.patch is None or _current_patch() is not None:
        return _ORIGINAL_GETRANDBITS(k)
    return _PatchedFunctions.other_threads_rng.getrandbits(k)


def _with_default_time(name: str, fill: Callable[[Any], Any]) -> BuiltInFunction:
    """A function of `time` whose default argument is the current time."""

    def with_default_time(arguments: Any) -> Any:
        return built_in.original(arguments if _current_patch() is None else fill(arguments))

    built_in = BuiltInFunction(getattr(time, name), with_default_time)
    return built_in


def _with_seconds(arguments: Any) -> Any:
    return arguments if arguments and arguments[0] is not None else (_now_s(),)


def _datetime_now(cls: Any, arguments: Any, count: int, names: Any) -> datetime.datetime:
    # `now(tz)` and `now(tz=tz)` pass the same first argument.
    zone = arguments[0] if count or names else None
    patch = _current_patch()
    if patch is None:
        found: datetime.datetime = cls.fromtimestamp(_TIME_NS.original() / 1e9, zone)
        return found
    return _datetime_at(cls, patch, zone)


def _datetime_utcnow(cls: Any) -> datetime.datetime:
    patch = _current_patch()
    if patch is None:
        now: datetime.datetime = _UTCNOW.original(cls)
        return now
    return _datetime_at(cls, patch, datetime.UTC).replace(tzinfo=None)


def _datetime_at(cls: Any, patch: ClockPatch, zone: datetime.tzinfo | None) -> datetime.datetime:
    seconds, microseconds = divmod(patch.clock.wall_us, US_PER_S)
    result: datetime.datetime = cls.fromtimestamp(seconds, zone)
    return result.replace(microsecond=microseconds)


_TIME = BuiltInFunction(time.time, _now_s)
_TIME_NS = BuiltInFunction(time.time_ns, _now_ns)
_SLEEP = BuiltInFunction(time.sleep, _sleep)
_URANDOM = BuiltInFunction(os.urandom, _urandom)
_RANDOM = BuiltInFunction(random.random, _draw, of_one_object=True)
_SHARED_RNG: random.Random = random.choice.__self__  # type: ignore[attr-defined]
"""The generator of ``random``'s functions. All its methods draw by these two."""
_UTCNOW = BuiltInFunction(datetime.datetime.utcnow, _datetime_utcnow)

_FUNCTIONS = (
    _TIME,
    _TIME_NS,
    *(_monotonic_s_of(name) for name in ("monotonic", "perf_counter")),
    *(_monotonic_ns_of(name) for name in ("monotonic_ns", "perf_counter_ns")),
    *(
        _read_clock_of(name, per_s)
        for name, per_s in (("clock_gettime", 1), ("clock_gettime_ns", US_PER_S * NS_PER_US))
        if hasattr(time, name)
    ),
    _SLEEP,
    *(_with_default_time(name, _with_seconds) for name in ("localtime", "gmtime", "ctime")),
    _with_default_time(
        "strftime", lambda argument: argument if argument[1:] else (*argument, time.localtime())
    ),
    _with_default_time("asctime", lambda argument: argument or (time.localtime(),)),
    BuiltInFunction(datetime.datetime.now, _datetime_now),
    _UTCNOW,
    _URANDOM,
    _RANDOM,
)


def _seed(generator: random.Random, a: Any = None, version: int = 2) -> None:
    """`random.Random.seed`, whose default seed is from the world's generator."""
    patch = _current_patch()
    if a is None and patch is not None:
        a = patch.rng.getrandbits(64)
    if patch is None and generator is _SHARED_RNG:
        generator = _PatchedFunctions.other_threads_rng
    _ORIGINAL_SEED(generator, a, version)


def _seed_shared(a: Any = None, version: int = 2) -> None:
    """`random.seed`."""
    _seed(_SHARED_RNG, a, version)


class PatchedClocks:
    """Patches the clocks and random numbers of this thread between `begin` and `end`."""

    def __init__(self, patch: ClockPatch) -> None:
        self._patch = patch
        self._random_state: Any = None
        self._uuid_state: Any = None

    def begin(self) -> None:
        """Activate the patch.

        Raises:
            WorldError: another one is active.
        """
        if _PatchedFunctions.patch is not None:
            raise WorldError("another virtual world is entered: leave that one first")
        self._random_state = random.getstate()
        self._uuid_state = (uuid._node, uuid._last_timestamp, uuid._generate_time_safe)  # type: ignore[attr-defined]
        _PatchedFunctions.patch, _PatchedFunctions.thread_id = self._patch, get_ident()
        for function in _FUNCTIONS:
            function.patch()
        vars(_SHARED_RNG).update(random=random.random, getrandbits=_draw_bits)
        random.getrandbits, random.seed = _draw_bits, _seed_shared
        random.Random.seed = _seed  # type: ignore[method-assign,assignment]
        random.seed(self._patch.rng.getrandbits(64))
        # A uuid1 has the time and the machine's address: here, the world's.
        uuid._node = self._patch.rng.getrandbits(48) | 1 << 40  # type: ignore[attr-defined]
        uuid._last_timestamp = uuid._generate_time_safe = None  # type: ignore[attr-defined]

    def end(self) -> None:
        """Deactivate the patch. Idempotent."""
        if not self.is_active:
            return
        random.setstate(self._random_state)
        uuid._node, uuid._last_timestamp, uuid._generate_time_safe = self._uuid_state  # type: ignore[attr-defined]
        _restore()  # last, so that `end` can be repeated after an interrupt

    @property
    def is_active(self) -> bool:
        """Whether this patch is active."""
        return _PatchedFunctions.patch is self._patch


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


_REAL_PERF_COUNTER = next(candidate for candidate in _FUNCTIONS if candidate.name == "perf_counter")
_REAL_MONOTONIC_NS = next(entry for entry in _FUNCTIONS if entry.name == "monotonic_ns")


def _restore() -> None:
    for function in _FUNCTIONS:
        function.restore()
    random.Random.seed = _ORIGINAL_SEED  # type: ignore[method-assign]
    random.getrandbits, random.seed = _ORIGINAL_GETRANDBITS, _SHARED_SEED
    for name in ("random", "getrandbits"):
        vars(_SHARED_RNG).pop(name, None)
    _PatchedFunctions.patch, _PatchedFunctions.thread_id = None, 0


os.register_at_fork(after_in_child=_restore)
