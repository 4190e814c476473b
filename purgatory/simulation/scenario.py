"""The data model of a scenario: the cluster, its clients, and the faults.

A scenario is a TOML document. The classes here say which keys there are, of which type, and between
which bounds; `scenario_file` reads a file into them and words the errors. `docs/simulation.md`
describes every key, and a test keeps the two in step. The kinds of faults and their arguments are
those of `purgatory.kafka.faults`, but for one of the simulated network alone: it can lose a request
and deliver those behind it, which no real connection does.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from dataclasses import Field as DataclassField
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults import KINDS, CutConnections, Distribution, Fault, MessageFault

Milliseconds = Annotated[int, Field(ge=0, le=10**12)]
PositiveMilliseconds = Annotated[int, Field(ge=1, le=10**12)]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9._-]+$")]
BrokerId = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """A table of the file. Unknown keys and values of another type are errors, never guesses."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


CLIENT_APIS = (
    "produce",
    "fetch",
    "delete_records",
    "join_group",
    "sync_group",
    "heartbeat",
    "leave_group",
    "offset_commit",
    "offset_fetch",
    "init_producer_id",
    "add_partitions_to_txn",
    "add_offsets_to_txn",
    "txn_offset_commit",
    "end_txn",
)
"""What simulated clients ask."""


@dataclass(frozen=True)
class LoseRequests(MessageFault):
    """Lose requests before they arrive; those that are sent after them do arrive."""

    kind = "lose_requests"


FAULT_KINDS: dict[str, type[Fault]] = {
    **{kind: fault for kind, fault in KINDS.items() if fault.is_simulated},
    LoseRequests.kind: LoseRequests,
}
"""All kinds of faults that a scenario can have."""

_Amount = Annotated[float, Field(ge=0, le=10**9)]

_ARGUMENTS: dict[str, tuple[object, str]] = {
    "a": (BrokerId, "One end of the link."),
    "api": (
        str,
        "The messages concerned, such as `produce`, `fetch`, `offset_commit`; without it, all.",
    ),
    "b": (BrokerId, "The other end."),
    "broker": (BrokerId, "The broker concerned."),
    "by_ms": (_Amount, "How much later they come."),
    "client_id": (str, "The group of clients concerned; without it, all."),
    "count": (
        Annotated[int, Field(ge=1)],
        "After how many injections it ends; without it, never.",
    ),
    "distribution": (
        Distribution,
        "How the delays are spread: all `by_ms`; from `by_ms` to `to_ms`; exponentially, with the "
        "mean `by_ms`; log-normally, with the median `by_ms`.",
    ),
    "cut": (
        bool,
        "Whether the client's connection breaks with it. If not, the client waits for its timeout, "
        "as do the answers behind it.",
    ),
    "lag_ms": (_Amount, "How much longer each answer takes it."),
    "lost_records": (
        Annotated[int, Field(ge=0)],
        "How many of the last records of each of its logs are gone when it comes back, as after "
        "damage to its disk.",
    ),
    "p75_ms": (_Amount, "The 75th percentile of log-normal delays."),
    "partition": (Annotated[int, Field(ge=0)], "The partition's number."),
    "seed": (int, "Of the chance of this fault; without it, that of the scenario."),
    "share": (
        Annotated[float, Field(gt=0, le=1)],
        "The probability that it is injected into a message.",
    ),
    "skip": (Annotated[int, Field(ge=0)], "How many messages pass first."),
    "to_ms": (_Amount, "The longest of uniform delays."),
    "topic": (str, "The topic."),
}
"""The type and the description of each argument, by its name: it means the same everywhere."""


