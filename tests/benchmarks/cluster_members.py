"""Members of groups for the cluster's benchmark, over bare connections that cost little.

Run as a process of its own, so that it does not share the interpreter with what it measures::

    python -m tests.benchmarks.cluster_members KIND HOST:PORT,... NUMBERS

``idle COUNT SECONDS INTERVAL_MS`` are members of the consumer protocol (KIP-848) that have what
they are to have: each says so once in an interval, at its own time. ``rebalance COUNT`` is one
classic group whose last member comes when all others are stable.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from tests.benchmarks.cluster_clients import TOPIC, answer
from tests.wire.cluster.wire_values import read_response, request_frame

FIND_COORDINATOR, JOIN, SYNC, HEARTBEAT = 10, 11, 14, 68
_FIND_VERSION, _JOIN_VERSION, _SYNC_VERSION, _HEARTBEAT_VERSION = 4, 5, 3, 1
MEMBERS_IN_GROUP = 20
_CONNECTIONS_TO_BROKER = 40
_ERROR_AT = 9  # behind the number, no tagged fields, and the throttle time
_REBALANCE_IN_PROGRESS = 27
_MEMBER_ID_REQUIRED = 79


class Connection:
    """One connection to a broker, with one request on its way at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, server: str) -> Connection:
        host, _, port = server.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def send(self, frame: bytes) -> bytes:
        """Send a frame that has its length, and return the answer without its own."""
        self._writer.write(frame)
        return await answer(self._reader)

    async def ask(self, api_key: int, version: int, values: Mapping[str, Any]) -> Any:
        """Ask, and return the answer's body."""
        return read_response(api_key, version, await self.send(_framed(api_key, version, values)))[
            1
        ]


def _framed(api_key: int, version: int, values: Mapping[str, Any]) -> bytes:
    frame = request_frame(api_key, version, 0, values)
    return len(frame).to_bytes(4, "big") + frame


async def coordinators(servers: list[str], names: list[str], kind: int = 0) -> dict[str, str]:
    """Return the address of the coordinator of each group, or transactional id (1)."""
    connection = await Connection.to(servers[0])
    values = {"coordinator_keys": tuple(names), "key_type": kind}
    told = await connection.ask(FIND_COORDINATOR, _FIND_VERSION, values)
    return {one.key: f"{one.host}:{one.port}" for one in told.coordinators}


# ---- members of the consumer protocol


@dataclass
class ConsumerMember:
    """A member that goes to its assignment at once."""

    group_id: str
    number: int
    connection: Connection
    epoch: int = 0
    owned: Mapping[Any, tuple[int, ...]] = field(default_factory=dict)
    is_stable: bool = False

    async def beat(self) -> None:
        """Send its heartbeat, and take its assignment."""
        values: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "rebalance_timeout": timedelta(seconds=60),
            "subscribed_topic_names": (TOPIC,),
            "topic_partitions": tuple(
                {"topic_id": topic, "partitions": numbers} for topic, numbers in self.owned.items()
            ),
        }
        told = await self.connection.ask(HEARTBEAT, _HEARTBEAT_VERSION, values)
        assert told.error_code == 0, told
        before = self.epoch, self.owned
        self.epoch = told.member_epoch
        if told.assignment is not None:
            self.owned = {one.topic_id: one.partitions for one in told.assignment.topic_partitions}
        self.is_stable = before == (self.epoch, self.owned)

    @property
    def member_id(self) -> str:
        return f"member-{self.number:032}"

    def idle_frame(self) -> bytes:
        """Return the heartbeat of a member without changes."""
        values = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "rebalance_timeout": timedelta(milliseconds=-1),
            "subscribed_topic_names": None,
            "topic_partitions": None,
        }
        return _framed(HEARTBEAT, _HEARTBEAT_VERSION, values)


