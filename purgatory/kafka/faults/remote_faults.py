"""What can go wrong with the remote tier."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults.delays import Delays
from purgatory.kafka.faults.fault import CountedFault

RemoteOperation = Literal["copy", "read", "delete"]
"""What brokers do with the remote tier."""


@dataclass(frozen=True)
class RemoteFault(CountedFault):
    """It strikes what brokers do with the remote tier.

    Only one ``operation``, where it is given: "copy", "read" or "delete"; each with the probability
    ``share``. With a ``seed`` its chance is the same each time.
    """

    is_simulated = False
    operation: RemoteOperation | None = None
    share: float = 1.0
    seed: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.operation is not None and self.operation not in get_args(RemoteOperation):
            known = ", ".join(get_args(RemoteOperation))
            raise ClusterError(f"operation={self.operation!r}: one of {known}, or left out for all")

    def concerns(self, broker: int, operation: RemoteOperation) -> bool:
        """Whether it strikes some of what a broker does there."""
        return self.broker in (None, broker) and self.operation in (None, operation)


@dataclass(frozen=True)
class SlowRemote(RemoteFault, Delays, kind="slow_remote"):
    """Have the remote tier take longer, by a fixed time or by chance.

    The delays are those of ``delay_answers``: ``by_ms``, ``distribution``, ``to_ms``, ``p75_ms``.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_delays()


@dataclass(frozen=True)
class FailRemote(RemoteFault, kind="fail_remote"):
    """Have the remote tier fail: nothing is copied, read or deleted there."""
