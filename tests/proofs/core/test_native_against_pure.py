"""The native purgatory and the one in pure Python get the same calls, and give the same answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

import purgatory as purgatory_in_use
import timer as timer_in_use
from purgatory.core.backend import NATIVE
from tests.proofs.core.fresh_core import STATE_MODULE, load_fresh
from tests.proofs.drawn import width
from timer import forking

pytestmark = pytest.mark.skipif(not NATIVE, reason="the native parts are not in use")

PURE = load_fresh(["timer", "purgatory"], {}, {STATE_MODULE: {}})
IN_USE = [timer_in_use, purgatory_in_use]


def test_the_compared_purgatories_are_a_native_and_a_pure_one() -> None:
    for modules, native in ((IN_USE, True), (PURE, False)):
        timer, purgatory = modules
        for made in (
            *(timer.SystemTimer, timer.TimerTask),
            *(purgatory.DelayedOperationPurgatory, purgatory.DelayedOperation),
        ):
            names = [base.__name__ for base in made.__mro__]
            assert any(name.startswith("Native") for name in names) == native, names


class OnPurpose(Exception):
    """Raised by a callback."""


class Interrupt(BaseException):
    """Raised by a callback, as by a signal's handler."""


class KeyFailed(Exception):
    """Raised by a key."""


class Touchy:
    """A key that equals all of its kind, and that can't be compared while it is ``broken``."""

    broken = False

    def __hash__(self) -> int:
        return 3  # as that of the int

    def __eq__(self, other: object) -> bool:
        if Touchy.broken:
            raise KeyFailed("can't be compared")
        return isinstance(other, Touchy)

    def __repr__(self) -> str:
        return "Touchy()"


KEYS: list[Hashable] = [0, 1, "a", "b", ("t", 1), 3, Touchy(), Touchy(), True, 1.0, None]
KEY = st.sampled_from(KEYS)
STAGES = ("try_complete", "on_complete", "on_expiration", "on_failure", "told", "on_completed")
ACTS = (
    *("raise", "interrupt", "complete", "cancel", "check", "advance", "submit", "complete other"),
    *("cancel other", "check other", "forget", "complete all", "fail all", "cancel for key"),
    *("look", "true", "listen", "close", "hold", "let go", "ready", "serve"),
)
SCRIPT = st.dictionaries(
    st.sampled_from(STAGES), st.tuples(st.sampled_from(ACTS), st.integers(0, 30)), max_size=3
)
NUMBERS = st.integers(-2, 6) | st.sampled_from(
    [2**62, 2**63 - 1, 2**63, 2**63 + 1, 2**70, -(2**63), -(2**63) - 1, -(2**70)]
)
DELAYS = st.integers(-1, 30) | st.sampled_from([400, 9_000, 3_600_000, 2**62, 2**63, 2**80])
MOST_NS = 2**61


class Settings(NamedTuple):
    """The construction of both purgatories."""

    timer_enabled: bool = True
    max_pending: int | None = None
    observed: bool = False


