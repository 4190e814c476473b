"""The findings of an audit, for programs and tests: anomalies with verdicts and witnesses.

findings = purgatory.audit("build/trace")
findings.assert_no_violations()
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from purgatory.pipeline.jobs.audit.anomalies import (
    EXPECTATIONS,
    GROUNDS,
    INDETERMINATE,
    NO_COLUMN,
    NONE_ACKNOWLEDGED,
    UNREAD,
    UNREAD_COPIES,
    VIOLATION,
)
from purgatory.pipeline.jobs.audit.basis import JUDGED, basis_text, unchecked_of
from purgatory.pipeline.jobs.audit.client_settings import expectation_names
from purgatory.trace.table_rows import SHOWN_BYTES

_MAX_WITNESSES = 3
_MAX_EVENTS = 12
_ALWAYS = ("time_us", "event", "group")
_UNSEEN = "unseen"
_BY_DEFAULT = ("single_writer", "assignment")
"""Settings whose usual value, several writers and `subscribe`, excuses what depends on them."""


@dataclass(frozen=True)
class Finding:
    """One anomaly of one run, group and verdict.

    Attributes:
        run_id, anomaly, group, verdict, setting, count: as in the table `audit`.
        witnesses: rows of the table `witnesses`: some of its cases, with the rows of the trace.
            Known keys and values are in the rows, under `key_text` and `value_text`.
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
        plural = "s" if self.verdict == "violation" and self.count != 1 else ""
        lines = [f"{self.anomaly}{of}: {self.count:,} {self.verdict}{plural}{by}"]
        for witness in self.witnesses[:_MAX_WITNESSES]:
            lines.append(f"  {_location_text(witness)}")
            lines += [f"    {_event(event)}" for event in witness["events"][:_MAX_EVENTS]]
        return "\n".join(lines)


