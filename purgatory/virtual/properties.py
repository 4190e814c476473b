"""Properties of all that clients sent to a cluster of a world, and read from it.

The audit of the cluster's record decides. An empty record is a failure, too: a test in which
nothing was acknowledged, since the cluster never came up, would pass for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from purgatory.pipeline.jobs.audit.client_settings import RunConfiguration
    from purgatory.pipeline.jobs.audit.findings import Findings
    from purgatory.virtual.cluster import WorldCluster


class Property(NamedTuple):
    """Something that must hold.

    Args:
        name: of the method of `World` that checks it.
        promise: what was promised, as a sentence goes on after "broken: ".
        expect: what the audit is to expect, whatever the settings of clients permit.
        broken_by: the anomalies that break it, where the audit calls them violations. Not all that
            breaks an expectation: members of a group that hand partitions to each other skip
            polls and read again, and who was told of a failure has a gap in what it sent.
        needs_reads: whether it can only be seen in what was read.
    """

    name: str
    promise: str
    expect: Sequence[str]
    broken_by: Sequence[str]
    needs_reads: bool


_LOST: Final = ("lost_write", "moved_write", "inconsistent_offset")

NO_LOSS: Final = Property(
    "check_no_loss", "what was acknowledged is there", ["no-loss"], _LOST, needs_reads=True
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
    ["duplicate", "lost_ack_duplicate", *_LOST, "aborted_read", "zombie_write"],
    needs_reads=True,
)


def check_property(
    cluster: WorldCluster, checked: Property, configuration: RunConfiguration | None
) -> Findings:
    """Check one property of what a cluster has recorded so far; return all that the audit found.

    Raises:
        AssertionError: it does not hold, or the record shows nothing of it.
        SessionError: DuckDB is not installed (the extra `analysis`).
    """
    from purgatory.pipeline.jobs.audit.findings import undecided_lines

    record = cluster.recorded()
    if not record.acknowledged:
        raise AssertionError(
            f"{checked.name}: no broker has acknowledged anything (of {record.sent:,} attempts to "
            "send), so nothing is shown: does the test send to this cluster, with acks above 0?"
        )
    if checked.needs_reads and not record.read:
        raise AssertionError(
            f"{checked.name}: {record.acknowledged:,} sends were acknowledged and nothing was "
            "read, so nothing is shown: read the topics to their ends before the check"
        )
    findings = cluster.audit(configuration, expect=checked.expect)
    broken = [found for found in findings.violations if found.anomaly in checked.broken_by]
    if broken:
        told = "\n".join(map(str, broken))
        raise AssertionError(
            f"{checked.name}: broken: {checked.promise}; the audit found violations:\n{told}"
        )
    judged = (*checked.broken_by, "unseen")
    undecided = [found for found in findings.undecided if found.anomaly in judged]
    if undecided:
        told = "\n".join(undecided_lines(undecided))
        raise AssertionError(
            f"{checked.name}: nobody can tell whether {checked.promise}: read the topics to their "
            f"ends before the check\n{told}"
        )
    return findings
