"""The tool that changes one thing at a time changes one thing, and notices who notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation import run
from tests.mutation.run import ROOT, lives, mutants_of

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


@pytest.mark.parametrize("module", ["watchers.py", "turn.py"])
def test_every_mutant_of_the_core_compiles(module: str) -> None:
    source = Path(ROOT, "purgatory", "core", module).read_text(encoding="utf-8")
    for mutant in mutants_of(source):
        compile(mutant.source(source), module, "exec")


def test_a_mutant_lives_unless_a_test_fails(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import it\n\ndef test_it():\n    assert it.answer == 42\n"
    )
    assert lives(tmp_path, "it.py", "answer = 42", ["test_it.py"], timeout_s=60)
    assert not lives(tmp_path, "it.py", "answer = 43", ["test_it.py"], timeout_s=60)


def test_what_it_changes_is_told() -> None:
    assert run.__doc__ is not None
    told = [str(mutant) for mutant in mutants_of(SOURCE)]
    assert "line 2: 'value < 0' -> '(value <= 0)'" in told
