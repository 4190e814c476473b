"""The data model of a scenario: the cluster, its clients, and the faults.

A scenario is a TOML document. The classes here define its keys, their types and bounds;
`scenario_file` reads a file into them and writes the errors. `docs/simulation.md` describes every
key; a test compares the two. The kinds of faults and their arguments are those of
`purgatory.kafka.faults`, except one: only the simulated network can lose a request and deliver the
requests behind it, which no real connection does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from dataclasses import Field as DataclassField
from datetime import timedelta
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults import KINDS, CutConnections, Distribution, Fault, MessageFault
from purgatory.settings.typed_duration import OrTimedelta, as_number, default, timed_dataclass

if TYPE_CHECKING:
    Milliseconds = OrTimedelta[int]
    PositiveMilliseconds = OrTimedelta[int]
    OptionalMilliseconds = OrTimedelta[int | None]
else:
    Milliseconds = Annotated[int, Field(ge=0, le=10**12)]
    PositiveMilliseconds = Annotated[int, Field(ge=1, le=10**12)]
    OptionalMilliseconds = PositiveMilliseconds | None
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9._-]+$")]
BrokerId = Annotated[int, Field(ge=0)]

_MILLISECOND = timedelta(milliseconds=1)


class Section(BaseModel):
    """A table of the file. Unknown keys and values of another type are errors."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _take_timedeltas(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return {
            key: as_number(value, _MILLISECOND)
            if isinstance(value, timedelta) and str(key).endswith("_ms")
            else value
            for key, value in values.items()
        }


CLIENT_APIS = ("produce", "fetch")
"""The requests of simulated clients."""


@timed_dataclass
class LoseRequests(MessageFault):
    """Lose requests before they arrive; later ones do arrive."""

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
        "Only this API: `produce` or `fetch`.",
    ),
    "b": (BrokerId, "The other end."),
    "broker": (BrokerId, "The broker; where it may be left out, by default all."),
    "by_ms": (_Amount, "Delay."),
    "client_id": (str, "Only this group of clients."),
    "count": (
        Annotated[int, Field(ge=1)],
        "Injections after which it ends.",
    ),
    "distribution": (
        Distribution,
        "`by_ms` is the delay, the least, the mean or the median.",
    ),
    "cut": (
        bool,
        "Whether the connection is cut. If not, the client waits for its timeout.",
    ),
    "lag_ms": (_Amount, "Delay added to each response."),
    "lost_records": (
        Annotated[int, Field(ge=0)],
        "Last records of each of its logs that are lost.",
    ),
    "p75_ms": (_Amount, "75th percentile of log-normal delays."),
    "partition": (Annotated[int, Field(ge=0)], "Its number."),
    "seed": (int, "Random seed; by default the scenario's."),
    "share": (
        Annotated[float, Field(gt=0, le=1)],
        "Probability for each message.",
    ),
    "skip": (Annotated[int, Field(ge=0)], "Messages that pass first."),
    "to_ms": (_Amount, "Longest uniform delay."),
    "topic": (str, "The topic."),
}
"""The type and the description of each argument by its name, which means the same in all kinds."""


class FaultSection(Section):
    """A fault at a given time."""

    at_ms: Milliseconds
    """Begin, after the start of the run."""
    if TYPE_CHECKING:
        kind: str

    @property
    def fault(self) -> Fault:
        """The fault itself."""
        settings = self.model_dump(exclude={"kind", "at_ms", "duration_ms"})
        duration_ms = getattr(self, "duration_ms", None)  # some faults have no duration
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
    """A table whose keys have their descriptions in `_ARGUMENTS`, not in docstrings."""

    model_config = ConfigDict(use_attribute_docstrings=False)


def _section_model(kind: str, fault: type[Fault]) -> type[FaultSection]:
    """Return the table of a kind."""
    hints = get_type_hints(fault)
    keys: dict[str, Any] = {
        "kind": (Annotated[Literal[kind], Field(description="Kind of the fault.")], ...)
    }
    for argument in fields(fault):
        if argument.init and argument.name != "for_s":
            keys[argument.name] = _field_definition(
                argument, type(None) in getattr(hints[argument.name], "__args__", ())
            )
    if fault is not CutConnections:
        lasts = Field(description="Duration; by default to the end of the run.")
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
"""The most requests in flight that keep their order: a broker remembers five batches."""


