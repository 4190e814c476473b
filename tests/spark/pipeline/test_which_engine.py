"""The choice of an engine if Spark, Java or DuckDB is missing, and its messages."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from purgatory.cli.main import main
from purgatory.pipeline.engines import engine as which_engine
from purgatory.pipeline.engines.engine import choose_engine
from purgatory.pipeline.errors import SessionError


def _lacking(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        which_engine, "find_spec", lambda name: None if name in missing else found(name)
    )


def _without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_environment: object) -> Path:
        raise SessionError("Spark needs Java")

    monkeypatch.setattr("purgatory.pipeline.engines.spark.java.find_java_home", refuse)


def test_requested_engine_is_taken_without_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _lacking(monkeypatch, "pyspark", "duckdb")
    assert choose_engine("audit", "spark", "local[*]") == "spark"
    assert choose_engine("audit", "duckdb", "local[*]") == "duckdb"
    assert capsys.readouterr() == ("", "")


def test_duckdb_is_chosen_without_pyspark_and_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _lacking(monkeypatch, "pyspark")
    assert choose_engine("waits", None, "local[*]") == "duckdb"
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("purgatory waits: PySpark is not installed, so DuckDB does it")
    assert printed.err.count("\n") == 1


def test_duckdb_is_chosen_without_java(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _without_java(monkeypatch)
    assert choose_engine("audit", None, "local[*]") == "duckdb"
    assert "Spark finds no Java 17 or later" in capsys.readouterr().err


@pytest.mark.parametrize("master", ["sc://connect:15002", "spark://master:7077", "yarn"])
def test_remote_master_selects_spark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], master: str
) -> None:
    _without_java(monkeypatch)
    assert choose_engine("audit", None, master) == "spark"
    assert capsys.readouterr().err == ""


def test_missing_spark_is_reported_without_any_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    _lacking(monkeypatch, "pyspark", "duckdb")
    assert choose_engine("audit", None, "local[*]") == "spark"


def test_command_completes_without_java(
    monkeypatch: pytest.MonkeyPatch,
    slow_follower_trace: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _without_java(monkeypatch)
    for command in ("audit", "waits", "occupancy", "analyze"):
        out = ["--out", str(tmp_path / "out")] if command == "analyze" else []
        assert main([command, str(slow_follower_trace), *out]) == 0
        printed = capsys.readouterr()
        assert "slow-follower-1" in printed.out
        assert printed.err.count("\n") == 1


def test_command_on_duckdb_imports_no_heavy_module(
    slow_follower_trace: Path, tmp_path: Path
) -> None:
    arguments = [str(slow_follower_trace), "--out", str(tmp_path / "out"), "--engine", "duckdb"]
    heavy = "{'pandas', 'pyspark', 'structlog', 'plotly.io', 'purgatory.kafka'}"
    program = (
        "import sys; from purgatory.cli.main import main\n"
        f"assert main(['analyze', *{arguments!r}]) == 0\n"
        f"print(sorted({heavy} & sys.modules.keys()), file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stderr == "[]\n"