class FaultSection(Section):
    """Something that goes wrong at a given time."""

    at_ms: Milliseconds
    """When it begins, after the start of the run."""
    if TYPE_CHECKING:
        kind: str

    @property
    def fault(self) -> Fault:
        """What goes wrong."""
        settings = self.model_dump(exclude={"kind", "at_ms", "duration_ms"})
        duration_ms = getattr(self, "duration_ms", None)  # some faults are over at once
        if duration_ms is not None:
            settings["for_s"] = duration_ms / 1_000
        return FAULT_KINDS[self.kind](**settings)

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        try:
            _ = self.fault
        except ClusterError as error:
            raise ValueError(str(error)) from error
        return self


class _GeneratedSection(FaultSection):
    """A table that is made here: the descriptions of its keys are in no source."""

    model_config = ConfigDict(use_attribute_docstrings=False)


def _section_model(kind: str, fault: type[Fault]) -> type[FaultSection]:
    """Return the table of a kind."""
    hints = get_type_hints(fault)
    keys: dict[str, Any] = {
        "kind": (Annotated[Literal[kind], Field(description="The kind of the fault.")], ...)
    }
    for argument in fields(fault):
        if argument.name != "for_s":
            keys[argument.name] = _field_definition(
                argument, type(None) in getattr(hints[argument.name], "__args__", ())
            )
    if fault is not CutConnections:
        lasts = Field(description="How long it lasts; without it, to the end of the run.")
        keys["duration_ms"] = (Annotated[PositiveMilliseconds | None, lasts], None)
    summary = str(fault.__doc__).partition("\n")[0]
    return create_model(
        f"{fault.__name__}Section", __base__=_GeneratedSection, __doc__=summary, **keys
    )


def _field_definition(argument: DataclassField[Any], is_optional: bool) -> tuple[object, object]:
    of_type, description = _ARGUMENTS[argument.name]
    if is_optional:
        of_type = of_type | None  # type: ignore[operator]
    default = ... if argument.default is MISSING else argument.default
    return Annotated[of_type, Field(description=description)], default


FAULT_SECTIONS: dict[str, type[FaultSection]] = {
    kind: _section_model(kind, fault) for kind, fault in FAULT_KINDS.items()
}
"""The table of each kind."""

if TYPE_CHECKING:
    AnyFault = FaultSection
else:
    AnyFault = Annotated[reduce(or_, FAULT_SECTIONS.values()), Field(discriminator="kind")]

"""A table of any kind."""

MAX_IDEMPOTENT_IN_FLIGHT = 5
"""How many requests in flight a broker can put back in order: it remembers five batches."""


def _to_spread(value: Any) -> Any:
    """Read a plain number as a spread that does not spread."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"p50": float(value), "p75": float(value)}
    return value


class Spread(Section):
    """A log-normal quantity, given by its median and its 75th percentile, in its key's unit."""

    p50: float = Field(ge=0, le=10**9)
    p75: float = Field(ge=0, le=10**9)

    @model_validator(mode="after")
    def _ordered(self) -> Spread:
        if self.p75 < self.p50:
            raise ValueError(f"p75 must be at least p50, which is {self.p50:g}")
        if self.p50 == 0 and self.p75 > 0:
            raise ValueError("p50 must be above 0 when p75 is")
        return self


SpreadOrNumber = Annotated[Spread, BeforeValidator(_to_spread)]


def _reject_bool(value: Any) -> Any:
    """Refuse `true` and `false` where 1 and 0 are meant: they compare equal in Python."""
    if isinstance(value, bool):
        raise ValueError('must be 0, 1 or "all", not a truth value')
    return value


class ClusterSection(Section):
    """The brokers, and the controller's reaction to a failed broker."""

    brokers: int = Field(default=3, ge=1, le=100)
    """How many brokers there are; their ids are 0 to brokers - 1."""
    session_timeout_ms: PositiveMilliseconds = 2_000
    """How long a broker may be silent before the controller takes it for dead."""
    replica_lag_time_max_ms: PositiveMilliseconds = 10_000
    """How long a follower may lag before the leader drops it from the in-sync set."""
    unclean_leader_election: bool = False
    """Whether a replica outside the in-sync set may lead when no member of the set lives."""
    initial_rebalance_delay_ms: Milliseconds = 3_000
    """How long the first member of a consumer group waits for others."""
    timer_tick_ms: int = Field(default=1, ge=1, le=60_000)
    """The tick of the timing wheel on which the brokers' requests expire; a tick above 1 lets them
    expire up to a tick early."""
    timer_wheel_size: int = Field(default=20, ge=2, le=100_000)
    """How many buckets each level of that wheel has."""


