"""Closing a purgatory: complete what is pending, wait for callbacks, end the threads.

Ground rules
------------
* The first call sets the policy; every call completes what it finds by it, so that one that was
  interrupted is finished by the next. The list of closes under way changes under the state's lock.
* A close waits for the operations that other threads are busy with; never for those that its own
  thread is busy with, further down the stack: they go on when it returns. Two callbacks that close
  do not wait for each other either, so that neither waits for ever.
* Operations that a close completes have their callbacks before it returns, however deep in a chain
  of completions it was called: they run on a trampoline of their own. A close that was called from
  one of those defers what is too deep to the first, further down the stack, which waits for it.
* The operations' claims, with the numbers of their threads, tell a close what its own thread is in
  the middle of; so do its thread's trampolines, with the users' locks that are held for callbacks.
  A close writes to neither, so that an interrupt leaves neither wrong.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from functools import partial
from operator import is_not
from typing import Literal, NamedTuple, get_args

from purgatory.core.errors import PurgatoryClosedError
from purgatory.core.interrupts import NEEDS_REPAIR
from purgatory.core.locks import locks_held
from purgatory.core.operation import DelayedOperation
from purgatory.core.outcome import FAILED
from purgatory.core.recent_errors import log_safely
from purgatory.core.state import PurgatoryState
from purgatory.core.trampoline import Trampoline, this_thread
from timer.machine_time import time

ClosePolicy = Literal["expire", "fail", "leave"]
"""The end of pending operations when a purgatory closes: expired, failed or abandoned."""

POLL_S = 0.002
"""The time between two tries of a user's lock that is taken."""

_LEAST_JOIN_S = 1.0


def check_policy(policy: str) -> None:
    """Raise ValueError if ``policy`` is none."""
    if policy not in get_args(ClosePolicy):
        raise ValueError(
            f"policy must be one of {', '.join(get_args(ClosePolicy))}, not {policy!r}"
        )


class _Closer(NamedTuple):
    """A call of ``close`` that is under way, and the callbacks around it; mostly none."""

    busy_with: set[int]
    """The identities of the operations. More are added, under the state's lock."""
    held: frozenset[int]
    """The identities of the users' locks that are held for a callback."""


class _ClosingTrampoline(Trampoline):
    """The trampoline on which a close completes operations, inside another one."""

    __slots__ = ("closing", "outer")

    def __init__(self, closing: Closing, outer: Trampoline) -> None:
        super().__init__()
        self.closing = closing
        self.outer = outer


def _trampolines() -> Iterator[Trampoline]:
    """Yield the trampolines of this thread, the innermost first."""
    trampoline = this_thread.trampoline
    while isinstance(trampoline, _ClosingTrampoline):
        yield trampoline
        trampoline = trampoline.outer
    yield trampoline