def _to_spread(value: Any) -> Any:
    """Read a plain number as a constant spread."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"p50": value, "p75": value}
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
    """Refuse `true` and `false`, which equal 1 and 0 in Python."""
    if isinstance(value, bool):
        raise ValueError('must be 0, 1 or "all", not a truth value')
    return value


class ClusterSection(Section):
    """The brokers, and the controller's reaction to a failed broker."""

    brokers: int = Field(default=3, ge=1, le=100)
    """Number of brokers; their ids are 0 to brokers - 1."""
    session_timeout_ms: PositiveMilliseconds = default(2_000)
    """Silence after which the controller takes a broker for dead."""
    replica_lag_time_max_ms: PositiveMilliseconds = default(10_000)
    """Lag after which a follower leaves the ISR."""
    unclean_leader_election: bool = False
    """Whether a replica outside the ISR may lead when no member is alive."""
    timer_tick_ms: int = Field(default=1, ge=1, le=60_000)
    """Tick of the brokers' timing wheels. Above 1, requests may expire up to a tick early."""
    timer_wheel_size: int = Field(default=20, ge=2, le=100_000)
    """Buckets in each level of the wheel."""


class TopicSection(Section):
    """The one topic that all producers write and all consumers read."""

    name: Name = "events"
    """Name in the trace."""
    partitions: int = Field(default=6, ge=1, le=10_000)
    """Number of partitions; their leaders are spread round-robin."""
    replication_factor: int = Field(default=3, ge=1, le=100)
    """Replicas of each partition."""
    min_insync_replicas: int = Field(default=2, ge=1, le=100)
    """Smallest ISR that commits records and takes acks=all."""
    segment_bytes: int = Field(default=1_048_576, ge=1)
    """Size at which a segment is rolled."""
    retention_bytes: int = Field(default=8_388_608, ge=1)
    """Size of each log to keep; older segments are deleted, read or not."""


class FollowersSection(Section):
    """The followers' copying of their leaders."""

    fetch_interval_ms: SpreadOrNumber = Spread(p50=0.0, p75=0.0)
    """Pause between an append and the next fetch."""
    lag_ms: SpreadOrNumber = Spread(p50=1.0, p75=2.0)
    """Time to append what was fetched."""
    fetch_max_wait_ms: Milliseconds = default(500)
    """Longest wait of a fetch that finds too little."""
    fetch_min_bytes: int = Field(default=1, ge=1)
    """Bytes that a fetch waits for."""
    fetch_max_bytes: int = Field(default=10_485_760, ge=1)
    """Most bytes in one response."""
    partition_max_bytes: int = Field(default=1_048_576, ge=1)
    """Most bytes of one partition in one response."""


class NetworkSection(Section):
    """The network between clients and brokers, and between brokers."""

    delay_ms: SpreadOrNumber = Spread(p50=0.2, p75=0.3)
    """One-way latency. Messages of one connection stay in order."""


class ArrivalsSection(Section):
    """A recorded request log, instead of `rate`."""

    file: str = Field(min_length=1)
    """A .csv or .parquet file; a relative path starts at the scenario's folder."""
    time: str = Field(min_length=1)
    """Column with the time of each request."""
    time_unit: Literal["iso", "s", "ms", "us", "ns"] = "iso"
    """`iso` for ISO 8601 times, else the unit of a number."""
    bytes: str | None = Field(default=None, min_length=1)
    """Column with the size of each record; without it, `record_bytes`."""
    bytes_per_unit: float = Field(default=1.0, gt=0, le=10**9)
    """Bytes for one unit of the `bytes` column."""
    speed: float = Field(default=1.0, gt=0, le=10**9)
    """Speed-up of the recording."""
    strict: bool = False
    """Whether a bad row stops the run; otherwise it is skipped and reported."""


