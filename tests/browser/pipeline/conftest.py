"""Short runs, and reports that compare them, made once for all tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from purgatory.cli.main import main

__all__ = ["Compared", "compared", "short_runs"]

Compared = Callable[..., Path]
"""The folder of a report that compares groups of runs by their names, made once for all tests."""


@pytest.fixture(scope="session")
def short_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three traces each in ``one``, in ``other``, which differs by chance, and in ``slow``."""
    traces = tmp_path_factory.mktemp("traces")
    kinds = {"one": ("steady", 1, "1s"), "other": ("steady", 11, "1s")}
    for name, (scenario, first, lasts) in {**kinds, "slow": ("slow-follower", 1, "6s")}.items():
        for seed in range(first, first + 3):
            place = str(traces / name / str(seed))
            options = ["--seed", str(seed), "--duration", lasts, "--quiet", "--trace", place]
            assert main(["simulate", scenario, *options]) == 0
    return traces


@pytest.fixture(scope="session")
def compared(short_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """Makes a report of some of the short runs, or finds it made."""
    reports = tmp_path_factory.mktemp("reports")

    @cache
    def report(*groups: str) -> Path:
        out = reports / "-".join(group.replace("/", "") for group in groups)
        options = ["--out", str(out), "--engine", "duckdb", "--no-progress"]
        assert main(["analyze", *(str(short_runs / group) for group in groups), *options]) == 0
        return out

    return report
