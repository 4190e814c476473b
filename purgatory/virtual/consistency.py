"""Consistency: whether one order of the clients' operations explains all their results.

    with world.history.operation("write", 3, key="x") as operation:
        operation.result = await store.write("x", 3)
    ...
    world.check_linearizable(Register)

Both checks search for that order, depth first, and remember the states that they have tried (Wing
and Gong 1993, Lowe 2017). An operation whose result is unknown, since its client crashed or got an
error, may have taken place at any later time, or never.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from io import BytesIO
from math import inf
from typing import Any, Final, Generic, Protocol, TypeVar

from purgatory.virtual.errors import WorldError

MAX_STATES: Final = 1_000_000


class Operation:
    """One call of a client: ``name(*args)`` on ``key``.

    Args:
        begin: its place in the order of all calls and returns.
    """

    def __init__(self, name: str, args: tuple[Any, ...], key: Any, begin: int) -> None:
        self.name = name
        self.args = args
        self.key = key
        self.result: Any = None
        self.begin = begin
        self.end: float = inf
        """The place of its return; infinity: it may have taken place or not."""
        self.is_refused = False

    def refused(self) -> None:
        """Say that it has certainly not taken place."""
        self.is_refused = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def __str__(self) -> str:
        key = "" if self.key is None else f"{self.key!r}: "
        call = f"{key}{self.name}({', '.join(map(repr, self.args))})"
        return f"{call} -> {self.result!r}" if self.end < inf else f"{call}, result unknown"


class Transaction:
    """The reads and writes of one transaction, in order."""

    def __init__(self, name: str, begin: int) -> None:
        self.name = name
        self.begin = begin
        self.end: float = inf
        self.is_refused = False
        self.steps: list[tuple[str, Any, Any]] = []

    def read(self, key: Any, value: Any) -> None:
        """Record a value that it read; None: the key had none."""
        self.steps.append(("read", key, value))

    def write(self, key: Any, value: Any) -> None:
        """Record a value that it wrote."""
        self.steps.append(("write", key, value))

    def aborted(self) -> None:
        """Say that it has certainly not taken place."""
        self.is_refused = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def __str__(self) -> str:
        steps = ", ".join(f"{kind} {key!r} = {value!r}" for kind, key, value in self.steps)
        return f"{self.name}: {steps}" + ("" if self.end < inf else ", outcome unknown")


class OperationHistory:
    """The calls of clients and their results, in relative order."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.transactions: list[Transaction] = []
        self._places = 0

    def __repr__(self) -> str:
        counts = f"{len(self.operations)} operations, {len(self.transactions)} transactions"
        return f"<{type(self).__name__} of {counts}>"

    def _place(self) -> int:
        self._places += 1
        return self._places

    @contextmanager
    def operation(self, name: str, *args: Any, key: Any = None) -> Iterator[Operation]:
        """Record a call, which returns at the end of the block, with ``operation.result``.

        If the block raises, the call may have taken place or not, unless
        ``operation.refused()`` was called.

        Args:
            key: the object of the call; objects of different keys are independent.
        """
        operation = Operation(name, args, key, self._place())
        self.operations.append(operation)
        yield operation
        operation.end = self._place()

    @contextmanager
    def transaction(self, name: str | None = None) -> Iterator[Transaction]:
        """Record a transaction, which is committed at the end of the block.

        If the block raises, the transaction may be committed or not, unless
        ``transaction.aborted()`` was called.
        """
        number = len(self.transactions) + 1
        transaction = Transaction(name or f"transaction {number}", self._place())
        self.transactions.append(transaction)
        yield transaction
        transaction.end = self._place()


class Register:
    """A model: one value, None at first."""

    def __init__(self) -> None:
        self.value: Any = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} value={self.value!r}>"

    def read(self) -> Any:
        """Return the value."""
        return self.value

    def write(self, value: Any) -> None:
        """Set the value."""
        self.value = value

    def compare_and_set(self, expected: Any, value: Any) -> bool:
        """Set the value if the current one is expected; return whether it was."""
        if self.value != expected:
            return False
        self.value = value
        return True


class _Timed(Protocol):
    begin: int
    end: float


S = TypeVar("S")
T = TypeVar("T", bound=_Timed)


