"""Clients under load while things go wrong at random, and the trace of it all.

    python -m tests.processes.cluster.load_and_faults SECONDS SEED FOLDER

The same seed brings the same faults in the same order; the faults they meet depend on the machine.

Two of the settings promise less of librdkafka than their names say, because it has the next request
of a partition ready when one is refused, and sends it first:

* With one request in flight, that is a reordering. Produces are refused only once this producer is
  done, after half of the time.
* With idempotence, that request is out of sequence, and librdkafka begins new sequences for all
  partitions: a batch of another one that was stored, and whose answer was lost, is stored again,
  and no broker can know it. This producer thus never has two batches of a partition in flight: it
  fills one for each, and waits for them.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from purgatory.cluster import (
    ClusterConfig,
    ClusterError,
    GroupConfig,
    ThreadedCluster,
    TopicSpec,
    start_trace,
)

TOPIC = "orders"
PARTITIONS = 3
IDEMPOTENT = "idempotent"
IN_FLIGHT_1 = "in-flight-1"
PRODUCERS: Mapping[str, Mapping[str, Any]] = {
    # The producer lingers until it is flushed.
    IDEMPOTENT: {"enable.idempotence": True, "acks": "all", "linger.ms": 20_000},
    "in-flight-5": {"max.in.flight.requests.per.connection": 5, "acks": "all"},
    IN_FLIGHT_1: {"max.in.flight.requests.per.connection": 1, "acks": "all"},
}
"""The producers, by client id: their promises differ."""

_CONFIGURATIONS = [
    {
        "group": name,
        "acks": -1,
        "idempotence": bool(settings.get("enable.idempotence", False)),
        "max_in_flight": settings.get("max.in.flight.requests.per.connection", 5),
        "retries": 2**31 - 1,
    }
    for name, settings in PRODUCERS.items()
]
_BATCHES_OF = 10 * PARTITIONS
_CONSUMERS = [{"group": "reader", "assignment": "assign", "isolation": "read_uncommitted"}]


def one_fault(rng: random.Random, refuse: bool) -> Callable[[ThreadedCluster], object]:
    """Return a fault, drawn at random, to be begun; if `refuse`, perhaps one of refusals."""
    broker, seconds = rng.randint(1, 3), rng.uniform(0.3, 1.2)
    other = broker % 3 + 1
    partition = rng.randrange(PARTITIONS)
    count = rng.randint(1, 3)
    choices: list[Callable[[ThreadedCluster], object]] = [
        lambda cluster: cluster.fault.stall_follower(broker, for_s=seconds),
        lambda cluster: cluster.fault.slow_follower(broker, lag_ms=30, for_s=seconds),
        lambda cluster: cluster.fault.kill(broker, for_s=seconds),
        lambda cluster: cluster.fault.pause(broker, for_s=seconds),
        lambda cluster: cluster.fault.cut_link(broker, other, for_s=seconds),
        lambda cluster: cluster.fault.lose_responses(broker, count=count, api="produce", for_s=1),
        lambda cluster: cluster.fault.cut_connections(broker),
        lambda cluster: cluster.fault.shrink_isr(TOPIC, partition, broker, for_s=seconds),
    ]
    if refuse and rng.random() < 0.5:
        return lambda cluster: cluster.fault.refuse_produces(broker, count=count, for_s=1)
    return rng.choice(choices)


def produce(servers: str, name: str, until: float) -> int:
    """Send numbered values as they are taken; return how many were acknowledged."""
    config = {
        "bootstrap.servers": servers,
        "client.id": name,
        "linger.ms": 2,
        "request.timeout.ms": 1_000,
        "message.timeout.ms": 30_000,
        "retry.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
        "log_level": 0,
    }
    producer = Producer({**config, **PRODUCERS[name]})
    acknowledged = 0

    def count(error: object, message: object) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    number = 0
    while time.monotonic() < until:
        value = f"{name} {number}".encode()
        producer.produce(TOPIC, value, partition=number % PARTITIONS, on_delivery=count)
        number += 1
        if name != IDEMPOTENT:
            producer.poll(0.002)
        elif number % _BATCHES_OF == 0:
            producer.flush(40)
    producer.flush(40)
    return acknowledged


def read_all(servers: str) -> int:
    """Read every partition from its beginning to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "client.id": "reader",
            "group.id": "readers",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    parts = [TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)]
    ends = [consumer.get_watermark_offsets(part, timeout=20)[1] for part in parts]
    consumer.assign(parts)
    read = 0
    deadline = time.monotonic() + 60
    while read < sum(ends) and time.monotonic() < deadline:
        read += sum(message.error() is None for message in consumer.consume(5_000, 0.5))
    consumer.close()
    assert read >= sum(ends), f"read {read} of {sum(ends)}"
    return read


def run(seconds: float, seed: int, folder: Path) -> dict[str, int]:
    """Produce for so long while faults come, read everything, and write the trace.

    Returns:
        How many records were acknowledged to each producer.
    """
    trace, writer = start_trace(folder, "load", _CONFIGURATIONS, _CONSUMERS)
    config = ClusterConfig(
        topics=[TopicSpec(TOPIC, PARTITIONS)],
        min_insync_replicas=2,
        replica_max_lag_ms=1_000,
        groups=GroupConfig(initial_rebalance_delay_ms=0, min_session_timeout_ms=100),
    )
    rng = random.Random(seed)
    acknowledged: dict[str, int] = {}
    with ThreadedCluster(config, trace) as cluster:
        start = time.monotonic()
        until = start + seconds
        ends = {IN_FLIGHT_1: start + seconds / 2}
        servers = cluster.bootstrap_servers

        def work(name: str) -> None:
            acknowledged[name] = produce(servers, name, ends.get(name, until))

        threads = {name: threading.Thread(target=work, args=(name,)) for name in PRODUCERS}
        for thread in threads.values():
            thread.start()
        while time.monotonic() < until:
            with suppress(ClusterError):  # it is dead already, or leads
                one_fault(rng, refuse=not threads[IN_FLIGHT_1].is_alive())(cluster)
            time.sleep(rng.uniform(0.2, 0.8))
        cluster.fault.end_all()
        for thread in threads.values():
            thread.join()
        read_all(servers)
    trace.close()
    writer.finish(trace.duration_ms, {})
    return acknowledged


if __name__ == "__main__":
    print(run(float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
