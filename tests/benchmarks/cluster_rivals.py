"""The cluster beside kfake (franz-go's), librdkafka's mock cluster and a real Kafka, in turns.

    python -m tests.benchmarks.cluster_rivals
    BEFORE=../older python -m tests.benchmarks.cluster_rivals   # an older tree of ours is one, too

All have three brokers, one topic of three partitions (the mock: of four, its default), and the same
clients on the same machine. kfake is built by Go, the mock runs in a client of its own, the real
Kafka's jars are fetched by Maven; a rival that can't be had is left out, with a line.

The start is that of the command, to the first Metadata; the memory is what the process then has. A
real Kafka's are in ``engines_cost``.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

from tests.benchmarks.cluster_clients import TOPIC, metadata_request
from tests.benchmarks.cluster_speed import ROOT, client, cluster, cpu_s
from tests.benchmarks.engines_cost import memory_mb
from tests.benchmarks.measurement import Figure, Size, in_turns, run_alone, say

PARTITIONS, BROKERS = 3, 3
_FRANZ_GO = "github.com/twmb/franz-go@v1.22.3"
_KFAKE = "github.com/twmb/franz-go/pkg/kfake@v0.0.0-20260918054303-01f206a7e32c"
_BUILD = ROOT / "build" / "kfake"
_PORT = 20_192
_SERVER = f"""\
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {{
	topics := kfake.SeedTopics({PARTITIONS}, "{TOPIC}")
	cluster, err := kfake.NewCluster(kfake.NumBrokers({BROKERS}), topics)
	if err != nil {{
		panic(err)
	}}
	fmt.Println(strings.Join(cluster.ListenAddrs(), ","))
	os.Stdin.Read(make([]byte, 1))
}}
"""


class Rival(NamedTuple):
    """A cluster that runs: where it listens, and its processes."""

    servers: str
    pids: Sequence[int]


_Way = Callable[[], AbstractContextManager[Rival]]


def _measured(rival: Rival, messages: int, requests: int) -> Mapping[str, float]:
    """Return rates, waits, and what they take of the rival's processors."""
    found: dict[str, float] = {}
    for kind, count in (("librdkafka", messages), ("consume", messages), ("one", requests)):
        before_s = sum(map(cpu_s, rival.pids))
        result = client(kind, rival.servers, count)
        spent_s = sum(map(cpu_s, rival.pids)) - before_s
        found |= {f"{kind} {key}": value for key, value in result.items()}
        found[f"{kind} us"] = 1e6 * spent_s / count
    return found