class ProducersSection(Section):
    """A group of producers that are alike."""

    group: Name
    """Name in tables and trace."""
    count: int = Field(default=1, ge=1, le=1_000_000)
    """Number of producers."""
    rate: float | None = Field(default=None, gt=0, le=10**6)
    """Records per second of each producer; or else `arrivals`."""
    spacing: Literal["poisson", "even"] = "poisson"
    """Exponential gaps between records, or equal ones."""
    arrivals: ArrivalsSection | None = None
    """A recorded log instead of `rate`; its rows go round the group's producers."""
    acks: Annotated[Literal[0, 1, "all"], BeforeValidator(_reject_bool)] = "all"
    """Replicas that must have a record: the ISR, none, or the leader."""
    timeout_ms: Milliseconds = default(1_500)
    """Longest wait of the broker for the ISR."""
    request_timeout_ms: OptionalMilliseconds = default(None)
    """Longest wait of the producer for a response; by default `timeout_ms` + 500."""
    delivery_timeout_ms: PositiveMilliseconds = default(120_000)
    """Time from a record's arrival until the producer gives it up."""
    retries: int = Field(default=2_147_483_647, ge=0, le=2_147_483_647)
    """Retries of a batch after a retriable error."""
    retry_backoff_ms: Milliseconds = default(100)
    """Pause before a retry."""
    max_in_flight: int = Field(default=5, ge=1, le=1_000)
    """Most requests in flight on one connection."""
    idempotence: bool = False
    """Whether the producer is idempotent."""
    batch_size: int = Field(default=1, ge=1, le=100_000)
    """Most records in a batch."""
    linger_ms: Milliseconds = default(0)
    """Time that a batch waits for more records."""
    record_bytes: SpreadOrNumber = Spread(p50=1_000.0, p75=1_000.0)
    """Size of a record."""
    keys: int = Field(default=1_000, ge=1, le=10**12)
    """Number of different keys."""
    partitioner: Literal["hash", "modulo", "round-robin", "random"] = "hash"
    """By the key's hash, the key modulo the partitions, or without a key."""

    @property
    def response_timeout_ms(self) -> int:
        """The producer's longest wait for a response, in milliseconds."""
        return self.request_timeout_ms or self.timeout_ms + 500


class ConsumersSection(Section):
    """A group of consumers that share the partitions among them."""

    group: Name
    """Name in tables and trace."""
    count: int = Field(default=1, ge=1, le=10_000)
    """Number of consumers."""
    min_bytes: int = Field(default=1, ge=1)
    """Bytes that a fetch waits for."""
    max_wait_ms: Milliseconds = default(500)
    """Longest wait for `min_bytes`."""
    request_timeout_ms: PositiveMilliseconds = default(30_000)
    """Longest wait for a response before the connection is closed; more than `max_wait_ms`."""
    max_bytes: int = Field(default=52_428_800, ge=1)
    """Most bytes in one response."""
    partition_max_bytes: int = Field(default=1_048_576, ge=1)
    """Most bytes of one partition in one response."""
    poll_interval_ms: SpreadOrNumber = Spread(p50=0.0, p75=0.0)
    """Processing time of one response."""
    deduplicates: bool = False
    """Whether a record that is read again is applied only once."""


class Scenario(Section):
    """A whole scenario."""

    name: Name
    """Name, part of the run's id."""
    description: str = ""
    """Purpose, in a sentence."""
    seed: int = Field(default=1, ge=0, le=2**63 - 1)
    """Random seed: the same seed gives the same trace."""
    duration_ms: OptionalMilliseconds = default(None)
    """Time in which records arrive; by default until the last recorded arrival."""
    drain_ms: Milliseconds = default(30_000)
    """Most time after that to complete requests and catch up."""
    cluster: ClusterSection = ClusterSection()
    topic: TopicSection = TopicSection()
    followers: FollowersSection = FollowersSection()
    network: NetworkSection = NetworkSection()
    producers: tuple[ProducersSection, ...] = Field(default=(), strict=False)
    consumers: tuple[ConsumersSection, ...] = Field(default=(), strict=False)
    faults: tuple[AnyFault, ...] = Field(default=(), strict=False)

    @property
    def run_id(self) -> str:
        """The name of this run: the same for the same scenario and seed."""
        return f"{self.name}-{self.seed}"


def arrivals_path(arrivals: ArrivalsSection, scenario_folder: Path) -> Path:
    """The path of a recorded log; a relative one starts at the scenario's own folder."""
    return scenario_folder / Path(arrivals.file).expanduser()
