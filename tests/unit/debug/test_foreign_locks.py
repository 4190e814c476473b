"""An operation that waits for its user's lock is told of, with who holds it."""

from __future__ import annotations

import threading
from typing import Any

from purgatory import describe
from tests.unit.core.probe import Probe
from tests.unit.debug.conftest import Looked

LONG_S = 60


def locks(looked: Looked) -> list[dict[str, Any]]:
    [one] = describe([looked.purgatory])["purgatories"]
    found: list[dict[str, Any]] = one["foreign_locks"]
    return found


class Holder(threading.Thread):
    """Holds a lock until it is let go."""

    def __init__(self, lock: Any) -> None:
        super().__init__(name="the holder")
        self.lock = lock
        self.taken, self.enough = threading.Event(), threading.Event()

    def __enter__(self) -> Holder:
        self.start()
        assert self.taken.wait(LONG_S)
        return self

    def run(self) -> None:
        with self.lock:
            self.holds_it()

    def holds_it(self) -> None:
        self.taken.set()
        self.enough.wait(LONG_S)

    def __exit__(self, *_: object) -> None:
        self.enough.set()
        self.join()


def test_the_holder_of_a_reentrant_lock_is_described_with_its_stack(looked: Looked) -> None:
    lock = threading.RLock()
    operation = Probe(lock=lock)
    looked.purgatory.try_complete_else_watch(operation, ["a"])
    assert locks(looked) == []
    with Holder(lock):
        operation.ready = True
        looked.purgatory.check_and_complete("a")
        looked.pass_time(1)
        looked.pass_time(200)
        [wait] = locks(looked)
        assert wait["for_ms"] == 201
        assert wait["operation"].startswith("<Probe PENDING")
        assert wait["holder"]["thread"] == "the holder"
        assert any(call.startswith("holds_it (") for call in wait["holder"]["calls"])
    looked.pass_time(100)
    assert operation.is_completed
    assert locks(looked) == []


def test_the_holder_of_a_plain_lock_is_unknown(looked: Looked) -> None:
    lock = threading.Lock()
    looked.purgatory.try_complete_else_watch(Probe(lock=lock), ["a"])
    with lock:
        looked.purgatory.check_and_complete("a")
        looked.pass_time(5)
        [wait] = locks(looked)
        assert wait["holder"] is None
        assert wait["lock"].startswith("<locked _thread.lock")


def test_the_time_of_a_taken_lock_begins_anew_once_it_was_free(looked: Looked) -> None:
    lock = threading.Lock()
    looked.purgatory.try_complete_else_watch(Probe(lock=lock), ["a"])
    with lock:
        looked.purgatory.check_and_complete("a")
        looked.pass_time(500)
    looked.pass_time(100)  # a retry finds the lock free, and the condition false
    assert locks(looked) == []
    with lock:
        looked.purgatory.check_and_complete("a")
        looked.pass_time(7)
        [wait] = locks(looked)
        assert wait["for_ms"] == 7


def test_longest_wait_for_a_lock_is_listed_first(looked: Looked) -> None:
    lock = threading.Lock()
    for key in "ab":
        looked.purgatory.try_complete_else_watch(Probe(lock=lock), [key])
    with lock:
        for key in "ba":
            looked.purgatory.check_and_complete(key)
            looked.pass_time(10)
        assert [wait["for_ms"] for wait in locks(looked)] == [20, 10]
        assert "('b',)" in locks(looked)[0]["operation"]
