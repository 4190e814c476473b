"""The kinds of faults: in brokers and links, in messages, and in the contents of responses."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from purgatory.kafka.errors import ClusterError, ErrorCode
from purgatory.kafka.faults.fault import (
    BrokerFault,
    CountedFault,
    Delays,
    Fault,
    OneOrAllFault,
    api_name,
    error_number,
)


@dataclass(frozen=True)
class StallFollower(BrokerFault, kind="stall_follower"):
    """Have a broker copy nothing: what it follows stands still."""


@dataclass(frozen=True)
class SlowFollower(BrokerFault, kind="slow_follower"):
    """Have a broker take longer for what it copies: ``lag_ms`` for each response."""

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


@dataclass(frozen=True)
class MessageFault(CountedFault):
    """It strikes messages between clients and brokers.

    Only those of one ``api``, such as "Produce" (or "produce"), and of the client with this
    ``client_id``, where these are given; of them each with the probability ``share``. With a
    ``seed`` its chance is the same each time.
    """

    api: str | None = None
    client_id: str | None = None
    share: float = 1.0
    seed: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.api is not None:
            object.__setattr__(self, "api", api_name(self.api))

    def concerns(self, broker: int, api: str, client_id: str | None) -> bool:
        """Whether a message is of those of which it strikes some."""
        return (
            self.broker in (None, broker)
            and self.api in (None, api)
            and self.client_id in (None, client_id)
        )


@dataclass(frozen=True)
class AnswerFault(MessageFault):
    """It strikes answers that were made."""


@dataclass(frozen=True)
class LoseAnswers(AnswerFault, kind="lose_answers"):
    """Do what is requested, and lose the response.

    The client's connection is ``cut`` with it. If not, the client waits for its timeout.
    """

    cut: bool = True


@dataclass(frozen=True)
class DelayAnswers(AnswerFault, Delays, kind="delay_answers"):
    """Send answers later: by ``by_ms``, or by chance.

    ``distribution``: "fixed"; "uniform", from ``by_ms`` to ``to_ms``; "exponential", with the mean
    ``by_ms``; "lognormal", with the median ``by_ms`` and the 75th percentile ``p75_ms``.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_delays()


@dataclass(frozen=True)
class DuplicateAnswers(AnswerFault, kind="duplicate_answers"):
    """Send answers twice."""


@dataclass(frozen=True)
class TearAnswers(AnswerFault, kind="tear_answers"):
    """Send a part of each response, and close the connection.

    ``keep_bytes``: how many bytes come, the four of the length among them, but never all; None:
    half of them.
    """

    is_simulated = False
    keep_bytes: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class SlowAnswers(AnswerFault, kind="slow_answers"):
    """Send answers slowly: at ``bytes_per_s``."""

    is_simulated = False
    bytes_per_s: int = field(kw_only=True)


@dataclass(frozen=True)
class RefuseProduces(CountedFault, kind="refuse_produces"):
    """Refuse produces: clients send them again, and those behind overtake.

    They are refused with NOT_ENOUGH_REPLICAS.
    """


CHOICES = ("topic", "partition", "group_id", "transactional_id")
"""By what those faults choose that strike some of what a request asks."""


@dataclass(frozen=True)
class ErrorFault(MessageFault):
    """It strikes requests, and has them answered with an error.

    Of all that a request asks only what is of this ``group_id`` or ``transactional_id``, where
    these are given; the rest is done and answered as usual.
    """

    group_id: str | None = field(default=None, kw_only=True)
    transactional_id: str | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def error_code(self) -> int:
        """The number of the error."""

    @property
    def is_carried_out(self) -> bool:
        """Whether what is requested is done before the error is told."""
        return False

    @property
    def chosen(self) -> Mapping[str, object]:
        """What a request has to be about, by names of ``CHOICES``; empty: anything."""
        given = {name: getattr(self, name, None) for name in CHOICES}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Answer(ErrorFault, kind="answer"):
    """Answer requests with an error, by its Kafka name.

    ``error``: such as "NOT_LEADER_OR_FOLLOWER". Without ``after`` nothing of what was asked is
    done. With it all is done first, and only then the error told. A ``topic`` and a ``partition``
    leave what a request asks about others as it is.
    """

    is_simulated = False
    error: str = field(kw_only=True)
    after: bool = field(default=False, kw_only=True)
    topic: str | None = field(default=None, kw_only=True)
    partition: int | None = field(default=None, kw_only=True)

    @property
    def error_code(self) -> int:
        return error_number(self.error)

    @property
    def is_carried_out(self) -> bool:
        return self.after


@dataclass(frozen=True)
class LoadCoordinator(ErrorFault, kind="load_coordinator"):
    """Have coordinators load: who asks them is told COORDINATOR_LOAD_IN_PROGRESS.

    Those of groups and of transactions, or of one ``group_id`` or ``transactional_id``.
    """

    is_simulated = False

    @property
    def error_code(self) -> int:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@dataclass(frozen=True)
class Throttle(MessageFault, kind="throttle"):
    """Tell clients to wait: ``throttle_ms`` as the throttle time in answers."""

    is_simulated = False
    throttle_ms: int = field(kw_only=True)


@dataclass(frozen=True)
class TurnBackEpochs(MessageFault, kind="turn_back_epochs"):
    """Have leader epochs go back: answers tell ones that are lower by ``epochs``.

    Those of all topics, or of one ``topic``, wherever a response has any: of Metadata, ListOffsets,
    Fetch, OffsetFetch ...
    """

    is_simulated = False
    epochs: int = field(default=1, kw_only=True)
    topic: str | None = field(default=None, kw_only=True)
