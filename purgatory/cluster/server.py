"""A process that is a cluster: brokers, control, and planned faults, until it is stopped.

A plan of faults is a TOML file:

    [[faults]]
    at_s = 5                       # after the start of the cluster
    kind = "stall_follower"        # any of `KINDS`, with its arguments
    broker = 2
    for_s = 10
    every_s = 60                   # optional

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import tomllib
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from purgatory.cluster.cluster import Cluster
from purgatory.cluster.config import ClusterConfig
from purgatory.cluster.fault_injection import ConnectionFaults
from purgatory.cluster.trace import ClusterTrace
from purgatory.core.recent_errors import Logger
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults import Fault, parse_fault

if TYPE_CHECKING:
    from purgatory.cluster.control.control import Control


_log = Logger("purgatory.cluster")


class PlannedFault(BaseModel):
    """One fault of a plan. All other keys are its kind and the arguments of its kind."""

    model_config = ConfigDict(extra="allow", frozen=True)

    at_s: float = Field(ge=0)
    every_s: float | None = Field(default=None, gt=0)

    @cached_property
    def fault(self) -> Fault:
        """What is to go wrong; a `ClusterError` says why that makes no sense."""
        return parse_fault(self.model_extra)


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
        except ClusterError as error:  # to kill a broker that is dead already, say
            _log.warning("planned_fault_failed", kind=planned.fault.kind, reason=str(error))
        if planned.every_s is None:
            return
        await asyncio.sleep(planned.every_s)


@dataclass(frozen=True)
class Serving:
    """What goes with a cluster that is a process.

    Args:
        config: what the cluster is to be.
        control_port, control_host: where it is controlled.
        control_token: what the control asks for; None: nothing on the loopback interface, and a
            token that is made up and printed beyond it.
        metrics_port: where /metrics is served besides, where the brokers listen.
        trace: takes down what happens.
        plan: the faults that come by themselves.
        view: whether to open its page in the browser.
        companion: a context entered while the cluster runs, such as one that publishes its trace.
    """

    config: ClusterConfig
    control_port: int = 0
    control_host: str = "127.0.0.1"
    control_token: str | None = None
    metrics_port: int | None = None
    trace: ClusterTrace | None = None
    plan: Sequence[PlannedFault] = ()
    view: bool = False
    companion: Callable[[Cluster], AbstractAsyncContextManager[None]] | None = None


async def serve(serving: Serving) -> None:
    """Run a cluster until SIGINT or SIGTERM.

    Raises:
        ClusterError: it can't start.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    cluster = Cluster(serving.config, serving.trace)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(cluster.stop)
        await cluster.start()
        control = await _new_control(serving, cluster)
        stack.push_async_callback(control.stop)
        await control.start()
        # What is there now stays. Looking through it at each full collection would keep all clients
        # waiting for 30 ms and more.
        gc.freeze()
        # Requests leave next to no garbage in cycles, and batches that stay: to look for it after
        # each 700 objects, Python's default, is a twelfth of all that a produce costs.
        gc.set_threshold(10_000, 5, 10)
        if serving.companion is not None:
            await stack.enter_async_context(serving.companion(cluster))
        following = loop.create_task(follow_fault_plan(cluster.fault, serving.plan))
        stack.callback(following.cancel)
        _print_addresses(serving, cluster, control)  # who reads this may use all of it
        if serving.view:
            await loop.run_in_executor(None, webbrowser.open, control.page_url)
        await stop.wait()


def _print_addresses(serving: Serving, cluster: Cluster, control: Control) -> None:
    print(f"bootstrap.servers={cluster.bootstrap_servers}")
    for listener in serving.config.all_listeners[1:]:
        servers = cluster.bootstrap_servers_of(listener.name)
        print(f"{listener.name} ({listener.security_protocol}): {servers}")
    print(f"control: {control.url} (faults, /state, /metrics)")
    print(f"view: {control.page_url}")
    if control.token is not None and serving.control_token is None:
        print(f"control token: {control.token} (for PURGATORY_CONTROL_TOKEN)")
    if serving.metrics_port is not None:
        print(f"metrics: {control.metrics_url}")
    sys.stdout.flush()


async def _new_control(serving: Serving, cluster: Cluster) -> Control:
    """Make the control. What it stands on is a third of all that is imported at the start: clients
    are served meanwhile."""
    loop, name = asyncio.get_running_loop(), "purgatory.cluster.control.control"
    new_control: type[Control] = (await loop.run_in_executor(None, import_module, name)).Control
    return new_control(
        cluster,
        serving.control_host,
        serving.control_port,
        serving.control_token,
        serving.metrics_port,
        serving.config.host,
    )
