"""Requests of every API and version with arbitrary values never make a broker fail.

Most requests have a valid layout: numbers at their bounds, names of existing topics and groups, of
internal ones and impossible ones; batches with a correct checksum over invalid headers and records.
The broker may close the connection, with one line in the log; a traceback is a defect.
"""

from __future__ import annotations

import asyncio
import random
import types
import typing
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from kio.index import load_request_schema
from kio.serial import entity_writer
from structlog.testing import capture_logs

from purgatory.cluster import Cluster, ClusterConfig, TopicSpec
from purgatory.cluster.records import compressed
from purgatory.kafka import GroupConfig
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import ALL_VERSIONS, CLIENT_ID, fill, record_batch

_CONNECTIONS = 400
_WAIT_S = 0.03
_WORDS = [
    *("", "t", "compacted", "none", "g", "h", "m", "1", "not a name", "..", "a" * 249, "a" * 300),
    *("é\U0001f600", "__consumer_offsets", "__transaction_state", "__share_group_state", "*"),
    *("consumer", "range", "uniform", "simple", "User:ann", "PLAIN", "SCRAM-SHA-256", "true"),
    *("retention.ms", "cleanup.policy", "compact", "min.insync.replicas", "compression.type"),
    *("lz4", "-1", "share.auto.offset.reset", "by_duration:PT1H", "remote.storage.enable"),
]
_BYTES = [b"", b"abc", bytes(4), b"\xff" * 8, b"\0\1\0\0\0\1\0\1t\0\0\0\0", b"\0ann\0secret"]
_NUMBER_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
_TIMES_MS = [0, 0, 0, 1, 10, -1, 2**31 - 1, -(2**31)]
_MUTATED = [b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff"]
_INSERTED = [b"\x01\x00\x02\x02c", b"\x02\x00\x01a\x00\x01b", b"\x7f\xff\xff\xff", b"\xff" * 4]


class _Requests:
    """Makes requests by chance: the same with the same seed, and the same topics."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.topic_ids: list[uuid.UUID] = []

    def frame(self, api_key: int, version: int) -> bytes:
        chance, request_class = self.chance, load_request_schema(api_key, version)
        header: Mapping[str, Any] = {
            "request_api_key": api_key,
            "request_api_version": version,
            "correlation_id": 1,
            "client_id": CLIENT_ID,
        }
        buffer = BytesIO()
        header_class = request_class.__header_schema__
        entity_writer(header_class)(buffer, fill(header_class, header))
        entity_writer(request_class)(buffer, self.entity(request_class, 0))
        frame = bytearray(buffer.getvalue())
        if chance.random() < 0.15:
            at = chance.randrange(8, len(frame) + 1)
            how = chance.choice(["byte", "insert", "tear"])
            if how == "byte":
                frame[at : at + 1] = chance.choice(_MUTATED)
            elif how == "insert":
                frame[at:at] = chance.choice(_INSERTED)
            else:
                del frame[at:]
        return bytes(frame)

    def entity(self, entity_class: Any, depth: int) -> Any:
        hints = typing.get_type_hints(entity_class)
        return entity_class(
            **{
                field.name: self.value(hints[field.name], field.metadata.get("kafka_type"), depth)
                for field in fields(entity_class)
                if "tag" not in field.metadata or self.chance.random() < 0.5
            }
        )

    def value(self, hint: Any, kafka_type: str | None, depth: int) -> Any:
        chance = self.chance
        if isinstance(hint, types.UnionType):
            if chance.random() < 0.2:
                return None
            hint = next(one for one in typing.get_args(hint) if one is not types.NoneType)
        if typing.get_origin(hint) is tuple:
            item, most = typing.get_args(hint)[0], 3 if depth < 4 else 1
            count = min(most, chance.choice([0, 1, 1, 1, 2, 3]))
            return tuple(self.value(item, kafka_type, depth + 1) for _ in range(count))
        if is_dataclass(hint):
            return self.entity(hint, depth + 1)
        if kafka_type in _NUMBER_BITS:
            most = 2 ** _NUMBER_BITS[kafka_type]
            return chance.choice([0, 0, 1, 1, 2, -1, -1, 3, 12, -most, most - 1, 1 - most])
        if kafka_type in ("timedelta_i32", "timedelta_i64"):
            return timedelta(milliseconds=chance.choice(_TIMES_MS))
        if kafka_type == "records":
            return chance.choice([None, b"", self.batch(), self.batch(), self.batch() * 2])
        choices: Mapping[str | None, list[Any]] = {
            "string": _WORDS,
            "bytes": _BYTES,
            "bool": [False, True],
            "uuid": [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1), *self.topic_ids],
            "float64": [0.0, float("nan"), float("inf"), -1e308, 1e-308, 1.0],
            "uint16": [0, 1, 9_092, 2**16 - 1],
        }
        return chance.choice(choices[kafka_type])

    def batch(self) -> bytes:
        """Return a batch, most often with a right length and checksum, whatever is in it."""
        chance = self.chance
        values = [b"%d" % number for number in range(chance.choice([1, 2, 5]))]
        producer_id, sequence = (chance.choice([-1, 0, 1, 1_000]) for _ in range(2))
        epoch = chance.choice([-1, 0, 1, 2**15 - 1])
        data = record_batch(values, producer_id, sequence, epoch, chance.random() < 0.3)
        header, records = bytearray(data[:61]), bytearray(data[61:])
        if chance.random() < 0.4:
            records[chance.randrange(len(records))] = chance.choice(_MUTATED)[0]
        attributes = chance.choice([0, 0, 1, 2, 3, 4, 5, 7, 8, 0x10, 0x20, 0x30, 0x7FFF])
        if attributes & 7 < 5 and chance.random() < 0.7:
            records = bytearray(compressed(attributes, bytes(records)))
        header[21:23] = attributes.to_bytes(2, "big")
        if chance.random() < 0.4:
            at, size = chance.choice([(0, 8), (12, 4), (16, 1), (23, 4), (27, 8), (35, 8), (57, 4)])
            header[at : at + size] = chance.choice(_MUTATED) * size
        if chance.random() < 0.9:
            header[8:12] = (49 + len(records)).to_bytes(4, "big")
        if chance.random() < 0.9:
            header[17:21] = crc32c(bytes(header[21:] + records)).to_bytes(4, "big")
        return bytes(header + records)


async def _ask(requests: _Requests, client: RawClient) -> None:
    """Ask a few things, each once the one before is answered, until one has to wait."""
    with suppress(TimeoutError, asyncio.IncompleteReadError, ConnectionError):
        for _ in range(requests.chance.randint(1, 4)):
            client.send(requests.frame(*requests.chance.choice(ALL_VERSIONS)))
            async with asyncio.timeout(_WAIT_S):
                length = int.from_bytes(await client.reader.readexactly(4), "big")
                await client.reader.readexactly(length)


@pytest.mark.parametrize("seed", range(3))
def test_requests_with_any_values_raise_no_internal_error(seed: int, tmp_path: Path) -> None:
    config = ClusterConfig(
        brokers=2,
        topics=[
            TopicSpec("t", 2),
            TopicSpec("compacted", settings={"cleanup.policy": "compact"}),
            TopicSpec("lz4", settings={"compression.type": "lz4"}),
        ],
        groups=GroupConfig(initial_rebalance_delay_ms=0, min_session_timeout_ms=10),
        data_dir=tmp_path / "data" if seed % 2 else None,
    )

    async def main() -> None:
        requests = _Requests(seed)
        async with Cluster(config) as cluster:
            for _ in range(_CONNECTIONS):
                topics = cluster.controller.topics.values()
                requests.topic_ids = [topic.topic_id for topic in topics]
                async with await RawClient.to(cluster, requests.chance.choice([1, 2])) as client:
                    await _ask(requests, client)

    with capture_logs() as lines:
        asyncio.run(main())
    failed = [line for line in lines if line["log_level"] == "error" or "exc_info" in line]
    assert not failed