async def idle_members(
    servers: list[str], count: int, seconds: float, interval_ms: int
) -> dict[str, float]:
    """Have members settle, say so, and give signs of life; return how many came, and how late."""
    names = [f"group-{number}" for number in range(-(-count // MEMBERS_IN_GROUP))]
    places = await coordinators(servers, names)
    connections = {
        server: [await Connection.to(server) for _ in range(_CONNECTIONS_TO_BROKER)]
        for server in servers
    }
    members: dict[int, list[ConsumerMember]] = {}
    for number in range(count):
        group = names[number // MEMBERS_IN_GROUP]
        shared = connections[places[group]][number % _CONNECTIONS_TO_BROKER]
        members.setdefault(id(shared), []).append(ConsumerMember(group, number, shared))
    while not all(one.is_stable for those in members.values() for one in those):
        await asyncio.gather(*(_settle(those) for those in members.values()))
    frames = {one.number: one.idle_frame() for those in members.values() for one in those}
    print("ready", flush=True)
    until_s = time.monotonic() + seconds
    counts = await asyncio.gather(
        *(
            _stay_alive(those[0].connection, [frames[one.number] for one in those], step_s, until_s)
            for those in members.values()
            for step_s in [interval_ms / 1e3 / len(those)]
        )
    )
    return {"per_s": sum(counts) / seconds}


async def _settle(members: list[ConsumerMember]) -> None:
    for one in members:
        await one.beat()


async def _stay_alive(
    connection: Connection, frames: list[bytes], step_s: float, until_s: float
) -> int:
    """Give the signs of life of a connection's members in turn, one in each step."""
    count, next_s = 0, time.monotonic()
    while next_s < until_s:
        await asyncio.sleep(max(next_s - time.monotonic(), 0))
        data = await connection.send(frames[count % len(frames)])
        assert data[_ERROR_AT : _ERROR_AT + 2] == b"\0\0", data
        count += 1
        next_s += step_s
    return count


# ---- a classic group


@dataclass
class ClassicMember:
    """A member of a classic group, with a connection of its own, as it waits for the others."""

    group_id: str
    connection: Connection
    member_id: str = ""
    generation: int = 0

    async def join(self) -> tuple[str, ...]:
        """Join; return the ids of all where this member leads."""
        while True:
            told = await self.connection.ask(JOIN, _JOIN_VERSION, self._joining())
            self.member_id = told.member_id
            if told.error_code != _MEMBER_ID_REQUIRED:
                break
        assert told.error_code == 0, told.error_code
        self.generation = told.generation_id
        return tuple(one.member_id for one in told.members)

    def _joining(self) -> dict[str, Any]:
        return {
            "group_id": self.group_id,
            "session_timeout": timedelta(seconds=60),
            "rebalance_timeout": timedelta(seconds=60),
            "member_id": self.member_id,
            "protocol_type": "consumer",
            "protocols": (
                {"name": "range", "metadata": b"m" * 50},
                {"name": "cooperative-sticky", "metadata": b"m" * 50},
            ),
        }

    async def sync(self, everybody: tuple[str, ...]) -> bool:
        """Fetch the assignment, handing in all where this member leads; False: join again."""
        values = {
            "group_id": self.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "assignments": tuple(
                {"member_id": one, "assignment": one.encode()} for one in everybody
            ),
        }
        told = await self.connection.ask(SYNC, _SYNC_VERSION, values)
        if told.error_code == _REBALANCE_IN_PROGRESS:
            return False
        assert told.error_code == 0, told.error_code
        assert bytes(told.assignment) == self.member_id.encode()
        return True

    async def rebalance(self) -> None:
        """Go through a rebalance, and through others that begin meanwhile."""
        while not await self.sync(await self.join()):
            pass


async def rebalance(servers: list[str], count: int) -> dict[str, float]:
    """Have all but one in a group; then time from the last one's join until all have their own."""
    place = (await coordinators(servers, ["classic"]))["classic"]
    members = [ClassicMember("classic", await Connection.to(place)) for _ in range(count)]
    *others, last = members
    await asyncio.gather(*(one.rebalance() for one in others))
    generations = {one.generation for one in others}
    while len(generations) > 1:  # whoever came late began another one
        await asyncio.gather(*(one.rebalance() for one in others))
        generations = {one.generation for one in others}
    print("ready", flush=True)
    start_s = time.monotonic()
    await asyncio.gather(*(one.rebalance() for one in (last, *others)))
    return {"seconds": time.monotonic() - start_s}


def main(kind: str, servers: str, *numbers: str) -> None:
    addresses = servers.split(",")
    if kind == "idle":
        count, seconds, interval_ms = numbers
        result = asyncio.run(idle_members(addresses, int(count), float(seconds), int(interval_ms)))
    else:
        result = asyncio.run(rebalance(addresses, int(numbers[0])))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
