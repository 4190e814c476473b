"""Properties of the records that clients sent to a cluster of a world, and read from it.

The audit of the cluster's rows checks them. No rows are a failure, too: otherwise a test in which
nothing was acknowledged, since the cluster never came up, would always pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from purgatory.pipeline.jobs.audit.client_settings import RunConfiguration
    from purgatory.pipeline.jobs.audit.findings import Findings
    from purgatory.virtual.cluster import WorldCluster


class Property(NamedTuple):
    """A property that must hold.

    Args:
        name: the method of `World` that checks it.
        promise: the guarantee, as the end of a sentence after "broken: ".
        expect: the audit's `expect`, whatever the settings of clients permit.
        broken_by: the anomalies that break it, where the audit calls them violations. Others may
            violate an expectation without breaking it: members that pass partitions on to each
            other skip polls and read again, and a failed send leaves a gap.
        needs_reads: whether it can be checked only in rows of `reads`.
    """

    name: str
    promise: str
    expect: Sequence[str]
    broken_by: Sequence[str]
    needs_reads: bool


_LOSS_ANOMALIES: Final = ("lost_write", "moved_write", "inconsistent_offset")

NO_LOSS: Final = Property(
    "check_no_loss",
    "what was acknowledged is there",
    ["no-loss"],
    _LOSS_ANOMALIES,
    needs_reads=True,
)

ORDER: Final = Property(
    "check_order",
    "what a producer sent first lies first",
    ["order"],
    ["retry_reorder", "nonmonotonic_send"],
    needs_reads=False,
)

EXACTLY_ONCE: Final = Property(
    "check_exactly_once",
    "what was acknowledged is there once, and what was refused or aborted is not",
    ["once", "no-loss"],
    ["duplicate", "lost_ack_duplicate", *_LOSS_ANOMALIES, "aborted_read", "zombie_write"],
    needs_reads=True,
)


def check_property(
    cluster: WorldCluster, checked_property: Property, configuration: RunConfiguration | None
) -> Findings:
    """Check one property in a cluster's rows so far; return all findings of the audit.

    Raises:
        AssertionError: it does not hold, or the rows can't show it.
        SessionError: DuckDB is not installed (the extra `analysis`).
    """
    from purgatory.pipeline.jobs.audit.findings import undecided_lines

    name, promise = checked_property.name, checked_property.promise
    counts = cluster.record_counts()
    if not counts.acknowledged:
        raise AssertionError(
            f"{name}: no broker has acknowledged anything (of {counts.sent:,} attempts to "
            "send), so nothing is shown: does the test send to this cluster, with acks above 0?"
        )
    if checked_property.needs_reads and not counts.read:
        raise AssertionError(
            f"{name}: {counts.acknowledged:,} sends were acknowledged and nothing was "
            "read, so nothing is shown: read the topics to their ends before the check"
        )
    findings = cluster.audit(configuration, expect=checked_property.expect)
    broken = [
        finding for finding in findings.violations if finding.anomaly in checked_property.broken_by
    ]
    if broken:
        text = "\n".join(map(str, broken))
        raise AssertionError(f"{name}: broken: {promise}; the audit found violations:\n{text}")
    anomalies = (*checked_property.broken_by, "unseen")
    undecided = [finding for finding in findings.undecided if finding.anomaly in anomalies]
    if undecided:
        text = "\n".join(undecided_lines(undecided))
        raise AssertionError(
            f"{name}: nobody can tell whether {promise}: read the topics to their "
            f"ends before the check\n{text}"
        )
    return findings