def _start(way: _Way) -> Mapping[str, float]:
    """Start a rival until it has answered once."""
    begin_s = time.monotonic()
    with way() as rival:
        host, _, port = rival.servers.partition(",")[0].rpartition(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(metadata_request())
            assert connection.recv(1)
        took_s = time.monotonic() - begin_s
        spent_s = sum(map(cpu_s, rival.pids))
        return {"start s": took_s, "start cpu_s": spent_s, "start mb": memory_mb(rival.pids[0])}


@contextmanager
def _ours(root: Path, bytecode: Path) -> Iterator[Rival]:
    with cluster(partitions=PARTITIONS, quiet=True, root=root, bytecode=bytecode) as running:
        yield Rival(running.servers, [running.pid])


def _build_kfake() -> None:
    if shutil.which("go") is None:
        raise RuntimeError("there is no Go")
    _BUILD.mkdir(parents=True, exist_ok=True)
    (_BUILD / "main.go").write_text(_SERVER)
    steps = ["mod init kfake-server", f"get {_KFAKE}", f"get {_FRANZ_GO}", "build -o server ."]
    for step in steps[(_BUILD / "go.mod").exists() :]:
        subprocess.run(["go", *step.split()], cwd=_BUILD, check=True, capture_output=True)


@contextmanager
def _process(*command: str | Path) -> Iterator[Rival]:
    """Run a rival that prints where it listens, and ends with its standard input."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        yield Rival(process.stdout.readline().strip(), [process.pid])
        process.stdin.close()


@contextmanager
def _real() -> Iterator[Rival]:
    # Here, since they bring much with them, which no other benchmark is to carry.
    from tests.recorded.real_kafka import HOST, real_kafka
    from tests.recorded.recordings import NEWEST

    with real_kafka(NEWEST, _PORT) as kafka:
        asyncio.run(_create(HOST, kafka.port))
        servers = ",".join(f"{HOST}:{kafka.port + place}" for place in range(BROKERS))
        yield Rival(servers, kafka.pids)


async def _create(host: str, port: int) -> None:
    from tests.recorded.recorder import Recorder

    recorder = Recorder(host, port, "")
    await recorder.start()
    replicas = [[place + 1, *({1, 2, 3} - {place + 1})] for place in range(PARTITIONS)]
    topic = {
        "Name": TOPIC,
        "NumPartitions": -1,
        "ReplicationFactor": -1,
        "Configs": [],
        "Assignments": [
            {"PartitionIndex": place, "BrokerIds": brokers}
            for place, brokers in enumerate(replicas)
        ],
    }
    await recorder.ask_quietly("CreateTopics", 7, {"Topics": [topic], "timeoutMs": 60_000})
    await asyncio.sleep(5)
    recorder.close()


def _ways(bytecode: Path, size: Size) -> Mapping[str, _Way]:
    """Return how to start each rival whose start is measured."""
    mock = (sys.executable, "-m", "tests.benchmarks.cluster_clients", "mock", "-")
    ways: dict[str, _Way] = {
        "the cluster": partial(_ours, ROOT, bytecode),
        "librdkafka's mock": partial(_process, *mock),
    }
    if size is Size.SMALL:
        return ways
    if before := os.environ.get("BEFORE"):
        ways["the cluster before"] = partial(_ours, Path(before), bytecode)
    try:
        _build_kfake()
        ways["kfake"] = partial(_process, _BUILD / "server")
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        say(f"kfake: no figures, {error}")
    return ways


def _started(stack: ExitStack, ways: Mapping[str, _Way], size: Size) -> Mapping[str, Rival]:
    """Start all that can be had."""
    rivals = {name: stack.enter_context(way()) for name, way in ways.items()}
    if size is not Size.SMALL:
        try:
            rivals["Kafka"] = stack.enter_context(_real())
        except Exception as error:
            say(f"Kafka: no figures, {error}")
    return rivals


def measure(size: Size = Size.USUAL) -> list[Figure]:
    messages, requests = size.pick(300, 100_000), size.pick(20, 1_000)
    with TemporaryDirectory() as bytecode, ExitStack() as stack:
        ways = _ways(Path(bytecode), size)
        for way in ways.values():  # the first writes its bytecode
            _start(way)
        starts = in_turns(
            {name: partial(_start, way) for name, way in ways.items()}, size.pick(1, 7)
        )
        rivals = _started(stack, ways, size)
        for rival in rivals.values():  # connections, code that is compiled at its first use
            _measured(rival, size.pick(10, 20_000), size.pick(5, 500))
        found = in_turns(
            {name: partial(_measured, rival, messages, requests) for name, rival in rivals.items()},
            size.pick(1, 5),
        )
    for name, start in starts.items():
        found[name] |= start
    return [
        Figure(f"{name}: {what}", of[key], unit, _TARGETS.get((name, key)), better)
        for what, key, unit, better in _FIGURES
        for name, of in found.items()
        if key in of
    ] + _ratios(found)


def _ratios(found: Mapping[str, Mapping[str, float]]) -> list[Figure]:
    if "kfake" not in found:
        return []
    ours, kfake = found["the cluster"], found["kfake"]
    return [
        Figure(f"rate of the cluster / kfake: {what}", ours[key] / kfake[key], "x", 0.9, "higher")
        for what, key in (
            ("messages produced", "librdkafka per_s"),
            ("messages consumed", "consume per_s"),
        )
    ]


_FIGURES: Sequence[tuple[str, str, str, Literal["lower", "higher"]]] = (
    ("from the command to the first Metadata", "start s", "s", "lower"),
    ("the start, of the processors", "start cpu_s", "s", "lower"),
    ("memory after the start", "start mb", "MB", "lower"),
    ("messages produced", "librdkafka per_s", "per s", "higher"),
    ("a message produced, of the processors", "librdkafka us", "us", "lower"),
    ("messages consumed", "consume per_s", "per s", "higher"),
    ("a message consumed, of the processors", "consume us", "us", "lower"),
    ("a produce request with acks=all, p50", "one p50_us", "us", "lower"),
    ("a produce request with acks=all, of the processors", "one us", "us", "lower"),
)
_TARGETS = {
    ("the cluster", "start s"): 0.6,
    ("the cluster", "start mb"): 80,
    ("the cluster", "librdkafka per_s"): 100_000,
    ("the cluster", "consume per_s"): 100_000,
    ("the cluster", "one p50_us"): 200,
}


if __name__ == "__main__":
    run_alone(measure)
