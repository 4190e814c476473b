"""The faults of a scenario: a table for each kind of fault that a cluster knows, and when it comes.

The kinds and their arguments are those of `purgatory.kafka.faults`; the tables are made from them.
One kind is the simulated network's alone: it can lose a request and bring those that follow, which
no connection of a real one does.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from dataclasses import Field as DataclassField
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_type_hints

from pydantic import ConfigDict, Field, create_model, model_validator

from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults import KINDS, CutConnections, Distribution, Fault, MessageFault
from purgatory.simulation.scenario_section import (
    BrokerId,
    Milliseconds,
    PositiveMilliseconds,
    Section,
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
        "After how many strikes it ends; without it, never.",
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
    "share": (Annotated[float, Field(gt=0, le=1)], "The probability that it strikes a message."),
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
    def _makes_sense(self) -> Self:
        try:
            _ = self.fault
        except ClusterError as error:
            raise ValueError(str(error)) from error
        return self


class _MadeSection(FaultSection):
    """A table that is made here: the descriptions of its keys are in no source."""

    model_config = ConfigDict(use_attribute_docstrings=False)


def _section_of(kind: str, fault: type[Fault]) -> type[FaultSection]:
    """Return the table of a kind."""
    hints = get_type_hints(fault)
    keys: dict[str, Any] = {
        "kind": (Annotated[Literal[kind], Field(description="The kind of the fault.")], ...)
    }
    for argument in fields(fault):
        if argument.name != "for_s":
            keys[argument.name] = _key_of(
                argument, type(None) in getattr(hints[argument.name], "__args__", ())
            )
    if fault is not CutConnections:
        lasts = Field(description="How long it lasts; without it, to the end of the run.")
        keys["duration_ms"] = (Annotated[PositiveMilliseconds | None, lasts], None)
    summary = str(fault.__doc__).partition("\n")[0]
    return create_model(f"{fault.__name__}Section", __base__=_MadeSection, __doc__=summary, **keys)


def _key_of(argument: DataclassField[Any], may_be_left_out: bool) -> tuple[object, object]:
    of_type, description = _ARGUMENTS[argument.name]
    if may_be_left_out:
        of_type = of_type | None  # type: ignore[operator]
    default = ... if argument.default is MISSING else argument.default
    return Annotated[of_type, Field(description=description)], default


FAULT_SECTIONS: dict[str, type[FaultSection]] = {
    kind: _section_of(kind, fault) for kind, fault in FAULT_KINDS.items()
}
"""The table of each kind."""

if TYPE_CHECKING:
    AnyFault = FaultSection
else:
    AnyFault = Annotated[reduce(or_, FAULT_SECTIONS.values()), Field(discriminator="kind")]
"""A table of any kind."""
