"""The kinds of faults: in brokers and links, in messages, and in the contents of responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import ClassVar

from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults.delays import DelayDistribution
from purgatory.kafka.faults.fault import (
    BrokerFault,
    CountedFault,
    Fault,
    OneOrAllFault,
    error_number,
    normalize_api_name,
)
from purgatory.settings.typed_duration import OrTimedelta, timed_dataclass


@timed_dataclass
class StallFollower(BrokerFault, kind="stall_follower"):
    """Stop a broker's fetches: it replicates nothing."""


@timed_dataclass
class SlowFollower(BrokerFault, kind="slow_follower"):
    """Slow down a follower's fetches of each partition."""

    lag_ms: OrTimedelta[float]


@timed_dataclass
class ShrinkIsr(Fault, kind="shrink_isr"):
    """Remove a follower from a partition's ISR, and keep it out."""

    topic: str
    partition: int
    broker: int


@timed_dataclass
class Kill(BrokerFault, kind="kill"):
    """Kill a broker as SIGKILL does; it is started again when the fault ends.

    ``lost_records``: how many of the last records of each of its logs are then lost, as after
    damage to its disk.
    """

    lost_records: int = field(default=0, kw_only=True)


@timed_dataclass
class Pause(BrokerFault, kind="pause"):
    """Stop a broker as SIGSTOP does: its connections stay open, and it sends no response."""


@timed_dataclass
class CutLink(Fault, kind="cut_link"):
    """Cut the link between two brokers."""

    a: int
    b: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.a == self.b:
            raise ClusterError(f"brokers {self.a} and {self.b} are the same one")


@timed_dataclass
class FreezeMetadata(OneOrAllFault, kind="freeze_metadata"):
    """Freeze the metadata that a broker returns.

    The response is what any broker responded to the same request before the fault, or to the first
    such request since then: clients use the leaders, epochs, ISRs, topics, live brokers and
    coordinators of that moment.
    """

    is_simulated = False


@timed_dataclass
class JumpClock(BrokerFault, kind="jump_clock"):
    """Move a broker's clock forward or back, until the fault ends.

    The clock is that of timestamps and of retention. Timeouts are measured by another.
    """

    is_simulated = False
    jump_ms: OrTimedelta[int]


@timed_dataclass
class CutConnections(OneOrAllFault, kind="cut_connections"):
    """Cut the clients' connections, of one broker or of all."""

    for_s: None = field(default=None, init=False)  # it ends at once


@timed_dataclass
class MessageFault(CountedFault):
    """A fault in requests or responses.

    The messages are those of one ``api``, such as "Produce" (or "produce"), and of a client with
    one ``client_id``, or of all (None); each with the probability ``share``, after the first
    ``skip`` of them. ``seed`` is that of the random numbers.
    """

    api: str | None = None
    client_id: str | None = None
    share: float = 1.0
    skip: int = field(default=0, kw_only=True)
    seed: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.api is not None:
            object.__setattr__(self, "api", normalize_api_name(self.api))

    def applies_to(self, broker: int, api: str, client_id: str | None) -> bool:
        """Whether the fault may be injected into a message."""
        return (
            self.broker in (None, broker)
            and self.api in (None, api)
            and self.client_id in (None, client_id)
        )


@timed_dataclass
class LoseRequests(MessageFault, kind="lose_requests"):
    """Lose requests before they are processed.

    The client's connection is ``cut``, too. If not, the client waits for its timeout.
    """

    is_simulated = False
    cut: bool = True


@timed_dataclass
class ResponseFault(MessageFault):
    """A fault in responses to requests that were carried out."""


@timed_dataclass
class LoseResponses(ResponseFault, kind="lose_responses"):
    """Process requests, and lose the responses.

    The client's connection is ``cut``, too. If not, the client waits for its timeout.
    """

    cut: bool = True


