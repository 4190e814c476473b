"""Faults of native code only: references, the garbage collector, wrong types, memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, Outcome
from purgatory.core.backend import NATIVE
from purgatory.core.state import PurgatoryState
from tests.unit.core.probe import LONG_MS, Probe, Setting
from timer import SystemTimer

pytestmark = pytest.mark.skipif(not NATIVE, reason="the native parts are not in use")

ROOT = Path(__file__).parents[3]


class OwnLock(Probe):
    """Is its own lock, and owns things."""

    owned: object = None
    is_taken = False

    def acquire(self, blocking: bool = True, /) -> bool:
        return not self.is_taken

    def release(self) -> None:
        """No operation waits."""


class OwningError(Exception):
    """Owns things."""

    owned: object = None


def owns_its_purgatory(setting: Setting, operation: OwnLock) -> None:
    operation.owned = setting
    setting.submit(operation, "a")


def is_its_own_key(setting: Setting, operation: OwnLock) -> None:
    operation.owned = setting
    setting.submit(operation, operation)


def has_a_method_of_its_own_for_a_key(setting: Setting, operation: OwnLock) -> None:
    setting.submit(operation, (operation, 1), operation.on_complete, "a", "b")


def is_the_key_of_its_number(setting: Setting, operation: OwnLock) -> None:
    setting.purgatory.try_complete_else_watch(operation, ["a"], {operation: 2**62, ("b", 1): 5})


def is_its_own_lock(setting: Setting, operation: OwnLock) -> None:
    operation._op_lock = operation
    setting.submit(operation, "a")


def has_a_retry(setting: Setting, operation: OwnLock) -> None:
    is_its_own_lock(setting, operation)
    operation.is_taken = True
    setting.purgatory.check_and_complete("a")
    assert operation._op_retry is not None


def has_a_listener(setting: Setting, operation: OwnLock) -> None:
    setting.submit(operation, "a")
    operation.call_when_completed(operation.on_complete)


def has_an_error(setting: Setting, operation: OwnLock) -> None:
    setting.submit(operation, "a")
    error = OwningError()
    error.owned = operation
    assert setting.purgatory.fail_for_key("a", error) == 1


def has_a_verdict(setting: Setting, operation: OwnLock) -> None:
    operation.is_taken = True
    is_its_own_lock(setting, operation)
    error = OwningError()
    error.owned = (operation, setting)
    assert setting.purgatory.fail_for_key("a", error) == 1
    assert operation._op_forced_outcome is not None


def completed_with_itself_for_a_key(setting: Setting, operation: OwnLock) -> None:
    is_its_own_key(setting, operation)
    assert operation.force_complete()


def was_never_submitted(setting: Setting, operation: OwnLock) -> None:
    operation._op_lock = operation


def known_to_the_collector() -> list[int]:
    """The number of operations, purgatories and timers."""
    kinds = [type(one) for one in gc.get_objects()]
    return [kinds.count(kind) for kind in (OwnLock, DelayedOperationPurgatory, SystemTimer)]


@pytest.mark.parametrize(
    "make",
    [
        owns_its_purgatory,
        is_its_own_key,
        has_a_method_of_its_own_for_a_key,
        is_the_key_of_its_number,
        is_its_own_lock,
        has_a_retry,
        has_a_listener,
        has_an_error,
        has_a_verdict,
        completed_with_itself_for_a_key,
        was_never_submitted,
    ],
    ids=lambda one: one.__name__,
)
def test_the_collector_frees_a_cycle_through(make: Callable[[Setting, OwnLock], None]) -> None:
    """The collector calls finalizers and weak references even if it then can't cut the cycle."""
    gc.collect()
    before = known_to_the_collector()
    setting = Setting()
    operation = OwnLock()
    make(setting, operation)
    del setting, operation
    gc.collect()
    assert known_to_the_collector() == before


