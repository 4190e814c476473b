"""A new file of SQLite is opened by several at a moment: each waits for the others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from purgatory.cdc.targets.sqlite import SqliteTarget

_OPENERS = 6


def _open_and_close(path: Path, all_are_here: Barrier) -> None:
    all_are_here.wait()
    SqliteTarget(path).close()


def test_concurrent_openings_of_a_new_database_succeed(tmp_path: Path) -> None:
    for number in range(60):
        path, all_are_here = tmp_path / f"{number}.db", Barrier(_OPENERS)
        with ThreadPoolExecutor(_OPENERS) as pool:
            opened = [pool.submit(_open_and_close, path, all_are_here) for _ in range(_OPENERS)]
            for one in opened:
                one.result()
