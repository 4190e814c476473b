"""What would leave the world is refused with what to do instead, or allowed by name."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from purgatory.virtual import LeavingWorldError, World, WorldError


def _start_thread() -> None:
    threading.Thread(target=int).start()


def _start_process() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


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
        (os.fork, r"allow=\['processes'\]"),
        (_real_socket, r"open_connection.*allow=\['sockets'\]"),
        (_connect_socket, "open_connection"),
    ],
)
def test_it_is_refused_with_what_to_do_instead(leave: Callable[[], object], instead: str) -> None:
    with World(), pytest.raises(LeavingWorldError, match=instead):
        leave()


@pytest.mark.filterwarnings("ignore:Exception ignored in.*BaseEventLoop")
def test_an_event_loop_of_its_own_is_refused() -> None:
    with World(), pytest.raises(LeavingWorldError, match=r"world\.run\(coroutine\)"):
        asyncio.new_event_loop()
    gc.collect()  # the loop that was half made complains of that


@pytest.mark.parametrize(
    ("kind", "leave"),
    [("threads", _start_thread), ("processes", _start_process), ("sockets", _real_socket)],
)
def test_it_is_allowed_by_name(kind: str, leave: Callable[[], object]) -> None:
    with World(allow=[kind]):
        leave()


def test_what_is_no_kind_is_refused() -> None:
    with pytest.raises(WorldError, match="there is no 'files'; there are sockets, threads"):
        World(allow=["files"])


def test_afterwards_nothing_is_refused() -> None:
    with World():
        pass
    _start_thread()
    _real_socket()
    with socket.socket() as one:
        assert one.fileno() > 0


def test_what_an_event_loop_could_do_outside_is_refused() -> None:
    async def application() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(LeavingWorldError, match=r"loop\.add_reader\(\)"):
            loop.add_reader(0, int)
        with pytest.raises(LeavingWorldError, match="create_datagram_endpoint"):
            await loop.create_datagram_endpoint(asyncio.DatagramProtocol)

    with World() as world:
        world.run(application())
