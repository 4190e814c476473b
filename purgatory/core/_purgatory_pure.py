"""What is called for every request and every event, in pure Python.

What is read from the lists, or taken off them, under the lock is checked after it is released. A
call that is interrupted notes what it had in hand; the next call of the purgatory finishes it.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any

from purgatory.core._operation_pure import DelayedOperation as PureOperation
from purgatory.core._operation_pure import check_each
from purgatory.core.interrupts import NEEDS_REPAIR
from purgatory.core.keys import (
    Keys,
    check_hashable,
    checked_keys,
    checked_number,
    checked_thresholds,
)
from purgatory.core.operation import DelayedOperation
from purgatory.core.state import PurgatoryState

_NO_KEYS: tuple[Hashable, ...] = ()


# Named as the public class that is made of it: type checkers name this one in their messages.
class DelayedOperationPurgatory:
    """What `DelayedOperationPurgatory` is made of, in pure Python."""

    _state: PurgatoryState[DelayedOperation]

    def try_complete_else_watch(
        self,
        operation: DelayedOperation,
        keys: Keys = _NO_KEYS,
        thresholds: Mapping[Any, int] | None = None,
    ) -> bool:
        """Complete ``operation`` at once if its condition holds; else let it wait. O(keys).

        The condition is checked, the operation is put on the list of every key, and the condition
        is checked again: an event in between is not missed. Then its timeout starts. Never blocks.

        Args:
            operation: one that was never submitted before.
            keys: the keys whose events it waits for. A key given twice counts once.
            thresholds: keys with the number that each must reach: ``advance`` checks the operation
                only when one of them has reached its number. At least one key or threshold is
                needed.

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
        state = self._state
        if state.interrupted:
            self._resume_interrupted()
        return PureOperation._op_submit(operation, state, keys, thresholds)

    def check_and_complete(self, key: Hashable) -> int:
        """Check every operation that waits on ``key``, in arrival order. O(watchers). Never blocks.

        If a condition holds when this returns, its operation completes without another event: here,
        or, where a lock was taken, on the thread that held it or by a retry.

        Returns:
            How many operations this call completed.

        Raises:
            TypeError: the key is not hashable.
        """
        state = self._state
        if state.interrupted:
            self._resume_interrupted()
        operations: list[DelayedOperation] = []
        try:
            with state.lock:
                # WatcherList.operations_on(key), written out.
                watchers = state.watchers.by_key.get(key)
                if watchers is not None:
                    operations += watchers.values()
                    state.counters.checks += len(operations)
            return check_each(operations, [threading.get_ident()])
        except BaseException as error:
            state.interrupted += zip(operations)
            if isinstance(error, TypeError):
                check_hashable(key)
            raise

    def advance(self, key: Hashable, value: int) -> int:
        """Report that ``key`` has this ``value`` now; check the operations that it reaches.

        A value below an earlier one changes nothing: values only rise, until ``forget``. An
        operation that waits on ``key`` for any event, not for a number, is not checked. O(k log n)
        if the value reaches k of n, amortized; O(1) if it reaches none. Never blocks.

        Returns:
            How many operations this call completed.

        Raises:
            TypeError: the key is not hashable, or the value is not an integer.
        """
        if type(value) is not int:
            value = checked_number("value", key, value)
        state = self._state
        if state.interrupted:
            self._resume_interrupted()
        values = state.values
        operations: list[DelayedOperation] = []
        try:
            with state.lock:
                known = values.get(key)
                if known is None or value > known:
                    values[key] = value
                if key in state.watchers.numbers_by_key:
                    state.watchers.pop_reached(key, value, operations)
                    state.counters.checks += len(operations)
            return check_each(operations, [threading.get_ident()]) if operations else 0
        except BaseException as error:
            state.interrupted += NEEDS_REPAIR
            state.interrupted += zip(operations)  # the next event passes over them
            if isinstance(error, TypeError):
                check_hashable(key)
            raise

    @abstractmethod
    def _resume_interrupted(self) -> None:
        """Finish what was interrupted."""
