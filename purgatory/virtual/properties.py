"""Properties of a program, at each step, and of the records that clients sent and read.

The audit of a cluster's rows checks the properties of records. No rows are a failure, too:
otherwise a test whose cluster never came up, so that nothing was acknowledged, would always pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Final, NamedTuple

from purgatory.virtual.errors import PropertyError, WorldError

if TYPE_CHECKING:
    from purgatory.pipeline.jobs.audit.client_settings import RunConfiguration
    from purgatory.pipeline.jobs.audit.findings import Findings
    from purgatory.virtual.cluster import WorldCluster


class Always:
    """A property that must hold after each step, or each ``every``-th one: see `World.always`.

    Args:
        now_s: returns the world's time.
    """

    def __init__(
        self, name: str, predicate: Callable[[], object], every: int, now_s: Callable[[], float]
    ) -> None:
        if iscoroutinefunction(predicate):
            raise WorldError(f"{name!r}: a predicate is a plain function, called in a step")
        if every < 1:
            raise WorldError(f"{name!r}: every={every}: a number of steps, 1 or more")
        self._name = name
        self._predicate = predicate
        self._every = every
        self._steps = 0
        self._now_s = now_s

    def check(self) -> None:
        """Check after a step.

        Raises:
            PropertyError: it does not hold.
        """
        __tracebackhide__ = True
        self._steps += 1
        if self._steps % self._every == 0 and not self._predicate():
            raise PropertyError(
                f"always {self._name!r}: false at {self._now_s():.6f} s (step {self._steps:,})",
                self._name,
            )


class Eventually(Always):
    """A property that must hold after some step: see `World.eventually`.

    Args:
        until_s: the world's time until which it must hold.
    """

    def __init__(
        self,
        name: str,
        predicate: Callable[[], object],
        every: int,
        now_s: Callable[[], float],
        until_s: float,
    ) -> None:
        super().__init__(name, predicate, every, now_s)
        self._until_s = until_s
        self._held = False

    def check(self) -> None:
        __tracebackhide__ = True
        if self._held:
            return
        self._steps += 1
        is_late = self._now_s() > self._until_s
        if (is_late or self._steps % self._every == 0) and self._predicate():
            self._held = True
        elif is_late:
            self._held = True  # reported once
            raise PropertyError(
                f"eventually {self._name!r}: never true until {self._until_s:.6f} s", self._name
            )

    def check_at_end(self) -> None:
        """Check, after the last step, that it held."""
        __tracebackhide__ = True
        if not self._held and not self._predicate():
            raise PropertyError(
                f"eventually {self._name!r}: not true when the test ended, at "
                f"{self._now_s():.6f} s, and it had until {self._until_s:.6f} s: wait for it",
                self._name,
            )


class Property(NamedTuple):
    """A property that must hold.

    Args:
        name: the method of `World` that checks it.
        promise: the guarantee, as the end of a sentence after "broken: ".
        expect: the audit's `expect`, whatever the settings of clients permit.
        broken_by: the anomalies that break it, also where the clients' settings (as
            ``read_uncommitted``) permit them. Others may violate an expectation without breaking
            the property: members of a group that exchange partitions skip polls and read again,
            and a failed send leaves a gap.
        needs_reads: whether the check needs rows of `reads`.
    """

    name: str
    promise: str
    expect: Sequence[str]
    broken_by: Sequence[str]
    needs_reads: bool


_LOSS_ANOMALIES: Final = ("lost_write", "moved_write", "inconsistent_offset")

NO_LOSS: Final = Property(
    "check_no_loss",
    "no acknowledged record is lost",
    ["no-loss"],
    _LOSS_ANOMALIES,
    needs_reads=True,
)

ORDER: Final = Property(
    "check_order",
    "each producer's records are in the order of their first sends",
    ["order"],
    ["retry_reorder", "nonmonotonic_send"],
    needs_reads=False,
)

EXACTLY_ONCE: Final = Property(
    "check_exactly_once",
    "each acknowledged record is there once, and no refused or aborted one is",
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
    from purgatory.pipeline.jobs.audit.anomalies import PERMITTED, VIOLATION
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
        finding
        for finding in findings
        if finding.anomaly in checked_property.broken_by
        and finding.verdict in (VIOLATION, PERMITTED)
    ]
    if broken:
        text = "\n".join(map(str, broken))
        raise AssertionError(f"{name}: broken: {promise}; the audit found:\n{text}")
    anomalies = (*checked_property.broken_by, "unseen")
    undecided = [finding for finding in findings.undecided if finding.anomaly in anomalies]
    if undecided:
        text = "\n".join(undecided_lines(undecided))
        raise AssertionError(
            f"{name}: undecided whether {promise}: read the topics to their ends before the "
            f"check\n{text}"
        )
    return findings
