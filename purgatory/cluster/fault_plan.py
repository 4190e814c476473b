"""Planned faults of a cluster or a proxy.

A plan of faults is a TOML file:

    [[faults]]
    at_s = 5                       # after the start of the cluster
    kind = "stall_follower"        # any of `KINDS`, with its arguments
    broker = 2
    for_s = 10
    every_s = 60                   # optional

A module of its own, since few have a plan: a proxy without one starts without pydantic.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from purgatory.cluster.fault_injection import ConnectionFaults
from purgatory.core.recent_errors import Logger
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults import Fault, parse_fault

_log = Logger("purgatory.cluster")


class PlannedFault(BaseModel):
    """One fault of a plan. All other keys are its kind and the arguments of its kind."""

    model_config = ConfigDict(extra="allow", frozen=True)

    at_s: float = Field(ge=0)
    every_s: float | None = Field(default=None, gt=0)

    @cached_property
    def fault(self) -> Fault:
        """The fault; raises `ClusterError` if its arguments are invalid."""
        return parse_fault(self.model_extra)


class _Plan(BaseModel):
    model_config = ConfigDict(extra="forbid")

    faults: list[PlannedFault] = []


def load_fault_plan(path: Path) -> Sequence[PlannedFault]:
    """Read a plan.

    Raises:
        ClusterError: the plan can't be read, or is invalid; the message says where and why.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ClusterError(f"{path}: can't be read: {error}") from error
    try:
        plan = _Plan.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ClusterError(f"{path}: {place}: {first['msg']}") from error
    for number, planned in enumerate(plan.faults):
        try:
            _ = planned.fault
        except ClusterError as error:
            raise ClusterError(f"{path}: faults.{number}: {error}") from None
    return plan.faults


async def follow_fault_plan(faults: ConnectionFaults, plan: Sequence[PlannedFault]) -> None:
    """Begin each fault at its time, counted from now. Returns when all have begun."""
    async with asyncio.TaskGroup() as group:
        for planned in plan:
            group.create_task(_follow(faults, planned))


async def _follow(faults: ConnectionFaults, planned: PlannedFault) -> None:
    await asyncio.sleep(planned.at_s)
    while True:
        try:
            await faults.begin(planned.fault)
        except ClusterError as error:  # such as a kill of a dead broker
            _log.warning("planned_fault_failed", kind=planned.fault.kind, reason=str(error))
        if planned.every_s is None:
            return
        await asyncio.sleep(planned.every_s)
