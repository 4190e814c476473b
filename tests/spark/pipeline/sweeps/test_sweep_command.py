"""The command ``purgatory sweep``: its output, its errors, its interruption."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from purgatory.cli.main import main
from purgatory.pipeline.errors import SessionError
from purgatory.sweeps.run import write_package
from tests.spark.pipeline.sweeps.small_sweeps import GRID, write_sweep

ROOT = Path(__file__).parents[4]
ASKED = """
[[questions]]
find = "producers[orders].timeout_ms"
below = 1.1
"""
FAILING = """
name = "failing"
scenario = "tiny.toml"
repetitions = 1
grid."topic.replication_factor" = [3, 5]
"""


@pytest.fixture
def session_of_the_tests(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    """Let commands use the session that is open, since a process has one at a time."""

    @contextmanager
    def shared(master: str, **_: Any) -> Iterator[SparkSession]:
        assert master == "local[*]"
        yield spark

    monkeypatch.setattr("purgatory.pipeline.engines.spark.session.spark_session", shared)


def write_grid(folder: Path, timeouts: str = "10, 400") -> Path:
    return write_sweep(folder, GRID.format(timeouts=timeouts, lags="1", further="") + ASKED)


@pytest.mark.spark
@pytest.mark.usefixtures("session_of_the_tests")
def test_answers_are_printed_and_tables_and_a_page_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = write_grid(tmp_path), tmp_path / "out"
    assert main(["sweep", str(file), "--out", str(out), "--progress"]) == 0
    printed = capsys.readouterr()
    assert "by-hand: 2 points x 2 seeds = 4 scenarios\n" in printed.err
    assert "Sweep: 4 of 4 scenarios done\n" in printed.err
    assert printed.out.startswith("by-hand: judged: 4 of 4 scenarios, ")
    assert "- 10 is the smallest producers[orders].timeout_ms with produce_expiry" in printed.out
    assert f"Report: {out / 'sweep.html'}\n" in printed.out
    entries = {entry.name for entry in out.iterdir()}
    assert entries == {"sweep.json", "parts", "points", "heatmaps", "answers.json", "sweep.html"}
    (answer,) = json.loads((out / "answers.json").read_text())
    assert answer["value"] == "10" and f"- {answer['words']}\n" in printed.out
    page = (out / "sweep.html").read_text()
    assert "<h3>Answers</h3>" in page and "<h3>Failed</h3>" not in page

    assert main(["sweep", str(file), "--out", str(out)]) == 0
    assert "4 scenarios, 4 of them done already" in capsys.readouterr().err


@pytest.mark.spark
@pytest.mark.usefixtures("session_of_the_tests")
def test_failed_scenarios_are_reported_and_fail_a_checked_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = write_sweep(tmp_path, FAILING), tmp_path / "out"
    assert main(["sweep", str(file), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert re.match(
        r"failing: judged: 1 of 2 scenarios, .*; left out: 1 scenario \(failed\)\n", printed
    )
    assert "1 scenario failed and is in no mean:" in printed
    assert (
        "topic.replication_factor = 5, seed 1: ScenarioError: scenario: topic.replication_factor "
        "= 5: must be at most cluster.brokers, which is 3"
    ) in printed
    assert "must be at most cluster.brokers" in (out / "sweep.html").read_text()
    assert main(["sweep", str(file), "--out", str(out), "--check"]) == 1


def test_plan_is_printed_without_a_session(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "purgatory.pipeline.engines.spark.session.spark_session",
        lambda *_, **__: pytest.fail("was started"),
    )
    file, out = write_grid(tmp_path), tmp_path / "out"
    assert main(["sweep", str(file), "--out", str(out), "--plan"]) == 0
    assert capsys.readouterr().out == "by-hand: 2 points x 2 seeds = 4 scenarios\n"
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "purgatory sweep: {file}: name: this key is missing and must be given\n"),
        ('name = "s"\nscenario = "tiny.toml"\n', "{file}: give exactly one of [grid]"),
        (
            'name = "s"\nscenario = "tiny.toml"\ngrid."topic.size" = [1]\n',
            "{file}: grid.\"topic.size\": there is no key 'size'",
        ),
    ],
)
def test_mistake_in_the_sweep_file_has_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    file = write_sweep(tmp_path, text)
    assert main(["sweep", str(file), "--out", str(tmp_path / "out")]) == 2
    assert said.format(file=file) in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_missing_file_and_foreign_folder_have_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", str(tmp_path / "gone.toml"), "--out", str(tmp_path / "out")]) == 2
    assert "gone.toml: cannot be read: No such file" in capsys.readouterr().err
    file = write_grid(tmp_path)
    assert main(["sweep", str(file), "--out", str(tmp_path)]) == 2
    assert "which is no result of a sweep; name another folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"), [(SessionError("no Java"), 2), (KeyboardInterrupt, 130)]
)
def test_failed_session_and_interrupt_have_their_own_status(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    status: int,
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("purgatory.pipeline.engines.spark.session.spark_session", fails)
    out = tmp_path / "out"
    assert main(["sweep", str(write_grid(tmp_path)), "--out", str(out)]) == status
    said = capsys.readouterr().err.splitlines()[-1]
    if status == 130:
        assert said == (
            f"purgatory sweep: interrupted; results so far are in {out}; the same command continues"
        )
    else:
        assert said == "purgatory sweep: no Java"


def test_project_runs_from_the_file_sent_to_workers(tmp_path: Path) -> None:
    package = tmp_path / "kafka-purgatory.zip"
    write_package(package)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import purgatory, timer\n"
        "assert purgatory.__file__.startswith(sys.argv[1])\n"
        "assert timer.__file__.startswith(sys.argv[1])\n"
        "from purgatory.sweeps.plan import parse_plan\n"
        "from purgatory.sweeps.tasks import quiet, run_scenario\n"
        "quiet()\n"
        "plan = parse_plan('''name = 's'\\nscenario = 'steady'\\n[grid]\\n"
        "duration_ms = [20]\\n\"topic.partitions\" = [2]\\n''')\n"
        "print(run_scenario(plan, 0)['produce_operations'])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(package)],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 0


def test_the_file_for_workers_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("one.zip", "two.zip"):
        write_package(tmp_path / name)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    names = zipfile.ZipFile(tmp_path / "one.zip").namelist()
    assert "purgatory/simulation/scenarios/steady.toml" in names
    assert not [name for name in names if "__pycache__" in name]
