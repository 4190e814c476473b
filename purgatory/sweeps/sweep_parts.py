"""The parts of a sweep: files of results that tasks write while they work, and never change.

A part's name says who wrote it and how many scenarios it has, so that progress is a look at a
folder. It has another name until it is whole. The same scenario may be in two parts, when a task
was run twice: their measures are the same.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.sweeps.measures import RESULTS
from purgatory.sweeps.sweep_file import SweepError

_NAME = re.compile(r"part-([0-9a-f]+)-(\d+)-(\d+)-n(\d+)\.parquet")


def write_part(
    folder: Path, run: str, batch: int, number: int, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Write some results under a name of their own; all of them, or none."""
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=RESULTS)
    path = folder / f"part-{run}-{batch:05}-{number:05}-n{len(rows)}.parquet"
    unfinished = folder / f".{path.name}.{os.getpid()}"  # Spark and pyarrow skip such names
    pq.write_table(table, unfinished, compression="zstd")
    unfinished.replace(path)


def part_files(folder: Path, run: str | None = None, batch: int | None = None) -> list[Path]:
    """The whole parts: all of them, of one run, or of one batch of a run."""
    start = "part-" if run is None else f"part-{run}-"
    start += "" if batch is None else f"{batch:05}-"
    if not folder.is_dir():
        return []
    names = [entry.name for entry in os.scandir(folder) if entry.name.startswith(start)]
    return [folder / name for name in sorted(names) if _NAME.fullmatch(name)]


def rows_written(folder: Path, run: str) -> int:
    """How many results the tasks of a run have written so far. O(files)."""
    names = (_NAME.fullmatch(path.name) for path in part_files(folder, run))
    return sum(int(name[4]) for name in names if name is not None)


def done_keys(paths: Iterable[Path], *, failed: bool = True) -> Iterator[str]:
    """The keys in some parts; without those that failed if `failed` is False.

    Raises:
        SweepError: a file is no part.
    """
    for path in paths:
        try:
            table = pq.read_table(path, columns=["key", "error"])
        except (OSError, pa.ArrowException, KeyError) as error:
            raise SweepError(
                f"{path}: is no part of a sweep's results: remove it, and what it had is run again"
            ) from error
        for key, problem in zip(*(column.to_pylist() for column in table.columns), strict=True):
            if failed or problem is None:
                yield key


def remove_unfinished(folder: Path) -> None:
    """Remove what a run that was killed left of parts that are not whole."""
    for path in folder.glob(".part-*"):
        path.unlink(missing_ok=True)


def adopt_parts(written: Path, folder: Path) -> None:
    """Give the files of a table that Spark wrote the names of parts, and move them there."""
    run = secrets.token_hex(6)
    for number, file in enumerate(sorted(written.glob("part-*.parquet"))):
        rows = pq.read_metadata(file).num_rows
        file.rename(folder / f"part-{run}-{0:05}-{number:05}-n{rows}.parquet")
