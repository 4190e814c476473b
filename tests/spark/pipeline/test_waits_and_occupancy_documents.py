"""docs/waits.md and docs/occupancy.md: their Python runs, and they describe the real columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.engines.run import run_job

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

DOCUMENTS = Path(__file__).parents[3] / "docs"


def _run(
    document: str,
    spark: SparkSession,
    trace: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> list[str]:
    """The lines that the Python of a document prints."""

    @contextmanager
    def shared_session(master: str) -> Iterator[SparkSession]:
        assert master == "local[2]"
        yield spark

    (folder / "build" / "demo").mkdir(parents=True)
    (folder / "build" / "demo" / "trace").symlink_to(trace)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("purgatory.pipeline.engines.spark.session.spark_session", shared_session)
    text = (DOCUMENTS / document).read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines: list[str] = []
    exec(
        compile(program, document, "exec"),
        {"print": lambda *words: lines.append(" ".join(map(str, words)))},
    )
    return lines


def test_the_python_of_waits_runs(
    spark: SparkSession,
    slow_follower_trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worst, slow = _run("waits.md", spark, slow_follower_trace, tmp_path, monkeypatch)
    assert re.fullmatch(r"from \d+ s on, \d+\.\d % expired", worst)
    assert re.fullmatch(r"operation \d+ waited 1501 ms on \['events-\d'\]", slow)


def test_the_python_of_occupancy_runs(
    spark: SparkSession,
    slow_follower_trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = _run("occupancy.md", spark, slow_follower_trace, tmp_path, monkeypatch)
    assert "Produce: 42 at 6.64 s, ['stall_follower 2']" in lines
    assert lines[-1] == "2 hottest keys"


def test_columns_are_the_documented_ones(slow_follower_trace: Path, tmp_path: Path) -> None:
    for job, table in (
        ("waits", "waits"),
        ("waits", "slowest"),
        ("occupancy", "peaks"),
        ("occupancy", "hot_keys"),
    ):
        if not (tmp_path / job).exists():
            run_job(job, [slow_follower_trace], tmp_path / job, engine="duckdb")
        text = (DOCUMENTS / f"{job}.md").read_text(encoding="utf-8")
        section = text.split(f"## Table `{table}`", 1)[1].split("\n## ", 1)[0]
        first_cells = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
        described = [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)]
        found = pq.read_table(tmp_path / job / table).column_names
        assert sorted(described) == sorted(found), table
