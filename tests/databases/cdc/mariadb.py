"""A real MariaDB in a temporary folder, on loopback."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import pymysql
import pytest

from tests.databases.cdc.lasting_port import lasting_port

_START_S = 60.0
PASSWORD = "pass/w:rd@1"
_FOR_NOW = (
    "--innodb-flush-method=nosync",
    "--sync-frm=0",
    "--aria-sync-log-dir=NEVER",
    "--innodb-buffer-pool-size=32M",
    "--innodb-log-file-size=16M",
)
"""Nothing needs to outlast a power cut: a killed server's writes are the system's to keep."""


def require_mariadb() -> None:
    """Skip where there is no MariaDB, and fail where there has to be one.

    Raises:
        AssertionError: it is missing in continuous integration.
    """
    missing = [
        name
        for name in ("mariadbd", "mariadb-install-db")
        if shutil.which(name, path=_path()) is None
    ]
    if missing:
        reason = f"needs MariaDB's server: {', '.join(missing)} is not installed"
        assert os.environ.get("CI", "").lower() != "true", reason
        pytest.skip(reason)


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


def _program(name: str) -> str:
    found = shutil.which(name, path=_path())
    assert found is not None, f"{name} is missing"
    return found


@cache
def _installed() -> Path:
    """The data of a new server, made once in a process: each server begins with a copy."""
    folder = Path(tempfile.mkdtemp(prefix="purgatory-mariadb-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    data = folder / "data"
    data.mkdir()
    if os.geteuid() == 0:
        shutil.chown(data, "mysql")
    subprocess.run(
        [
            _program("mariadb-install-db"),
            "--no-defaults",
            f"--datadir={data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
            *_FOR_NOW,
            *(["--user=mysql"] if os.geteuid() == 0 else []),
        ],
        check=True,
        capture_output=True,
    )
    return data


class MariaDb:
    """A server with a row-based binlog. A context manager; ``kill`` and ``start`` in between.

    Args:
        settings: more options, as in ``--binlog-row-image=MINIMAL``; the last one counts.
    """

    def __init__(self, *settings: str) -> None:
        require_mariadb()
        self._settings = settings
        self._folder = Path(tempfile.mkdtemp(prefix="purgatory-mariadb-"))
        # A server that starts deletes other servers' files in their common folder.
        self._temporary = self._folder / "tmp"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = lasting_port()

    @property
    def url(self) -> str:
        """The address for ``purgatory capture --from``, of all databases."""
        return f"mysql://capture:{quote(PASSWORD, safe='')}@127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        try:
            self._install()
            self.start()
            self.run(
                f"CREATE USER capture@'%' IDENTIFIED BY '{PASSWORD}'",
                "GRANT REPLICATION SLAVE, REPLICATION CLIENT, BINLOG MONITOR, RELOAD, SELECT"
                " ON *.* TO capture@'%'",
            )
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._remove()

    def _install(self) -> None:
        self._folder.chmod(0o755)
        subprocess.run(["cp", "-a", _installed(), self._folder / "data"], check=True)
        self._temporary.mkdir()
        if os.geteuid() == 0:
            shutil.chown(self._temporary, "mysql")

    def start(self) -> None:
        """Start the server, and return when it takes connections."""
        data = self._folder / "data"
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    _program("mariadbd"),
                    "--no-defaults",
                    f"--datadir={data}",
                    f"--tmpdir={self._temporary}",
                    f"--socket={data / 'socket'}",
                    f"--port={self.port}",
                    "--bind-address=127.0.0.1",
                    "--skip-name-resolve",
                    "--server-id=1",
                    "--log-bin=binlog",
                    "--binlog-format=ROW",
                    "--binlog-row-image=FULL",
                    "--binlog-row-metadata=FULL",
                    "--sync-binlog=0",
                    "--innodb-flush-log-at-trx-commit=0",
                    *_FOR_NOW,
                    "--sql-mode=",
                    "--local-infile=1",
                    "--character-set-server=utf8mb4",
                    *(["--user=mysql"] if os.geteuid() == 0 else []),
                    *self._settings,
                ],
                stdout=log,
                stderr=log,
            )
        give_up_s = time.monotonic() + _START_S
        while True:
            try:
                self.connect().close()
            except pymysql.Error:
                text = (self._folder / "log").read_text(errors="replace")
                assert self._process.poll() is None, f"mariadbd ended: {text[-2000:]}"
                assert time.monotonic() < give_up_s, f"mariadbd does not start: {text[-2000:]}"
                time.sleep(0.05)
            else:
                return

    def kill(self) -> None:
        """End the server at once, as ``kill -9`` does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _remove(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def connect(
        self, database: str | None = None, charset: str = "utf8mb4"
    ) -> pymysql.connections.Connection:
        """Connect as root, with times in UTC; statements commit by themselves."""
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user="root",
            database=database,
            charset=charset,
            autocommit=True,
            ssl_disabled=True,  # else each connection loads the system's certificates
            init_command="SET time_zone = '+00:00'",
        )

    def run(self, *statements: str, database: str | None = None) -> None:
        """Run statements, one after the other, on one connection."""
        connection = self.connect(database)
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        finally:
            connection.close()

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql, parameters)
                return list(cursor.fetchall())
        finally:
            connection.close()
