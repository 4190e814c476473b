"""Exceptions that end background tasks, callbacks and handlers: they fail a world's test."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from purgatory.virtual import DeadlockError, World, WorldError

Program = Callable[[], Coroutine[Any, Any, Any]]
_kept: list[Any] = []


def _fail(*_: object) -> None:
    raise ValueError("the bug")


async def _fail_later() -> None:
    await asyncio.sleep(1)
    _fail()


# The exceptions that are left to the event loop.


async def _in_a_task() -> None:
    asyncio.create_task(_fail_later())  # noqa: RUF006


async def _in_a_task_that_is_referred_to() -> None:
    _kept.append(asyncio.create_task(_fail_later()))


async def _in_a_task_of_a_cycle() -> None:
    async def fail() -> None:
        own = asyncio.current_task()
        assert own is not None
        await _fail_later()

    asyncio.create_task(fail())  # noqa: RUF006


async def _in_a_task_of_another_factory() -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(lambda loop, coro, **more: asyncio.Task(coro, loop=loop, **more))
    _kept.append(asyncio.create_task(_fail_later()))


async def _in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(_fail)


async def _in_a_timer() -> None:
    asyncio.get_running_loop().call_later(1, _fail)


async def _in_a_callback_of_a_task() -> None:
    asyncio.create_task(asyncio.sleep(1)).add_done_callback(_fail)


async def _in_an_executor() -> None:
    asyncio.get_running_loop().run_in_executor(None, _fail)


async def _in_a_future() -> None:
    asyncio.get_running_loop().create_future().set_exception(ValueError("the bug"))


async def _in_a_generator() -> None:
    async def numbers() -> Any:
        try:
            yield 1
        finally:
            await _fail_later()

    await anext(numbers())


async def _in_the_exception_handler() -> None:
    loop = asyncio.get_running_loop()
    loop.call_exception_handler({"message": "no good", "exception": ValueError("the bug")})


async def _in_an_own_exception_handler() -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_fail)
    loop.call_exception_handler({"message": "no good"})


async def _ask(port: int) -> None:
    with suppress(ConnectionError, TimeoutError):
        reader, writer = await asyncio.open_connection("localhost", port)
        try:
            writer.write(b"x")
            await asyncio.wait_for(reader.read(), 1)
        finally:
            writer.close()


async def _in_a_handler_of_streams() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()
        _fail()

    await asyncio.start_server(handle, port=80)
    await _ask(80)


def _protocol(failing: str) -> Callable[[], asyncio.Protocol]:
    return type("Failing", (asyncio.Protocol,), {failing: _fail})


async def _serve(factory: Callable[[], asyncio.Protocol]) -> None:
    await asyncio.get_running_loop().create_server(factory, port=80)
    await _ask(80)


async def _in_a_protocol_factory() -> None:
    await _serve(_fail)  # type: ignore[arg-type]


async def _in_connection_made() -> None:
    await _serve(_protocol("connection_made"))


async def _in_data_received() -> None:
    await _serve(_protocol("data_received"))


async def _in_connection_lost() -> None:
    class Failing(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            _fail()

    await _serve(Failing)


_PROGRAMS = [
    _in_a_task,
    _in_a_task_that_is_referred_to,
    _in_a_task_of_a_cycle,
    _in_a_task_of_another_factory,
    _in_a_callback,
    _in_a_timer,
    _in_a_callback_of_a_task,
    _in_an_executor,
    _in_a_future,
    _in_a_generator,
    _in_the_exception_handler,
    _in_an_own_exception_handler,
    _in_a_handler_of_streams,
    _in_a_protocol_factory,
    _in_connection_made,
    _in_data_received,
    _in_connection_lost,
]


@pytest.fixture(autouse=True)
def _no_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "asyncio")
    _kept.clear()


def _run(program: Program, on_host: bool, **settings: Any) -> World:
    async def run() -> None:
        await program()
        await asyncio.sleep(60)

    async def main() -> None:
        if on_host:
            world.host("billing", run)
        else:
            await program()
        await asyncio.sleep(5)

    with World(**settings) as world:
        world.run(main())
    return world


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("program", _PROGRAMS)
def test_unhandled_exception_fails_the_run(program: Program, on_host: bool) -> None:
    with pytest.raises(ValueError, match="the bug") as caught:
        _run(program, on_host)
    assert any(note.startswith("unhandled: ") for note in caught.value.__notes__)


@pytest.mark.parametrize("program", _PROGRAMS)
def test_recorded_exception_fails_nothing(program: Program) -> None:
    world = _run(program, on_host=False, on_unhandled="record")
    assert [str(context["exception"]) for context in world.unhandled] == ["the bug"]


def test_retrieved_exception_fails_nothing() -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(_fail_later()) for _ in range(3)]
        await asyncio.gather(*tasks, return_exceptions=True)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        asyncio.create_task(_fail_later())  # noqa: RUF006
        await asyncio.sleep(5)

    with World() as world:
        world.run(main())
    assert not world.unhandled


def test_task_may_be_awaited_in_a_later_run() -> None:
    async def begin() -> asyncio.Task[None]:
        task = asyncio.create_task(_fail_later())
        await asyncio.sleep(5)
        return task

    async def end(task: asyncio.Task[None]) -> None:
        with suppress(ValueError):
            await task

    with World() as world:
        world.run(end(world.run(begin())))


def test_deadlock_names_the_exception_before_it() -> None:
    async def main() -> None:
        _kept.append(asyncio.create_task(_fail_later()))
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError) as caught, World() as world:
        world.run(main())
    assert any(note.endswith("ValueError: the bug") for note in caught.value.__notes__)


def test_exceptions_of_the_end_of_a_world_fail_nothing() -> None:
    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            asyncio.get_running_loop().call_soon(_fail)

    async def main() -> None:
        _kept.append(asyncio.create_task(wait()))
        await asyncio.sleep(1)

    with World() as world:
        world.run(main())
    assert not world.unhandled


def test_unknown_policy_is_refused() -> None:
    with pytest.raises(WorldError, match="on_unhandled: there is no 'ignore'"):
        World(on_unhandled="ignore")


@pytest.mark.virtual(seeds=2, on_unhandled="record")
async def test_mark_records_unhandled_exceptions(world: World) -> None:
    await _in_a_task()
    await asyncio.sleep(5)
    assert len(world.unhandled) == 1
