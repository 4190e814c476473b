"""What can go wrong with brokers, and between them."""

from __future__ import annotations

from dataclasses import dataclass, field

from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults.fault import BrokerFault, Fault, OneOrAllFault


@dataclass(frozen=True)
class StallFollower(BrokerFault, kind="stall_follower"):
    """Have a broker copy nothing: what it follows stands still."""


@dataclass(frozen=True)
class SlowFollower(BrokerFault, kind="slow_follower"):
    """Have a broker take longer for what it copies: ``lag_ms`` for each answer."""

    lag_ms: float


@dataclass(frozen=True)
class ShrinkIsr(Fault, kind="shrink_isr"):
    """Put a follower out of a partition's ISR, and let it not come back meanwhile."""

    topic: str
    partition: int
    broker: int


@dataclass(frozen=True)
class Kill(BrokerFault, kind="kill"):
    """Kill a broker as SIGKILL does; it comes back when that ends.

    ``lost_records``: how many of the last records of each of its logs are gone then, as after
    damage to its disk.
    """

    lost_records: int = field(default=0, kw_only=True)


@dataclass(frozen=True)
class Pause(BrokerFault, kind="pause"):
    """Have a broker do nothing, as SIGSTOP does: its connections stay, and nobody answers."""


@dataclass(frozen=True)
class CutLink(Fault, kind="cut_link"):
    """Let nothing pass between two brokers."""

    a: int
    b: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.a == self.b:
            raise ClusterError(f"brokers {self.a} and {self.b} are the same one")


@dataclass(frozen=True)
class FreezeMetadata(OneOrAllFault, kind="freeze_metadata"):
    """Have a broker go on telling the metadata that were when this began.

    Leaders, epochs, ISRs, topics, who lives, who coordinates: its clients go to who was it then.
    """

    is_simulated = False


@dataclass(frozen=True)
class JumpClock(BrokerFault, kind="jump_clock"):
    """Have a broker's clock jump: by ``jump_ms``, below 0 back; it is right again at the end.

    That is the clock that tells the time of day: what it stamps, and what it takes for old. How
    long something takes, it measures by another.
    """

    is_simulated = False
    jump_ms: int


@dataclass(frozen=True)
class CutConnections(OneOrAllFault, kind="cut_connections"):
    """Cut the clients' connections, of one broker or of all (None)."""

    for_s: None = field(default=None, init=False)  # it is over at once
