"""Hosts: processes of an application that crash, restart, pause, and have wrong clocks."""

from __future__ import annotations

import asyncio
import datetime
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from purgatory.virtual import Host, World, WorldError
from tests.world.virtual.pytest_run import run_pytest


def _world(
    main: Callable[[World], Coroutine[Any, Any, None]], seed: int = 0, **settings: Any
) -> World:
    with World(seed, **settings) as world:
        world.run(main(world), "1h")
    return world


async def _serve(answer: Callable[[bytes], bytes], port: int = 80) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while line := await reader.readline():
                writer.write(answer(line))
        writer.close()

    server = await asyncio.start_server(handle, port=port)
    async with server:
        await server.serve_forever()


async def _ask(name: str, line: bytes, port: int = 80) -> bytes:
    reader, writer = await asyncio.open_connection(name, port)
    writer.write(line)
    answer = await reader.readline()
    writer.close()
    return answer


def test_crash_stops_all_code_of_the_process() -> None:
    seen: list[str] = []

    async def run() -> None:
        async def tick() -> None:
            try:
                while True:
                    seen.append("tick")
                    await asyncio.sleep(1)
            finally:
                seen.append("finally")

        asyncio.get_running_loop().call_later(5, seen.append, "timer")
        asyncio.create_task(tick())  # noqa: RUF006
        try:
            await asyncio.sleep(100)
        except BaseException:
            seen.append("except")
            raise

    async def main(world: World) -> None:
        host = world.host("billing", run)
        assert host.state == "running"
        await asyncio.sleep(2.5)
        host.crash()
        host.crash()
        assert repr(host) == "<Host 'billing' down>"
        await asyncio.sleep(1_000)
        assert seen == ["tick"] * 3

    _world(main)


def test_restart_begins_a_new_process() -> None:
    lives: list[str] = []

    async def run() -> None:
        lives.append("began")
        await asyncio.sleep(10)
        lives.append("ended")

    async def main(world: World) -> None:
        host = world.host("billing", run)
        await asyncio.sleep(5)
        host.restart()
        await asyncio.sleep(7)
        assert lives == ["began", "began"]
        await asyncio.sleep(7)
        assert lives == ["began", "began", "ended"]
        host.crash()
        host.restart()
        await asyncio.sleep(20)
        assert lives[3:] == ["began", "ended"]

    _world(main)


def test_peers_of_a_crashed_host_see_resets_and_refusals() -> None:
    async def main(world: World) -> None:
        host = world.host("server", lambda: _serve(bytes.upper))
        await asyncio.sleep(1)
        assert await _ask("server", b"one\n") == b"ONE\n"
        reader, writer = await asyncio.open_connection("server", 80)
        host.crash()
        with pytest.raises(ConnectionResetError):
            await reader.readline()
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await _ask("server", b"two\n")
        host.restart()
        await asyncio.sleep(1)
        assert await _ask("server", b"three\n") == b"THREE\n"

    _world(main)


def test_each_host_has_its_own_ports_and_its_own_localhost() -> None:
    answers: list[bytes] = []

    def run(name: bytes) -> Callable[[], Coroutine[Any, Any, None]]:
        async def main() -> None:
            serving = asyncio.create_task(_serve(lambda line: name + b"\n"))
            await asyncio.sleep(1)
            answers.append(await _ask("localhost", b"who?\n"))
            await serving

        return main

    async def main(world: World) -> None:
        for name in ("a", "b"):
            world.host(name, run(name.encode()))
        await asyncio.sleep(5)
        assert sorted(answers) == [b"a\n", b"b\n"]
        assert await _ask("b", b"who?\n") == b"b\n"
        with pytest.raises(WorldError, match="there is a host 'a' already"):
            world.host("a", run(b"a"))

    _world(main)


def test_partitions_are_between_hosts() -> None:
    answers: list[bytes] = []

    async def ask() -> None:
        for _ in range(3):
            answers.append(await _ask("server", b"x\n"))
            await asyncio.sleep(10)

    async def main(world: World) -> None:
        world.host("server", lambda: _serve(bytes.upper))
        await asyncio.sleep(1)
        cut = world.network.partition("asks", "server")
        world.host("asks", ask)
        assert await _ask("server", b"y\n") == b"Y\n", "the test itself is another node"
        await asyncio.sleep(20)
        assert answers == []
        cut.end()
        await asyncio.sleep(40)
        assert answers == [b"X\n"] * 3

    _world(main)