class TopicSection(Section):
    """The one topic that all producers write and all consumers read."""

    name: Name = "events"
    """The topic's name in the trace."""
    partitions: int = Field(default=6, ge=1, le=10_000)
    """How many partitions it has; their leaders go round the brokers."""
    replication_factor: int = Field(default=3, ge=1, le=100)
    """How many brokers hold each partition."""
    min_insync_replicas: int = Field(default=2, ge=1, le=100)
    """How many members must be in sync for anything to be committed, and to take acks=all."""
    segment_bytes: int = Field(default=1_048_576, ge=1)
    """The size at which a log segment is rolled."""
    retention_bytes: int = Field(default=8_388_608, ge=1)
    """How much of each log is kept; older segments are deleted, read or not."""


class FollowersSection(Section):
    """How followers copy their leaders."""

    fetch_interval_ms: SpreadOrNumber = Spread(p50=0.0, p75=0.0)
    """The pause between a follower's append and its next fetch."""
    lag_ms: SpreadOrNumber = Spread(p50=1.0, p75=2.0)
    """What a follower needs to append what it fetched."""
    fetch_max_wait_ms: Milliseconds = 500
    """How long the leader may hold a follower's fetch that finds nothing."""
    fetch_min_bytes: int = Field(default=1, ge=1)
    """How many bytes a follower's fetch waits for."""
    fetch_max_bytes: int = Field(default=10_485_760, ge=1)
    """The most bytes in one response to a follower."""
    partition_max_bytes: int = Field(default=1_048_576, ge=1)
    """The most bytes of one partition in one response to a follower."""


class NetworkSection(Section):
    """The network between clients and brokers, and between brokers."""

    delay_ms: SpreadOrNumber = Spread(p50=0.2, p75=0.3)
    """The one-way delay of a message; messages of one connection do not overtake each other."""


class DeleteRecordsSection(Section):
    """An administrator that deletes old records at intervals."""

    interval_ms: PositiveMilliseconds
    """The time between two requests to one partition's leader."""
    keep_records: int = Field(default=1_000, ge=0)
    """How many records below the high watermark each request leaves."""
    timeout_ms: Milliseconds = 5_000
    """How long a broker may wait for the replicas to follow."""


class ArrivalsSection(Section):
    """A recorded request log: arrival times and sizes of records."""

    file: str = Field(min_length=1)
    """A .csv or .parquet file; a relative path starts at the scenario's folder."""
    time: str = Field(min_length=1)
    """The column with the time of each request."""
    time_unit: Literal["iso", "s", "ms", "us", "ns"] = "iso"
    """`iso` for ISO 8601 times, else the unit of a number."""
    bytes: str | None = Field(default=None, min_length=1)
    """The column that gives each record's size; without it `record_bytes` does."""
    bytes_per_unit: float = Field(default=1.0, gt=0, le=10**9)
    """How many bytes one unit of the `bytes` column stands for."""
    speed: float = Field(default=1.0, gt=0, le=10**9)
    """How many times faster than recorded the log is played."""
    strict: bool = False
    """Whether a bad row stops the run; else bad rows are skipped, counted and named."""


