"""Closing a purgatory: settle what is pending, wait for callbacks, end the threads.

Ground rules
------------
* The first call sets the policy; every call settles what it finds by it, so that one that was
  interrupted is finished by the next. Who is closing changes in the purgatory's turn.
* Whoever closes waits for the operations that other threads are busy with; never for those that its
  own thread is busy with, further down the stack: they go on when it returns. Two callbacks that
  close do not wait for each other either, so that neither waits for ever.
* What is settled for closing has its callbacks before closing returns, however deep in a chain of
  completions it was called: they run in a chain of their own. A close that was called from one of
  those leaves what is too deep to the first, further down the stack, which waits for it.
* Nothing of ours touches an operation that was let go: who lets it go becomes its server for good.
  In the purgatory's turn it loses its keys; who puts it on a list or on the timer meanwhile looks
  at those. Last it leaves ``_pending``: until then, the next close lets it go again.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from purgatory.core.callback_chain import LONGEST_CHAIN, CallbackChain, this_thread
from purgatory.core.delayed_operation import DelayedOperation
from purgatory.core.errors import PurgatoryClosedError
from purgatory.core.fault_log import log_safely
from purgatory.core.outcome import Outcome
from purgatory.core.timeout import blocking_s
from purgatory.core.turn import Me
from timer import TimerTask

if TYPE_CHECKING:
    from purgatory.core.delayed_operation_purgatory import DelayedOperationPurgatory

ClosePolicy = Literal["expire", "fail", "leave"]
"""What closing does to pending operations: expire them now, fail them, or let go of them."""

POLL_S = 0.002
"""How often locks of the user's that are taken are tried again."""

_LEAST_JOIN_S = 1.0

LISTS = ((None,),)
"""The note that the lists are to be mended, and that values may have been told to nobody."""

_LET_GO: Me = []
"""The server, for good, of what was let go of."""


def check_policy(policy: str) -> None:
    """Raise ValueError if ``policy`` is none."""
    if policy not in get_args(ClosePolicy):
        raise ValueError(
            f"pending must be one of {', '.join(get_args(ClosePolicy))}, not {policy!r}"
        )


class _Closer(NamedTuple):
    """A call of ``close`` that is under way, and whose callbacks it was called in; mostly none."""

    busy_with: set[int]
    """The identities of the operations. More are added, under the purgatory's lock."""
    holds: frozenset[int]
    """The identities of their users' locks that are held for a callback."""


class _ClosingChain(CallbackChain):
    """The chain in which a thread settles what is pending, inside another one."""

    __slots__ = ("closing", "outer")

    def __init__(self, closing: Closing, outer: CallbackChain) -> None:
        super().__init__()
        self.closing = closing
        self.outer = outer


def _chains() -> Iterator[CallbackChain]:
    """Yield the chains that this thread is in, the innermost first."""
    chain = this_thread.chain
    while isinstance(chain, _ClosingChain):
        yield chain
        chain = chain.outer
    yield chain