def test_peer_behind_a_partition_sees_a_crash_when_it_ends() -> None:
    async def main(world: World) -> None:
        server = world.host("server", lambda: _serve(bytes.upper))
        await asyncio.sleep(1)
        reader, writer = await asyncio.open_connection("server", 80)
        cut = world.network.partition("client", "server")
        server.crash()
        server.restart()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(), 60)
        cut.end()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 1)
        writer.close()
        assert await _ask("server", b"y\n") == b"Y\n"

    _world(main)


def test_server_of_a_host_responds_from_its_own_node() -> None:
    async def forward() -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await _ask("server", await reader.readline()))
            writer.close()

        async with await asyncio.start_server(handle, port=81) as server:
            await server.serve_forever()

    async def main(world: World) -> None:
        world.host("server", lambda: _serve(bytes.upper))
        world.host("proxy", forward)
        await asyncio.sleep(1)
        assert await _ask("proxy", b"x\n", 81) == b"X\n"
        texts = [event.text for event in world.last_events(1_000)]
        assert "proxy > server" in texts
        assert "client > server" not in texts

    _world(main)


def test_paused_process_resumes_where_it_stopped() -> None:
    ticks: list[float] = []

    async def main(world: World) -> None:
        async def run() -> None:
            asyncio.create_task(_serve(bytes.upper))  # noqa: RUF006
            while True:
                ticks.append(world.now_s)
                await asyncio.sleep(1)

        host = world.host("slow", run)
        await asyncio.sleep(2.5)
        host.pause()
        host.pause()
        assert host.state == "paused"
        asking = asyncio.create_task(_ask("slow", b"x\n"))
        await asyncio.sleep(10)
        assert not asking.done()
        assert len(ticks) == 3
        host.resume()
        host.resume()
        assert await asking == b"X\n"
        assert ticks[3] == 12.5
        host.pause()
        await asyncio.sleep(5)
        host.crash()
        host.resume()
        await asyncio.sleep(5)
        assert max(ticks) < 13.5

    _world(main)


def test_host_paused_at_the_worlds_end_is_stopped_as_others() -> None:
    seen: list[str] = []

    async def run() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            seen.append("finally")

    async def main(world: World) -> None:
        host = world.host("slow", run)
        await asyncio.sleep(1)
        host.pause()

    _world(main)
    assert seen == ["finally"]


def test_clock_skew_of_a_host_leaves_its_timers_right() -> None:
    read: dict[str, tuple[float, datetime.datetime, float]] = {}

    async def main(world: World) -> None:
        async def run() -> None:
            for name in ("first", "later"):
                before = time.monotonic()
                await asyncio.sleep(100)
                now = datetime.datetime.now(datetime.UTC)
                read[name] = (time.time(), now, time.monotonic() - before)

        host = world.host("wrong", run)
        host.set_clock("-90s")
        start = time.time()
        await asyncio.sleep(101)
        assert read["first"][0] == start + 100 - 90
        assert read["first"][1].timestamp() == start + 100 - 90
        assert read["first"][2] == 100
        host.set_clock("5s", drift=0.01)
        await asyncio.sleep(100)
        assert read["later"][0] == pytest.approx(start + 200 + 5 + 0.99)
        assert time.time() == start + 201, "the world's own is right"
        with pytest.raises(ValueError, match="duration"):
            host.set_clock("soon")

    _world(main)


def test_disk_of_a_host_keeps_synced_data_across_crashes() -> None:
    async def main(world: World) -> None:
        async def run() -> None:
            host.disk.write_bytes("forced", b"1")
            host.disk.sync("forced")
            host.disk.write_bytes("forced", b"2", append=True)
            host.disk.write_bytes("other", b"3")
            assert host.disk.read_bytes("forced") == b"12"

        host = world.host("store", run)
        await asyncio.sleep(1)
        host.crash()
        assert host.disk.read_bytes("forced")[:1] == b"1"
        host.restart()
        await asyncio.sleep(1)
        assert host.disk.read_bytes("forced") == b"12"

    lost = 0
    for seed in range(20):
        _world(main, seed)

        async def unforced(world: World) -> None:
            nonlocal lost
            host = world.host("store", lambda: asyncio.sleep(0))
            host.disk.write_bytes("a", b"1")
            host.crash()
            await asyncio.sleep(0)
            try:
                lost += host.disk.read_bytes("a") != b"1"
            except FileNotFoundError:
                lost += 1

        with World(seed) as world:
            world.run(unforced(world))
    assert 0 < lost < 20


