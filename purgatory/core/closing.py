"""Closing a purgatory: settle what is pending, wait for callbacks, end the threads.

Ground rules
------------
* The first call sets the policy; every call settles what it finds by it, so that one that was
  interrupted is finished by the next. The list of closes under way changes in the purgatory's turn.
* Whoever closes waits for the operations that other threads are busy with; never for those that its
  own thread is busy with, further down the stack: they go on when it returns. Two callbacks that
  close do not wait for each other either, so that neither waits for ever.
* What is settled for closing has its callbacks before closing returns, however deep in a chain of
  completions it was called: they run in a chain of their own. A close that was called from one of
  those leaves what is too deep to the first, further down the stack, which waits for it.
* What its own thread is in the middle of, a close reads off the operations' claims, which have the
  numbers of their threads, and off its thread's chains, which have the users' locks that are held
  for callbacks. A close writes to neither, so that an interrupt leaves neither wrong.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator
from typing import Literal, NamedTuple, get_args

from purgatory.core.books import Books
from purgatory.core.books_core import LISTS
from purgatory.core.callback_chain import CallbackChain, this_thread
from purgatory.core.delayed_operation import DelayedOperation
from purgatory.core.errors import PurgatoryClosedError
from purgatory.core.fault_log import log_safely
from purgatory.core.handing_over import (
    end,
    fail_without_lock,
    is_at_work,
    is_served,
    let_go,
    let_go_if_free,
    resume,
)
from purgatory.core.outcome import FAILED
from purgatory.core.timeout import blocking_s
from purgatory.core.users_lock import locks_held

ClosePolicy = Literal["expire", "fail", "leave"]
"""What closing does to pending operations: expire them now, fail them, or let go of them."""

POLL_S = 0.002
"""How often locks of the user's that are taken are tried again."""

_LEAST_JOIN_S = 1.0


def check_policy(policy: str) -> None:
    """Raise ValueError if ``policy`` is none."""
    if policy not in get_args(ClosePolicy):
        raise ValueError(
            f"pending must be one of {', '.join(get_args(ClosePolicy))}, not {policy!r}"
        )


class _Closer(NamedTuple):
    """A call of ``close`` that is under way, and whose callbacks it was called in; mostly none."""

    busy_with: set[int]
    """The identities of the operations. More are added, in the purgatory's turn."""
    held: frozenset[int]
    """The identities of the users' locks that are held for a callback."""


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
        books: the purgatory's, which take nothing in any more.
        policy: what becomes of what is pending.
    """

    def __init__(self, books: Books[DelayedOperation], policy: ClosePolicy) -> None:
        self._books = books
        self._policy = policy
        self._closers: list[_Closer] = []
        self.error = PurgatoryClosedError(f"purgatory {books.name!r} was closed")
        self._verdict = (FAILED, self.error) if policy == "fail" else None

    def close(self, timeout_s: float, end_threads: Callable[[float], object]) -> int:
        """Settle everything, wait for it, end the threads.

        Args:
            timeout_s: how long to wait.
            end_threads: called with the deadline, in seconds of the monotonic clock.

        Returns:
            How many operations were pending.
        """
        deadline_s = time.monotonic() + timeout_s
        closer = self._closer()
        try:
            self._enter(closer)
            pending = self._settle_all(closer)
            self._wait_until_drained(closer, deadline_s)
            end_threads(deadline_s)
            self._leave(closer)
            return pending
        except BaseException:
            self._books.broken_off += LISTS
            self._leave(closer)
            raise

    async def close_on_loop(self, timeout_s: float) -> int:
        """Settle everything and wait for it, on an event loop. Returns how many were pending."""
        deadline_s = time.monotonic() + timeout_s
        closer = self._closer()
        try:
            self._enter(closer)
            pending = self._settle_all(closer)
            await self._drained(closer, deadline_s)
            self._leave(closer)
            return pending
        except BaseException:
            self._books.broken_off += LISTS
            self._leave(closer)
            raise

    def _closer(self) -> _Closer:
        """Return what this thread is in the middle of."""
        thread = this_thread.number
        busy_with = {id(one) for one in self._waited_for(set()) if is_at_work(one, thread)}
        held = frozenset(id(lock) for chain in _chains() for lock in locks_held(chain))
        return _Closer(busy_with, held)

    def _wait_until_drained(self, closer: _Closer, deadline_s: float) -> None:
        while not self._is_drained(closer, deadline_s):
            time.sleep(POLL_S)

    async def _drained(self, closer: _Closer, deadline_s: float) -> None:
        while not self._is_drained(closer, deadline_s):
            await asyncio.sleep(POLL_S)

    def _enter(self, closer: _Closer) -> None:
        self._books.turn.run(lambda: self._closers.append(closer))

    def _leave(self, closer: _Closer) -> None:
        def leave() -> None:
            self._closers = [other for other in self._closers if other is not closer]

        self._books.turn.run(leave)

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
            if operation.is_completed:
                resume(operation)
            elif self._policy != "leave":
                end(
                    operation, (FAILED, self.error) if self._policy == "fail" else None, closer.held
                )
            elif id(operation) in closer.busy_with:
                let_go(operation)
            else:
                let_go_if_free(operation)

    def _waited_for(self, ours: Collection[int]) -> list[DelayedOperation]:
        """Return the pending operations, less those that wait for this thread."""
        books = self._books

        def waited_for() -> list[DelayedOperation]:
            but = set(ours)
            if ours:
                but.update(*(closer.busy_with for closer in self._closers))
            checked = filter(is_served, list(books.still_checked.values()))
            return [
                operation
                for operations in (books.settling_operations(), books.pending_operations(), checked)
                for operation in operations
                if id(operation) not in but
            ]

        return books.turn.run(waited_for)

    def _is_drained(self, closer: _Closer, deadline_s: float) -> bool:
        """Try taken locks again, and say whether nothing is pending, or the time is up."""
        put_off = self._put_off()
        self._books.turn.run(lambda: closer.busy_with.update(put_off))
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
            for operation, _, _ in chain.left
            if inside or operation.is_completed
        ]

    def _is_on_this_stack(self) -> bool:
        return any(
            isinstance(chain, _ClosingChain) and chain.closing is self for chain in _chains()
        )

    def _give_up_on(self, operations: list[DelayedOperation]) -> None:
        unsettled = [operation for operation in operations if not operation.is_completed]
        name = self._books.name
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
        if self._policy != "leave":
            self._books.gave_up_error = error  # noted first: for who is its server just now
        for operation in unsettled:
            if self._policy == "leave":
                let_go(operation)
            else:
                fail_without_lock(operation, error)


def join_s(deadline_s: float) -> float | None:
    """Return how long to wait for a thread that has nothing left to do, unless it is stuck."""
    return blocking_s(max(deadline_s - time.monotonic(), _LEAST_JOIN_S))