class Side:
    """One purgatory with all that was done to it; operations are known by their numbers."""

    def __init__(self, modules: list[ModuleType], settings: Settings) -> None:
        timer, purgatory = modules
        self.outcome = purgatory.Outcome
        self.closed_error = purgatory.PurgatoryClosedError
        self.told: list[object] = []
        self.operations: list[Any] = []
        self.locks: list[Any] = [threading.Lock(), threading.RLock(), threading.Lock()]
        self.held: set[int] = set()
        self.observer_acts: list[tuple[str, int]] = []
        self.clock = timer.ManualClock(7)
        self.timer = timer.SystemTimer(
            "compared", clock=self.clock, executor=timer.InlineExecutor()
        )
        self.purgatory = purgatory.DelayedOperationPurgatory(
            "compared",
            timer=self.timer,
            reaper_enabled=False,
            timer_enabled=settings.timer_enabled,
            max_pending=settings.max_pending,
            on_completed=self.observe if settings.observed else None,
        )
        forking._instances.discard(self.purgatory)
        self.kinds = _operation_classes(self, purgatory.DelayedOperation)

    def make(
        self,
        delay_ms: object = 3_600_000,
        lock: int | None = None,
        script: Mapping[str, tuple[str, int]] | None = None,
        ready: bool = False,
        kind: int = 0,
    ) -> Any:
        """Make an operation, which has the next number."""
        users_lock = None if lock is None else self.locks[lock]
        return self.kinds[kind](delay_ms, users_lock, dict(script or {}), ready)

    def observe(self, operation: Any, label: str, wait_ns: int) -> None:
        self.told.append((operation.number, label, wait_ns))
        script = operation.script
        if "on_completed" in script:
            operation.act(*script.pop("on_completed"))

    def answer(
        self, call: Callable[[Side], object], broken: bool = False
    ) -> tuple[object, list[Any]]:
        """The result or error of a call, and all that was recorded by then."""
        Touchy.broken = broken
        try:
            given = self.plain(call(self))
        except (Exception, Interrupt) as error:
            given = f"{type(error).__name__}: {error}"
        finally:
            Touchy.broken = False
        told, self.told = self.told, []
        return given, told

    def plain(self, given: object) -> object:
        """The same for both sides."""
        if isinstance(given, list):
            return [self.plain(one) for one in given]
        if isinstance(given, self.outcome):
            return given.name
        return getattr(given, "number", given)

    def seen(self) -> object:
        """All that can be seen of it."""
        purgatory = self.purgatory
        purgatory._check()
        self.timer._check()
        counters = asdict(purgatory.counters)
        return {
            "watched": purgatory.watched,
            "keys": purgatory.watched_keys,
            "num_delayed": purgatory.num_delayed,
            "oldest": purgatory.oldest_pending_ns,
            "closed": purgatory.is_closed,
            "timer": self.timer.size,
            "next": self.timer.next_expiration_ms(),
            "counters": counters,
            "ends": self.plain([*purgatory.pending_ends(3)]),
            "waiting": [purgatory.waiting_on(key, 2) for key in KEYS],
            "locks": sorted((one.number, at) for one, at in purgatory.waiting_for_locks()),
            # Each core finds in its own order the keys that an operation can't leave at first.
            "faults": [
                fault[1:] for fault in purgatory.recent_faults() if fault.event != "key_failed"
            ],
            "operations": [
                (
                    *(one.number, one.outcome.name, one.is_completed, repr(one.error), repr(one)),
                    *(one._op_stage, one._op_check_due, one._op_expiry_due),
                    *(one._op_start_ns, one._op_wait_ns, one._op_has_owner()),
                )
                for one in self.operations
            ],
        }

    def act(self, operation: Any, act: str, number: int) -> object:
        """Run the test's function in a callback."""
        key = KEYS[number % len(KEYS)]
        other = self.operations[number % len(self.operations)]
        purgatory = self.purgatory
        match act:
            case "raise":
                raise OnPurpose("as told")
            case "interrupt":
                raise Interrupt("as told")
            case "complete":
                return operation.force_complete()
            case "cancel":
                return operation.cancel()
            case "check":
                return purgatory.check_and_complete(key)
            case "advance":
                return purgatory.advance(key, number % 5)
            case "submit":
                return purgatory.try_complete_else_watch(self.make(number), [key, 0])
            case "complete other":
                return other.force_complete()
            case "cancel other":
                return other.cancel()
            case "check other":
                return other.maybe_try_complete()
            case "forget":
                return purgatory.forget(key)
            case "complete all":
                return purgatory.complete_for_key(key)
            case "fail all":
                return purgatory.fail_for_key(key, OnPurpose("all"))
            case "cancel for key":
                return purgatory.cancel_for_key(key)
            case "look":
                return [
                    purgatory.watched,
                    purgatory.num_delayed,
                    operation.outcome,
                    purgatory.oldest_pending_ns,
                ]
            case "listen":
                return other.call_when_completed(operation.tell)
            case "close" if number < 2:
                return purgatory.close(("expire", "fail")[number], timeout=0)
            case "hold":
                self.hold(number)
            case "let go":
                self.abandon(number)
            case "ready":
                other.ready = True
            case "serve":
                return other.safe_try_complete_or_else(lambda: self.told.append("else"))
        return None

    def hold(self, number: int) -> None:
        """Take a lock, as another thread would."""
        number %= len(self.locks)
        if number not in self.held and self.locks[number].acquire(blocking=False):
            self.held.add(number)

    def abandon(self, number: int) -> None:
        number %= len(self.locks)
        if number in self.held:
            self.held.discard(number)
            self.locks[number].release()