class _Search(Generic[T, S]):
    """Searches for an order of operations that explains their results.

    Args:
        operations: in the order of their beginnings.
        initial: the state before all of them.
        apply: returns the state after an operation; raises `_Impossible` if its result differs.
        in_real_time: whether an operation that ended before another began comes before it.
        max_states: the most states to try.
    """

    def __init__(
        self,
        operations: Sequence[T],
        initial: S,
        apply: Callable[[S, T], S],
        in_real_time: bool,
        max_states: int,
    ) -> None:
        self._operations = operations
        self._initial = initial
        self._apply = apply
        self._in_real_time = in_real_time
        self._max_states = max_states
        self._certain = sum(
            1 << number for number, operation in enumerate(operations) if operation.end < inf
        )
        self.longest: list[T] = []
        """The longest order that explains a part."""
        self.after_longest: S = initial

    def finds_order(self) -> bool:
        """Return whether there is an order.

        Raises:
            WorldError: undecided after ``max_states``.
        """
        seen: set[tuple[int, bytes]] = set()
        order: list[T] = []
        branches = [self._successors(0, self._initial)]
        while branches:
            step = next(branches[-1], None)
            if step is None:
                branches.pop()
                if order:
                    order.pop()
                continue
            done, state, operation = step
            known = done, _fingerprint(state)
            if known in seen:
                continue
            if len(seen) == self._max_states:
                raise WorldError(
                    f"undecided: no order was found among {self._max_states:,} states of "
                    f"{len(self._operations):,} operations: record fewer of them at a time, or "
                    "give a higher max_states"
                )
            seen.add(known)
            order.append(operation)
            if len(order) > len(self.longest):
                self.longest, self.after_longest = order.copy(), state
            if done & self._certain == self._certain:
                return True
            branches.append(self._successors(done, state))
        return False

    def _successors(self, done: int, state: S) -> Iterator[tuple[int, S, T]]:
        for number, operation in self.candidates(done):
            try:
                following = self._apply(state, operation)
            except _Impossible:
                continue
            yield done | 1 << number, following, operation

    def candidates(self, done: int) -> Iterator[tuple[int, T]]:
        """The operations that may come next."""
        open_operations = [
            (number, operation)
            for number, operation in enumerate(self._operations)
            if not done >> number & 1
        ]
        first_end = min(operation.end for _, operation in open_operations)
        for number, operation in open_operations:
            if self._in_real_time and operation.begin > first_end:
                break
            yield number, operation


class _StatePickler(pickle.Pickler):
    """Pickles local classes too, by their ids, since nothing is unpickled."""

    def persistent_id(self, value: Any) -> int | None:
        return id(value) if isinstance(value, type) else None


def _fingerprint(state: Any) -> bytes:
    """Return the state as bytes: all that ``deepcopy`` copies.

    Raises:
        WorldError: it can't be pickled.
    """
    pickled = BytesIO()
    try:
        _StatePickler(pickled).dump(state)
    except Exception as error:
        raise WorldError(f"the states of a model are compared by pickling them: {error}") from error
    return pickled.getvalue()


def _check_shown(method: str, kind: str, made: Sequence[_Timed]) -> None:
    """Raise AssertionError if no result is known, as any order would explain the history."""
    if not any(one.end < inf for one in made):
        raise AssertionError(
            f"{method}: world.history has no {kind} with a known result: nothing is shown"
        )


class _Impossible(Exception):
    """An operation has another result in this state."""


def check_linearizable(
    history: OperationHistory, model: Callable[[], Any], max_states: int
) -> None:
    """See `World.check_linearizable`."""
    made = [operation for operation in history.operations if not operation.is_refused]
    _check_shown("check_linearizable", "operations", made)

    def apply(state: Any, operation: Operation) -> Any:
        following = deepcopy(state)
        method = getattr(following, operation.name, None)
        if method is None:
            raise WorldError(
                f"the model {type(state).__name__} has no method {operation.name!r}: {operation}"
            )
        try:
            result = method(*operation.args)
        except Exception as error:  # as an empty queue's `get`
            raise _Impossible from error
        if operation.end < inf and result != operation.result:
            raise _Impossible
        return following

    by_key: dict[Any, list[Operation]] = {}
    for operation in made:
        by_key.setdefault(operation.key, []).append(operation)
    for key, operations in by_key.items():
        if not any(operation.end < inf for operation in operations):
            continue
        search = _Search(operations, model(), apply, True, max_states)
        if not search.finds_order():
            about = "" if key is None else f" of {key!r}"
            state = search.after_longest
            is_collection = isinstance(state, (deque, dict, list, set))
            contents = state if is_collection else object.__getstate__(state) or {}
            raise AssertionError(
                f"check_linearizable: no order explains the operations{about}\n"
                + _explanation(
                    search, operations, f"then the {type(state).__name__} has {contents}"
                )
            )


def check_serializable(history: OperationHistory, strict: bool, max_states: int) -> None:
    """See `World.check_serializable`."""
    transactions = [one for one in history.transactions if not one.is_refused]
    _check_shown("check_serializable", "transactions", transactions)

    def apply(state: dict[Any, Any], transaction: Transaction) -> dict[Any, Any]:
        following = dict(state)
        for kind, key, value in transaction.steps:
            if kind == "write":
                following[key] = value
            elif following.get(key) != value:
                raise _Impossible
        return following

    search: _Search[Transaction, dict[Any, Any]] = _Search(
        transactions, {}, apply, strict, max_states
    )
    if not search.finds_order():
        raise AssertionError(
            "check_serializable: no order explains the transactions\n"
            + _explanation(search, transactions, f"then the values are {search.after_longest}")
        )


def _explanation(search: _Search[T, Any], operations: Sequence[T], state: str) -> str:
    """The longest order that was found, and the operations that can't come next."""
    done = sum(1 << operations.index(one) for one in search.longest)
    next_ones = [operation for _, operation in search.candidates(done) if operation.end < inf]
    return "\n".join(
        [
            "the longest order that explains its results:",
            *(f"  {operation}" for operation in search.longest),
            f"{state}, and none of these can come next:",
            *(f"  {operation}" for operation in next_ones),
        ]
    )
