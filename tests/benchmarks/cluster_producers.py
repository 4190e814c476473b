"""Producers with transactions for the cluster's benchmark, over bare connections.

Run as a process of its own, so that it does not share the interpreter with what it measures::

    python -m tests.benchmarks.cluster_producers HOST:PORT,... PRODUCERS SECONDS

Each producer has a connection to its coordinator and one to the leader of its partition, and one
request on its way. A transaction is an AddPartitionsToTxn, ten produces of one message, an EndTxn.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from dataclasses import dataclass, field
from datetime import timedelta

from tests.benchmarks.cluster_clients import (
    TOPIC,
    VALUE,
    produce_request,
    record_batch,
    string,
)
from tests.benchmarks.cluster_members import Connection, coordinators

PRODUCES = 10
_INIT_PRODUCER_ID, _ADD_PARTITIONS, _END = 22, 24, 26
_VERSION = 2  # of these three: the last before compact strings
_ERROR_AT = 8  # behind the number and the throttle time
_PRODUCE_ERROR_AT = 4 + 4 + 2 + len(TOPIC) + 4 + 4
_TRANSACTION = 1


def _request(api_key: int, body: bytes) -> bytes:
    header = struct.pack(">hhi", api_key, _VERSION, 0) + string("bench")
    return struct.pack(">i", len(header) + len(body)) + header + body


@dataclass
class Producer:
    """A producer that writes one transaction after another into one partition."""

    name: str
    partition: int
    coordinator: Connection
    leader: Connection
    sequence: int = 0
    commits_ms: list[float] = field(default_factory=list)
    producer_id: int = -1
    epoch: int = -1

    async def begin(self) -> None:
        """Get an id."""
        asked = {"transactional_id": self.name, "transaction_timeout": timedelta(seconds=60)}
        told = await self.coordinator.ask(_INIT_PRODUCER_ID, _VERSION, asked)
        assert told.error_code == 0, told
        self.producer_id, self.epoch = told.producer_id, told.producer_epoch

    async def transaction(self) -> None:
        """Write a transaction, and note how long its commit took."""
        who = string(self.name) + struct.pack(">qh", self.producer_id, self.epoch)
        where = struct.pack(">i", 1) + string(TOPIC) + struct.pack(">ii", 1, self.partition)
        data = await self.coordinator.send(_request(_ADD_PARTITIONS, who + where))
        assert data[-2:] == b"\0\0", data
        for _ in range(PRODUCES):
            batch = record_batch(VALUE, self.producer_id, self.epoch, self.sequence)
            data = await self.leader.send(produce_request(0, self.partition, batch, self.name))
            assert data[_PRODUCE_ERROR_AT : _PRODUCE_ERROR_AT + 2] == b"\0\0", data
            self.sequence += 1
        start_s = time.monotonic()
        data = await self.coordinator.send(_request(_END, who + b"\x01"))
        assert data[_ERROR_AT : _ERROR_AT + 2] == b"\0\0", data
        self.commits_ms.append((time.monotonic() - start_s) * 1e3)

    async def work(self, until_s: float) -> None:
        """Write transactions until a time of the monotonic clock."""
        while time.monotonic() < until_s:
            await self.transaction()


async def produce(servers: list[str], count: int, seconds: float) -> dict[str, object]:
    """Have producers write, say when all have begun; return how much came, and the commits."""
    names = [f"producer-{number}" for number in range(count)]
    places = await coordinators(servers, names, _TRANSACTION)
    producers = []
    for number, name in enumerate(names):
        partition = number % len(servers)
        coordinator = await Connection.to(places[name])
        leader = await Connection.to(servers[partition])
        producers.append(Producer(name, partition, coordinator, leader))
        await producers[-1].begin()
        await producers[-1].transaction()
        producers[-1].commits_ms.clear()
    print("ready", flush=True)
    start_s = time.monotonic()
    await asyncio.gather(*(one.work(start_s + seconds) for one in producers))
    spent_s = time.monotonic() - start_s
    commits_ms = sorted(one for producer in producers for one in producer.commits_ms)
    return {"requests": PRODUCES * len(commits_ms), "seconds": spent_s, "commits_ms": commits_ms}


def main(servers: str, count: str, seconds: str) -> None:
    print(json.dumps(asyncio.run(produce(servers.split(","), int(count), float(seconds)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