def _operation_classes(side: Side, base: Any) -> list[Any]:
    """Classes of operations with and without a dict, and one that forgets to call ``super``."""

    class Behaviour:
        """The work of all of them."""

        __slots__ = ()

        def begin(self: Any, script: dict[str, tuple[str, int]], ready: bool) -> None:
            self.number = len(side.operations)
            self.script = script
            self.ready = ready
            self.wanted: Mapping[Hashable, int] = {}
            side.operations.append(self)

        def act(self: Any, act: str, number: int) -> object:
            given = side.plain(side.act(self, act, number))
            side.told.append((self.number, act, given))
            return given

        def note(self: Any, stage: str) -> object:
            side.told.append((self.number, stage, self.outcome.name, side.clock.now_ns()))
            script = self.script
            return self.act(*script.pop(stage)) if stage in script else None

        def try_complete(self: Any) -> bool:
            says_true = self.script.get("try_complete", ("", 0))[0] == "true"
            self.note("try_complete")
            if says_true:
                return True
            for key, number in self.wanted.items():
                value = side.purgatory.value(key)
                if value is not None and value >= number:
                    return bool(self.force_complete())
            return bool(self.ready and self.force_complete())

        def on_complete(self: Any) -> None:
            self.note("on_complete")

        def on_expiration(self: Any) -> None:
            self.note("on_expiration")

        def on_failure(self: Any, error: BaseException) -> None:
            assert error is self.error
            side.told.append(repr(error))
            self.note("on_failure")

        def tell(self: Any) -> None:
            self.note("told")

    class Operation(Behaviour, base):  # type: ignore[misc]
        """Has a dict."""

        def __init__(self, delay_ms: Any, lock: Any, script: Any, ready: bool) -> None:
            super().__init__(delay_ms, lock)
            self.begin(script, ready)

    class Slotted(Behaviour, base):  # type: ignore[misc]
        """Has none."""

        __slots__ = ("number", "ready", "script", "wanted")

        def __init__(self, delay_ms: Any, lock: Any, script: Any, ready: bool) -> None:
            base.__init__(self, delay_ms, lock)
            self.begin(script, ready)

    class Careless(Behaviour, base):  # type: ignore[misc]
        """Calls nothing."""

        def __init__(self, *_: object) -> None:
            self.delay_ms = 5
            self.number = -1

        def __repr__(self) -> str:
            return "careless"

    return [Operation, Slotted, Careless]


