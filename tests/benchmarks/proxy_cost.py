"""The cost of a proxy to the clients of a cluster: throughput, latency, connections.

    python -m tests.benchmarks.proxy_cost

The rivals are the cheapest possible proxy, a relay of TCP on asyncio that looks at nothing, and
toxiproxy, if `toxiproxy-server` is on the PATH. All of them, the cluster and the clients are
processes of their own, which share this machine's cores. librdkafka can't be sent through these
two: it would connect to the addresses in the metadata.
"""

from __future__ import annotations

import asyncio
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import httpx

from tests.benchmarks.cluster_clients import VALUE, answer, produce_request, record_batch
from tests.benchmarks.cluster_speed import ROOT, client, cluster
from tests.benchmarks.measurement import Figure, Size, in_turns, run_alone, say
from tests.processes.examples.conftest import free_port

MESSAGES = 90_000
_API_VERSIONS = 18
REQUESTS_PER_S = 1_000
CONNECTIONS = 10_000
_SENDERS = 20
_AT_A_TIME = 100
_OTHER_FILES = 200
_FIRST_TOPIC_PARTITION = 0


@contextmanager
def process(*command: str) -> Iterator[str]:
    """Run a proxy or a relay, and yield the addresses that it prints first."""
    with subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as started:
        assert started.stdout is not None
        try:
            yield started.stdout.readline().strip().partition("=")[2]
        finally:
            started.send_signal(signal.SIGINT)


async def relay(servers: list[str]) -> None:
    """Pass bytes on, both ways, until SIGINT."""

    class Side(asyncio.Protocol):
        def __init__(self, other: Side | None, address: tuple[str, int] | None) -> None:
            self.other = other
            self.address = address
            self.early: list[bytes] = []
            self.transport: Any = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport
            if self.address is not None:
                self.connecting = asyncio.get_running_loop().create_task(self._connect())
            elif self.other is not None:
                self.other.other = self
                for data in self.other.early:
                    self.transport.write(data)

        async def _connect(self) -> None:
            assert self.address is not None
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: Side(self, None), *self.address)

        def data_received(self, data: bytes) -> None:
            if self.other is None:
                self.early.append(data)
            else:
                self.other.transport.write(data)

        def connection_lost(self, exc: Exception | None) -> None:
            if self.other is not None and self.other.transport is not None:
                self.other.transport.close()

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    ports = []
    for server in servers:
        host, _, port = server.rpartition(":")
        listening = await loop.create_server(
            partial(Side, None, (host, int(port))), "127.0.0.1", 0, backlog=1024
        )
        ports.append(listening.sockets[0].getsockname()[1])
    print("relay=" + ",".join(f"127.0.0.1:{port}" for port in ports), flush=True)
    await stop.wait()


