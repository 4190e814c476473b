"""What is called for every request and every event, in pure Python.

Ground rules
------------
* As in ``books``. What is taken off the lists, or read from them, in a turn is checked after it.
* What a call was broken off in stands in ``broken_off``, by a store alone; the next call of the
  purgatory finishes it first.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from purgatory.core.books import Books
from purgatory.core.books_core import LISTS
from purgatory.core.checking import check_each
from purgatory.core.delayed_operation import DelayedOperation
from purgatory.core.submitting import submit
from purgatory.core.watch_keys import (
    check_hashable,
    checked_keys,
    checked_number,
    checked_thresholds,
)

_NO_KEYS: tuple[Hashable, ...] = ()


class PurePurgatoryCore:
    """What `DelayedOperationPurgatory` is made of, in pure Python."""

    _books: Books[DelayedOperation]

    def try_complete_else_watch(
        self,
        operation: DelayedOperation,
        keys: Iterable[Hashable] = _NO_KEYS,
        thresholds: Mapping[Any, int] | None = None,
    ) -> bool:
        """Complete ``operation`` at once if its condition holds; else let it wait. O(keys).

        The condition is checked, the operation is put on the list of every key, and the condition
        is checked again: an event in between is not missed. Then its timeout starts. Never blocks.

        Args:
            operation: one that was never submitted before.
            keys: what events it waits for. A key given twice counts once.
            thresholds: keys whose value it waits for, and the value: the condition cannot become
                true by ``advance`` before one of them has reached its number. At least one key or
                threshold is needed.

        Returns:
            True if this call completed it.

        Raises:
            ValueError: there are no keys.
            TypeError: a key is not hashable, or ``operation`` is no DelayedOperation.
            OperationReusedError: the operation was submitted before.
            PurgatoryClosedError: the purgatory was closed.
            PurgatoryFullError: ``max_pending`` operations wait already.
        """
        if thresholds is not None:
            thresholds = checked_thresholds(thresholds)
        keys = checked_keys(keys, thresholds)
        books = self._books
        if books.broken_off:
            self._finish_broken_off()
        return submit(operation, books, keys, thresholds)

    def check_and_complete(self, key: Hashable) -> int:
        """Check every operation that waits on ``key``, in arrival order. O(watchers). Never blocks.

        If a condition holds when this returns, its operation completes without another event: here,
        or, where a lock was taken, on the thread that held it or by a retry.

        Returns:
            How many operations this call completed.

        Raises:
            TypeError: the key is not hashable.
        """
        books = self._books
        if books.broken_off:
            self._finish_broken_off()
        operations: list[DelayedOperation] = []
        me = [threading.get_ident()]
        turn = books.turn
        try:
            if turn.setdefault("holder", me) is not me:
                turn = turn.wait(me)
            # WatcherList.operations_on(key), written out.
            watchers = books.watchers.by_key.get(key)
            if watchers is not None:
                operations += watchers.values()
                books.counters.checks += len(operations)
            del turn["holder"]
            return check_each(operations, me)
        except BaseException as error:
            if "holder" in turn and turn["holder"] is me:
                del turn["holder"]
            books.broken_off += zip(operations)
            if isinstance(error, TypeError):
                check_hashable(key)
            raise

    def advance(self, key: Hashable, value: int) -> int:
        """Say that the value of ``key`` is ``value`` now; check who waits for it or less.

        A value below an earlier one changes nothing: values only rise, until ``forget``. An
        operation that waits on ``key`` for any event, not for a number, is not checked. O(k log n)
        where k of n have their number reached, amortized; O(1) where none has. Never blocks.

        Returns:
            How many operations this call completed.

        Raises:
            TypeError: the key is not hashable, or the value is not an integer.
        """
        if type(value) is not int:
            value = checked_number("value", key, value)
        books = self._books
        if books.broken_off:
            self._finish_broken_off()
        values = books.values
        operations: list[DelayedOperation] = []
        me = [threading.get_ident()]
        turn = books.turn
        try:
            if turn.setdefault("holder", me) is not me:
                turn = turn.wait(me)
            known = values.get(key)
            if known is None or value > known:
                values[key] = value
            if key in books.watchers.numbers_by_key:
                books.watchers.take_reached(key, value, operations)
                books.counters.checks += len(operations)
            del turn["holder"]
            return check_each(operations, me) if operations else 0
        except BaseException as error:
            if "holder" in turn and turn["holder"] is me:
                del turn["holder"]
            books.broken_off += LISTS
            books.broken_off += zip(operations)  # the next event passes over them
            if isinstance(error, TypeError):
                check_hashable(key)
            raise

    @abstractmethod
    def _finish_broken_off(self) -> None:
        """Finish what an interrupt broke off."""