def test_unretrieved_exception_of_a_host_fails_the_test() -> None:
    async def run() -> None:
        await asyncio.sleep(1)
        raise ValueError("the bug")

    async def main(world: World) -> None:
        world.host("billing", run)
        await asyncio.sleep(5)

    with pytest.raises(ValueError, match="the bug") as caught:
        _world(main)
    assert caught.value.__notes__ == ["the host 'billing' ended by it"]

    async def looks(world: World) -> None:
        host = world.host("billing", run)
        await asyncio.sleep(5)
        assert host.state == "down"
        error = host.error
        assert isinstance(error, ValueError)
        host.restart()
        assert host.error is None
        await asyncio.sleep(0.5)
        host.crash()

    _world(looks)


def test_a_fault_that_raises_fails_the_test() -> None:
    def typo() -> None:
        raise ValueError("the typo")

    async def late_typo() -> None:
        await asyncio.sleep(1)
        typo()

    async def main(world: World) -> None:
        world.at("1s", fault)
        await asyncio.sleep(5)

    for fault in (typo, late_typo):
        with pytest.raises(ValueError, match="the typo") as caught:
            _world(main)
        (note,) = caught.value.__notes__
        assert note.endswith(f"{fault.__name__}() at 1 s")


@pytest.mark.parametrize("in_task", [False, True])
@pytest.mark.parametrize(("status", "is_error"), [(None, False), (0, False), (3, True)])
def test_sys_exit_ends_the_process_of_the_host_alone(
    in_task: bool, status: int | None, is_error: bool
) -> None:
    seen: list[str] = []

    async def stop() -> None:
        await asyncio.sleep(1)
        sys.exit(status)

    async def run() -> None:
        if in_task:
            asyncio.create_task(stop())  # noqa: RUF006
            await asyncio.sleep(2)
            seen.append("goes on")
        await stop()

    async def main(world: World) -> None:
        host = world.host("billing", run)
        await asyncio.sleep(1.5)
        assert host.state == "down"
        await asyncio.sleep(5)
        assert (host.error is not None) == is_error
        seen.append("done")

    if is_error:
        with pytest.raises(RuntimeError, match="the process exited with status 3") as caught:
            _world(main)
        assert isinstance(caught.value.__cause__, SystemExit)
    else:
        _world(main)
    assert seen == ["done"]


def test_process_that_crashes_itself_stops_at_its_next_await() -> None:
    seen: list[int] = []

    async def main(world: World) -> None:
        async def run() -> None:
            host.crash()
            seen.append(1)
            await asyncio.sleep(0)
            seen.append(2)

        host = world.host("billing", run)
        await asyncio.sleep(5)
        assert seen == [1]

    _world(main)


@pytest.mark.parametrize("schedule", ["fifo", "random", "pct"])
def test_seed_repeats_runs_with_crashes(schedule: str) -> None:
    def digest() -> str:
        async def main(world: World) -> None:
            server = world.host("server", lambda: _serve(bytes.upper))

            async def ask() -> None:
                while True:
                    with suppress(OSError):
                        await _ask("server", b"x\n")
                    await asyncio.sleep(world.random.random())

            for name in ("a", "b", "c"):
                client: Host = world.host(name, ask)
            for _ in range(20):
                await asyncio.sleep(3 * world.random.random())
                world.random.choice([server, client]).restart()

        return _world(main, 7, schedule=schedule).digest

    assert digest() == digest()


def test_crash_is_a_fault_that_can_be_excluded() -> None:
    for without, expected in (((), "down"), ((0,), "running")):
        with World(without=without) as world:
            host = world.host("billing", lambda: asyncio.sleep(100))
            world.at("10s", host.crash)
            world.pass_time("20s")
            assert host.state == expected


