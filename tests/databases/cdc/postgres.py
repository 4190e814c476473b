"""A real PostgreSQL in a folder of its own: started once, and killed by some tests."""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.databases.cdc.lasting_port import lasting_port

_USER = "postgres"


def _binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return None if on_path is None else Path(on_path).parent


def _give(folder: Path) -> None:
    """Give a folder to the server's user: the server refuses to run as root."""
    if os.geteuid() == 0:
        user = pwd.getpwnam(_USER)
        os.chown(folder, user.pw_uid, user.pw_gid)


def _run(folder: Path, *command: str) -> None:
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:
        user = pwd.getpwnam(_USER)
        as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    subprocess.run(
        command,
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=90,
        **as_user,
    )


@cache
def _initialized(binaries: Path) -> Path:
    """The data of a new server, made once in a process: each server begins with a copy."""
    folder = Path(tempfile.mkdtemp(prefix="purgatory-postgres-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _give(folder)
    options = ("-U", _USER, "--auth=trust", "--no-sync", "-E", "UTF8")
    _run(folder, str(binaries / "initdb"), "-D", "data", *options)
    return folder / "data"


class Postgres:
    """A server on a free port of the loopback address, that has nothing to lose: no fsync."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self._folder = folder
        self._binaries = binaries
        _give(folder)
        subprocess.run(["cp", "-a", _initialized(binaries), folder / "data"], check=True)
        self.port = lasting_port()

    def url(self) -> str:
        """The server's URL for clients."""
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/{_USER}"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' "
            "-c fsync=off -c max_connections=50 -c shared_buffers=32MB"
        )
        self._run("pg_ctl", "start", "-w", "-t", "60", "-D", "data", "-l", "log", "-o", options)

    def stop(self) -> None:
        """Stop the server, at once."""
        self._run("pg_ctl", "stop", "-w", "-D", "data", "-m", "immediate")

    def kill(self) -> None:
        """SIGKILL for the server; its processes notice, and end."""
        process = int((self._folder / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(process, signal.SIGKILL)

    def restart(self) -> None:
        """Start it after it was killed, as soon as its remaining processes have ended."""
        for _ in range(100):
            try:
                self.start()
                return
            except subprocess.CalledProcessError:
                time.sleep(0.1)
        raise AssertionError("it does not start again: see its log")

    def make_schema(self, name: str) -> str:
        """Make an empty schema, and return the URL that leads to it."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'CREATE SCHEMA "{name}"'.encode())
        return f"{self.url()}?options=-csearch_path%3D{name}"

    def _run(self, program: str, *arguments: str) -> None:
        _run(self._folder, str(self._binaries / program), *arguments)


@contextmanager
def running_postgres(folder: Path) -> Iterator[Postgres]:
    """A server that runs in the block; skips where there is none, but fails in CI."""
    binaries = _binaries()
    if binaries is None:
        reason = "PostgreSQL's initdb is missing: install the package postgresql"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    server = Postgres(folder, binaries)
    server.start()
    try:
        yield server
    finally:
        server.stop()
