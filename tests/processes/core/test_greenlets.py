"""Greenlets of one thread take turns in the middle of callbacks, in any order.

Bare ones here; gevent, which replaces the threads of a whole process, in processes of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import greenlet
import pytest

from purgatory.core.trampoline import MAX_DEPTH, this_thread
from tests.unit.core.probe import Probe, Setting

ROOT = Path(__file__).parents[3]


def test_switching_callbacks_leave_no_depth_behind() -> None:
    """More of them than may run inside each other: none is inside another."""
    setting = Setting()
    main = greenlet.getcurrent()

    def switch() -> None:
        if greenlet.getcurrent() is not main:
            main.switch()

    for turn in range(MAX_DEPTH + 1):
        operations = [
            setting.submit(Probe(ready=False, hooks={"on_complete": switch}), number)
            for number in range(3)
        ]
        greenlets = [greenlet.greenlet(setting.purgatory.check_and_complete) for _ in operations]
        for number, (one, operation) in enumerate(zip(greenlets, operations, strict=True)):
            operation.ready = True
            one.switch(number)
        for one in greenlets:  # the first ends first
            one.switch()
        assert all(one.dead for one in greenlets)
        assert [operation.finished for operation in operations] == [["on_complete"]] * 3, turn
    assert this_thread.trampoline.depth == 0
    setting.assert_empty()


def test_blocked_callbacks_delay_no_other_greenlet() -> None:
    setting = Setting()
    main = greenlet.getcurrent()
    parked = [setting.submit(Probe(hooks={"on_complete": main.switch}), n) for n in range(40)]
    standing = [greenlet.greenlet(setting.purgatory.check_and_complete) for _ in parked]
    for number, (one, operation) in enumerate(zip(standing, parked, strict=True)):
        operation.ready = True
        one.switch(number)
    late = setting.submit(Probe(ready=False), "late")
    late.ready = True
    assert setting.purgatory.check_and_complete("late") == 1
    assert late.finished == ["on_complete"]
    for one in standing:
        one.switch()
    setting.assert_empty()


def test_killed_greenlet_in_a_callback_holds_no_lock() -> None:
    setting = Setting()
    operation = setting.submit(Probe(hooks={"on_complete": greenlet.getcurrent().switch}), "a")
    operation.ready = True
    one = greenlet.greenlet(setting.purgatory.check_and_complete)
    one.switch("a")
    one.throw()
    assert one.dead
    assert operation.finished == ["on_complete", "on_failure"] or operation.is_completed
    setting.assert_empty()


def test_thread_number_follows_a_patched_get_ident(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = threading.get_ident()
    for number in (7, 8):
        assert this_thread.number == own
        assert this_thread.number == own
        with monkeypatch.context() as patch:
            patch.setattr(threading, "get_ident", lambda number=number: number)
            assert this_thread.number == number
        assert this_thread.number == own


PATCH = "from gevent import monkey; monkey.patch_all()\n"
USED = """
from purgatory import DelayedOperation, DelayedOperationPurgatory
class Ready(DelayedOperation):
    def try_complete(self):
        return self.force_complete()
with DelayedOperationPurgatory("used", reaper_enabled=False) as used:
    assert used.try_complete_else_watch(Ready(1_000), ["a"])
"""
IN_EITHER_ORDER = pytest.mark.parametrize(
    "patch",
    [PATCH, "from purgatory import close_on_signals\n" + PATCH, USED + PATCH],
    ids=["first", "late", "after use"],
)
"""gunicorn's worker patches after its configuration, which may import the purgatory, or use it."""


