"""The process of a cluster or a proxy, with its control and planned faults, until a signal.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from purgatory.cluster.cluster import Cluster
from purgatory.cluster.config import ClusterConfig
from purgatory.cluster.fault_injection import Served
from purgatory.cluster.trace import ClusterTrace

if TYPE_CHECKING:
    from purgatory.cluster.control.control import FaultControl
    from purgatory.cluster.fault_plan import PlannedFault


@dataclass(frozen=True)
class Serving:
    """The arguments of a cluster's process.

    Args:
        config: the configuration of the cluster.
        control_port, control_host: the address of the control.
        control_token: the token of the control; None: none on the loopback interface, and a new
            one, which is printed, beyond it.
        metrics_port: another port of /metrics, on the brokers' host.
        trace: records events.
        plan: the planned faults.
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
        ClusterError: the start failed.
    """
    cluster, companion = Cluster(serving.config, serving.trace), serving.companion

    def new_control() -> FaultControl:
        from purgatory.cluster.control.control import Control

        return Control(
            cluster,
            serving.control_host,
            serving.control_port,
            serving.control_token,
            serving.metrics_port,
            serving.config.host,
        )

    await serve_until_stopped(
        cluster,
        new_control,
        serving.plan,
        serving.view,
        None if companion is None else partial(companion, cluster),
    )


async def serve_until_stopped(
    served: Served,
    new_control: Callable[[], FaultControl],
    plan: Sequence[PlannedFault] = (),
    view: bool = False,
    companion: Callable[[], AbstractAsyncContextManager[None]] | None = None,
) -> None:
    """Run a cluster or a proxy until SIGINT or SIGTERM, and print its addresses.

    Args:
        served: the cluster or the proxy.
        new_control: makes its control.
        plan, view, companion: as `Serving` has them.

    Raises:
        ClusterError: the start failed.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    _allow_open_files()
    async with AsyncExitStack() as stack:
        stopping = loop.create_task(stop.wait())
        stack.callback(stopping.cancel)
        stack.push_async_callback(served.stop)
        starting = loop.create_task(served.start())
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
            return
        starting.result()
        # The imports of the control are a third of all imports at the start: clients are served
        # meanwhile.
        await loop.run_in_executor(None, import_module, "purgatory.cluster.control.control")
        control = new_control()
        stack.push_async_callback(control.stop)
        await control.start()
        # The present objects stay: scanning them at each full collection would delay all clients by
        # 30 ms and more.
        gc.freeze()
        # Requests leave hardly any garbage in cycles, and batches stay: a collection after each 700
        # objects, Python's default, is a twelfth of the cost of a produce.
        gc.set_threshold(10_000, 5, 10)
        if companion is not None:
            await stack.enter_async_context(companion())
        if plan:
            from purgatory.cluster.fault_plan import follow_fault_plan

            following = loop.create_task(follow_fault_plan(served.fault, plan))
            stack.callback(following.cancel)
        print(f"bootstrap.servers={served.bootstrap_servers}")
        # After the last line, all addresses are in use.
        print("\n".join(control.addresses()), flush=True)
        if view:
            await loop.run_in_executor(None, webbrowser.open, control.page_url)
        await stopping


def _allow_open_files() -> None:
    """Raise the limit of open files: each client takes one, or two in a proxy."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # an undocumented lower limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
