"""The top of a report: the verdict of a run in one line, and how its numbers add up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Literal, NamedTuple

from purgatory.pipeline.jobs.audit.basis import (
    basis_text,
    left_out_text,
    nothing_judged,
    operations_of,
    unchecked_of,
)
from purgatory.pipeline.report.audit_section import missing_evidence, worst_verdict
from purgatory.pipeline.report.findings import Results
from purgatory.pipeline.report.page import PagePart, section
from purgatory.pipeline.report.sentences import Finding, Severity, fault_text
from purgatory.pipeline.result_rows import Row, group_by

_MOST_HEADLINES = 3


class Verdict(NamedTuple):
    """The verdict of a run.

    Attributes:
        validity: whether the guarantees of order, duplicates and losses hold; None where the job
            does not audit them.
        text: one line.
        basis: what it rests on, in another.
    """

    validity: Literal["valid", "invalid", "unknown", "unjudged"] | None
    text: str
    basis: str = ""


def verdict(results: Results, found: Sequence[Finding]) -> Verdict:
    """Return the verdict of one run.

    Args:
        results: the rows of this run only.
        found: its findings, the most severe first.
    """
    judged = results.judged[0] if results.judged else {}
    left_out, operations = results.left_out, results.waits or results.peaks
    if nothing_judged(judged) and not operations and (judged or left_out or not results.audit):
        text = basis_text({}, left_out)
        return Verdict("unjudged", f"{text[0].upper()}{text[1:]}.")
    unchecked, waited = unchecked_of(results.audit), operations_of(results.waits)
    basis = basis_text(judged, left_out, unchecked, waited) if judged else ""
    if not judged and left_out:
        basis = f"left out: {left_out_text(left_out)}"
    return _judged_verdict(results, found)._replace(basis=basis)


def _judged_verdict(results: Results, found: Sequence[Finding]) -> Verdict:
    violated = worst_verdict(results.audit) == "violation"
    failed = [
        one.headline
        for one in found
        if one.headline
        and (one.severity == Severity.VIOLATION if violated else one.severity < Severity.FINE)
    ]
    failures = list(dict.fromkeys(failed))
    texts = "; ".join(failures[:_MOST_HEADLINES])
    more = len(failures) - _MOST_HEADLINES
    texts += f"; {more:,} more" if more > 0 else ""
    if not results.audit:
        return Verdict(None, f"{texts}." if texts else "No failures.")
    worst = worst_verdict(results.audit)
    if worst == "violation":
        return Verdict("invalid", f"Guarantees are violated: {texts}.")
    if why := missing_evidence(results.audit) if worst == "none" else "":
        return Verdict("unknown", f"Nothing to decide on ({why}){f': {texts}' if texts else ''}.")
    if worst == "indeterminate" or not results.runs[0]["complete"]:
        return Verdict("unknown", f"Not decided: {texts}.")
    if texts:
        return Verdict("valid", f"No guarantee is violated, but {texts}.")
    return Verdict("valid", "No guarantee is violated, and nothing failed.")


def verdict_html(run: Row, given: Verdict) -> str:
    """The verdict as a line of HTML, with the injected faults."""
    mark = "" if given.validity is None else f"<strong>{given.validity.capitalize()}.</strong> "
    rests = given.basis[:1].upper() + given.basis[1:]
    basis = f"<br><small>{escape(rests)}.</small>" if rests else ""
    faults = "; ".join(fault_text(fault) for fault in run["faults"][:_MOST_HEADLINES])
    more = len(run["faults"]) - _MOST_HEADLINES
    faults += f"; {more:,} more" if more > 0 else ""
    injected = f" <small>Injected: {escape(faults)}.</small>" if faults else ""
    kind = given.validity or "none"
    return f'<p class="verdict {kind}">{mark}{escape(given.text)}{injected}{basis}</p>'


def sums_section(part: PagePart, results: Results) -> str:
    """The numbers of one run as sums of their parts, so that all numbers agree."""
    lines = [*_produce_sums(results), *_fetch_sums(results)]
    items = "".join(
        f"<li><strong>{escape(whole)}</strong> = {escape(parts)}</li>" for whole, parts in lines
    )
    content = f'<ul class="sums">{items}</ul>' if items else ""
    return section("How the numbers add up", content, anchor=part.anchor("sums"))


_Sum = tuple[str, str]


def _produce_sums(results: Results) -> Iterator[_Sum]:
    attempts = [row for row in results.attempts if row["error"] == "*"]
    by_outcome = {
        outcome: sum(row["attempts"] for row in rows)
        for outcome, rows in group_by(attempts, "outcome").items()
    }
    sent = by_outcome.get("all", 0)
    if sent:
        names = {"ok": "acknowledged", "fail": "refused", "unknown": "with an unknown outcome"}
        yield (
            f"{sent:,} attempts to send",
            _plus([(by_outcome.get(outcome, 0), name) for outcome, name in names.items()]),
        )
    unknown = [
        row for row in results.attempts if row["outcome"] == "unknown" and row["error"] != "*"
    ]
    if unknown:
        yield (
            f"{sum(row['attempts'] for row in unknown):,} attempts with an unknown outcome",
            _plus(
                [
                    (sum(row["attempts"] for row in rows), str(error))
                    for error, rows in group_by(unknown, "error").items()
                ]
            ),
        )
    produces = _outcomes(results.waits, "Produce")
    pending = produces.get("all", 0)
    broken = sum(row["count"] for row in results.latencies if row["span"] == "broken")
    # An attempt counts for each of its records: with several in a produce, the sums differ.
    if sent and 0 <= sent - pending <= broken:
        unread = (sent - pending, "that lost their connection before a broker read them")
        yield f"{sent:,} attempts to send", _plus([(pending, "produces at the brokers"), unread])
    yield from _outcome_sum(produces, "produces")
    totals = [row for row in results.attempts if row["outcome"] == "all"]
    stored, duplicates = (sum(row[name] for row in totals) for name in ("stored", "copies"))
    if stored:
        yield (
            f"{stored + duplicates:,} records in the logs, as consumers read them",
            _plus([(stored, "different records"), (duplicates, "duplicates")]),
        )


def _fetch_sums(results: Results) -> Iterator[_Sum]:
    for purgatory in group_by(results.waits, "purgatory"):
        if purgatory == "Produce":
            continue
        rows = [row for row in results.waits if row["purgatory"] == purgatory]
        kinds = {row["kind"]: row["operations"] for row in rows if row["outcome"] == "all"}
        whole = kinds.pop("all", 0)
        name = "fetches" if purgatory == "Fetch" else f"operations in {purgatory}"
        if len(kinds) > 1:
            of_kinds = [(count, f"by {kind}s") for kind, count in kinds.items()]
            yield f"{whole:,} {name}", _plus(of_kinds)
        yield from _outcome_sum(_outcomes(rows, purgatory), name)


def _outcome_sum(counts: dict[str, int], name: str) -> Iterator[_Sum]:
    whole = counts.pop("all", 0)
    if whole:
        yield f"{whole:,} {name}", _plus([(count, outcome) for outcome, count in counts.items()])


def _outcomes(waits: Sequence[Row], purgatory: str) -> dict[str, int]:
    return {
        row["outcome"]: row["operations"]
        for row in waits
        if row["purgatory"] == purgatory and row["kind"] == "all"
    }


def _plus(parts: Sequence[tuple[int, str]]) -> str:
    return " + ".join(f"{count:,} {name}" for count, name in parts if count)
