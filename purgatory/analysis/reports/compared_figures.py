"""The figures in which runs are compared: outcomes, waits, what clients saw, and anomalies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from purgatory.analysis.reports.report_results import Results
from purgatory.analysis.result_rows import grouped


@dataclass(frozen=True)
class Figure:
    """What a number of a run is.

    Attributes:
        name: in words, as a sentence begins with it.
        unit: that of the number, in words; empty where the name has it.
    """

    name: str
    unit: str

    @property
    def unit_of_difference(self) -> str:
        """The unit of the difference of two."""
        return "points" if self.unit == "%" else self.unit


def figures_of(results: Results) -> dict[Figure, float]:
    """The figures of one run; what it has no operations for is missing.

    Args:
        results: its rows, and no other run's.
    """
    return dict([*_waits(results), *_clients(results), *_anomalies(results)])


def _waits(results: Results) -> Iterator[tuple[Figure, float]]:
    overall = [row for row in results.waits if row["kind"] == "all"]
    for purgatory, rows in grouped(overall, "purgatory").items():
        of = {row["outcome"]: row for row in rows}
        share = {
            name: 100 * row["operations"] / of["all"]["operations"] for name, row in of.items()
        }
        for outcome, what in (("expired", "expired"), ("immediate", "did not wait")):
            name = f"The share of operations in {purgatory} that {what}"
            yield Figure(name, "%"), share.get(outcome, 0.0)
        for column, what in (("p50", "median"), ("p99", "p99")):
            wait_us = of["all"][f"wait_{column}_us"]
            if wait_us is not None:
                yield Figure(f"The {what} of waits in {purgatory}", "ms"), wait_us / 1000


def _clients(results: Results) -> Iterator[tuple[Figure, float]]:
    spans = grouped(results.latencies, "span")
    for span, what in (("record", "a record was acknowledged"), ("attempt", "a send was answered")):
        rows = spans.get(span, [])
        count = sum(row["count"] for row in rows)
        if count:
            mean_us = sum(row["latency_mean_us"] * row["count"] for row in rows) / count
            yield Figure(f"The mean time until {what}", "ms"), mean_us / 1000
            p99_us = max(row["latency_p99_us"] for row in rows)
            yield Figure(f"The p99 until {what}, of the slowest group", "ms"), p99_us / 1000
    attempts = [row for row in results.attempts if row["error"] == "*"]
    count = {
        outcome: sum(row["attempts"] for row in rows)
        for outcome, rows in grouped(attempts, "outcome").items()
    }
    if count.get("all"):
        for outcome, what in (("unknown", "had no certain answer"), ("fail", "were refused")):
            name = f"The share of sends that {what}"
            yield Figure(name, "%"), 100 * count.get(outcome, 0) / count["all"]


def _anomalies(results: Results) -> Iterator[tuple[Figure, float]]:
    (run,) = results.runs
    if not run.get("sends"):
        return
    for anomaly, rows in grouped(results.audit, "anomaly").items():
        if anomaly == "lost_ack_duplicate":
            continue  # a duplicate that is told already
        count = sum(row["count"] for row in rows)
        name = f"The number of cases of {anomaly.replace('_', ' ')} per 1,000 sends"
        yield Figure(name, ""), 1000 * count / run["sends"]
