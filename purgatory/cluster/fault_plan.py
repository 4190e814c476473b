"""Faults that come by a plan: from a file, each at its time, once or again and again.

[[faults]]
at_s = 5                       # after the start of the cluster
kind = "stall_follower"        # any of `KINDS`, with its arguments
broker = 2
for_s = 10
every_s = 60                   # optional
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from purgatory.cluster.fault_injection import Faults
from purgatory.core.recent_errors import Logger
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults import Fault, fault_of

_log = Logger("purgatory.cluster")


class PlannedFault(BaseModel):
    """One fault of a plan. All other keys are its kind and the arguments of its kind."""

    model_config = ConfigDict(extra="allow", frozen=True)

    at_s: float = Field(ge=0)
    every_s: float | None = Field(default=None, gt=0)

    @cached_property
    def fault(self) -> Fault:
        """What is to go wrong; a `ClusterError` says why that makes no sense."""
        return fault_of(self.model_extra)


class _Plan(BaseModel):
    model_config = ConfigDict(extra="forbid")

    faults: list[PlannedFault] = []


def load_fault_plan(path: Path) -> Sequence[PlannedFault]:
    """Read a plan.

    Raises:
        ClusterError: it can't be read, or something in it is wrong; says where and what.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
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


async def follow_fault_plan(faults: Faults, plan: Sequence[PlannedFault]) -> None:
    """Begin each fault at its time, counted from now. Returns when all have begun."""
    async with asyncio.TaskGroup() as group:
        for planned in plan:
            group.create_task(_follow(faults, planned))


async def _follow(faults: Faults, planned: PlannedFault) -> None:
    await asyncio.sleep(planned.at_s)
    while True:
        try:
            await faults.begin(planned.fault)
        except ClusterError as error:  # to kill a broker that is dead already, say
            _log.warning("planned_fault_failed", kind=planned.fault.kind, reason=str(error))
        if planned.every_s is None:
            return
        await asyncio.sleep(planned.every_s)
