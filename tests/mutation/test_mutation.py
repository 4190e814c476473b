"""The tool that changes one thing at a time changes one thing, and notices who notices."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.mutation import run
from tests.mutation.run import PYTEST, ROOT, Forks, mutants_of
from tests.mutation.who_runs import WhoRuns, read_map

SOURCE = """\
def clamp(value, most):
    if value > most and not value < 0:
        value = most
    return value + 1
"""


def test_each_mutant_is_another_program_that_compiles() -> None:
    mutants = [mutant.source(SOURCE) for mutant in mutants_of(SOURCE)]
    assert len({*mutants, SOURCE}) == len(mutants) + 1 == 9
    for mutant in mutants:
        compile(mutant, "mutant", "exec")


@pytest.mark.parametrize("module", ["watchers.py", "state.py"])
def test_every_mutant_of_the_core_compiles(module: str) -> None:
    source = Path(ROOT, "purgatory", "core", module).read_text(encoding="utf-8")
    for mutant in mutants_of(source):
        compile(mutant.source(source), module, "exec")


def test_a_mutant_lives_unless_a_test_fails(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests" / "mutation", tmp_path / "tests" / "mutation")
    (tmp_path / "test_it.py").write_text(
        "import it\n\ndef test_it():\n    while it.answer == 44: pass\n    assert it.answer == 42\n"
    )
    forks = Forks(tmp_path)
    ends = [
        forks.how_it_ends("it.py", f"answer = {answer}", ["test_it.py"], timeout_s)
        for answer, timeout_s in ((42, 60), (43, 60), (42, 60), (44, 2))
    ]
    forks.close()
    assert ends == ["passed", "failed", "passed", "timeout"]


def test_a_table_of_numbers_has_no_mutants() -> None:
    assert [str(mutant) for mutant in mutants_of("BOUNDS = (1, 2, 5)\n")] == [
        "line 1: 'BOUNDS = (1, 2, 5)' -> 'pass'"
    ]


def test_run_tells_each_change() -> None:
    assert run.__doc__ is not None
    told = [str(mutant) for mutant in mutants_of(SOURCE)]
    assert "line 2: 'value < 0' -> '(value <= 0)'" in told


def test_the_quickest_tests_that_run_a_line_are_chosen() -> None:
    tests = {"a.py": {1: ["slow", "quick"], 2: ["other"], 9: ["elsewhere"]}}
    known = WhoRuns(tests, {"slow": 5.0, "quick": 0.1, "other": 1.0, "elsewhere": 0.0})
    assert known.of_lines("a.py", 1, 2, most_s=2) == ["quick", "other"]
    assert known.of_lines("a.py", 1, 2, most_s=10) == ["quick", "other", "slow"]
    assert known.of_lines("a.py", 1, 2, most_s=0) == ["quick"]
    assert known.of_lines("a.py", 3, 8, most_s=10) == []


def test_map_has_the_tests_that_run_each_line(tmp_path: Path) -> None:
    name = "test_a_failing_task_is_counted_logged_and_harms_no_other"
    test = f"tests/unit/timer/test_system_timer.py::{name}"
    path = tmp_path / "map.json"
    environment = {**os.environ, "WHO_RUNS": str(path), "PURGATORY_PURE": "1"}
    command = [*PYTEST, "-p", "tests.mutation.who_runs", test]
    subprocess.run(command, cwd=ROOT, check=True, env=environment, capture_output=True)
    source = (ROOT / "timer" / "system_timer.py").read_text(encoding="utf-8").splitlines()
    line = source.index("            self.failures += 1") + 1
    known = read_map(path)
    assert known.of_lines("timer/system_timer.py", line, line, most_s=60) == [test]
