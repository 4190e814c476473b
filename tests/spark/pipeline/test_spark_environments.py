"""Spark as its users have it: other releases, little memory, ANSI mode, another zone and locale.

In each environment, an analysis has the results that DuckDB has here.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from purgatory.cli.main import main
from tests.spark.pipeline.cluster import QUICK_JAVA

pytestmark = [
    *(pytest.mark.spark, pytest.mark.slow, pytest.mark.exhaustive),
    pytest.mark.timeout(1_800),
]

ROOT = Path(__file__).parents[3]
ELSEWHERE = "-Duser.language=tr -Duser.country=TR -Duser.timezone=Asia/Kolkata"
SETTINGS = ("spark.sql.ansi.enabled=true", "spark.sql.session.timeZone=Asia/Kolkata")

Tables = Mapping[str, list[str]]


@pytest.fixture(scope="module", name="trace")
def fixture_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trace = tmp_path_factory.mktemp("environments") / "trace"
    simulate = ["simulate", "retry-reorder", "--duration", "2500ms", "--quiet"]
    assert main([*simulate, "--trace", str(trace)]) == 0
    return trace


@pytest.fixture(scope="module", name="expected")
def fixture_expected(trace: Path) -> Tables:
    out = trace.parent / "expected"
    arguments = ["analyze", str(trace), "--out", str(out), "--engine", "duckdb", "--no-progress"]
    assert main(arguments) == 0
    return tables_in(out)


def tables_in(out: Path) -> Tables:
    """The rows of all tables as text, in one order; floats to nine digits, as engines agree."""
    return {
        folder.name: sorted(
            str({name: plain(value) for name, value in row.items()})
            for row in pq.read_table(folder).to_pylist()
        )
        for folder in sorted(out.iterdir())
        if folder.is_dir()
    }


def plain(value: Any) -> Any:
    """A value without the last digits of a sum of floats."""
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.9g}"
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def analyze(trace: Path, out: Path, *more: str, **environment: str) -> Tables:
    """Run the command in a process of its own, and return its tables."""
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "purgatory", "analyze", str(trace), "--out", str(out)),
            *("--engine", "spark", "--master", "local[2]", "--no-progress", *more),
        ],
        cwd=ROOT,
        env={**os.environ, "JAVA_TOOL_OPTIONS": QUICK_JAVA, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert ran.returncode == 0, ran.stderr
    return tables_in(out)


def test_environment_of_spark_changes_no_result(
    trace: Path, expected: Tables, tmp_path: Path
) -> None:
    words = [word for setting in SETTINGS for word in ("--conf", setting)]
    found = analyze(
        trace,
        tmp_path / "out",
        *("--memory", "512MiB"),
        TZ="Asia/Kolkata",
        LC_ALL="tr_TR.UTF-8",
        JAVA_TOOL_OPTIONS=f"{QUICK_JAVA} {ELSEWHERE}",
        PYSPARK_SUBMIT_ARGS=" ".join([*words, "pyspark-shell"]),
    )
    assert found == expected


@pytest.mark.parametrize("release", ["4.0.*", "4.2.*"])
def test_other_releases_of_spark_give_the_same_results(
    release: str, trace: Path, expected: Tables, tmp_path: Path
) -> None:
    packages = tmp_path / "packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    installed = subprocess.run(
        [*pip, "--target", str(packages), "--no-deps", f"pyspark=={release}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if installed.returncode != 0:
        reason = installed.stderr.strip().splitlines()[-1]
        pytest.skip(f"pyspark {release} can't be installed: {reason}")
    # Found before the PySpark that is installed here; all other packages are those of here.
    path = os.pathsep.join([str(packages), str(ROOT)])
    assert analyze(trace, tmp_path / "out", PYTHONPATH=path) == expected
