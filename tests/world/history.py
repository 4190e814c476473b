"""The history of one row: what its clients were told, and the state at its ends, as plain data.

Times are in seconds since the world began.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Partition = tuple[str, int]
"""The topic's id, as text, so that a topic made anew is another one; and the number."""


@dataclass
class Exchange:
    """A request that a broker took, and its end: an answer, or a cut connection."""

    broker: int
    client: str
    api: str
    began_s: float
    ended_s: float | None = None
    is_cut: bool = False


class Expelled(NamedTuple):
    """A member that was told that it is none.

    Args:
        heard_s: when the coordinator last took one of its requests.
        session_s: for how long it may be silent.
        error: what it was told.
    """

    member: str
    group_type: str
    heard_s: float
    told_s: float
    session_s: float
    error: str


class Leadership(NamedTuple):
    """The leader of a partition, long after the last fault."""

    partition: str
    preferred: int
    leader: int


class Offset(NamedTuple):
    """A committed offset that a client was told of: of its commit, or of a question.

    Args:
        began_s, told_s: the time of the request and that of the answer.
        is_commit: whether the client has committed it.
    """

    group: str
    partition: Partition
    offset: int
    began_s: float
    told_s: float
    is_commit: bool


class Epoch(NamedTuple):
    """An epoch as it was told, or seen.

    Args:
        kind: "leader", "producer", "generation" or "member".
        name: whose it is; it begins anew under another name.
        holder: who has it: an epoch has one holder.
    """

    kind: str
    name: str
    epoch: int
    holder: str
    told_s: float


class Description(NamedTuple):
    """The responses to members and producers, beside what the cluster says about them."""

    part: str
    subject: str
    told: Any
    described: Any


class ServedEarly(NamedTuple):
    """A request that was served before its throttled client's time."""

    client: str
    broker: int
    served_s: float
    throttled_until_s: float


@dataclass
class History:
    """All that the invariants are about.

    Args:
        exchanges: all requests.
        ended_s: the end of the last clients.
        paused_s: when a broker stood still: its id, with the begin and the end.
    """

    exchanges: list[Exchange] = field(default_factory=list)
    ended_s: float = 0.0
    paused: list[tuple[int, float, float]] = field(default_factory=list)
    tables: Mapping[str, Any] = field(default_factory=dict)
    """The rows that the audit reads, as tables of Arrow."""
    anomalies: list[str] = field(default_factory=list)
    """The violations that the audit found in them: `audit_rows` adds them."""
    acknowledged: int = 0
    """The number of acknowledged records: a row without any shows nothing."""
    consumed: int = 0
    """The number of records that the group's members got."""
    expelled: list[Expelled] = field(default_factory=list)
    leaderships: list[Leadership] = field(default_factory=list)
    offsets: list[Offset] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    descriptions: list[Description] = field(default_factory=list)
    throttled_s: float | None = None
    """The sum of the throttle times that clients were told; None: there are no quotas."""
    served_early: list[ServedEarly] = field(default_factory=list)
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    """The state before and after the restart: by the part of the product and a name."""
