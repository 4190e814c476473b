"""A client's latency beside others that flood a cluster, and beside many topics.

    python -m tests.benchmarks.cluster_fairness

Cluster, flood and the other client are a process each, on loopback: three of them on two cores. The
flood is librdkafka that sends 100-byte messages a request each (``batch.num.messages=1``), with as
many in flight as it likes; or a client that sends requests and never reads responses, and connects
anew when the broker stops reading. The other client is librdkafka, too: one message with acks=all
every 5 ms, to each of the three brokers in turn, timed from the call to the delivery report. The
flood's rate is that at which its messages come into the logs.

Many topics are 1,000 idle ones of six partitions, three replicas each: the cost of the cluster
while nothing happens, and the latency of the same other client.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, TopicPartition

from tests.benchmarks.cluster_clients import FLOODED_TOPIC
from tests.benchmarks.cluster_speed import ROOT, Process, cluster
from tests.benchmarks.measurement import Figure, Size, run_alone, say

_PARTITIONS = 3
_LOOK_S = 0.05
_TOPIC = ("--topic", f"{FLOODED_TOPIC}:{_PARTITIONS}")


def measure(size: Size = Size.USUAL) -> list[Figure]:
    messages, seconds = size.pick(300, 60_000), size.pick(0.3, 6.0)
    figures = []
    for acks in size.pick((1,), (1, 0)):
        alone_per_s = _flood_per_s(messages, acks)
        waits_ms: list[float] = []
        beside_per_s = _flood_per_s(messages, acks, waits_ms)
        say(f"acks={acks}: {alone_per_s:,.0f} messages a second alone, {beside_per_s:,.0f} beside")
        figures += _figures(f"acks=all beside a flood of acks={acks}", waits_ms)
        share = 100 * beside_per_s / alone_per_s
        figures.append(
            Figure(f"that flood of acks={acks}, of its rate alone", share, "%", 80, "higher")
        )
    for asked in size.pick(("metadata",), ("metadata", "records")):
        waits_ms = []
        with cluster(*_TOPIC) as running:
            _flooded_per_s(running, messages // 2, 1)
            with (
                _client("never-read", running, asked) as asking,
                _other_client(running, waits_ms),
            ):
                time.sleep(seconds)
                asking.kill()
        figures += _figures(f"acks=all beside who asks for {asked} and never reads", waits_ms)
    return figures + _many_topics(size.pick(5, 1_000), seconds)


def _many_topics(topics: int, seconds: float) -> list[Figure]:
    names = [f"--topic=topic-{number}:6" for number in range(topics)]
    waits_ms: list[float] = []
    with cluster(*names) as running:
        time.sleep(seconds)  # all are copied, and acknowledged
        before_s = running.cpu_s()
        time.sleep(seconds)
        share = (running.cpu_s() - before_s) / seconds
        with _other_client(running, waits_ms):
            time.sleep(seconds)
    what = f"{topics:,} topics of 6 partitions"
    say(f"{what}: {len(waits_ms)} messages, the slowest took {waits_ms[-1]:.1f} ms")
    return [
        Figure(f"{what}, nothing to do", 100 * share, "% of a core", 5),
        Figure(f"acks=all beside {what}, p50", waits_ms[len(waits_ms) // 2], "ms", 5),
        Figure(f"acks=all beside {what}, p99", waits_ms[int(len(waits_ms) * 0.99)], "ms"),
    ]


def _figures(what: str, waits_ms: list[float]) -> list[Figure]:
    count = len(waits_ms)
    say(f"{what}: {count} messages, the slowest took {waits_ms[-1]:.1f} ms")
    return [
        Figure(f"{what}, p50", waits_ms[count // 2], "ms"),
        Figure(f"{what}, p99", waits_ms[int(count * 0.99)], "ms", 20),
    ]


def _flood_per_s(messages: int, acks: int, waits_ms: list[float] | None = None) -> float:
    """Flood a new cluster; time another client meanwhile where there is a list to take it."""
    with cluster(*_TOPIC) as running:
        if waits_ms is None:
            return _flooded_per_s(running, messages, acks)
        with _other_client(running, waits_ms):
            return _flooded_per_s(running, messages, acks)


def _flooded_per_s(running: Process, messages: int, acks: int) -> float:
    consumer = Consumer({"bootstrap.servers": running.servers, "group.id": "watermarks"})
    with _client("flood", running, messages, acks) as flooding:
        assert flooding.stdout is not None
        assert flooding.stdout.readline() == "ready\n"
        start_s = time.monotonic()
        while _in_logs(consumer) < messages:
            time.sleep(_LOOK_S)
        spent_s = time.monotonic() - start_s
        flooding.wait()
    consumer.close()
    return messages / spent_s


def _in_logs(consumer: Consumer) -> int:
    ends = [
        consumer.get_watermark_offsets(TopicPartition(FLOODED_TOPIC, partition), timeout=60)
        for partition in range(_PARTITIONS)
    ]
    return sum(end[1] for end in ends)


@contextmanager
def _other_client(running: Process, waits_ms: list[float]) -> Iterator[None]:
    """Have another client send with acks=all until the block ends, and take its times."""
    with _client("acknowledged", running) as client:
        assert client.stdin is not None and client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        yield
        client.stdin.close()
        waits_ms += json.loads(client.stdout.readline())["ms"]


@contextmanager
def _client(kind: str, running: Process, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.benchmarks.cluster_clients", kind, running.servers]
    with subprocess.Popen(
        [*command, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        yield process


if __name__ == "__main__":
    run_alone(measure)