def test_pending_operations_are_freed_with_their_purgatory() -> None:
    setting = Setting()
    operations = [setting.submit(Probe(), *range(number + 1)) for number in range(6)]
    freed: list[weakref.ref[Any]] = [weakref.ref(operation) for operation in operations]
    del operations
    gc.collect()
    assert None not in [reference() for reference in freed], "the purgatory owns them"
    del setting
    gc.collect()
    assert [reference() for reference in freed] == [None] * 6


def test_state_frees_its_operations_after_its_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it does at the end of Python: then nothing can be looked up by name any more."""

    class OwnBooks(PurgatoryState[DelayedOperation]):
        kept: list[object]

    monkeypatch.setattr("purgatory.core.purgatory.PurgatoryState", OwnBooks)
    setting = Setting()
    freed = weakref.ref(setting.submit(Probe(), "a", ("b", 1)))
    OwnBooks.kept = [setting]
    monkeypatch.undo()
    raised: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    del setting, OwnBooks
    gc.collect()
    assert (freed(), raised) == (None, [])


@pytest.mark.parametrize("how", ["cancel", "force_complete", "maybe_try_complete"])
def test_an_operation_may_outlive_its_purgatory(how: str) -> None:
    setting = Setting()
    operations = [
        setting.submit(Probe(ready=False), *keys) for keys in [(1,), (1, 2, 3, 4, 5), ("a", 1)]
    ]
    setting.purgatory.try_complete_else_watch(operations[0].__class__(), [1], {2: 5})
    for operation in operations:
        operation.ready = True
    del setting
    gc.collect()
    assert [getattr(operation, how)() for operation in operations] == [True] * 3
    del operations, operation
    gc.collect()


def counts(ones: list[Any]) -> list[int]:
    """The number of references to each."""
    return [sys.getrefcount(one) for one in ones]


def test_references_are_neither_lost_nor_kept() -> None:
    setting = Setting()
    purgatory = setting.purgatory
    keys: list[Hashable] = [("key", number) for number in range(6)]
    numbers = [2**62 + 1, 1_000_003]
    lock = OwnLock()
    held: list[Any] = [*keys, *numbers, lock, Outcome.COMPLETED, Outcome.CANCELLED]

    def one_round() -> None:
        operations = [Probe(number % 3 * 10, lock if number % 2 else None) for number in range(12)]
        for number, operation in enumerate(operations):
            thresholds = {keys[0]: numbers[0], keys[5]: numbers[1]} if number % 3 == 0 else None
            purgatory.try_complete_else_watch(operation, keys[: number % 6 + 1], thresholds)
        operations[0].cancel()
        operations[1].force_complete()
        operations[2].ready = True
        assert purgatory.check_and_complete(keys[0]) == 1
        purgatory.advance(keys[5], numbers[1])
        purgatory.forget(keys[5])
        lock.is_taken = True
        purgatory.complete_for_key(keys[3])
        lock.is_taken = False
        purgatory.cancel_for_key(keys[1])
        setting.pass_time(1_000)
        assert purgatory.num_delayed == 0
        freed.extend(weakref.ref(operation) for operation in operations)

    freed: list[weakref.ref[Any]] = []
    one_round()
    gc.collect()
    before = counts(held)
    for _ in range(50):
        one_round()
    gc.collect()
    assert [after - count for after, count in zip(counts(held), before, strict=True)] == [0] * len(
        held
    )
    assert {reference() for reference in freed} == {None}
    setting.assert_empty()


def test_a_finalizer_may_use_the_purgatory_while_that_closes() -> None:
    setting = Setting()
    others = [setting.submit(Probe(), "a", number) for number in range(5)]
    told: list[object] = []

    class Last(Probe):
        """Meddles when it goes."""

        def __del__(self) -> None:
            told.append([other.cancel() for other in others])
            told.append(setting.purgatory.check_and_complete("a"))
            told.append(setting.purgatory.watched)

    setting.submit(Last(), "a", 7)
    setting.purgatory.close("leave")
    gc.collect()
    assert len(told) == 3
    setting.assert_empty()


class Meddler:
    """A key with a finalizer."""

    def __init__(self, finalize: Callable[[], object]) -> None:
        self.finalize = finalize

    def __hash__(self) -> int:
        return 5

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Meddler)

    def __del__(self) -> None:
        self.finalize()


@pytest.mark.parametrize("how", ["cancel", "submit", "close"])
def test_finalizer_may_use_the_purgatory_as_a_list_is_freed(how: str) -> None:
    setting = Setting()
    others = [setting.submit(Probe(), "a", number) for number in range(5)]

    def meddle() -> None:
        if how == "cancel":
            for other in others:
                other.cancel()
        elif how == "submit" and not setting.purgatory.is_closed:
            setting.submit(Probe(), "a", "b")
        else:
            setting.purgatory.close()

    operation = setting.submit(Probe(), "a", Meddler(meddle), "c", "d")
    assert operation.force_complete()
    del operation
    gc.collect()
    assert setting.purgatory.watched == {"cancel": 0, "submit": 12, "close": 0}[how]
    setting.purgatory._check()


def kept_lists(purgatory: object) -> int:
    """The watch lists that a purgatory refers to."""
    # Not all that are in memory: threads of earlier tests may still make some.
    held = [purgatory]
    for kind in ("PurgatoryState", "NativeWatcherList", "dict"):
        held = [thing for thing in gc.get_referents(*held) if type(thing).__name__ == kind]
    return sum(type(thing).__name__ == "KeyWatchers" for thing in gc.get_referents(*held))


def test_empty_lists_are_kept_for_few_string_keys_only() -> None:
    setting = Setting()
    purgatory = setting.purgatory
    for number in range(1_000):
        operation = setting.submit(Probe(), f"key {number}", f"key {number % 7}", (number,))
        assert purgatory.watched_keys == len({f"key {number}", f"key {number % 7}"}) + 1
        assert operation.force_complete()
        assert purgatory.watched_keys == 0
        assert purgatory.check_and_complete(f"key {number}") == 0
    purgatory._check()
    assert kept_lists(purgatory) == 128
    waiting = [setting.submit(Probe(), f"key {number}") for number in range(1_000)]
    assert purgatory.watched_keys == 1_000
    purgatory._check()
    for operation in waiting:
        assert operation.force_complete()
    purgatory._check()
    assert kept_lists(purgatory) == 128


def test_submitted_operation_refuses_a_second_init() -> None:
    setting = Setting()
    operation = setting.submit(Probe(50), "a", "b", "c", "d")
    with pytest.raises(RuntimeError, match="can't be made again"):
        operation.__init__(5)  # type: ignore[misc]
    assert operation.delay_ms == 50
    setting.purgatory._check()
    setting.pass_time(LONG_MS)
    assert operation.outcome is Outcome.EXPIRED
    setting.assert_empty()


def run_program(program: str, *options: str, **environment: str) -> None:
    """Run ``program`` alone: should it crash, that fails a test, and ends no other."""
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", *options, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stdout[-2_000:] + ended.stderr[-4_000:]


WRONG_TYPES = """
import itertools, logging, gc
logging.disable(logging.CRITICAL)
from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.core.state import PurgatoryState
from purgatory.core.native import state, trampoline, operation, purgatory, watchers
from timer import InlineExecutor, ManualClock, SystemTimer
from timer.native.task import NativeTask