class Compared(RuleBasedStateMachine):
    """Both purgatories, side by side."""

    numbers: Bundle[int] = Bundle("numbers")

    def __init__(self) -> None:
        super().__init__()
        self.native = self.pure = Side(IN_USE, Settings())

    @initialize(
        settings=st.builds(
            Settings,
            st.sampled_from([True, True, False]),
            st.sampled_from([None, None, 1, 3]),
            st.booleans(),
        )
    )
    def begin(self, settings: Settings) -> None:
        self.native, self.pure = Side(IN_USE, settings), Side(PURE, settings)

    def both(self, call: Callable[[Side], object]) -> None:
        native, pure = [side.answer(call) for side in (self.native, self.pure)]
        assert native == pure

    @rule(
        target=numbers,
        keys=st.lists(KEY, min_size=1, max_size=6) | st.lists(KEY, max_size=3),
        as_tuple=st.booleans(),
        thresholds=st.none() | st.dictionaries(KEY, NUMBERS, max_size=4),
        delay_ms=DELAYS,
        lock=st.sampled_from([None, None, None, 0, 1, 2]),
        script=SCRIPT,
        ready=st.sampled_from([False, False, False, True]),
        kind=st.sampled_from([0, 0, 1]),
    )
    def submit(
        self,
        keys: list[Hashable],
        as_tuple: bool,
        thresholds: dict[Hashable, int] | None,
        delay_ms: int,
        lock: int | None,
        script: dict[str, tuple[str, int]],
        ready: bool,
        kind: int,
    ) -> int:
        number = len(self.native.operations)
        given: Iterable[Hashable] = tuple(keys) if as_tuple else keys

        def go(side: Side) -> object:
            operation = side.make(delay_ms, lock, script, ready, kind)
            operation.wanted = thresholds or {}
            return side.purgatory.try_complete_else_watch(operation, given, thresholds)

        self.both(go)
        return number

    @rule(
        target=numbers,
        keys=st.sampled_from(["", "ab", b"a", [[]], [1, {}], None, 5, [1, "a", []], ()]),
        thresholds=st.sampled_from([None, {}, [], {1: "5"}, {1: True}, {1: 1.5}, 5]),
        value=st.sampled_from([None, "5", True, 1.5]),
    )
    def pass_wrong_types(self, keys: Any, thresholds: Any, value: Any) -> Any:
        number = len(self.native.operations)
        self.both(
            lambda side: side.purgatory.try_complete_else_watch(side.make(), keys, thresholds)
        )
        self.both(lambda side: side.purgatory.check_and_complete([]))
        self.both(lambda side: side.purgatory.advance([], 5))
        self.both(lambda side: side.purgatory.advance(1, value))
        self.both(lambda side: side.purgatory.forget([]))
        self.both(lambda side: side.purgatory.fail_for_key(1, value))
        return multiple(number)

    @rule(wrong=st.sampled_from([None, 5, "task", object, int, 1.5, Touchy()]))
    def submit_an_object_that_is_no_operation(self, wrong: Any) -> None:
        self.both(lambda side: side.purgatory.try_complete_else_watch(wrong, ["a"]))
        self.both(lambda side: side.purgatory.try_complete_else_watch(side.make(kind=2), ["a"]))
        self.both(lambda side: side.make(wrong).number)

    @rule(delay_ms=st.sampled_from([None, "5", 1.5, True, 2**70]), number=numbers)
    def change_the_delay(self, delay_ms: Any, number: int) -> None:
        """Before it is submitted."""

        def go(side: Side) -> object:
            operation = side.make()
            operation.delay_ms = delay_ms
            try:
                return side.purgatory.try_complete_else_watch(operation, ["a", 1])
            finally:
                operation.delay_ms = 5

        self.both(go)

    @precondition(lambda self: self.native.purgatory.max_pending is None)
    @rule(number=numbers, key=KEY)
    def submit_again(self, number: int, key: Hashable) -> None:
        """Not what was refused for want of a place: pure Python mends its lists after that."""
        self.both(
            lambda side: side.purgatory.try_complete_else_watch(side.operations[number], [key])
        )

    @rule(
        target=numbers,
        how=st.sampled_from(
            ["cancel", "force_complete", "maybe_try_complete", "safe_try_complete_or_else"]
        ),
        script=SCRIPT,
        lock=st.sampled_from([None, 0]),
    )
    def call_before_the_submission(
        self, how: str, script: dict[str, tuple[str, int]], lock: int | None
    ) -> int:
        number = len(self.native.operations)

        def go(side: Side) -> object:
            call = getattr(side.make(lock=lock, script=script), how)
            return call(lambda: None) if how == "safe_try_complete_or_else" else call()

        self.both(go)
        self.both(
            lambda side: side.purgatory.try_complete_else_watch(side.operations[number], ["a"])
        )
        return number

    @rule(length=st.integers(1, 40), key=KEY, by_cancel=st.booleans())
    def complete_a_chain(self, length: int, key: Hashable, by_cancel: bool) -> None:
        """Each completes the next one."""

        def go(side: Side) -> object:
            first = len(side.operations)
            for number in range(first + 1, first + length + 1):
                operation = side.make(2**40, ready=not number % 3)
                operation.script = {"on_complete": ("complete other", number)}
                operation.ready = False
                side.purgatory.try_complete_else_watch(operation, [key, number])
            return side.operations[first].force_complete()

        # `complete other` finds the operation by its number only while there are not more of them.
        self.both(go)

    @rule(number=numbers)
    def make_ready(self, number: int) -> None:
        def go(side: Side) -> None:
            side.operations[number].ready = True

        self.both(go)

    @rule(key=KEY)
    def check(self, key: Hashable) -> None:
        self.both(lambda side: side.purgatory.check_and_complete(key))

    @rule(key=KEY, value=NUMBERS)
    def advance(self, key: Hashable, value: int) -> None:
        self.both(lambda side: side.purgatory.advance(key, value))
        self.both(lambda side: side.purgatory.value(key))

    @rule(key=KEY)
    def forget(self, key: Hashable) -> None:
        self.both(lambda side: side.purgatory.forget(key))

    @rule(key=KEY, what=st.sampled_from(["complete_for_key", "fail_for_key", "cancel_for_key"]))
    def remove_a_key(self, key: Hashable, what: str) -> None:
        error = (OnPurpose("gone"),) if what == "fail_for_key" else ()
        self.both(lambda side: getattr(side.purgatory, what)(key, *error))

    @rule(
        number=numbers,
        how=st.sampled_from(["cancel", "force_complete", "maybe_try_complete"]),
    )
    def do(self, number: int, how: str) -> None:
        self.both(lambda side: getattr(side.operations[number], how)())

    @rule(number=numbers, wrong=st.sampled_from(["call", "call", "raise", None]))
    def safe_try(self, number: int, wrong: str | None) -> None:
        def go(side: Side) -> object:
            def f() -> None:
                side.told.append("else")
                if wrong == "raise":
                    raise OnPurpose("in f")

            given: Any = None if wrong is None else f
            return side.operations[number].safe_try_complete_or_else(given)

        self.both(go)

    @rule(number=numbers)
    def listen(self, number: int) -> None:
        self.both(
            lambda side: side.operations[number].call_when_completed(side.operations[number].tell)
        )

    @rule(number=numbers)
    def wait(self, number: int) -> None:
        self.both(lambda side: side.operations[number].wait(0))

    @rule(lock=st.integers(0, 2), hold=st.booleans())
    def lock(self, lock: int, hold: bool) -> None:
        self.both(lambda side: side.hold(lock) if hold else side.abandon(lock))

    @rule(delta_ms=st.integers(0, 50) | st.sampled_from([400, 9_000, 3_600_000, 2**40]))
    def pass_time(self, delta_ms: int) -> None:
        def go(side: Side) -> object:
            if side.clock.now_ns() + delta_ms * 1_000_000 < MOST_NS:
                side.clock.advance(delta_ms)
            return side.timer.advance_clock()

        self.both(go)

    @precondition(lambda self: len(self.native.operations) > 4)
    @rule(policy=st.sampled_from(["expire", "fail", "leave"]), often=st.integers(0, 4))
    def close(self, policy: str, often: int) -> None:
        if often == 0:
            self.both(lambda side: side.purgatory.close(policy, timeout=0))

    @invariant()
    def both_look_the_same(self) -> None:
        self.both(Side.seen)


