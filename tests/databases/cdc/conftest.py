"""The databases of these tests, and changes written by hand."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from purgatory.cdc import Applied, Target, open_target
from purgatory.cdc.apply.local_engine import apply_topics
from tests.databases.cdc.mariadb import MariaDb
from tests.databases.cdc.postgres import Postgres, running_postgres

_NUMBERS = itertools.count(1)

NewTarget = Callable[[], Target]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The one PostgreSQL of these tests; started by the first that needs it."""
    # The server's user must get to it, and pytest's own folders are only for ours.
    folder = Path(tempfile.mkdtemp(prefix="purgatory-postgres-"))
    try:
        with running_postgres(folder) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDb]:
    """A MariaDB with a row-based binlog."""
    with MariaDb() as server:
        yield server


@pytest.fixture(autouse=True)
def usual_server(request: pytest.FixtureRequest) -> None:
    """Skip a test that is marked as of MariaDB, of a version, where the server is another."""
    mark = request.node.get_closest_marker("mariadb")
    if mark is None:
        return
    server: MariaDb = request.getfixturevalue("mariadb")
    if not server.is_mariadb(*mark.args):
        pytest.skip(f"its statements are MariaDB's {' '.join(mark.args)}")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database or schema, once of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'target.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.make_schema(f"test{next(_NUMBERS)}")


@pytest.fixture
def target(url: str) -> Iterator[Target]:
    """An empty target, once of each kind."""
    opened = open_target(url)
    opened.prepare()
    yield opened
    opened.close()


Engine = Callable[..., Applied]
"""Applies topics, as `purgatory apply --engine` does."""


@pytest.fixture
def engine() -> Engine:
    """The engine without Java; `tests/spark/cdc` runs the same tests with Spark."""
    return apply_topics