class Closing:
    """The closing of one purgatory.

    Args:
        state: the purgatory's, which takes nothing in any more.
        policy: the end of pending operations.
    """

    def __init__(self, state: PurgatoryState[DelayedOperation], policy: ClosePolicy) -> None:
        self._state = state
        self._policy = policy
        self._closers: list[_Closer] = []
        self.error = PurgatoryClosedError(f"purgatory {state.name!r} was closed")

    def close(self, timeout_s: float, end_threads: Callable[[float], object]) -> int:
        """Complete everything, wait for it, end the threads.

        Args:
            timeout_s: how long to wait.
            end_threads: called with the deadline, in seconds of the monotonic clock.

        Returns:
            How many operations were pending.
        """
        # At the interpreter's end other threads are frozen, and whatever they hold or do stays so.
        deadline_s = time.monotonic() + (0.0 if sys.is_finalizing() else timeout_s)
        closer = self._closer()
        try:
            self._enter(closer)
            pending = self._complete_all(closer)
            self._wait_until_drained(closer, deadline_s)
            end_threads(deadline_s)
            self._leave(closer)
            return pending
        except BaseException:
            self._state.interrupted += NEEDS_REPAIR
            self._leave(closer)
            raise

    async def close_on_loop(self, timeout_s: float) -> int:
        """Complete everything and wait for it, on an event loop. Returns how many were pending."""
        deadline_s = time.monotonic() + timeout_s
        closer = self._closer()
        try:
            self._enter(closer)
            pending = self._complete_all(closer)
            await self._drained(closer, deadline_s)
            self._leave(closer)
            return pending
        except BaseException:
            self._state.interrupted += NEEDS_REPAIR
            self._leave(closer)
            raise

    def _closer(self) -> _Closer:
        """Return the operations and locks that this thread is in the middle of."""
        thread = this_thread.number
        busy_with = {id(one) for one in self._waited_for(set()) if one._op_is_busy_on(thread)}
        held = frozenset(id(lock) for one in _trampolines() for lock in locks_held(one))
        return _Closer(busy_with, held)

    def _wait_until_drained(self, closer: _Closer, deadline_s: float) -> None:
        while not self._is_drained(closer, deadline_s):
            time.sleep(POLL_S)

    async def _drained(self, closer: _Closer, deadline_s: float) -> None:
        while not self._is_drained(closer, deadline_s):
            await asyncio.sleep(POLL_S)

    def _enter(self, closer: _Closer) -> None:
        with self._state.lock:
            self._closers.append(closer)

    def _leave(self, closer: _Closer) -> None:
        with self._state.lock:
            self._closers = list(filter(partial(is_not, closer), self._closers))

    def _complete_all(self, closer: _Closer) -> int:
        operations = [one for one in self._waited_for(set()) if not one.is_completed]
        self._complete_each(operations, closer)
        return len(operations)

    def _complete_each(self, operations: list[DelayedOperation], closer: _Closer) -> None:
        """Complete them, with callbacks at once, unless a close further down the stack does so."""
        outer = this_thread.trampoline
        inner = outer if self._is_on_this_stack() else _ClosingTrampoline(self, outer)
        try:
            this_thread.trampoline = inner
            self._complete_in_order(operations, closer)
            this_thread.trampoline = outer
        except BaseException:
            this_thread.trampoline = outer
            if inner is not outer:
                outer.deferred += inner.deferred
            raise

    def _complete_in_order(self, operations: list[DelayedOperation], closer: _Closer) -> None:
        for operation in operations:
            if operation.is_completed:
                operation._op_resume_if_interrupted()
            elif self._policy != "leave":
                forced = (FAILED, self.error) if self._policy == "fail" else None
                operation._op_force(forced, closer.held)
            elif id(operation) in closer.busy_with:
                operation._op_abandon()
            else:
                operation._op_abandon_if_free()

    def _waited_for(self, ours: Collection[int]) -> list[DelayedOperation]:
        """Return the pending operations, without those that wait for this thread."""
        state = self._state
        with state.lock:
            but = set(ours)
            if ours:
                but.update(*(closer.busy_with for closer in self._closers))
            completing, pending = state.completing_operations(), state.pending_operations()
            still_checked = list(state.still_checked.values())
            checked = list(filter(DelayedOperation._op_has_owner, still_checked))
        return [one for one in (*completing, *pending, *checked) if id(one) not in but]

    def _is_drained(self, closer: _Closer, deadline_s: float) -> bool:
        """Try taken locks again, and say whether nothing is pending, or the time is up."""
        deferred = self._deferred()
        with self._state.lock:
            closer.busy_with.update(deferred)
        operations = self._waited_for(closer.busy_with)
        if operations and time.monotonic() >= deadline_s:
            self._give_up_on(operations)
            return True
        self._complete_each(operations, closer)
        return not operations

    def _deferred(self) -> list[int]:
        """Return the operations that this thread has deferred to a place further down the stack.

        These have their outcome already, or a close of this purgatory there will complete them.
        """
        inside = self._is_on_this_stack()
        return [
            id(operation)
            for trampoline in _trampolines()
            for operation, _, _ in trampoline.deferred
            if inside or operation.is_completed
        ]

    def _is_on_this_stack(self) -> bool:
        return any(
            isinstance(one, _ClosingTrampoline) and one.closing is self for one in _trampolines()
        )

    def _give_up_on(self, operations: list[DelayedOperation]) -> None:
        incomplete = [operation for operation in operations if not operation.is_completed]
        name = self._state.name
        log_safely(
            "error",
            "close_timed_out",
            purgatory=name,
            locked=len(incomplete),
            in_callbacks=len(operations) - len(incomplete),
        )
        error = PurgatoryClosedError(
            f"purgatory {name!r} was closed while the operation's lock was taken"
        )
        if self._policy != "leave":
            self._state.gave_up_error = error  # first: for the owners of just now
        for operation in incomplete:
            if self._policy == "leave":
                operation._op_abandon()
            else:
                operation._op_fail_without_lock(error)


def join_s(deadline_s: float) -> float | None:
    """Return how long to wait for a thread that ends soon, unless it is stuck."""
    timeout_s = max(deadline_s - time.monotonic(), _LEAST_JOIN_S)
    return None if timeout_s > threading.TIMEOUT_MAX else timeout_s
