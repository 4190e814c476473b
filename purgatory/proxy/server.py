"""A process that is a proxy, with its control and planned faults, until it is stopped.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import webbrowser
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress

from purgatory.cluster.server import PlannedFault, follow_fault_plan
from purgatory.cluster.trace import ClusterTrace
from purgatory.proxy.control import ProxyControl
from purgatory.proxy.proxy import ProxyConfig, running_proxy


async def serve(
    config: ProxyConfig,
    control_port: int = 0,
    control_host: str = "127.0.0.1",
    control_token: str | None = None,
    plan: Sequence[PlannedFault] = (),
    trace: ClusterTrace | None = None,
    view: bool = False,
) -> None:
    """Run a proxy until SIGINT or SIGTERM.

    Args:
        config: what it is to be.
        control_port, control_host, control_token: as `ProxyControl` has them.
        plan: the faults that come by themselves.
        trace: records what passes.
        view: whether to open its page in the browser.

    Raises:
        ClusterError: it can't start.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    _allow_open_files()
    async with AsyncExitStack() as stack:
        starting = loop.create_task(stack.enter_async_context(running_proxy(config, trace)))
        stopping = loop.create_task(stop.wait())
        stack.callback(stopping.cancel)
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
            return
        proxy = starting.result()
        control = ProxyControl(proxy, control_host, control_port, control_token)
        stack.push_async_callback(control.stop)
        await control.start()
        following = loop.create_task(follow_fault_plan(proxy.fault, plan))
        stack.callback(following.cancel)
        print(f"bootstrap.servers={proxy.bootstrap_servers}")
        print(f"control: {control.url} (faults, /state)")
        print(f"view: {control.page_url}", flush=True)
        if control.token is not None and control_token is None:
            print(f"control token: {control.token} (for PURGATORY_CONTROL_TOKEN)", flush=True)
        if view:
            await loop.run_in_executor(None, webbrowser.open, control.page_url)
        await stopping


def _allow_open_files() -> None:
    """Allow as many open files as the system does: each client takes two."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # where there is a lower limit that nobody tells
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
