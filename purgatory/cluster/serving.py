"""A process that is a cluster: brokers, control, faults by a plan; until it ends.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from purgatory.cluster.cluster import Cluster
from purgatory.cluster.cluster_config import ClusterConfig
from purgatory.cluster.cluster_trace import ClusterTrace
from purgatory.cluster.fault_plan import PlannedFault, follow_fault_plan

if TYPE_CHECKING:
    from purgatory.cluster.control.control import Control


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
        beside: what goes on while the cluster serves, such as publishing what its trace takes down.
    """

    config: ClusterConfig
    control_port: int = 0
    control_host: str = "127.0.0.1"
    control_token: str | None = None
    metrics_port: int | None = None
    trace: ClusterTrace | None = None
    plan: Sequence[PlannedFault] = ()
    view: bool = False
    beside: Callable[[Cluster], AbstractAsyncContextManager[None]] | None = None


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
        if serving.beside is not None:
            await stack.enter_async_context(serving.beside(cluster))
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