class Operation(DelayedOperation):
    def try_complete(self):
        return False

class NoOperation:
    _op_state = _op_outcome = _op_keys = None

TYPES = [
    one for module in (state, trampoline, operation, purgatory, watchers)
    for one in vars(module).values()
    if isinstance(one, type) and one.__module__ == module.__name__
]
TYPES += [Operation, DelayedOperationPurgatory, PurgatoryState]
assert len(TYPES) > 10, TYPES

def sound():
    timer = SystemTimer("t", clock=ManualClock(), executor=InlineExecutor())
    return DelayedOperationPurgatory("p", timer, reaper_enabled=False)

def given():
    one = sound()
    waiting = Operation(50)
    one.try_complete_else_watch(waiting, [1, 2, 3, 4, "a"], {"a": 2**62})
    return [
        None, 5, -1, 2**70, "a", b"b", [], {}, (None,), object(), Operation, Operation(5), waiting,
        one, one._state, one._state.watchers, one._state.lock, NativeTask(5), NoOperation(),
        lambda *_: None, ValueError("wrong"), ["a"], {"a": 5},
        *(kind.__new__(kind) for kind in TYPES if kind is not trampoline.NativeThisThread),
    ]

def made(kind):
    yield kind.__new__(kind)
    if issubclass(kind, DelayedOperationPurgatory):
        yield sound()
    elif issubclass(kind, DelayedOperation):
        yield Operation(5)
        waiting = Operation(5)
        sound().try_complete_else_watch(waiting, [1, 2, 3, 4])
        yield waiting
    elif kind is PurgatoryState:
        yield sound()._state
    elif kind is watchers.NativeWatcherList:
        yield sound()._state.watchers
    elif kind is purgatory.NativePurgatory:
        one = kind.__new__(kind)
        one._state = state.NativeState.__new__(state.NativeState)
        yield one
    elif kind is operation.NativeOperation:
        yield kind(5)

