"""Consistency of clients' histories, checked against brute force; properties at each step."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from purgatory.virtual import PropertyError, World, WorldError
from purgatory.virtual.consistency import (
    MAX_STATES,
    Operation,
    OperationHistory,
    Register,
    Transaction,
    check_linearizable,
    check_serializable,
)

EXAMPLES = pytest.mark.parametrize(
    "examples",
    [
        # A check that ignores time or results is found within a hundred.
        300,
        pytest.param(5_000, marks=pytest.mark.exhaustive),
    ],
)


def _operation(name: str, args: tuple[Any, ...], result: Any, begin: int, end: float) -> Operation:
    operation = Operation(name, args, None, begin)
    operation.result, operation.end = result, end
    return operation


def _history(*operations: Operation) -> OperationHistory:
    history = OperationHistory()
    history.operations = sorted(operations, key=lambda operation: operation.begin)
    return history


def _is_linearizable(history: OperationHistory) -> bool:
    try:
        check_linearizable(history, Register, MAX_STATES)
    except AssertionError:
        return False
    return True


def _oracle(operations: list[Operation]) -> bool:
    """Every order of every part that has all operations with a result, one by one."""
    certain = [operation for operation in operations if operation.end < inf]
    unknown = [operation for operation in operations if operation.end == inf]
    for count in range(len(unknown) + 1):
        for more in itertools.combinations(unknown, count):
            for order in itertools.permutations([*certain, *more]):
                value: Any = None
                for number, operation in enumerate(order):
                    if any(later.end < operation.begin for later in order[number + 1 :]):
                        break
                    if operation.name == "write":
                        value = operation.args[0]
                        result = None
                    else:
                        result = value
                    if operation.end < inf and result != operation.result:
                        break
                else:
                    return True
    return False


@st.composite
def _histories(draw: st.DrawFn) -> list[Operation]:
    count = draw(st.integers(1, 5))
    places = draw(st.permutations(range(2 * count)))
    operations = []
    for number in range(count):
        begin, end = sorted(places[2 * number : 2 * number + 2])
        value = draw(st.sampled_from([None, 1, 2]))
        unknown = draw(st.integers(0, 4)) == 0
        if draw(st.booleans()):
            args, name, result = (draw(st.sampled_from([1, 2])),), "write", None
        else:
            args, name, result = (), "read", value  # type: ignore[assignment]
        operations.append(_operation(name, args, result, begin, inf if unknown else end))
    return operations


@given(_histories())
def _linearizability_agrees(operations: list[Operation]) -> None:
    assume(any(operation.end < inf for operation in operations))  # else the test shows nothing
    assert _is_linearizable(_history(*operations)) == _oracle(operations)


@EXAMPLES
def test_linearizability_check_agrees_with_brute_force(examples: int) -> None:
    settings(max_examples=examples, deadline=None)(_linearizability_agrees)()


def test_stale_read_is_reported_with_the_longest_order() -> None:
    history = _history(
        _operation("write", (1,), None, 1, 2),
        _operation("write", (2,), None, 3, 4),
        _operation("read", (), 1, 5, 6),
    )
    with pytest.raises(AssertionError) as caught:
        check_linearizable(history, Register, MAX_STATES)
    assert str(caught.value) == (
        "check_linearizable: no order explains the operations\n"
        "the longest order that explains its results:\n"
        "  write(1) -> None\n"
        "  write(2) -> None\n"
        "then the Register has {'value': 2}, and none of these can come next:\n"
        "  read() -> 1"
    )


def test_operation_with_unknown_result_may_have_happened() -> None:
    lost = _operation("write", (9,), None, 1, inf)
    for result in (None, 9):
        assert _is_linearizable(_history(lost, _operation("read", (), result, 2, 3)))
    late = [_operation("read", (), None, 2, 3), _operation("read", (), 9, 4, 5)]
    assert _is_linearizable(_history(lost, *late))
    assert not _is_linearizable(_history(lost, *late, _operation("read", (), None, 6, 7)))


def test_each_key_is_checked_separately() -> None:
    history = OperationHistory()
    for key in ("a", "b"):
        with history.operation("write", 1, key=key):
            pass
    with history.operation("read", key="b") as read:
        read.result = 2
    with pytest.raises(AssertionError, match="no order explains the operations of 'b'"):
        check_linearizable(history, Register, MAX_STATES)


def test_refused_operation_did_not_take_place() -> None:
    history = OperationHistory()
    with suppress(ValueError), history.operation("write", 1) as write:
        write.refused()
        raise ValueError
    with history.operation("read") as read:
        read.result = 1
    with pytest.raises(AssertionError):
        check_linearizable(history, Register, MAX_STATES)


def test_history_without_operations_proves_nothing() -> None:
    with World() as world:
        with pytest.raises(AssertionError, match="has no operations with a known result: nothing"):
            world.check_linearizable(Register)
        with pytest.raises(AssertionError, match="has no transactions with a known result: noth"):
            world.check_serializable()


def test_search_beyond_max_states_is_undecided() -> None:
    many = [_operation("write", (number,), None, number, 100 + number) for number in range(20)]
    history = _history(*many, _operation("read", (), "never", 50, 130))
    with pytest.raises(WorldError, match="undecided: no order was found among 1,000 states of 21 "):
        check_linearizable(history, Register, 1_000)


def test_model_without_the_method_is_refused() -> None:
    with pytest.raises(WorldError, match="the model Register has no method 'pop'"):
        check_linearizable(_history(_operation("pop", (), 1, 1, 2)), Register, MAX_STATES)


def test_register_compares_and_sets() -> None:
    history = OperationHistory()
    for expected, value, result in ((None, 1, True), (None, 2, False), (1, 3, True)):
        with history.operation("compare_and_set", expected, value) as operation:
            operation.result = result
    check_linearizable(history, Register, MAX_STATES)


Step = tuple[str, str, Any]


def _serial_oracle(transactions: list[list[Step]], begins: list[tuple[int, float]] | None) -> bool:
    for order in itertools.permutations(range(len(transactions))):
        if begins is not None and any(
            begins[later][1] < begins[earlier][0]
            for earlier, later in itertools.combinations(order, 2)
        ):
            continue
        values: dict[str, Any] = {}
        for number in order:
            for kind, key, value in transactions[number]:
                if kind == "write":
                    values[key] = value
                elif values.get(key) != value:
                    break
            else:
                continue
            break
        else:
            return True
    return False


_STEPS = st.tuples(
    st.sampled_from(["read", "write"]), st.sampled_from("xy"), st.sampled_from([None, 1, 2])
)


@given(st.lists(st.lists(_STEPS, min_size=1, max_size=3), min_size=1, max_size=4), st.data())
def _serializability_agrees(steps: list[list[Step]], data: st.DataObject) -> None:
    places = data.draw(st.permutations(range(2 * len(steps))))
    history = OperationHistory()
    begins = []
    for number, some in enumerate(steps):
        begin, end = sorted(places[2 * number : 2 * number + 2])
        begins.append((begin, end))
        transaction = Transaction(f"t{number}", begin)
        transaction.end, transaction.steps = end, list(some)
        history.transactions.append(transaction)
    history.transactions.sort(key=lambda one: one.begin)
    for strict in (False, True):
        expected = _serial_oracle(steps, begins if strict else None)  # type: ignore[arg-type]
        try:
            check_serializable(history, strict, MAX_STATES)
        except AssertionError:
            assert not expected
        else:
            assert expected


@EXAMPLES
def test_serializability_check_agrees_with_brute_force(examples: int) -> None:
    settings(max_examples=examples, deadline=None)(_serializability_agrees)()


def test_write_skew_is_found() -> None:
    async def off_duty(world: World, doctors: dict[str, bool], name: str, other: str) -> None:
        with world.history.transaction(name) as transaction:
            on_call = doctors[other]
            transaction.read(other, on_call)
            await asyncio.sleep(0.1)
            if on_call:
                doctors[name] = False
                transaction.write(name, False)

    async def main(world: World) -> None:
        doctors = {"ann": True, "bob": True}
        with world.history.transaction("begin") as begin:
            for name in doctors:
                begin.write(name, True)
        await asyncio.gather(
            off_duty(world, doctors, "ann", "bob"), off_duty(world, doctors, "bob", "ann")
        )

    with World() as world:
        world.run(main(world))
        with pytest.raises(AssertionError, match="no order explains the transactions"):
            world.check_serializable()


# Properties at each step.


def test_always_property_is_checked_after_each_step() -> None:
    async def main(world: World) -> None:
        leaders = {1}
        world.always("at most one leader", lambda: len(leaders) <= 1)
        await asyncio.sleep(1)
        leaders.add(2)
        await asyncio.sleep(0)
        leaders.discard(1)

    with World() as world:
        with pytest.raises(PropertyError, match="'at most one leader': false at 1") as caught:
            world.run(main(world))
        assert isinstance(caught.value, AssertionError)
        assert caught.value.property == "at most one leader"


def test_always_property_is_checked_at_intervals() -> None:
    asked = 0

    def ask() -> bool:
        nonlocal asked
        asked += 1
        return True

    with World() as world:
        world.always("asked", ask, every=10)
        world.run(asyncio.sleep(0))
        world.always("asked at each", ask)
        for _ in range(100):
            world.pass_time("1s")
    assert 110 <= asked <= 600


def test_eventually_property_may_hold_late_but_not_too_late() -> None:
    for due, within, fails in (("9s", "10s", False), ("10s", "10s", False), ("11s", "10s", True)):
        leaders: list[int] = []
        with World() as world:
            world.eventually("a leader", lambda leaders=leaders: leaders, within)  # type: ignore[misc]
            world.at(due, leaders.append, 1)
            if fails:
                with pytest.raises(PropertyError, match="never true until 10"):
                    world.pass_time("1h")
            else:
                world.pass_time("1h")


def test_unmet_property_is_reported_when_the_world_ends() -> None:
    def main() -> None:
        with World() as world:
            world.eventually("a leader", lambda: False, "10s")
            world.pass_time("5s")

    with pytest.raises(PropertyError, match="not true when the test ended, at 5"):
        main()


def test_coroutine_function_is_refused_as_a_predicate() -> None:
    async def no() -> bool:
        return True

    with World() as world:
        with pytest.raises(WorldError, match="'x': a predicate is a plain function"):
            world.always("x", no)
        with pytest.raises(WorldError, match="every=0: a number of steps, 1 or more"):
            world.eventually("x", lambda: True, "1s", every=0)
        with pytest.raises(ValueError, match="duration"):
            world.eventually("x", lambda: True, "soon")


def test_an_error_of_a_predicate_ends_the_run() -> None:
    with World() as world:
        world.always("x", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            world.pass_time("1s")


def test_operations_without_a_known_result_prove_nothing() -> None:
    history = OperationHistory()
    for kind in (history.operation("read"), history.transaction()):
        with suppress(ValueError), kind:
            raise ValueError
    with history.operation("read") as operation:
        operation.refused()
    with history.transaction() as transaction:
        transaction.aborted()
    with pytest.raises(AssertionError, match="nothing is shown"):
        check_linearizable(history, Register, MAX_STATES)
    with pytest.raises(AssertionError, match="nothing is shown"):
        check_serializable(history, False, MAX_STATES)


class _DequeModel(deque[int]):
    def push(self, item: int) -> None:
        self.append(item)

    def pop_first(self) -> int:
        return self.popleft()


class _ListModel(list[int]):
    def push(self, item: int) -> None:
        self.append(item)

    def pop_first(self) -> int:
        return self.pop(0)


class _DictModel(dict[int, int]):
    def push(self, item: int) -> None:
        self[len(self)] = item

    def pop_first(self) -> int:
        return self.pop(min(self))


class _SlotsBase:
    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: list[int] = []

    def push(self, item: int) -> None:
        self.items.append(item)

    def pop_first(self) -> int:
        return self.items.pop(0)


class _SlotsModel(_SlotsBase):
    """A class with an empty ``__dict__`` as well."""


class _ParameterModel(_SlotsBase):
    def __init__(self, kind: Callable[[], list[int]]) -> None:
        self.items = kind()


def _local_list() -> list[int]:
    class LocalList(list[int]):
        pass

    return LocalList()


_OF_LOCAL_CLASS = partial(_ParameterModel, partial(_local_list))


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        (_DequeModel, "the _DequeModel has _DequeModel([1, 2])"),
        (_ListModel, "the _ListModel has [1, 2]"),
        (_DictModel, "the _DictModel has {0: 1, 1: 2}"),
        (_SlotsBase, "the _SlotsBase has (None, {'items': [1, 2]})"),
        (_SlotsModel, "the _SlotsModel has (None, {'items': [1, 2]})"),
        (_OF_LOCAL_CLASS, "the _ParameterModel has (None, {'items': [1, 2]})"),
    ],
)
def test_model_state_includes_all_attributes_and_items(
    model: Callable[[], Any], shown: str
) -> None:
    pushes = [_operation("push", (number,), None, 0, 10) for number in (1, 2)]

    def popped(*results: int) -> OperationHistory:
        pops = [
            _operation("pop_first", (), result, 11 + 2 * place, 12 + 2 * place)
            for place, result in enumerate(results)
        ]
        return _history(*pushes, *pops)

    for order in ((1, 2), (2, 1)):  # the second order is found only if both are tried
        check_linearizable(popped(*order), model, MAX_STATES)
    with pytest.raises(AssertionError, match=re.escape(f"then {shown}, and none of these can")):
        check_linearizable(popped(3), model, MAX_STATES)


def test_local_model_may_raise_for_impossible_calls() -> None:
    class Queue:
        def __init__(self) -> None:
            self.items: list[int] = []

        def push(self, item: int) -> None:
            self.items.append(item)

        def pop(self) -> int:
            return self.items.pop(0)

    def played(*results: int) -> OperationHistory:
        history = OperationHistory()
        for item in (1, 2):
            with history.operation("push", item):
                pass
        for result in results:
            with history.operation("pop") as operation:
                operation.result = result
        return history

    check_linearizable(played(1, 2), Queue, MAX_STATES)
    for wrong in ((2, 1), (1, 2, 3)):
        with pytest.raises(AssertionError, match="none of these can come next"):
            check_linearizable(played(*wrong), Queue, MAX_STATES)
