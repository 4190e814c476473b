"""Requests of this program to a real Kafka: whether it answers, its state, new topics.

Ground rules: everything happens on the event loop's thread. Each request has a connection of its
own, past the proxy, and a login.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kio.index import load_request_schema

from purgatory.cluster.errors import BadRequestError
from purgatory.cluster.listeners import Endpoint
from purgatory.cluster.protocol.wire import Request, build, encode_request
from purgatory.kafka.errors import ClusterError, ErrorCode
from purgatory.proxy.addresses import open_response
from purgatory.real_kafka.settings import ADMIN

_METADATA, _LIST_OFFSETS, _LIST_GROUPS, _DESCRIBE_GROUPS = (3, 12), (2, 7), (16, 4), (15, 5)
_HANDSHAKE, _AUTHENTICATE, _CREATE_TOPICS = (17, 1), (36, 2), (19, 7)
_CLIENT_ID = "purgatory-admin"
_TIMEOUT_S = 10.0
_CREATES_MS = 20_000
_EARLIEST, _LATEST = -2, -1
_NO_EPOCH = -1


class PartitionOffsets(NamedTuple):
    """The offsets of a partition that its leader tells; None: it tells none."""

    start: int | None = None
    high_watermark: int | None = None


class Admin:
    """Sends requests to brokers.

    Args:
        endpoints: the brokers' addresses, by id.
        password: that of this program.
        live: returns the brokers that may be asked.
    """

    def __init__(
        self,
        endpoints: Mapping[int, Endpoint],
        password: str,
        live: Callable[[], Sequence[int]],
    ) -> None:
        self._endpoints = endpoints
        self._password = password
        self._live = live

    async def ask(
        self, broker_id: int, api: tuple[int, int], body: Mapping[str, Any], wait_s: float = 0
    ) -> Any:
        """Send a request to a broker, and return its response, an entity of `kio`.

        Args:
            broker_id: the broker.
            api: the API and its version.
            body: the fields.
            wait_s: how much longer than usual the response may take.

        Raises:
            ClusterError: the broker does not answer.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_S + wait_s):
                reader, writer = await asyncio.open_connection(*self._endpoints[broker_id])
                try:
                    await _exchange(reader, writer, _HANDSHAKE, {"mechanism": "PLAIN"})
                    token = f"\0{ADMIN}\0{self._password}".encode()
                    login = await _exchange(reader, writer, _AUTHENTICATE, {"auth_bytes": token})
                    if login.error_code:
                        raise ClusterError(f"broker {broker_id} refuses the login of this program")
                    return await _exchange(reader, writer, api, body)
                finally:
                    writer.transport.abort()
        except (OSError, EOFError, BadRequestError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise ClusterError(f"broker {broker_id} of Kafka does not answer: {why}") from error

    async def _ask_any(
        self, api: tuple[int, int], body: Mapping[str, Any], wait_s: float = 0
    ) -> Any:
        failure = ClusterError("no broker of Kafka lives")
        for broker_id in self._live():
            try:
                return await self.ask(broker_id, api, body, wait_s)
            except ClusterError as error:
                failure = error
        raise failure

    async def metadata(self, broker_id: int | None = None) -> Any:
        """Return a Metadata response about all topics, of one broker or of any."""
        body = {"topics": None, "allow_auto_topic_creation": False}
        body["include_topic_authorized_operations"] = False
        if broker_id is None:
            return await self._ask_any(_METADATA, body)
        return await self.ask(broker_id, _METADATA, body)

    async def create_topic(
        self, name: str, partitions: int, replication: int, settings: Mapping[str, str]
    ) -> None:
        """Create a topic, and return when all live brokers know the leaders of its partitions.

        Raises:
            ClusterError: Kafka refused it.
        """
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": replication,
            "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in settings.items()],
        }
        body = {"topics": [topic], "timeout": _CREATES_MS, "validate_only": False}
        response = await self._ask_any(_CREATE_TOPICS, body, _CREATES_MS / 1_000)
        (created,) = response.topics
        if created.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
            raise ClusterError(f"topic {name} exists")
        if created.error_code:
            reason = created.error_message or created.error_code.name
            raise ClusterError(f"topic {name}: {reason}")
        async with asyncio.timeout(_CREATES_MS / 1_000):
            for broker_id in self._live():
                while not _has_leaders(await self.metadata(broker_id), name, partitions):
                    await asyncio.sleep(0.05)

    async def offsets(self, metadata: Any) -> Mapping[tuple[str, int], PartitionOffsets]:
        """Return the offsets of all partitions that have live leaders, by topic and number."""
        led: dict[int, dict[str, list[int]]] = {}
        for topic in metadata.topics:
            for one in topic.partitions:
                by_topic = led.setdefault(one.leader_id, {})
                by_topic.setdefault(topic.name, []).append(one.partition_index)
        found: dict[tuple[str, int], PartitionOffsets] = {}
        for leader in self._live():
            starts = await self._list_offsets(leader, led.get(leader, {}), _EARLIEST)
            ends = await self._list_offsets(leader, led.get(leader, {}), _LATEST)
            found |= {key: PartitionOffsets(starts.get(key), ends[key]) for key in ends}
        return found

    async def _list_offsets(
        self, leader: int, partitions: Mapping[str, Sequence[int]], timestamp: int
    ) -> Mapping[tuple[str, int], int]:
        if not partitions:
            return {}
        topics = [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": number,
                        "current_leader_epoch": _NO_EPOCH,
                        "timestamp": timestamp,
                    }
                    for number in numbers
                ],
            }
            for topic, numbers in partitions.items()
        ]
        body = {"replica_id": -1, "isolation_level": 0, "topics": topics}
        response = await self.ask(leader, _LIST_OFFSETS, body)
        return {
            (topic.name, one.partition_index): one.offset
            for topic in response.topics
            for one in topic.partitions
            if not one.error_code
        }

    async def groups(self) -> list[dict[str, Any]]:
        """Return the classic groups of all live brokers, as a cluster's state has them."""
        found: list[dict[str, Any]] = []
        for broker_id in self._live():
            listed = await self.ask(broker_id, _LIST_GROUPS, {"states_filter": []})
            names = [group.group_id for group in listed.groups]
            if not names:
                continue
            body = {"groups": names, "include_authorized_operations": False}
            described = await self.ask(broker_id, _DESCRIBE_GROUPS, body)
            found += [
                {
                    "name": group.group_id,
                    "broker": broker_id,
                    "state": group.group_state,
                    "generation": None,
                    "members": [member.member_id for member in group.members],
                }
                for group in described.groups
                if not group.error_code
            ]
        return found


def _has_leaders(metadata: Any, name: str, partitions: int) -> bool:
    return any(
        topic.name == name
        and len(topic.partitions) == partitions
        and not any(one.error_code or one.leader_id < 0 for one in topic.partitions)
        for topic in metadata.topics
    )


async def _exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    api: tuple[int, int],
    values: Mapping[str, Any],
) -> Any:
    body = build(load_request_schema(*api), values)
    request = Request(*api, 1, _CLIENT_ID, body)
    writer.write(encode_request(request))
    prefix = await reader.readexactly(4)
    frame = prefix + await reader.readexactly(int.from_bytes(prefix, "big"))
    return open_response(request, frame)[1]