def test_pending_task_of_a_dead_host_does_not_block_the_end() -> None:
    """Waits for the task of a dead host time out, and the world ends."""

    async def main(world: World) -> None:
        made: list[asyncio.Task[None]] = []

        async def run() -> None:
            made.append(asyncio.create_task(asyncio.sleep(10)))
            await asyncio.sleep(100)

        host = world.host("billing", run)
        await asyncio.sleep(1)
        host.crash()
        done, pending = await asyncio.wait(made, timeout=100)
        assert (len(done), len(pending)) == (0, 1)

    _world(main)


def test_partitions_of_a_crashed_consumer_go_to_another() -> None:
    aiokafka = pytest.importorskip("aiokafka")
    read: dict[str, list[bytes]] = {"one": [], "two": []}

    def consume(name: str, servers: str) -> Callable[[], Coroutine[Any, Any, None]]:
        async def main() -> None:
            consumer = aiokafka.AIOKafkaConsumer(
                "orders", bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest"
            )
            async with consumer:
                async for record in consumer:
                    read[name].append(record.value)

        return main

    async def main(world: World, servers: str) -> None:
        one = world.host("one", consume("one", servers))
        world.host("two", consume("two", servers))
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers) as producer:
            await asyncio.sleep(10)
            for number in range(20):
                await producer.send_and_wait("orders", b"%d" % number)
            await asyncio.sleep(5)
            assert read["one"]
            assert read["two"]
            one.crash()
            before = len(read["one"])
            for number in range(20, 40):
                await producer.send_and_wait("orders", b"%d" % number)
            await asyncio.sleep(60)
        assert len(read["one"]) == before
        assert {int(value) for values in read.values() for value in values} == {*range(40)}
        assert {19 + number for number in range(1, 21)} <= {int(value) for value in read["two"]}

    with World(3) as world:
        cluster = world.cluster(brokers=1, topics={"orders": 4})
        world.run(main(world, cluster.bootstrap_servers))


def test_dead_process_does_not_keep_the_world_running() -> None:
    async def awaits_in_finally() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            for _ in range(3):
                await asyncio.sleep(1)

    async def iterates() -> None:
        async def numbers() -> AsyncIterator[int]:
            try:
                while True:
                    yield 1
                    await asyncio.sleep(1)
            finally:
                await asyncio.Event().wait()

        async for _ in numbers():
            await asyncio.sleep(3)

    for main in (awaits_in_finally, iterates):
        with World() as world:
            host = world.host("a", main)
            world.pass_time("5s")
            host.crash()
            world.pass_time("1s")


@pytest.mark.parametrize("name", ["localhost", "client", "", "127.0.0.1", "10.0.0.7", "broker 1"])
def test_name_of_another_machine_is_refused(name: str) -> None:
    with World() as world, pytest.raises(WorldError, match="a host can't be called"):
        world.host(name, lambda: asyncio.sleep(0))


def test_host_names_with_the_same_address_are_refused() -> None:
    with World() as world:
        world.host("abcdef", lambda: asyncio.sleep(0))
        with pytest.raises(WorldError, match="is another's"):
            world.host("defabc", lambda: asyncio.sleep(0))


_CRASHED_CLIENTS = """
import asyncio
import gc

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer


@pytest.mark.virtual(seeds=2)
def test_it(world):
    cluster = world.cluster(topics=["orders"])
    servers = {"bootstrap_servers": cluster.bootstrap_servers}

    async def bill():
        consumer = AIOKafkaConsumer("orders", group_id="billing", **servers)
        producer = AIOKafkaProducer(**servers)
        try:
            async with consumer, producer:
                async for record in consumer:
                    await producer.send("bills", record.value)
        finally:
            asyncio.get_running_loop().create_task(asyncio.sleep(1))

    host = world.host("billing", bill)
    world.at("5s", host.crash)
    world.at("6s", host.restart)
    world.at("6.02s", host.crash)
    world.pass_time("20s")


def test_after_it():
    gc.collect()
"""


@pytest.mark.parametrize("begins", ["gc.freeze()", "gc.unfreeze()"])
def test_unclosed_resources_of_a_crash_cause_no_warning(tmp_path: Path, begins: str) -> None:
    pytest.importorskip("aiokafka")
    status, said = run_pytest(tmp_path, "-W", "error", text=f"{_CRASHED_CLIENTS}\n\n{begins}\n")
    assert status == 0, said
    assert "2 passed" in said
    assert "Unclosed" not in said
