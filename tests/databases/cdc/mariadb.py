"""A real MariaDB or MySQL in a temporary folder, on loopback: the first one of the PATH."""

from __future__ import annotations

import atexit
import os
import re
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

from purgatory.cdc.capture.position import Position
from purgatory.cdc.capture.source import current_position
from tests.databases.cdc.lasting_port import lasting_port

_START_S = 60.0
PASSWORD = "pass/w:rd@1"
_FOR_NOW = (
    "--innodb-flush-method=nosync",
    "--loose-sync-frm=0",
    "--loose-aria-sync-log-dir=NEVER",
    "--innodb-buffer-pool-size=32M",
    "--loose-innodb-log-file-size=16M",
)
"""Nothing needs to outlast a power cut: a killed server's writes are the system's to keep."""


_MYSQL_ROOT = """CREATE USER root@'127.0.0.1';
GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;
GRANT XA_RECOVER_ADMIN ON *.* TO root@'127.0.0.1';
"""
"""MySQL's root is of localhost only, which has no name here."""


DEBIANS_FOLDERS = ("/usr/sbin", "/usr/local/sbin")
"""The folder of Debian's servers, which may not be on the PATH."""


def require_mariadb() -> None:
    """Skip where there is no server, and fail where there has to be one.

    Raises:
        AssertionError: it is missing in continuous integration.
    """
    if _server() is None:
        reason = "needs MariaDB's server: mariadbd or mariadb-install-db is not installed"
        assert os.environ.get("CI", "").lower() != "true", reason
        pytest.skip(reason)


def _server() -> Path | None:
    """The server's program: ``mariadbd``, or ``mysqld`` where that is MySQL's."""
    folders = [*os.environ.get("PATH", "").split(os.pathsep), *DEBIANS_FOLDERS]
    for folder in folders:
        for name in ("mariadbd", "mysqld"):
            if shutil.which(name, path=folder) is not None:
                is_whole = name == "mysqld" or shutil.which("mariadb-install-db") is not None
                return Path(folder, name) if is_whole else None
    return None


def is_mysql() -> bool:
    """Whether the server of the tests is MySQL, and not MariaDB."""
    server = _server()
    return server is not None and server.name == "mysqld"


def numbers(first: int, last: int) -> str:
    """The rows ``seq`` of these numbers, in SQL of all servers: up to 99,999."""
    digits = (
        "(SELECT 0 d UNION ALL " + " UNION ALL ".join(f"SELECT {d}" for d in range(1, 10)) + ")"
    )
    places = len(str(last))
    tables = " JOIN ".join(f"{digits} d{place}" for place in range(places))
    total = " + ".join(f"d{place}.d * {10**place}" for place in range(places))
    within = f"WHERE seq BETWEEN {first} AND {last}"
    return f"(SELECT seq FROM (SELECT {total} AS seq FROM {tables}) n {within}) seqs"


@cache
def _installed(*settings: str) -> Path:
    """The data of a new server, made once in a process: each server begins with a copy.

    Args:
        settings: those that MySQL takes only now.
    """
    folder = Path(tempfile.mkdtemp(prefix="purgatory-mariadb-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    # A server that starts removes the temporary tables of others in its folder of these.
    data, temporary = folder / "data", folder / "tmp"
    for made in (data, temporary):
        made.mkdir()
        if os.geteuid() == 0:
            shutil.chown(made, "mysql")
    if is_mysql():
        (folder / "root.sql").write_text(_MYSQL_ROOT)
        install = [_program(), "--no-defaults", "--initialize-insecure"]
        install += [f"--init-file={folder / 'root.sql'}", *settings]
    else:
        install = [
            "mariadb-install-db",
            "--no-defaults",
            "--auth-root-authentication-method=normal",
        ]
        install += ["--skip-test-db", "--skip-name-resolve"]
    install += [
        f"--datadir={data}",
        f"--tmpdir={temporary}",
        *_FOR_NOW,
        *(["--user=mysql"] if os.geteuid() == 0 else []),
    ]
    ran = subprocess.run(install, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
    return data


def _program() -> str:
    server = _server()
    assert server is not None, "no server is installed"
    return str(server)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:2]]


class MariaDb:
    """A server with a row-based binlog. A context manager; ``kill`` and ``start`` in between.

    Args:
        settings: more options, as in ``--binlog-row-image=MINIMAL``; the last one counts.
    """

    def __init__(self, *settings: str) -> None:
        require_mariadb()
        self._settings = settings
        lasting = [one for one in settings if one.startswith("--lower-case-table-names")]
        self._lasting = lasting if is_mysql() else []
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
                "GRANT REPLICATION SLAVE, REPLICATION CLIENT, RELOAD, SELECT ON *.* TO capture@'%'",
                f"GRANT {'XA_RECOVER_ADMIN' if is_mysql() else 'BINLOG MONITOR'} ON *.*"
                " TO capture@'%'",
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
        subprocess.run(["cp", "-a", _installed(*self._lasting), self._folder / "data"], check=True)
        self._temporary.mkdir()
        if os.geteuid() == 0:
            shutil.chown(self._temporary, "mysql")

    def start(self) -> None:
        """Start the server, and return when it takes connections."""
        data = self._folder / "data"
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    _program(),
                    "--no-defaults",
                    f"--datadir={data}",
                    f"--tmpdir={self._temporary}",
                    f"--socket={data / 'socket'}",
                    f"--port={self.port}",
                    "--bind-address=127.0.0.1",
                    "--skip-name-resolve",
                    *(["--mysqlx=OFF", "--secure-file-priv="] if is_mysql() else []),
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
                assert self._process.poll() is None, f"it ended: {text[-2000:]}"
                assert time.monotonic() < give_up_s, f"it does not start: {text[-2000:]}"
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

    def is_mariadb(self, version: str = "0") -> bool:
        """Whether it is MariaDB, of this version or a later one."""
        own = str(self.rows("SELECT VERSION()")[0][0])
        return "MariaDB" in own and _numbers(own) >= _numbers(version)

    def binlog_end(self) -> Position:
        """The current end of the binlog."""
        connection = self.connect()
        try:
            return current_position(connection)
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
