"""map.md: each step of the model stands for a line of code, and each broken rule is told."""

from __future__ import annotations

from tests.proofs.spin.configurations import BROKEN
from tests.proofs.spin.steps import (
    breaks,
    declared_steps,
    described_breaks,
    lines_of,
    mapped_steps,
    steps_of_users,
    used_steps,
)


def test_each_step_is_in_the_map() -> None:
    declared = declared_steps()
    assert len(set(declared)) == len(declared) > 80
    assert set(declared) == used_steps()
    assert sorted(declared) == sorted([*mapped_steps(), *steps_of_users()])


def test_each_line_of_the_map_stands_in_its_function() -> None:
    wrong = {
        step: (mapped.function, mapped.line)
        for step, mapped in mapped_steps().items()
        if not any(mapped.line in line for line in lines_of(mapped.path, mapped.function))
    }
    assert wrong == {}


def test_a_line_that_is_not_there_is_noticed() -> None:
    mapped = mapped_steps()["claim_completer"]
    assert lines_of(mapped.path, mapped.function)
    assert not lines_of(mapped.path, "_PureOperation._op_nothing")


def test_each_broken_rule_is_tried_and_described() -> None:
    assert breaks() == {one.broken for one in BROKEN} == set(described_breaks())