TestCompared = pytest.mark.slow(Compared.TestCase)
TestCompared.settings = settings(TestCompared.settings, max_examples=width(40, 100))


def both(call: Callable[[Side], object], broken: bool = False) -> tuple[object, list[Any]]:
    """The result or error of a call, on either."""
    native, pure = [Side(modules, Settings()).answer(call, broken) for modules in (IN_USE, PURE)]
    assert native == pure
    return native


@pytest.mark.parametrize("delay_ms", [None, "5", 1.5, True, 2**70, -(2**70)])
def test_both_cores_refuse_a_changed_delay(delay_ms: Any) -> None:
    def go(side: Side) -> object:
        operation = side.make()
        operation.delay_ms = delay_ms
        return side.purgatory.try_complete_else_watch(operation, ["a"])

    both(go)


def test_both_cores_refuse_none_as_a_function() -> None:
    given, _ = both(lambda side: side.make().safe_try_complete_or_else(None))
    assert given == "TypeError: 'NoneType' object is not callable"


def test_rearmed_wait_ends_after_later_arrivals() -> None:
    def go(side: Side) -> object:
        waiting = [side.make() for _ in range(3)]
        for operation in waiting:
            side.purgatory.try_complete_else_watch(operation, thresholds={"a": 5})
            side.purgatory.advance("a", 5)
        waiting.append(side.make())
        side.purgatory.try_complete_else_watch(waiting[-1], thresholds={"a": 5})
        side.purgatory.forget("a")
        return side.purgatory.advance("a", 5)

    _, told = both(go)
    assert [number for number, *_ in told[-4:]] == [3, 0, 1, 2]


def test_repair_rearms_waits_for_reached_numbers() -> None:
    def go(side: Side) -> object:
        side.purgatory.try_complete_else_watch(side.make(), thresholds={"a": 5})
        side.purgatory.advance("a", 5)
        interrupted = side.make()
        interrupted.delay_ms = None
        with pytest.raises(TypeError):
            side.purgatory.try_complete_else_watch(interrupted, ["b"])
        return side.seen()

    both(go)


def test_purgatory_without_init_raises_with_the_missing_call() -> None:
    def go(side: Side) -> list[object]:
        made = side.purgatory.__class__.__new__(side.purgatory.__class__)
        told: list[object] = []
        calls: list[Callable[[], object]] = [
            lambda: made.try_complete_else_watch(side.make(), ["a"]),
            lambda: made.check_and_complete("a"),
            lambda: made.advance("a", 5),
            lambda: made.watched,
        ]
        for call in calls:
            with pytest.raises(AttributeError) as raised:
                call()
            told.append(str(raised.value))
        return told

    both(go)


def test_a_key_that_can_not_be_compared_leaves_nothing_behind() -> None:
    def go(side: Side) -> list[object]:
        Touchy.broken = False
        side.purgatory.try_complete_else_watch(side.make(), [Touchy(), 1], {Touchy(): 2**62})
        Touchy.broken = True
        told: list[object] = []
        calls: list[Callable[[], object]] = [
            lambda: side.purgatory.try_complete_else_watch(side.make(), [2, Touchy()]),
            lambda: side.purgatory.check_and_complete(Touchy()),
            lambda: side.purgatory.advance(Touchy(), 2**62),
            side.operations[0].cancel,
        ]
        told += [side.answer(lambda _, call=call: call(), True) for call in calls]  # type: ignore[misc]
        Touchy.broken = False
        return [*told, side.seen()]

    both(go)