def run_alone(program: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stdout[-2_000:] + ended.stderr[-4_000:]
    return ended.stdout


POOL = """
import gevent.pool
from purgatory import DelayedOperation, DelayedOperationPurgatory, Outcome
from purgatory.core.trampoline import this_thread

class Request(DelayedOperation):
    def __init__(self, number):
        super().__init__(60_000)
        self.number, self.ready, self.answered = number, False, 0
    def try_complete(self):
        return self.ready and self.force_complete()
    def on_complete(self):
        gevent.sleep(self.number * 7 % 5 / 1_000)  # as an answer on a socket does
        self.answered += 1

requests = [Request(number) for number in range(200)]
with DelayedOperationPurgatory("gevent") as purgatory:
    def serve(request):
        purgatory.try_complete_else_watch(request, [request.number])
        return request.wait(30)
    def complete(request):
        request.ready = True
        return purgatory.check_and_complete(request.number)
    pool = gevent.pool.Pool(100)
    served = [pool.spawn(serve, request) for request in requests[:50]]
    gevent.sleep(0)
    assert sum(gevent.pool.Pool(40).map(complete, requests[:50])) == 50
    gevent.joinall(served, timeout=30, raise_error=True)
    assert {one.value for one in served} == {Outcome.COMPLETED}
    for request in requests[50:]:
        purgatory.try_complete_else_watch(request, [request.number])
    assert sum(gevent.pool.Pool(40).map(complete, requests[50:])) == 150
    assert this_thread.trampoline.depth == 0
    purgatory._check()
    late = Request(0)
    late.delay_ms = 5
    purgatory.try_complete_else_watch(late, ["late"])
    assert late.wait(30) is Outcome.EXPIRED, late
assert {request.answered for request in requests} == {1}
"""


@IN_EITHER_ORDER
def test_no_callback_is_lost_on_a_pool_of_gevent(patch: str) -> None:
    run_alone(patch + POOL)


STANDING = """
import greenlet
main = greenlet.getcurrent()
answered = []
class Standing(DelayedOperation):
    ready = False
    def try_complete(self):
        return self.ready and self.force_complete()
    def on_complete(self):
        if greenlet.getcurrent() is not main:
            main.switch()
        answered.append(self)
with DelayedOperationPurgatory("standing", reaper_enabled=False) as purgatory:
    operations = [Standing(60_000) for _ in range(41)]
    for number, operation in enumerate(operations):
        purgatory.try_complete_else_watch(operation, [number])
        operation.ready = True
    standing = [greenlet.greenlet(purgatory.check_and_complete) for _ in operations[1:]]
    for number, one in enumerate(standing, 1):
        one.switch(number)
    purgatory.check_and_complete(0)
    assert answered == operations[:1], "it was deferred to a greenlet that stands still"
    for one in standing:
        one.switch()
assert set(answered) == set(operations)
"""


def test_greenlets_imported_late_have_their_own_trampolines() -> None:
    run_alone(USED + STANDING)


CLOSING = """
import time
import gevent
from purgatory import DelayedOperation, DelayedOperationPurgatory

class Closing(DelayedOperation):
    ready = False
    def try_complete(self):
        return self.ready and self.force_complete()
    def on_complete(self):
        global closed_in_s
        start_s = time.monotonic()
        purgatory.close(timeout=30)
        closed_in_s = time.monotonic() - start_s

class Slow(Closing):
    def on_complete(self):
        gevent.sleep(0.1)
        told.append("answered")

purgatory = DelayedOperationPurgatory("own", reaper_enabled=False)
closing = Closing(60_000)
purgatory.try_complete_else_watch(closing, ["a"])
closing.ready = True
purgatory.check_and_complete("a")
assert closed_in_s < 10, "it waited for itself"

told = []
purgatory = DelayedOperationPurgatory("others", reaper_enabled=False)
slow = Slow(60_000)
purgatory.try_complete_else_watch(slow, ["a"])
slow.ready = True
other = gevent.spawn(purgatory.check_and_complete, "a")
gevent.sleep(0)
purgatory.close(timeout=30)
told.append("closed")
assert told == ["answered", "closed"], told
"""


@IN_EITHER_ORDER
def test_a_close_waits_for_other_greenlets_and_not_for_itself(patch: str) -> None:
    run_alone(patch + CLOSING)


SIGNALLED = """
import os, signal
import gevent
from purgatory import DelayedOperation, DelayedOperationPurgatory, Outcome, close_on_signals

class Request(DelayedOperation):
    def try_complete(self):
        return False

purgatory = DelayedOperationPurgatory("signalled", reaper_enabled=False)
request = Request(60_000)
purgatory.try_complete_else_watch(request, ["a"])
called = []
signal.signal(signal.SIGTERM, lambda *_: called.append("the server's handler"))
close_on_signals(purgatory)
# The handler runs in gevent's hub, as it does while a server waits.
gevent.get_hub().loop.run_callback(os.kill, os.getpid(), signal.SIGTERM)
with gevent.Timeout(30):
    while not called:
        gevent.sleep(0.01)
assert request.wait(30) is Outcome.FAILED, request
assert purgatory.is_closed and called == ["the server's handler"]
"""


def test_hub_signal_runs_the_handler_and_closes_the_purgatory() -> None:
    run_alone(PATCH + SIGNALLED)


@pytest.mark.parametrize("action", ["raise ValueError", "raise SystemExit", "pass"])
def test_the_servers_handler_runs_even_if_closing_raises(action: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HANDLER, action],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "the server's handler" in ended.stdout, ended.stderr


HANDLER = """
import signal, sys
from purgatory import DelayedOperationPurgatory, close_on_signals

class Failing(DelayedOperationPurgatory):
    def close(self, *args, **kwargs):
        exec(sys.argv[1])

import threading
threading.Thread.start = threading.Thread.run  # closing raises in the handler
purgatory = Failing("failing", reaper_enabled=False)
signal.signal(signal.SIGTERM, lambda *_: print("the server's handler", flush=True))
close_on_signals(purgatory)
signal.raise_signal(signal.SIGTERM)
"""