class TransactionsSection(Section):
    """Settings of transactional producers; each has its own transactional id."""

    requests: int = Field(default=10, ge=1, le=100_000)
    """After how many produce requests, one after the other, a transaction is ended."""
    interval_ms: PositiveMilliseconds = 100
    """How long after its first request it is ended, if it had no more to send until then."""
    timeout_ms: int = Field(default=60_000, ge=1, le=900_000)
    """How long a transaction may last until its coordinator aborts it."""
    aborted: float = Field(default=0.0, ge=0, le=1)
    """The share of the transactions that their producer aborts."""
    zombies: float = Field(default=0.0, ge=0, le=1)
    """The share of the transactions in whose midst the producer stands still for `zombie_ms`."""
    zombie_ms: SpreadOrNumber = Spread(p50=0.0, p75=0.0)
    """How long it stands still. Then it goes on, and may have been fenced meanwhile."""
    successor_ms: PositiveMilliseconds | None = None
    """After how long of that another instance with the same id takes its place; without it, only
    after the first one was fenced."""
    reads: Name | None = None
    """A group of consumers, as many as there are producers: each producer sends a record for each
    that its consumer reads, and the offsets with them."""
    writes: Name | None = None
    """Another topic to which they write, with as many partitions; without it, that of `[topic]`."""


class ProducersSection(Section):
    """A group of producers that are alike."""

    group: Name
    """The group's name in the tables and the trace."""
    count: int = Field(default=1, ge=1, le=1_000_000)
    """How many producers the group has."""
    rate: float | None = Field(default=None, gt=0, le=10**6)
    """Records per second of each producer."""
    spacing: Literal["poisson", "even"] = "poisson"
    """Whether records come at random (exponential gaps) or evenly."""
    arrivals: ArrivalsSection | None = None
    """A recorded log instead of `rate`; its rows go round the group's producers."""
    transactions: TransactionsSection | None = None
    """Whether records are sent in transactions, and in which."""
    acks: Annotated[Literal[0, 1, "all"], BeforeValidator(_reject_bool)] = "all"
    """0: no response; 1: the leader has it; "all": the whole in-sync set has it."""
    timeout_ms: Milliseconds = 1_500
    """How long the broker may wait for the in-sync set before it answers with a timeout."""
    request_timeout_ms: PositiveMilliseconds | None = None
    """How long the producer waits for a response; by default `timeout_ms` + 500."""
    delivery_timeout_ms: PositiveMilliseconds = 120_000
    """How long after a record's arrival the producer gives it up."""
    retries: int = Field(default=2_147_483_647, ge=0, le=2_147_483_647)
    """How often a batch is sent again after a failure that allows it."""
    retry_backoff_ms: Milliseconds = 100
    """The pause before a batch is sent again."""
    max_in_flight: int = Field(default=5, ge=1, le=1_000)
    """How many requests may be unanswered on one connection."""
    idempotence: bool = False
    """Whether batches carry sequence numbers, by which the broker drops duplicates."""
    batch_size: int = Field(default=1, ge=1, le=100_000)
    """The most records in one batch."""
    linger_ms: Milliseconds = 0
    """How long a batch that is not full waits for more records."""
    record_bytes: SpreadOrNumber = Spread(p50=1_000.0, p75=1_000.0)
    """The size of a record in bytes."""
    keys: int = Field(default=1_000, ge=1, le=10**12)
    """How many different keys the group's records have."""
    partitioner: Literal["hash", "modulo", "round-robin", "random"] = "hash"
    """How a record finds its partition: by its key's hash, its key modulo the partitions, or not by
    its key at all."""

    @property
    def response_timeout_ms(self) -> int:
        """How long the producer waits for a response, in milliseconds."""
        return self.request_timeout_ms or self.timeout_ms + 500