class Closing:
    """How one purgatory closes.

    Args:
        purgatory: which takes nothing in any more.
        policy: what becomes of what is pending.
    """

    def __init__(self, purgatory: DelayedOperationPurgatory, policy: ClosePolicy) -> None:
        self._purgatory = purgatory
        self._policy = policy
        self._closers: list[_Closer] = []
        self.error = PurgatoryClosedError(f"purgatory {purgatory.name!r} was closed")

    def close(self, timeout_s: float) -> int:
        """Settle everything, wait for it, end the threads. Returns how many were pending."""
        deadline_s = time.monotonic() + timeout_s
        closer = _closer_on_this_stack()
        try:
            self._enter(closer)
            pending = self._settle_all(closer)
            self._wait_until_drained(closer, deadline_s)
            self._end_threads(deadline_s)
            self._leave(closer)
            return pending
        except BaseException:
            self._purgatory._broken_off += LISTS
            self._leave(closer)
            raise

    async def close_on_loop(self, timeout_s: float) -> int:
        """Settle everything and wait for it, on an event loop. Returns how many were pending."""
        deadline_s = time.monotonic() + timeout_s
        closer = _closer_on_this_stack()
        try:
            self._enter(closer)
            pending = self._settle_all(closer)
            await self._drained(closer, deadline_s)
            self._leave(closer)
            return pending
        except BaseException:
            self._purgatory._broken_off += LISTS
            self._leave(closer)
            raise

    def _wait_until_drained(self, closer: _Closer, deadline_s: float) -> None:
        while not self._is_drained(closer, deadline_s):
            time.sleep(POLL_S)

    async def _drained(self, closer: _Closer, deadline_s: float) -> None:
        while not self._is_drained(closer, deadline_s):
            await asyncio.sleep(POLL_S)

    def _enter(self, closer: _Closer) -> None:
        self._purgatory._turn.run(lambda: self._closers.append(closer))

    def _leave(self, closer: _Closer) -> None:
        def leave() -> None:
            self._closers = [other for other in self._closers if other is not closer]

        self._purgatory._turn.run(leave)

    def _settle_all(self, closer: _Closer) -> int:
        operations = [one for one in self._waited_for(set()) if not one.is_completed]
        self._settle_each(operations, closer)
        return len(operations)

    def _settle_each(self, operations: list[DelayedOperation], closer: _Closer) -> None:
        """Settle them, with callbacks here and now, unless this is called in a callback that has
        them so."""
        outer = this_thread.chain
        inner = outer if self._is_on_this_stack() else _ClosingChain(self, outer)
        try:
            this_thread.chain = inner
            self._settle_in_turn(operations, closer)
            this_thread.chain = outer
        except BaseException:
            this_thread.chain = outer
            if inner is not outer:
                outer.left += inner.left
            raise

    def _settle_in_turn(self, operations: list[DelayedOperation], closer: _Closer) -> None:
        for operation in operations:
            if not operation.is_completed:
                self._settle(operation, closer)
            elif operation._op_is_broken_off():
                operation._op_go_on()

    def _settle(self, operation: DelayedOperation, closer: _Closer) -> None:
        """Settle one operation by the policy, or note it where its locks are taken."""
        if self._policy == "leave":
            if (
                id(operation) in closer.busy_with
                or operation._op_claims.setdefault("server", _LET_GO) is _LET_GO
            ):
                self._let_go(operation)
            return
        if self._policy == "expire":
            operation._op_expiry_due = True
        else:
            operation._op_verdict = (Outcome.FAILED, self.error)
        if (
            id(operation._op_lock) not in closer.holds
            or this_thread.chain.length >= LONGEST_CHAIN  # its callbacks would run without the lock
        ):
            operation._op_serve()
        else:
            # The lock is held, for a callback that this thread is in, and may not be had twice.
            operation._op_serve_by(operation._op_serve_noted)

    def _let_go(self, operation: DelayedOperation) -> None:
        purgatory = self._purgatory

        def take_keys() -> bool:
            if operation._op_outcome is not Outcome.PENDING:
                return False
            if purgatory._watchers.unwatch(operation) is not None:
                purgatory._broken_off += LISTS
            operation._op_keys = ()
            operation._op_thresholds = None
            return True

        if not purgatory._turn.run(take_keys):
            return
        TimerTask.cancel(operation)
        retry = operation._op_retry
        if retry is not None:
            retry.cancel()
        operation._op_tell()  # nobody else will wake those who wait for it
        purgatory._pending.pop(id(operation), None)

    def _waited_for(self, ours: Collection[int]) -> list[DelayedOperation]:
        """Return the pending operations, less those that wait for this thread."""
        purgatory = self._purgatory

        def waited_for() -> list[DelayedOperation]:
            but = set(ours)
            if ours:
                but.update(*(closer.busy_with for closer in self._closers))
            return [
                operation
                for operations in (purgatory._settling, purgatory._pending)
                for operation in list(operations.values())
                if id(operation) not in but
            ]

        return purgatory._turn.run(waited_for)

    def _is_drained(self, closer: _Closer, deadline_s: float) -> bool:
        """Try taken locks again, and say whether nothing is pending, or the time is up."""
        put_off = self._put_off()
        self._purgatory._turn.run(lambda: closer.busy_with.update(put_off))
        operations = self._waited_for(closer.busy_with)
        if operations and time.monotonic() >= deadline_s:
            self._give_up_on(operations)
            return True
        self._settle_each(operations, closer)
        return not operations

    def _put_off(self) -> list[int]:
        """Return what this thread has put off until it is back further down the stack.

        That is settled already, or a close of this purgatory is there, and will settle it.
        """
        inside = self._is_on_this_stack()
        return [
            id(operation)
            for chain in _chains()
            for operation, _ in chain.left
            if inside or operation.is_completed
        ]

    def _is_on_this_stack(self) -> bool:
        return any(
            isinstance(chain, _ClosingChain) and chain.closing is self for chain in _chains()
        )

    def _give_up_on(self, operations: list[DelayedOperation]) -> None:
        unsettled = [operation for operation in operations if not operation.is_completed]
        name = self._purgatory.name
        log_safely(
            "error",
            "close_timed_out",
            purgatory=name,
            locked=len(unsettled),
            in_callbacks=len(operations) - len(unsettled),
        )
        error = PurgatoryClosedError(
            f"purgatory {name!r} was closed while the operation's lock was taken"
        )
        for operation in unsettled:
            if self._policy == "leave":
                self._let_go(operation)
            else:
                operation._op_fail_without_lock(error)

    def _end_threads(self, deadline_s: float) -> None:
        reaper, timer = self._purgatory.reaper, self._purgatory._own_timer
        if reaper is not None:
            reaper.stop_soon()
        if timer is not None:
            timer.close(_join_s(deadline_s))
        if reaper is not None:
            reaper.join(_join_s(deadline_s))


def _join_s(deadline_s: float) -> float | None:
    """Return how long to wait for a thread that has nothing left to do, unless it is stuck."""
    return blocking_s(max(deadline_s - time.monotonic(), _LEAST_JOIN_S))


_UNDER_ITS_LOCK = frozenset(
    {DelayedOperation._op_serve_noted.__code__, DelayedOperation._op_check_twice.__code__}
)
_SETTLING = frozenset({DelayedOperation._op_settle.__code__, DelayedOperation._op_finish.__code__})


def _closer_on_this_stack() -> _Closer:
    """Return what this thread is checking or settling.

    Found on the stack, since to keep it up to date would cost each check, and only closing asks.
    """
    busy_with: set[int] = set()
    holds: set[int] = set()
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code in _SETTLING or frame.f_code in _UNDER_ITS_LOCK:
            operation = frame.f_locals["self"]
            busy_with.add(id(operation))
            if frame.f_code in _UNDER_ITS_LOCK and operation._op_lock is not None:
                holds.add(id(operation._op_lock))
        frame = frame.f_back
    return _Closer(busy_with, frozenset(holds))
