"""Tests of a database that isn't installed are skipped, with the package to install; never in
CI."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.databases.cdc import mariadb
from tests.databases.cdc.postgres import running_postgres


def need_mariadb(folder: Path) -> None:
    mariadb.require_mariadb()


def need_postgres(folder: Path) -> None:
    with running_postgres(folder):
        pass


@pytest.mark.parametrize(
    ("need", "told"),
    [
        (need_mariadb, "mariadbd or mariadb-install-db is not installed"),
        (need_postgres, "initdb is missing: install the package postgresql"),
    ],
)
@pytest.mark.parametrize("ci", [False, True])
def test_missing_database_skips_with_advice_and_fails_in_ci(
    need: Callable[[Path], None],
    told: str,
    ci: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CI", "true" if ci else "")
    monkeypatch.setenv("PATH", str(tmp_path))
    # Both also look where Debian puts them.
    monkeypatch.setattr(mariadb, "DEBIANS_FOLDERS", ())
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(()))
    failed = (AssertionError, pytest.fail.Exception)
    with pytest.raises(failed if ci else pytest.skip.Exception, match=told):
        need(tmp_path)