@contextmanager
def toxiproxy(server: str) -> Iterator[str]:
    """Run toxiproxy without toxics in front of a server, and yield its address."""
    control, listening = free_port(), free_port()
    with subprocess.Popen(
        ["toxiproxy-server", "-host", "127.0.0.1", "-port", str(control)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as started:
        try:
            made = {"name": "kafka", "listen": f"127.0.0.1:{listening}", "upstream": server}
            for _ in range(100):
                with suppress(httpx.ConnectError):
                    httpx.post(f"http://127.0.0.1:{control}/proxies", json=made).raise_for_status()
                    break
                time.sleep(0.05)
            yield made["listen"]
        finally:
            started.terminate()


async def latencies_ms(servers: str, seconds: float) -> list[float]:
    """Send produces with acks=all at a fixed rate, and return how long each took, sorted."""
    host, _, port = servers.split(",", maxsplit=1)[0].rpartition(":")
    batch = record_batch(VALUE)
    found: list[float] = []
    begin_s = time.monotonic() + 0.2
    count = int(seconds * REQUESTS_PER_S / _SENDERS)

    async def send(number: int) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for turn in range(count):
            due_s = begin_s + (turn + number / _SENDERS) * _SENDERS / REQUESTS_PER_S
            await asyncio.sleep(due_s - time.monotonic())
            sent_s = time.perf_counter()
            writer.write(produce_request(turn, _FIRST_TOPIC_PARTITION, batch))
            await answer(reader)
            found.append((time.perf_counter() - sent_s) * 1_000)
        writer.close()

    await asyncio.gather(*map(send, range(_SENDERS)))
    return sorted(found)


async def count_served(servers: str, connections: int) -> int:
    """Open connections, and return how many are served while all of them are open."""
    addresses = [server.rpartition(":") for server in servers.split(",")]
    streams = []
    for begin in range(0, connections, _AT_A_TIME):
        numbers = range(begin, min(connections, begin + _AT_A_TIME))
        picked = [addresses[number % len(addresses)] for number in numbers]
        opened = (asyncio.open_connection(host, int(port)) for host, _, port in picked)
        streams += await asyncio.gather(*opened)
    served = 0
    for begin in range(0, connections, _AT_A_TIME):
        some = streams[begin : begin + _AT_A_TIME]
        for _, writer in some:
            writer.write(struct.pack(">ihhih2s", 12, _API_VERSIONS, 0, 1, 2, b"me"))
        served += len(await asyncio.gather(*(answer(reader) for reader, _ in some)))
    for _, writer in streams:
        writer.transport.abort()
    return served


def throughput(messages: int, rounds: int) -> list[Figure]:
    with ExitStack() as stack:
        direct = stack.enter_context(cluster(quiet=True)).servers
        proxied = stack.enter_context(process(*_proxy(direct)))

        def flood(servers: str) -> Mapping[str, float]:
            return {"per_s": client("librdkafka", servers, messages)["per_s"]}

        found = in_turns(
            {"direct": partial(flood, direct), "proxy": partial(flood, proxied)}, rounds
        )
    what = f"{messages:,} messages by one idempotent producer, acks=all"
    rates = {name: one["per_s"] for name, one in found.items()}
    return [
        Figure(f"{what}, direct", rates["direct"], "per s"),
        Figure(f"{what}, by the proxy", rates["proxy"], "per s", 50_000, "higher"),
        Figure(
            "the proxy's share of the direct rate",
            rates["proxy"] / rates["direct"],
            "x",
            0.9,
            "higher",
        ),
    ]


def latency(seconds: float, rounds: int) -> list[Figure]:
    with ExitStack() as stack:
        direct = stack.enter_context(cluster(quiet=True)).servers
        servers = {
            "direct": direct,
            "relay": stack.enter_context(process("tests.benchmarks.proxy_cost", "relay", direct)),
            "proxy": stack.enter_context(process(*_proxy(direct))),
        }
        if shutil.which("toxiproxy-server"):
            servers["toxiproxy"] = stack.enter_context(toxiproxy(direct.split(",", 1)[0]))
        else:
            say("toxiproxy-server is not installed, and not measured")

        def measured(where: str) -> Mapping[str, float]:
            found = asyncio.run(latencies_ms(servers[where], seconds))
            return {"p50": found[len(found) // 2], "p99": found[int(len(found) * 0.99)]}

        found = in_turns({name: partial(measured, name) for name in servers}, rounds)
    what = f"a produce at {REQUESTS_PER_S:,} a second"
    figures = [
        Figure(f"{what}, {name}, {part}", found[name][part], "ms")
        for name in servers
        for part in ("p50", "p99")
    ]
    more = max(0.0, found["proxy"]["p99"] - found["direct"]["p99"])
    return [*figures, Figure(f"{what}: the proxy adds to the p99", more, "ms", 1.0)]


def connections(count: int) -> Figure:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most < 2 * count + _OTHER_FILES:  # the proxy has two for each
        count = (most - _OTHER_FILES) // 2
        say(f"{most:,} open files are allowed: {count:,} connections")
    with cluster(quiet=True) as running, process(*_proxy(running.servers)) as proxied:
        served = asyncio.run(count_served(proxied, count))
    return Figure("connections at a time through the proxy", served, "", count, "higher")


def _proxy(servers: str) -> tuple[str, ...]:
    return ("purgatory", "proxy", "--to", servers, "--listen", "127.0.0.1:0", "--control-port", "0")


def measure(size: Size = Size.USUAL) -> list[Figure]:
    figures = throughput(size.pick(500, MESSAGES), size.pick(1, 5))
    figures += latency(size.pick(0.2, 5), size.pick(1, 5))
    return [*figures, connections(size.pick(20, CONNECTIONS))]


if __name__ == "__main__":
    if sys.argv[1:2] == ["relay"]:
        import uvloop

        uvloop.run(relay(sys.argv[2].split(",")))
    else:
        run_alone(measure)