class Findings(Sequence[Finding]):
    """All anomalies that were found, in the order of the table `audit`.

    Args:
        findings: the anomalies that have cases.
        unchecked: anomalies that could not be checked, and why.
        bad_rows: the number of quarantined rows by run.
        undecided: the result of `undecided`.
        judged: rows of the table `judged`.
        left_out: the quarantined rows, counted by run, table and reason.

    `basis` is a line on what the verdict rests on: how many records that were sent, acknowledged,
    read, committed and applied; how many rows were left out; what was not looked for, and what
    would show it.
    """

    def __init__(
        self,
        findings: Sequence[Finding],
        unchecked: Mapping[str, str],
        bad_rows: Mapping[str, int],
        undecided: Sequence[Finding] = (),
        judged: Sequence[Mapping[str, Any]] = (),
        left_out: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._findings = tuple(findings)
        self.unchecked = unchecked
        self.bad_rows = bad_rows
        self.undecided = undecided
        self.judged = {name: sum(row[name] for row in judged) for name in JUDGED}
        self.left_out = left_out

    def __len__(self) -> int:
        return len(self._findings)

    def __getitem__(self, index: Any) -> Any:
        return self._findings[index]

    def __str__(self) -> str:
        return "\n".join(map(str, self._findings)) or "no anomalies"

    @property
    def basis(self) -> str:
        """The basis of the verdict, in a line."""
        return basis_text(self.judged, self.left_out, self.unchecked)

    @property
    def violations(self) -> Sequence[Finding]:
        """The findings with the verdict `violation`."""
        return [findings for findings in self._findings if findings.verdict == VIOLATION]

    def count(self, anomaly: Any) -> int:
        """The number of cases of an anomaly, with any verdict."""
        return sum(findings.count for findings in self._findings if findings.anomaly == anomaly)

    def assert_no_violations(self, *, allow_empty: bool = False) -> None:
        """Fail a test on violations, with their witnesses, or if the audit could not decide.

        Args:
            allow_empty: let pass what could not be decided, as when nothing was read.

        Raises:
            AssertionError: there is a violation; or the trace lacks the rows for a decision.
        """
        __tracebackhide__ = True
        lines = []
        if violations := _each_once(self.violations):
            lines += ["the audit found violations:", *map(str, violations)]
        if self.undecided and not allow_empty:
            lines += ["the audit could not decide:", *undecided_lines(self.undecided), _ADVICE]
        if lines:
            head, *others = lines
            raise AssertionError("\n".join([head, f"({self.basis})", *others]))
        passed.append(self.basis)


def _each_once(findings: Sequence[Finding]) -> list[Finding]:
    """The findings without duplicates after a lost response that are all duplicates, too."""
    duplicates = {
        (one.run_id, one.group, one.verdict, one.setting, one.count)
        for one in findings
        if one.anomaly == "duplicate"
    }
    return [
        one
        for one in findings
        if one.anomaly != "lost_ack_duplicate"
        or (one.run_id, one.group, one.verdict, one.setting, one.count) not in duplicates
    ]


passed: deque[str] = deque(maxlen=100)
"""The bases of the last audits that passed: the pytest plugin prints them."""

_ADVICE = (
    "(Send what is to be audited, read it to its end, and tell the settings of the clients; "
    "allow_empty=True lets this pass.)"
)


def findings_of(
    audit: Sequence[Mapping[str, Any]],
    witnesses: Sequence[Mapping[str, Any]],
    bad_rows: Mapping[str, int],
    expect: Sequence[str] = (),
    texts: Mapping[int, bytes | None] | None = None,
    judged: Sequence[Mapping[str, Any]] = (),
    left_out: Sequence[Mapping[str, Any]] = (),
) -> Findings:
    """The rows of the tables `audit` and `witnesses` as findings. O(rows).

    Args:
        audit, witnesses: the rows.
        bad_rows: the number of quarantined rows by run.
        expect: the expectations.
        texts: the first bytes of keys and values by their ids, if known.
        judged, left_out: as `Findings` has them.
    """
    witnesses_of_case: dict[tuple[object, ...], list[Mapping[str, Any]]] = {}
    for witness in witnesses:
        shown = _with_texts(witness, texts) if texts else witness
        witnesses_of_case.setdefault(_case(witness), []).append(shown)
    return Findings(
        [
            Finding(**row, witnesses=tuple(witnesses_of_case.get(_case(row), ())))
            for row in audit
            if row["count"]
        ],
        unchecked_of(audit),
        bad_rows,
        [
            Finding(**row, witnesses=tuple(witnesses_of_case.get(_case(row), ())))
            for row in undecided(audit, expect)
        ],
        judged,
        left_out,
    )


def undecided(
    audit: Sequence[Mapping[str, Any]], expect: Sequence[str]
) -> Sequence[Mapping[str, Any]]:
    """The rows of the table `audit` that the audit should have decided, and could not.

    With expectations these are the anomalies against them; without, those that the settings of the
    clients forbid. Rows of `unseen` count if their partition was not read at all.
    """
    expected = expectation_names(expect)
    expected_anomalies = {anomaly for name in expected for anomaly in EXPECTATIONS[name]}

    sought = {row["anomaly"] for row in audit if row["count"] or row["verdict"] != INDETERMINATE}
    hidden = {  # the anomalies of expectations of which plain data shows nothing
        anomaly
        for name in expected
        if sought.isdisjoint(EXPECTATIONS[name])
        for anomaly in EXPECTATIONS[name]
    }

    def is_undecided(row: Mapping[str, Any]) -> bool:
        anomaly, why = row["anomaly"], row["setting"]
        if row["verdict"] != INDETERMINATE:
            return False
        if not row["count"]:
            if why.startswith(NO_COLUMN):
                return anomaly in hidden
            if why not in GROUNDS:  # a table that a trace may lack
                return False
            return anomaly in expected_anomalies if expected else why != NONE_ACKNOWLEDGED
        if anomaly == _UNSEEN:
            unread = "no-loss" in expected and why in (UNREAD, UNREAD_COPIES)
            return unread or ("once" in expected and why == UNREAD_COPIES)
        if expected:
            return anomaly in expected_anomalies
        unknown, found, names = why.partition("configuration unknown: ")
        return bool(found) and not unknown and names not in _BY_DEFAULT

    return [row for row in audit if is_undecided(row)]


def undecided_lines(findings: Sequence[Finding]) -> Sequence[str]:
    """Undecided findings as lines; those without cases are one line per reason."""
    lines = [str(finding) for finding in findings if finding.count]
    nothing: dict[tuple[str, str | None], list[str]] = {}
    for finding in findings:
        if not finding.count:
            nothing.setdefault((finding.run_id, finding.setting), []).append(finding.anomaly)
    return [
        f"{why} ({run_id}): nothing tells of {', '.join(anomalies)}"
        for (run_id, why), anomalies in nothing.items()
    ] + lines


def _text(data: bytes | None) -> str:
    """A key or value in a message: as text if it is UTF-8."""
    if data is None:
        return "null"
    shown = data[:SHOWN_BYTES]
    try:
        text = repr(shown.decode())
    except UnicodeDecodeError:
        text = repr(shown)
    return text + ("..." if len(data) > SHOWN_BYTES else "")


def _with_texts(row: Mapping[str, Any], texts: Mapping[int, bytes | None]) -> Mapping[str, Any]:
    known: dict[str, Any] = {
        f"{name}_text": _text(texts[row[column]])
        for name, column in (("key", "key"), ("value", "value_id"))
        if row.get(column) in texts
    }
    if "events" in row:
        known["events"] = [_with_texts(event, texts) for event in row["events"]]
    return {**row, **known}


def _case(row: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(row[name] for name in ("run_id", "anomaly", "group", "verdict", "setting"))


def _location_text(witness: Mapping[str, Any]) -> str:
    parts = []
    if witness["topic"] is not None:
        parts.append(f"{witness['topic']}-{witness['partition']}")
    if witness["offset"] is not None:
        parts.append(f"offset {witness['offset']}")
    parts += [f"{name} {witness[f'{name}_text']}" for name in _NAMES if f"{name}_text" in witness]
    return ", ".join([*parts, f"at {(witness['time_us'] or 0) / 1000:g} ms"])


_NAMES = ("key", "value")


def _event(event: Mapping[str, Any]) -> str:
    cells = {name: cell for name, cell in event.items() if name not in _ALWAYS}
    for name, column in zip(_NAMES, ("key", "value_id"), strict=True):
        text = cells.pop(f"{name}_text", None)
        if text is not None:
            cells.pop(column, None)
            cells[name] = text
    values = ", ".join(f"{name}={cell}" for name, cell in cells.items() if cell is not None)
    return f"{(event['time_us'] or 0) / 1000:g} ms {event['event']} by {event['group']}: {values}"
