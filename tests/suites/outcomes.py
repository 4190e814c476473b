"""What became of each case of other people's suites, and what was expected."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

EXPECTED = Path(__file__).with_name("expected.toml")


class Verdict(StrEnum):
    """What became of a case."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Outcome(NamedTuple):
    """One case of a suite, after it ran.

    Args:
        suite: by whom: "librdkafka 2.0.2".
        case: what the suite calls it.
        verdict: what became of it.
        took_s: how long it took.
        why: what it said, if it did not pass.
        tries: how often it was tried; the last time counts.
    """

    suite: str
    case: str
    verdict: Verdict
    took_s: float
    why: str = ""
    tries: int = 1


class Reason(NamedTuple):
    """Why a case is not expected to pass, and whether it needs one of Kafka's own tools."""

    text: str
    needs_tool: bool = False


class Count(NamedTuple):
    """The outcomes of a suite; ``with_tools`` of those that are expected to fail need a tool."""

    passed: int
    failed: int
    expected: int
    with_tools: int
    skipped: int
    took_s: float

    @property
    def share(self) -> float:
        """Which part passed of all that ran and need no tool of Kafka's, 1 where none did."""
        ran = self.passed + self.failed + self.expected - self.with_tools
        return self.passed / ran if ran else 1.0


def read_expected(path: Path = EXPECTED) -> dict[str, Reason]:
    """Return the reasons of the cases that are not expected to pass, by their names.

    Raises:
        ValueError: one is there twice, or has no reason.
    """
    reasons: dict[str, Reason] = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["case"]:
        if entry["name"] in reasons or len(entry["reason"].split()) < 5:
            raise ValueError(f"{entry['name']}: once, and with its reason")
        reasons[entry["name"]] = Reason(entry["reason"], entry.get("needs_tool", False))
    return reasons


def count(outcomes: Sequence[Outcome], reasons: Mapping[str, Reason]) -> dict[str, Count]:
    """Return the counts of each suite, in the order in which they ran. O(outcomes)."""
    counts: dict[str, Count] = {}
    for one in outcomes:
        was = counts.get(one.suite, Count(0, 0, 0, 0, 0, 0.0))
        is_expected = one.verdict is Verdict.FAILED and one.case in reasons
        counts[one.suite] = Count(
            was.passed + (one.verdict is Verdict.PASSED),
            was.failed + (one.verdict is Verdict.FAILED and not is_expected),
            was.expected + is_expected,
            was.with_tools + (is_expected and reasons[one.case].needs_tool),
            was.skipped + (one.verdict is Verdict.SKIPPED),
            was.took_s + one.took_s,
        )
    return counts