SKIPPED = {
    "__class__", "__init_subclass__", "__subclasshook__", "__new__", "__dir__", "__getattribute__",
    "wait", "wait_for_threshold",  # which would wait
}

def attempt(call, *arguments):
    global calls
    calls += 1
    try:
        call(*arguments)
    except Exception:
        pass

calls = 0
for kind in TYPES:
    if kind is trampoline.NativeThisThread:
        continue
    for name in dir(kind):
        if name in SKIPPED:
            continue
        for value in given():
            for one in made(kind):
                attempt(setattr, one, name, value)
                for other in dir(kind):
                    if other not in SKIPPED and not other.startswith("__"):
                        attempt(getattr, one, other)
        for value in given():
            for one in made(kind):
                method = getattr(one, name, None)
                if not callable(method):
                    break
                attempt(method)
                attempt(method, value)
                attempt(method, value, 5)
                attempt(method, value, ["a"], {"a": 5})
                attempt(method, 5, value, value)
                attempt(method, "n", value, True, None, 3)
            else:
                continue
            break
gc.collect()
assert calls > 10_000, calls
"""


@pytest.mark.own_process
def test_wrong_types_raise_and_never_crash() -> None:
    """Each method and attribute of each native type gets unexpected values."""
    run_program(WRONG_TYPES)


TAMPERED = """
import logging
logging.disable(logging.CRITICAL)
from purgatory.core.native.state import NativeState
from tests.unit.core.probe import Probe, Setting

def use(purgatory):
    for call in (
        lambda: purgatory.try_complete_else_watch(Probe(), ["a", 1, 2, 3]),
        lambda: purgatory.try_complete_else_watch(Probe(ready=True), ["a"], {"b": 5}),
        lambda: purgatory.check_and_complete("a"),
        lambda: purgatory.advance("b", 5),
        lambda: purgatory.forget("b"),
        lambda: purgatory.cancel_for_key("a"),
        lambda: purgatory.counters,
        lambda: purgatory.oldest_pending_ns,
        lambda: purgatory._check(),
    ):
        try:
            call()
        except Exception:
            pass

for name in dir(NativeState):
    for value in (None, 5, "a", [], {}, object(), lambda: None):
        setting = Setting()
        setting.submit(Probe(5), "a", "b", "c", "d")
        try:
            setattr(setting.purgatory._state, name, value)
        except Exception:
            continue
        use(setting.purgatory)

