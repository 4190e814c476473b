"""docs/sweep.md: its Python runs, its files are read, and its tables are the real ones."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from purgatory.sweeps.heatmaps import HEATMAPS_COLUMNS, MOST_PAIRS
from purgatory.sweeps.measures import MEASURES, RESULTS
from purgatory.sweeps.plan import MOST_LEVELS, MOST_SCENARIOS, load_plan, parse_plan
from purgatory.sweeps.sweep_file import MOST_REPETITIONS, Question, SweepFile

ROOT = Path(__file__).parents[4]
DOCUMENT = (ROOT / "docs" / "sweep.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "docs" / "examples" / "timeout-by-lag.toml"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


def section(heading: str) -> str:
    return DOCUMENT.split(f"{heading}\n", 1)[1].split("\n#", 1)[0]


def select_rows(heading: str) -> list[str]:
    """The first cells of the rows of a section's tables."""
    return [line.split(" | ")[0] for line in section(heading).splitlines() if "|" in line]


@pytest.mark.spark
def test_documented_python_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def shared(master: str) -> Iterator[SparkSession]:
        assert master == "local[2]"
        yield spark

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("purgatory.pipeline.engines.spark.session.spark_session", shared)
    printed: list[tuple[object, ...]] = []
    program = "\n".join(blocks("python"))
    exec(compile(program, "docs/sweep.md", "exec"), {"print": lambda *words: printed.append(words)})
    assert printed[:4] == [(1, 1, None), (1, 2, None), (50, 1, None), (50, 2, None)]
    assert printed[4] == ("1",)


def test_documented_example_is_the_shipped_file() -> None:
    shown, whole = tomllib.loads(blocks("toml")[0]), tomllib.loads(EXAMPLE.read_text())
    assert whole["heatmaps"][0] == shown["heatmaps"][0]
    assert {**whole, "heatmaps": 0} == {**shown, "heatmaps": 0}
    plan = load_plan(EXAMPLE)
    assert (plan.points, plan.scenarios) == (24, 120)


def test_documented_answers_are_those_of_the_example() -> None:
    shown = section("## An example")
    plan = load_plan(EXAMPLE)
    lags = [level.label for level in plan.parameter("followers.lag_ms").levels()]
    found = re.findall(r"- With followers\.lag_ms = (\S+): (\S+) is the smallest", shown)
    assert [lag for lag, _ in found] == lags
    timeouts = [level.label for level in plan.parameter("producers[orders].timeout_ms").levels()]
    assert all(timeout in timeouts for _, timeout in found)


@pytest.mark.parametrize("number", [1, 2])
def test_documented_excerpts_of_files_are_valid(number: int) -> None:
    plan = parse_plan('name = "s"\nscenario = "slow-follower"\n' + blocks("toml")[number])
    assert plan.points > 100


def test_every_key_is_described() -> None:
    keys = "".join(select_rows("## A sweep file") + select_rows("### Questions"))
    names = {*SweepFile.model_fields, *Question.model_fields}
    assert [name for name in names if f"`{name}`" not in keys and f"[{name}]" not in keys] == []


def test_every_column_is_described() -> None:
    points = section("### Table `points`")
    other = ("fetch_follower_", "fetch_consumer_")
    for name in RESULTS.names:
        if name.startswith(other):
            assert f"`{name[: name.index('_', 6)]}" in points
        else:
            short = re.sub(r"^produce(_wait)?_", "_", name)
            assert f"`{name}`" in points or f"`{short}`" in points, name
    heatmaps = section("### Table `heatmaps`")
    assert [name for name in HEATMAPS_COLUMNS if f"`{name}`" not in heatmaps] == []
    assert "the same eight columns" in points
    assert len([name for name in MEASURES if name.startswith("fetch_consumer_")]) == 8


def test_documented_numbers_are_right() -> None:
    assert f"At most {MOST_SCENARIOS:,} scenarios" in DOCUMENT
    assert f"<= {MOST_REPETITIONS:,}" in DOCUMENT
    assert f"at most {MOST_PAIRS} pairs" in DOCUMENT
    assert f"more than {MOST_LEVELS} values" in DOCUMENT
