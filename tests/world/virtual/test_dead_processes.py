"""Processes that crash in the middle of a step: nothing that the rest of it does has an effect."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from purgatory.virtual import Host, World
from purgatory.virtual.disk import VirtualDisk

_FLAGS = os.O_RDWR | os.O_CREAT

# Changes of a disk with the file "a", the folder "d", and an open descriptor of "a".
_CHANGES: dict[str, Callable[[VirtualDisk, int], object]] = {
    "write": lambda disk, file: disk.write_bytes("a", b"late"),
    "append": lambda disk, file: disk.write_bytes("a", b"late", append=True),
    "new file": lambda disk, file: disk.write_bytes("b", b"late"),
    "open": lambda disk, file: disk.open("b", _FLAGS),
    "truncate at opening": lambda disk, file: disk.open("a", _FLAGS | os.O_TRUNC),
    "pwrite": lambda disk, file: disk.pwrite(file, b"late", 0),
    "ftruncate": lambda disk, file: disk.ftruncate(file, 0),
    "replace": lambda disk, file: disk.replace("a", "b"),
    "unlink": lambda disk, file: disk.unlink("a"),
    "mkdir": lambda disk, file: disk.mkdir("e"),
    "rmdir": lambda disk, file: disk.rmdir("d"),
    "sync": lambda disk, file: disk.sync("a"),
    "fsync": lambda disk, file: disk.fsync(file),
    "lock": lambda disk, file: disk.lock(file),
}


def _ends(host: Host, how: str) -> None:
    if how == "crash":
        host.crash()
    elif how == "restart":
        host.restart()


@pytest.mark.parametrize("change", _CHANGES.values(), ids=_CHANGES)
@pytest.mark.parametrize("how", ["crash", "restart"])
def test_dead_step_changes_no_disk(how: str, change: Callable[[VirtualDisk, int], object]) -> None:
    raised: list[OSError] = []
    disks: list[VirtualDisk] = []

    async def run() -> None:
        if disks:  # the process after the restart
            return
        other, one = hosts
        disks[:] = [one.disk, other.disk]
        files = []
        for disk in disks:
            disk.write_bytes("a", b"forced")
            disk.mkdir("d")
            disk.sync("a")
            files.append(disk.open("a", os.O_RDWR))
        _ends(one, how)
        for disk, file in zip(disks, files, strict=True):
            try:
                change(disk, file)
            except OSError as error:
                raised.append(error)

    async def idle() -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        hosts.append(world.host("other", idle))
        hosts.append(world.host("one", run))
        await asyncio.sleep(1)

    hosts: list[Host] = []
    with World() as world:
        world.run(main())
    assert [error.errno for error in raised] == [errno.EIO] * 2
    for disk in disks:
        assert sorted(disk.listdir("/")) == ["a", "d"]
        assert disk.read_bytes("a") == b"forced"


def test_world_without_a_late_disk_write_is_the_same() -> None:
    def digest(writes: bool) -> str:
        async def run() -> None:
            await asyncio.sleep(0)
            host = hosts[0]
            host.disk.write_bytes("a", b"before")
            host.crash()
            if writes:
                host.disk.write_bytes("a", b"after")
                host.disk.sync("a")

        async def main() -> None:
            host = world.host("one", run)
            hosts.append(host)
            await asyncio.sleep(1)
            host.restart()
            await asyncio.sleep(1)

        hosts: list[Host] = []
        with World() as world:
            world.run(main())
            return world.digest

    assert digest(writes=True) == digest(writes=False)


# The calls that a step may make to the network and the loop after it ended its process.

_happened: list[str] = []


def _note() -> None:
    _happened.append("late")


async def _note_later() -> None:
    _happened.append("late task")


class _Program:
    """A process with an open connection to a server of another."""

    writer: asyncio.StreamWriter

    async def write(self) -> None:
        self.writer.write(b"late")

    async def write_eof(self) -> None:
        self.writer.write_eof()

    async def close(self) -> None:
        self.writer.close()

    async def abort(self) -> None:
        self.writer.transport.abort()

    async def connect(self) -> None:
        await asyncio.open_connection("server", 80)

    async def listen(self) -> None:
        await asyncio.start_server(lambda *_: None, port=81)

    async def bind(self) -> None:
        socket.socket().bind(("", 81))

    async def start_a_timer(self) -> None:
        asyncio.get_running_loop().call_later(1, _note)

    async def schedule(self) -> None:
        asyncio.get_running_loop().call_soon(_note)

    async def start_a_task(self) -> None:
        asyncio.create_task(_note_later())  # noqa: RUF006

    async def start_a_job(self) -> None:
        asyncio.get_running_loop().run_in_executor(None, _note)

    async def fail(self) -> None:
        raise ValueError("late")

    async def fail_in_a_task(self) -> None:
        asyncio.get_running_loop().create_future().set_exception(ValueError("late"))


_LATE = [getattr(_Program, name) for name in vars(_Program) if not name.startswith("_")]


def _events_of_crash(late: Callable[[_Program], Coroutine[Any, Any, None]] | None) -> list[str]:
    received = bytearray()
    program = _Program()
    _happened.clear()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(100):
                received.extend(data)
        writer.close()

    async def serve() -> None:
        await (await asyncio.start_server(handle, port=80)).serve_forever()

    async def run() -> None:
        _, program.writer = await asyncio.open_connection("server", 80)
        program.writer.write(b"early")
        await asyncio.sleep(1)
        hosts[0].crash()
        if late is not None:
            await late(program)

    async def main() -> None:
        world.host("server", serve)
        await asyncio.sleep(1)
        hosts.append(world.host("one", run))
        await asyncio.sleep(60)

    hosts: list[Host] = []
    with World() as world:
        world.run(main())
        events = [str(event) for event in world.last_events(1_000)]
        ended_s = world.now_s
        assert world.network.ports.owner(("0.0.0.0", 81)) is None
    assert world.now_s == ended_s
    assert bytes(received) == b"early"
    assert not _happened
    return events


@pytest.mark.parametrize("late", _LATE)
def test_dead_step_has_no_effect(late: Callable[[_Program], Coroutine[Any, Any, None]]) -> None:
    assert _events_of_crash(late) == _events_of_crash(None)


def test_data_held_by_a_partition_dies_with_its_host() -> None:
    received = bytearray()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(100):
                received.extend(data)
        received.extend(b"|")
        writer.close()

    async def serve() -> None:
        await (await asyncio.start_server(handle, port=80)).serve_forever()

    async def run() -> None:
        _, writer = await asyncio.open_connection("server", 80)
        writer.write(b"early")
        await asyncio.sleep(1)
        world.network.partition("server", "one")
        writer.write(b"held")
        await asyncio.sleep(60)

    async def main() -> None:
        world.host("server", serve)
        await asyncio.sleep(1)
        host = world.host("one", run)
        await asyncio.sleep(5)
        host.crash()
        world.network.heal()
        await asyncio.sleep(5)

    with World() as world:
        world.run(main())
    assert bytes(received) == b"early|"


def test_socket_of_a_dead_process_is_released() -> None:
    bound: list[socket.socket] = []

    async def run() -> None:
        bound.append(socket.socket())
        bound[-1].bind(("", 80))
        await asyncio.sleep(60)

    async def main() -> None:
        host = world.host("one", run)
        await asyncio.sleep(1)
        host.restart()
        await asyncio.sleep(1)

    with World() as world:
        world.run(main())
    assert len(bound) == 2


def test_fault_planned_by_a_process_outlives_it() -> None:
    starts: list[float] = []

    async def run() -> None:
        starts.append(world.now_s)
        if len(starts) == 1:
            await asyncio.sleep(1)
            world.at("5s", hosts[0].restart)
            hosts[0].crash()
        await asyncio.sleep(60)

    async def main() -> None:
        hosts.append(world.host("one", run))
        await asyncio.sleep(10)

    hosts: list[Host] = []
    with World() as world:
        world.run(main())
    assert starts == [0, 5]