for name in dir(Probe):
    if name in ("__class__", "wait"):
        continue
    for value in (None, 5, "a", [], {}, (), (1,), {1: 5}, object(), lambda *_: None):
        for when in ("before", "after"):
            setting = Setting()
            one = Probe(5)
            other = setting.submit(Probe(5), "a", 1)
            try:
                if when == "before":
                    setattr(one, name, value)
                setting.purgatory.try_complete_else_watch(one, ["a", "b", "c", 1], {"b": 2**62})
                if when == "after":
                    setattr(one, name, value)
            except Exception:
                pass
            for how in ("maybe_try_complete", "run", "_op_resume_once", "force_complete", "cancel"):
                try:
                    getattr(one, how)()
                except Exception:
                    pass
            use(setting.purgatory)
            try:
                setting.pass_time(1_000)
            except Exception:
                pass
"""


@pytest.mark.own_process
def test_changes_of_private_attributes_raise_and_never_crash() -> None:
    run_program(TAMPERED)


STORM = """
import gc, logging, random, sys, threading
logging.disable(logging.CRITICAL)
from purgatory import DelayedOperation, DelayedOperationPurgatory
from timer import InlineExecutor, ManualClock, SystemTimer

sys.setswitchinterval(1e-6)
gc.set_threshold(50)

class Operation(DelayedOperation):
    ready = False
    def try_complete(self):
        return self.ready and self.force_complete()
    def on_complete(self):
        done.append(1)

clock = ManualClock()
timer = SystemTimer("t", clock=clock, executor=InlineExecutor())
purgatory = DelayedOperationPurgatory("p", timer, reaper_enabled=False)
done, submitted, errors = [], [], []
locks = [threading.Lock(), threading.RLock(), None, None]

def work(seed):
    chance = random.Random(seed)
    mine = []
    try:
        for number in range(600):
            operation = Operation(chance.choice([1, 5, 50, 3_600_000]), chance.choice(locks))
            keys = chance.sample(range(8), chance.randint(1, 6))
            numbers = {"n": chance.randint(0, 2_000)} if chance.random() < 0.3 else None
            purgatory.try_complete_else_watch(operation, keys, numbers)
            submitted.append(1)
            mine.append(operation)
            match chance.randint(0, 7):
                case 0: chance.choice(mine).cancel()
                case 1: chance.choice(mine).force_complete()
                case 2: purgatory.check_and_complete(chance.randint(0, 7))
                case 3: purgatory.advance("n", number)
                case 4: chance.choice(mine).ready = True
                case 5: purgatory.cancel_for_key(chance.randint(0, 7))
                case 6: purgatory.complete_for_key(chance.randint(0, 7))
                case 7: clock.advance(2); timer.advance_clock()
            purgatory.num_delayed, purgatory.oldest_pending_ns
    except BaseException as error:
        errors.append(error)

threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.setswitchinterval(0.005)
assert not errors, errors
purgatory.close("expire")
purgatory._check()
outcomes = purgatory.counters.outcomes
assert sum(outcomes.values()) == len(submitted) == 2_400, outcomes
assert purgatory.watched == purgatory.num_delayed == timer.size == 0
assert len(done) == sum(outcomes[one] for one in ("immediate", "completed", "expired")), outcomes
"""


@pytest.mark.own_process
@pytest.mark.once
def test_switching_threads_neither_lose_nor_double_free() -> None:
    run_program(STORM, "-X", "dev", PYTHONMALLOC="debug")


@pytest.mark.skipif(sys.version_info < (3, 13), reason="has no public-enough interpreters")
@pytest.mark.own_process
def test_a_second_interpreter_gets_pure_python() -> None:
    run_program(
        "import _interpreters as all\n"
        "from purgatory.core.backend import NATIVE\n"
        "assert NATIVE\n"
        "told = all.exec(all.create(), 'from purgatory.core.backend import NATIVE as one;"
        "assert not one')\n"
        "assert told is None, told"
    )


def test_an_object_that_is_no_purgatory_has_no_state() -> None:
    made = DelayedOperationPurgatory.__new__(DelayedOperationPurgatory)
    with pytest.raises(AttributeError, match="_state"):
        made.check_and_complete("a")
