"""The outcome of each case of other projects' suites, and the expected failures."""

from __future__ import annotations

import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

EXPECTED = Path(__file__).with_name("expected.toml")


class Verdict(StrEnum):
    """The result of a case."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Outcome(NamedTuple):
    """One case of a suite, after it ran.

    Args:
        suite: its name and version: "librdkafka 2.0.2".
        case: the suite's name of it.
        verdict: of the last try.
        took_s: its duration.
        why: its message, if it did not pass.
        tries: the number of tries.
    """

    suite: str
    case: str
    verdict: Verdict
    took_s: float
    why: str = ""
    tries: int = 1


class JunitCase(NamedTuple):
    """A case in a report of pytest's: its name, and the module and class that it is of."""

    of: str
    name: str
    verdict: Verdict
    took_s: float
    why: str

    def outcome(self, suite: str, case: str = "") -> Outcome:
        """Return it as a suite's, by the name that repeats it, or by module, class and name."""
        case = case or f"{self.of}::{self.name}"
        return Outcome(suite, case, self.verdict, self.took_s, self.why)


class Reason(NamedTuple):
    """The reason why a case is expected to fail, and whether it needs one of Kafka's own tools."""

    text: str
    needs_tool: bool = False


class Count(NamedTuple):
    """The outcomes of a suite; ``with_tools`` of the expected failures need a tool of Kafka's."""

    passed: int
    failed: int
    expected: int
    with_tools: int
    skipped: int
    took_s: float

    @property
    def share(self) -> float:
        """The share of passed cases among those that ran and need no tool of Kafka's; 1 if none."""
        ran = self.passed + self.failed + self.expected - self.with_tools
        return self.passed / ran if ran else 1.0


def read_junit(report: Path) -> Iterator[JunitCase]:
    """Yield the cases of a report of pytest's.

    A case that passed and then failed in its teardown is there twice.
    """
    for case in ET.parse(report).getroot().iter("testcase"):
        bad = next((one for one in case if one.tag in ("failure", "error", "skipped")), None)
        verdict, why = Verdict.PASSED, ""
        if bad is not None:
            verdict = Verdict.SKIPPED if bad.tag == "skipped" else Verdict.FAILED
            why = "".join(bad.get("message", "").splitlines()[:1])
        of, name = case.get("classname", ""), case.get("name", "")
        yield JunitCase(of, name, verdict, float(case.get("time", "0")), why)


def read_expected(path: Path = EXPECTED) -> dict[str, Reason]:
    """Return the reasons of the cases that are expected to fail, by their names.

    Raises:
        ValueError: a case is listed twice, or has no reason.
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