@timed_dataclass
class DelayResponses(ResponseFault, DelayDistribution, kind="delay_responses"):
    """Send responses later, by a fixed or a random time.

    ``distribution``: "fixed"; "uniform", from ``by_ms`` to ``to_ms``; "exponential", with the mean
    ``by_ms``; "lognormal", with the median ``by_ms`` and the 75th percentile ``p75_ms``.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_delays()


@timed_dataclass
class DuplicateResponses(ResponseFault, kind="duplicate_responses"):
    """Send responses twice."""


@timed_dataclass
class TruncateResponses(ResponseFault, kind="truncate_responses"):
    """Send a part of each response, and close the connection.

    ``keep_bytes``: how many bytes are sent, with the four of the length, but never all; None: half
    of them.
    """

    is_simulated = False
    keep_bytes: int | None = field(default=None, kw_only=True)


@timed_dataclass
class SlowResponses(ResponseFault, kind="slow_responses"):
    """Send responses slowly, at a given rate."""

    is_simulated = False
    bytes_per_s: int = field(kw_only=True)


TARGET_KEYS = ("topic", "partition", "group_id", "transactional_id")
"""The arguments by which a `ReturnError` targets a part of a request."""


@timed_dataclass
class ReturnError(MessageFault, kind="return_error"):
    """Respond to requests with an error, by its Kafka name, or with one after the other.

    ``error``: such as "NOT_LEADER_OR_FOLLOWER". Or ``errors``: one for each request, None (or
    "none") for one that passes; with the last the fault ends. Requests are not carried out, unless
    ``after`` is true: then they are, and the error is in the response nevertheless. ``topic``,
    ``partition``, ``group_id`` and ``transactional_id`` target a part of each request; the rest is
    carried out.
    """

    is_simulated = False
    only_coordinators: ClassVar[bool] = False
    """Whether only requests to the coordinators of groups and transactions get it."""
    error: str | None = field(default=None, kw_only=True)
    errors: Sequence[str | None] = field(default=(), kw_only=True)
    after: bool = field(default=False, kw_only=True)
    topic: str | None = field(default=None, kw_only=True)
    partition: int | None = field(default=None, kw_only=True)
    group_id: str | None = field(default=None, kw_only=True)
    transactional_id: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        errors = tuple(None if error == "none" else error for error in self.errors)
        object.__setattr__(self, "errors", errors)
        if bool(self.errors) == (self.error is not None):
            raise ClusterError("error or errors: one of them, as a name or as several names")
        if self.errors and self.count is not None:
            raise ClusterError(f"count={self.count!r}: there are {len(self.errors)} errors")

    @property
    def last_use(self) -> int | None:
        return len(self.errors) or self.count

    def passes(self, uses: int) -> bool:
        """Whether the request after so many passes."""
        return bool(self.errors) and self.errors[uses] is None

    def at(self, uses: int) -> ReturnError:
        """Return the fault of the request after so many, which has one error."""
        if not self.errors:
            return self
        return replace(self, error=self.errors[uses] or "UNKNOWN_SERVER_ERROR", errors=())

    @property
    def error_code(self) -> int:
        """The number of the error."""
        return error_number(self.error)

    @property
    def chosen(self) -> Mapping[str, object]:
        """The targets of the fault, by ``TARGET_KEYS``; empty: any request."""
        values = {name: getattr(self, name) for name in TARGET_KEYS}
        return {name: value for name, value in values.items() if value is not None}


@timed_dataclass
class RefuseProduces(ReturnError, kind="refuse_produces"):
    """Refuse produces with NOT_ENOUGH_REPLICAS: later ones overtake the retries."""

    is_simulated = True
    api: str | None = field(default="produce", init=False)
    error: str | None = field(default="NOT_ENOUGH_REPLICAS", init=False)
    errors: Sequence[str | None] = field(default=(), init=False)
    # A `ReturnError` takes more arguments; simulated clients have no use for them.
    client_id: str | None = field(default=None, init=False)
    share: float = field(default=1.0, init=False)
    skip: int = field(default=0, init=False)
    seed: int | None = field(default=None, init=False)
    after: bool = field(default=False, init=False)
    topic: str | None = field(default=None, init=False)
    partition: int | None = field(default=None, init=False)
    group_id: str | None = field(default=None, init=False)
    transactional_id: str | None = field(default=None, init=False)


@timed_dataclass
class LoadCoordinator(ReturnError, kind="load_coordinator"):
    """Have coordinators respond with COORDINATOR_LOAD_IN_PROGRESS.

    Those of all groups and transactions, or of one ``group_id`` or ``transactional_id``. Heartbeats
    of classic groups get no error, as in Kafka.
    """

    only_coordinators = True
    error: str | None = field(default="COORDINATOR_LOAD_IN_PROGRESS", init=False)
    errors: Sequence[str | None] = field(default=(), init=False)
    after: bool = field(default=False, init=False)
    topic: str | None = field(default=None, init=False)
    partition: int | None = field(default=None, init=False)


@timed_dataclass
class Throttle(MessageFault, kind="throttle"):
    """Add to the throttle time of responses, which clients wait for."""

    is_simulated = False
    throttle_ms: OrTimedelta[int] = field(kw_only=True)


@timed_dataclass
class LowerLeaderEpochs(MessageFault, kind="lower_leader_epochs"):
    """Lower the leader epochs in responses.

    Those of all topics, or of one ``topic``, in whatever response: of Metadata, ListOffsets, Fetch,
    OffsetFetch ...
    """

    is_simulated = False
    epochs: int = field(default=1, kw_only=True)
    topic: str | None = field(default=None, kw_only=True)