class ConsumersSection(Section):
    """A group of consumers that share the partitions among them."""

    group: Name
    """The group's name in the tables and the trace."""
    topic: Name | None = None
    """The topic that it reads: one that transactions write to; without it, that of `[topic]`."""
    count: int = Field(default=1, ge=1, le=10_000)
    """How many consumers the group has; partitions are dealt out in turn."""
    min_bytes: int = Field(default=1, ge=1)
    """How many bytes a fetch waits for."""
    max_wait_ms: Milliseconds = 500
    """How long a fetch may wait for `min_bytes`."""
    request_timeout_ms: PositiveMilliseconds = 30_000
    """How long a consumer waits for a response before it breaks the connection; more than
    `max_wait_ms`."""
    max_bytes: int = Field(default=52_428_800, ge=1)
    """The most bytes in one response."""
    partition_max_bytes: int = Field(default=1_048_576, ge=1)
    """The most bytes of one partition in one response."""
    isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    """Whether a fetch sees up to the high watermark or up to the last stable offset."""
    poll_interval_ms: SpreadOrNumber = Spread(p50=0.0, p75=0.0)
    """How long a consumer works on one response before it fetches again."""
    membership: Literal["none", "dynamic", "static"] = "none"
    """`none`: each consumer has its partitions for good. Else they join a group, which shares the
    partitions out; `static` members are known by a name of their own, and are waited for."""
    session_timeout_ms: PositiveMilliseconds = 10_000
    """After how long without a heartbeat a member is out of the group."""
    heartbeat_interval_ms: PositiveMilliseconds = 3_000
    """How often a member gives a heartbeat, and learns of rebalances."""
    max_poll_interval_ms: PositiveMilliseconds = 300_000
    """How long a member may work before it leaves by itself; and how long a rebalance waits for
    those that have to join again."""
    commit_interval_ms: PositiveMilliseconds = 5_000
    """How often a member commits how far it is through with its work."""
    deduplicates: bool = False
    """Whether the group keeps with its results how far they go, so that a record that is read again
    is not applied again."""
    stay_ms: SpreadOrNumber = Spread(p50=0.0, p75=0.0)
    """After how long a member leaves, and another one comes; 0: never."""
    away_ms: SpreadOrNumber = Spread(p50=0.0, p75=0.0)
    """How long it is away then."""


class Scenario(Section):
    """A whole scenario."""

    name: Name
    """The scenario's name, part of the run's id."""
    description: str = ""
    """What it shows, in a sentence."""
    seed: int = Field(default=1, ge=0, le=2**63 - 1)
    """The number from which all chance comes: the same seed gives the same trace."""
    duration_ms: PositiveMilliseconds | None = None
    """How long records arrive; without it, until the last recorded arrival."""
    drain_ms: Milliseconds = 30_000
    """The most time after that in which open requests are settled and consumers catch up."""
    cluster: ClusterSection = ClusterSection()
    topic: TopicSection = TopicSection()
    followers: FollowersSection = FollowersSection()
    network: NetworkSection = NetworkSection()
    delete_records: DeleteRecordsSection | None = None
    producers: tuple[ProducersSection, ...] = Field(default=(), strict=False)
    consumers: tuple[ConsumersSection, ...] = Field(default=(), strict=False)
    faults: tuple[AnyFault, ...] = Field(default=(), strict=False)

    @property
    def has_groups(self) -> bool:
        """Whether any consumers join a group, or offsets are committed in transactions."""
        return self.has_transactions or any(
            section.membership != "none" for section in self.consumers
        )

    @property
    def has_transactions(self) -> bool:
        """Whether any producers send their records in transactions."""
        return any(section.transactions is not None for section in self.producers)

    @property
    def topics(self) -> list[str]:
        """The topics that clients write and read, that of `[topic]` first."""
        written = (
            section.transactions.writes for section in self.producers if section.transactions
        )
        return list(dict.fromkeys([self.topic.name, *filter(None, written)]))

    @property
    def run_id(self) -> str:
        """The name of this run: the same for the same scenario and seed."""
        return f"{self.name}-{self.seed}"


def arrivals_path(arrivals: ArrivalsSection, scenario_folder: Path) -> Path:
    """Where a recorded log lies: a relative path starts at the scenario's own folder."""
    return scenario_folder / Path(arrivals.file).expanduser()
