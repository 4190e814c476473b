"""The benchmarks of Spark still run, at a size at which their figures mean nothing.

The programs that they would run in processes of their own run in this one, in the session that is
open: to start one takes longer than all that they do.
"""

from __future__ import annotations

import importlib
import io
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

from tests.benchmarks import pipeline_scale, run, sweep_speed
from tests.benchmarks.measurement import Figure, Size

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture
def ran(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that ran, in this process and with the session of these tests."""
    programs: list[str] = []

    @contextmanager
    def shared(master: str, **_: object) -> Iterator[SparkSession]:
        assert master == "local[2]"
        yield spark

    def run_here(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        python, flag, program, *arguments = command
        assert (python, flag) == (sys.executable, "-c")
        programs.append(program)
        printed = io.StringIO()
        with monkeypatch.context() as patch, redirect_stdout(printed):
            patch.setattr(sys, "argv", ["-c", *arguments])
            exec(program, {})
        return subprocess.CompletedProcess(command, 0, printed.getvalue())

    here = SimpleNamespace(run=run_here, PIPE=subprocess.PIPE)
    for module in (pipeline_scale, sweep_speed):
        monkeypatch.setattr(module, "subprocess", here)
    monkeypatch.setattr(sweep_speed, "spark_session", shared)
    monkeypatch.setattr("purgatory.pipeline.engines.spark.session.spark_session", shared)
    return programs


@pytest.mark.parametrize("name", run.WITH_SPARK)
def test_each_benchmark_measures_its_namesake(name: str, ran: list[str]) -> None:
    figures: list[Figure] = importlib.import_module(f"tests.benchmarks.{name}").measure(Size.SMALL)
    assert len(ran) == 1
    assert figures
    names = [figure.name for figure in figures]
    assert len(set(names)) == len(names)
    assert all(math.isfinite(figure.value) and figure.value >= 0 for figure in figures)
    assert any(figure.target is not None for figure in figures)
