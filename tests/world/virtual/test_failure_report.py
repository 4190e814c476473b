"""The kinds of failures, by which two failures count as the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from purgatory.virtual import World
from purgatory.virtual.failure_report import failure_kind


def _raised(function: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        function()
    return caught.value


def _one() -> None:
    raise AssertionError("a")


def _other() -> None:
    raise AssertionError("a")


def _failed(text: str) -> None:
    pytest.fail(text)


def test_kind_of_an_assertion_is_its_line_and_not_its_message() -> None:
    assert (
        failure_kind(_raised(_one)) == failure_kind(_raised(_one)) != failure_kind(_raised(_other))
    )
    assert failure_kind(_raised(_one)).startswith(f"AssertionError at {__file__}:")
    assert failure_kind(_raised(lambda: _failed("a"))) == failure_kind(
        _raised(lambda: _failed("b"))
    )


def test_kind_of_another_error_is_its_type() -> None:
    assert failure_kind(_raised(lambda: 1 / 0)) == "ZeroDivisionError"
    assert failure_kind(_raised(lambda: World().loop)) == "purgatory.virtual.errors.WorldError"
    assert failure_kind(None) == "no error"


def test_kind_of_a_world_check_is_its_line_in_the_test() -> None:
    with World() as world:
        world.cluster(brokers=1)
        kinds = [
            failure_kind(_raised(world.check_order)),
            failure_kind(_raised(world.check_no_loss)),
        ]
    assert all(f" at {__file__}:" in kind for kind in kinds)


def test_kind_of_a_group_consists_of_its_members() -> None:
    async def application() -> None:
        async with asyncio.TaskGroup() as tasks:
            for function in (_one, lambda: 1 / 0, _one):
                tasks.create_task(asyncio.to_thread(function))

    with World() as world:
        kind = failure_kind(_raised(lambda: world.run(application())))
    expected = f"ExceptionGroup of {failure_kind(_raised(_one))}"
    assert kind.startswith("ExceptionGroup of ")
    assert kind in (
        expected,
        f"{expected}; ZeroDivisionError",
        "ExceptionGroup of ZeroDivisionError",
    )


def test_error_that_was_never_raised_has_a_kind() -> None:
    assert failure_kind(AssertionError("x")) == "AssertionError at ?:0"
