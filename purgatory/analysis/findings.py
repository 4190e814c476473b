"""What an audit found, for programs and tests: anomalies with their verdicts and witnesses.

findings = purgatory.audit("build/trace")
findings.assert_no_violations()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SHOWN_WITNESSES = 3
_SHOWN_EVENTS = 12
_ALWAYS = ("time_us", "event", "group")


@dataclass(frozen=True)
class Finding:
    """One anomaly of one run, group and verdict.

    Attributes:
        run_id, anomaly, group, verdict, setting, count: as in the table `audit`.
        witnesses: rows of the table `witnesses`: some of its cases, with the rows of the trace.
    """

    run_id: str
    anomaly: str
    group: str | None
    verdict: str
    setting: str | None
    count: int
    witnesses: Sequence[Mapping[str, Any]] = ()

    def __str__(self) -> str:
        by = f" ({self.setting})" if self.setting else ""
        of = f" in {self.group}" if self.group else ""
        lines = [f"{self.anomaly}{of}: {self.count:,} {self.verdict}{by}"]
        for witness in self.witnesses[:_SHOWN_WITNESSES]:
            lines.append(f"  {_place(witness)}")
            lines += [f"    {_event(event)}" for event in witness["events"][:_SHOWN_EVENTS]]
        return "\n".join(lines)


class Findings(Sequence[Finding]):
    """All anomalies that were found, in the order of the table `audit`.

    Args:
        found: the anomalies that have cases.
        unchecked: anomalies that nobody could look for, and why.
        bad_rows: how many bad rows of which run were left out.
    """

    def __init__(
        self,
        found: Sequence[Finding],
        unchecked: Mapping[str, str],
        bad_rows: Mapping[str, int],
    ) -> None:
        self._found = tuple(found)
        self.unchecked = unchecked
        self.bad_rows = bad_rows

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, index: Any) -> Any:
        return self._found[index]

    def __str__(self) -> str:
        return "\n".join(map(str, self._found)) or "no anomalies"

    @property
    def violations(self) -> Sequence[Finding]:
        """Those that break what was promised."""
        return [found for found in self._found if found.verdict == "violation"]

    def count(self, anomaly: Any) -> int:
        """How many cases of an anomaly there are, whatever the verdict."""
        return sum(found.count for found in self._found if found.anomaly == anomaly)

    def assert_no_violations(self) -> None:
        """Fail a test, with the witnesses of what was violated.

        Raises:
            AssertionError: something is violated.
        """
        violations = self.violations
        if violations:
            raise AssertionError("\n".join(["the audit found violations:", *map(str, violations)]))


def findings_of(
    audit: Sequence[Mapping[str, Any]],
    witnesses: Sequence[Mapping[str, Any]],
    bad_rows: Mapping[str, int],
) -> Findings:
    """The rows of the tables `audit` and `witnesses` as findings. O(rows)."""
    of_case: dict[tuple[object, ...], list[Mapping[str, Any]]] = {}
    for witness in witnesses:
        of_case.setdefault(_case(witness), []).append(witness)
    return Findings(
        [
            Finding(**row, witnesses=tuple(of_case.get(_case(row), ())))
            for row in audit
            if row["count"]
        ],
        {
            row["anomaly"]: row["setting"]
            for row in audit
            if not row["count"] and row["verdict"] == "indeterminate"
        },
        bad_rows,
    )


def _case(row: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(row[name] for name in ("run_id", "anomaly", "group", "verdict", "setting"))


def _place(witness: Mapping[str, Any]) -> str:
    at = "" if witness["topic"] is None else f"{witness['topic']}-{witness['partition']} "
    offset = "" if witness["offset"] is None else f"offset {witness['offset']} "
    return f"{at}{offset}at {(witness['time_us'] or 0) / 1000:g} ms".strip()


def _event(event: Mapping[str, Any]) -> str:
    told = ", ".join(
        f"{name}={value}"
        for name, value in event.items()
        if value is not None and name not in _ALWAYS
    )
    return f"{(event['time_us'] or 0) / 1000:g} ms {event['event']} by {event['group']}: {told}"
