"""Calls that would leave the world are refused with an alternative, or allowed by name."""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from purgatory.virtual import SandboxError, World, WorldError


def _start_thread() -> None:
    threading.Thread(target=int).start()


def _start_process() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def _spawn_process() -> None:
    process = multiprocessing.get_context("spawn").Process(target=int)
    process.start()
    process.join()


def _real_socket() -> None:
    import _socket

    _socket.socket().close()


def _connect_socket() -> None:
    with socket.socket() as made:
        made.connect(("127.0.0.1", 1))


@pytest.mark.parametrize(
    ("leave", "instead"),
    [
        (_start_thread, r"asyncio\.to_thread.*allow=\['threads'\]"),
        (_start_process, r"coroutine in the world.*allow=\['processes'\]"),
        (_spawn_process, r"allow=\['processes'\]"),
        (os.fork, r"allow=\['processes'\]"),
        (_real_socket, r"open_connection.*allow=\['sockets'\]"),
        (_connect_socket, "open_connection"),
    ],
)
def test_sandbox_refuses_each_way_out_with_an_alternative(
    leave: Callable[[], object], instead: str
) -> None:
    with World(), pytest.raises(SandboxError, match=instead):
        leave()


def _new_loop() -> None:
    asyncio.new_event_loop()


def _run_coroutine() -> None:
    with asyncio.Runner() as runner:
        runner.get_loop()


def _run_uvloop() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.get_loop()


@pytest.mark.parametrize("make", [_new_loop, _run_coroutine, _run_uvloop])
def test_another_event_loop_is_refused(make: Callable[[], object]) -> None:
    with World() as world, pytest.raises(SandboxError, match=r"world\.run\(coroutine\)"):
        make()
    with World() as world, pytest.raises(SandboxError, match=r"world\.run\(coroutine\)"):
        world.run(asyncio.to_thread(make))


@pytest.mark.parametrize(
    ("kind", "leave"),
    [("threads", _start_thread), ("processes", _start_process), ("sockets", _real_socket)],
)
def test_each_way_out_can_be_allowed_by_name(kind: str, leave: Callable[[], object]) -> None:
    with World(allow=[kind]):
        leave()


def test_unknown_kind_of_permission_is_refused() -> None:
    with pytest.raises(WorldError, match="there is no 'files'; there are sockets, threads"):
        World(allow=["files"])


def test_sandbox_ends_with_the_world() -> None:
    with World():
        pass
    _start_thread()
    _real_socket()
    with socket.socket() as one:
        assert one.fileno() > 0


def test_loop_methods_that_leave_the_world_are_refused() -> None:
    async def application() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(SandboxError, match=r"loop\.add_reader\(\)"):
            loop.add_reader(0, int)
        with pytest.raises(SandboxError, match="create_datagram_endpoint"):
            await loop.create_datagram_endpoint(asyncio.DatagramProtocol)
        with pytest.raises(SandboxError, match="process's work as a coroutine"):
            await asyncio.create_subprocess_exec("true")

    with World() as world:
        world.run(application())


def test_import_that_leaves_the_world_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "begins_a_process.py").write_text("import os\nos.system('true')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    advice = "import begins_a_process before the world begins"
    with World(), pytest.raises(SandboxError, match=advice):
        importlib.import_module("begins_a_process")


def test_other_threads_and_kept_references_use_real_sockets() -> None:
    begin, kept, seen = threading.Event(), [], []

    def look() -> None:
        begin.wait()
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            seen.append(one.fileno() >= 0)
        for end in socket.socketpair():
            end.close()
        asyncio.new_event_loop().close()

    thread = threading.Thread(target=look)
    thread.start()
    with World():
        kept.append(socket.socket)
        begin.set()
        thread.join()
    with kept[0]() as one:
        seen.append(one.fileno() >= 0)
    assert seen == [True, True]


def test_hostname_is_the_name_of_the_node() -> None:
    with World() as world, world.node("billing"):
        assert socket.gethostname() == socket.getfqdn() == "billing"
        assert socket.gethostbyname("localhost") == "127.0.0.1"
