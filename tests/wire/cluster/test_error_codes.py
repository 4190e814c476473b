"""Error codes for outdated or invalid requests: those of Kafka."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from crc32c import crc32c

from purgatory.cluster import Cluster, ClusterConfig, GroupConfig, TopicSpec
from purgatory.cluster.log_validator import validated
from purgatory.cluster.records import DecompressionBudget
from purgatory.kafka import ErrorCode, KafkaError, LogConfig, RecordBatch, TopicPartition
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import RECORD_TIME_MS, keyed_batch, record_batch

_NOT_ASKED = -(2**31)
_ONE = TopicSpec("one", 1, 1)


def _run(main: Callable[[Cluster, RawClient], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        config = ClusterConfig(**{"brokers": 3, "topics": [_ONE], **options})
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            await main(cluster, client)

    asyncio.run(run())


def _produce(topic: str, records: bytes, partition: int = 0) -> dict[str, Any]:
    data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
    return {"acks": -1, "timeout": timedelta(seconds=10), "topic_data": data}


@pytest.mark.parametrize(
    ("topic", "partition", "code"),
    [
        ("one", 0, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("one", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("none", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_broker_without_the_replica_returns_not_leader(
    topic: str, partition: int, code: ErrorCode
) -> None:
    async def main(cluster: Cluster, _: RawClient) -> None:
        state = cluster.controller.state_of(TopicPartition("one", 0))
        assert state is not None
        elsewhere = next(one for one in cluster.brokers if one not in state.replicas)
        async with await RawClient.to(cluster, elsewhere) as client:
            answer = await client.ask(0, 9, _produce(topic, record_batch([b"x"]), partition))
            assert answer.responses[0].partition_responses[0].error_code == code
            asked = {"partition": partition, "partition_max_bytes": 1_000}
            fetch = {"topics": [{"topic": topic, "partitions": [asked]}]}
            answer = await client.ask(1, 11, fetch)
            assert answer.responses[0].partitions[0].error_code == code
            asked = {"partition_index": partition, "timestamp": -1}
            answer = await client.ask(2, 7, {"topics": [{"name": topic, "partitions": [asked]}]})
            assert answer.topics[0].partitions[0].error_code == code
            asked = {"partition": partition, "leader_epoch": 0, "current_leader_epoch": -1}
            answer = await client.ask(23, 4, {"topics": [{"topic": topic, "partitions": [asked]}]})
            assert answer.topics[0].partitions[0].error_code == code
            asked = {"partition_index": partition, "offset": 0}
            answer = await client.ask(21, 2, {"topics": [{"name": topic, "partitions": [asked]}]})
            assert answer.topics[0].partitions[0].error_code == code

    _run(main)


def _keyed(keys: list[bytes | None]) -> bytes:
    return keyed_batch([(key, RECORD_TIME_MS) for key in keys])


def _compressed(batch: bytes) -> bytes:
    """Return the batch with its records compressed by gzip."""
    data = bytearray(batch[:61] + gzip.compress(batch[61:]))
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[21:23] = (1).to_bytes(2, "big")
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def _sealed(batch: bytes, records: bytes | None = None, **header: int) -> bytes:
    """Return a batch with other records or numbers in its header, and the checksum of these."""
    data = bytearray(batch if records is None else batch[:61] + records)
    at = {"base_offset": (0, 8), "attributes": (21, 2), "last_delta": (23, 4), "count": (57, 4)}
    for name, value in header.items():
        begin, size = at[name]
        data[begin : begin + size] = value.to_bytes(size, "big")
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


_BATCH = record_batch([b"one"])
_SENT = {
    "no bytes": (b"", ErrorCode.INVALID_RECORD),
    "too few bytes for a length": (_BATCH[:11], ErrorCode.INVALID_RECORD),
    "not all of a batch": (_BATCH[:-1], ErrorCode.INVALID_RECORD),
    "two batches": (_BATCH * 2, ErrorCode.INVALID_RECORD),
    "a batch and a half": (_BATCH + _BATCH[:40], ErrorCode.NONE),
    "magic 0": (_BATCH[:16] + b"\0" + _BATCH[17:], ErrorCode.INVALID_RECORD),
    "magic 1": (_BATCH[:16] + b"\1" + _BATCH[17:], ErrorCode.INVALID_RECORD),
    "magic 3": (_BATCH[:16] + b"\3" + _BATCH[17:], ErrorCode.CORRUPT_MESSAGE),
    "an offset": (_sealed(_BATCH, base_offset=1), ErrorCode.INVALID_RECORD),
    "two records in the header": (_sealed(_BATCH, count=2), ErrorCode.INVALID_RECORD),
    "no records in the header": (_sealed(_BATCH, count=0), ErrorCode.INVALID_RECORD),
    "no control record": (_sealed(_BATCH, attributes=0x20), ErrorCode.INVALID_RECORD),
    "a length below all formats": (
        _BATCH[:8] + (13).to_bytes(4, "big") + _BATCH[12:25],
        ErrorCode.CORRUPT_MESSAGE,
    ),
    "a wrong checksum": (_BATCH[:-1] + b"\1", ErrorCode.CORRUPT_MESSAGE),
}
_RECORDS = keyed_batch([(b"k", RECORD_TIME_MS), (b"l", RECORD_TIME_MS)])
_MALFORMED = {
    "a length beyond the batch": _sealed(_RECORDS, b"\x7e" + _RECORDS[62:]),
    "a key beyond its record": _sealed(_RECORDS, _RECORDS[61:65] + b"\x7e" + _RECORDS[66:]),
    "bytes after the last record": _sealed(_RECORDS, _RECORDS[61:] + b"x"),
    "more headers than bytes": _sealed(_RECORDS, _RECORDS[61:-1] + b"\x08"),
    "a negative number of headers": _sealed(_RECORDS, _RECORDS[61:-1] + b"\x01"),
    "fewer records than said": _sealed(_RECORDS, count=3, last_delta=2),
    "not the codec that it says": _sealed(_RECORDS, attributes=1),
}


@pytest.mark.parametrize("version", [3, 9])
@pytest.mark.parametrize("what", _SENT)
def test_produce_needs_one_valid_batch_for_each_partition(what: str, version: int) -> None:
    async def main(cluster: Cluster, _: RawClient) -> None:
        state = cluster.controller.state_of(TopicPartition("one", 0))
        assert state is not None
        async with await RawClient.to(cluster, state.leader) as leader:
            records, code = _SENT[what]
            for sent, told in ((records, code), (_BATCH, ErrorCode.NONE)):
                answer = await leader.ask(0, version, _produce("one", sent))
                one = answer.responses[0].partition_responses[0]
                assert one.error_code == told
            assert one.base_offset == (code is ErrorCode.NONE)

    _run(main)


@pytest.mark.parametrize("what", _MALFORMED)
def test_invalid_records_are_refused(what: str) -> None:
    batch = RecordBatch.from_bytes(_MALFORMED[what], checksum=crc32c)
    with pytest.raises(KafkaError) as caught:
        validated(
            [batch],
            LogConfig(),
            TopicPartition("t", 0),
            lambda: 0,
            DecompressionBudget(),
        )
    is_compressed = what == "not the codec that it says"
    expected = ErrorCode.UNKNOWN_SERVER_ERROR if is_compressed else ErrorCode.INVALID_RECORD
    assert caught.value.code is expected


def test_compacted_topic_refuses_records_without_a_key() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        configs = [{"name": "cleanup.policy", "value": "compact"}]
        asked = {"name": "c", "num_partitions": 1, "replication_factor": 3, "configs": configs}
        assert (await client.ask(19, 6, {"topics": [asked]})).topics[0].error_code == 0
        state = cluster.controller.state_of(TopicPartition("c", 0))
        assert state is not None
        async with await RawClient.to(cluster, state.leader) as leader:
            for batch in (_keyed([b"k", None, None]), _compressed(_keyed([b"k", None, None]))):
                answer = await leader.ask(0, 9, _produce("c", batch))
                one = answer.responses[0].partition_responses[0]
                assert (one.error_code, one.base_offset) == (ErrorCode.INVALID_RECORD, -1)
                assert "2 of its 3 records are invalid" in one.error_message
                assert [bad.batch_index for bad in one.record_errors] == [1, 2]
                assert {"no key" in bad.batch_index_error_message for bad in one.record_errors} == {
                    True
                }
            for offset, batch in enumerate((_keyed([b"k"]), _compressed(_keyed([b"k"])))):
                answer = await leader.ask(0, 9, _produce("c", batch))
                one = answer.responses[0].partition_responses[0]
                assert (one.error_code, one.base_offset) == (0, offset)

    _run(main)


@pytest.mark.parametrize(
    ("groups", "session_ms", "code"),
    [
        (GroupConfig(), 5_999, 26),
        (GroupConfig(), 6_000, 79),
        (GroupConfig(min_session_timeout_ms=50), 50, 79),
    ],
)
def test_least_session_timeout_is_six_seconds_by_default(
    groups: GroupConfig, session_ms: int, code: int
) -> None:
    async def main(cluster: Cluster, _: RawClient) -> None:
        while True:
            for broker in cluster.brokers:
                async with await RawClient.to(cluster, broker) as client:
                    joined = {
                        "group_id": "g",
                        "session_timeout": timedelta(milliseconds=session_ms),
                        "rebalance_timeout": timedelta(seconds=1),
                        "protocol_type": "consumer",
                        "protocols": [{"name": "range", "metadata": b""}],
                    }
                    await client.ask(10, 3, {"key": "g", "key_type": 0})
                    answered = (await client.ask(11, 7, joined)).error_code
                    if answered != 16:  # not the coordinator
                        assert answered == code
                        return

    _run(main, groups=groups)


@pytest.mark.parametrize(
    ("count", "assignments", "code"),
    [
        (3, [(2, 1), (3, 2)], 0),
        (3, [(2, 1)], 39),
        (3, [(2, 1), (3,)], 39),
        (3, [(2, 1), (3, 3)], 39),
        (3, [(2, 1), (3, 4)], 39),
        (3, [], 39),
        (1, [], 37),
    ],
)
def test_new_partitions_have_the_requested_replicas(
    count: int, assignments: list[tuple[int, ...]], code: int
) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        assigned = [{"broker_ids": replicas} for replicas in assignments]
        asked = {"name": "two", "count": count, "assignments": assigned}
        answer = await client.ask(37, 3, {"topics": [asked], "validate_only": True})
        assert answer.results[0].error_code == code
        partitions = cluster.controller.topics["two"].partitions
        assert len(partitions) == 1
        answer = await client.ask(37, 3, {"topics": [asked]})
        assert answer.results[0].error_code == code
        found = [(state.replicas, state.leader) for state in partitions[1:]]
        assert found == [(one, one[0]) for one in assignments if code == 0]

    _run(main, topics=[TopicSpec("two", 1, 2)])


def test_authorized_operations_are_returned_on_request() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        def bits(*operations: int) -> int:
            return sum(1 << operation for operation in operations)

        of_topic, of_group = bits(3, 4, 5, 6, 7, 8, 10, 11), bits(3, 6, 8)
        of_cluster = bits(5, 7, 8, 9, 10, 11, 12)
        for asks in (False, True):
            include = {
                "include_cluster_authorized_operations": asks,
                "include_topic_authorized_operations": asks,
            }
            told = await client.ask(3, 8, {"topics": [{"name": "one"}], **include})
            expected = of_topic if asks else _NOT_ASKED
            assert told.topics[0].topic_authorized_operations == expected
            expected = of_cluster if asks else _NOT_ASKED
            assert told.cluster_authorized_operations == expected
            told = await client.ask(60, 0, {"include_cluster_authorized_operations": asks})
            assert told.cluster_authorized_operations == expected
            asked = {"groups": ["g"], "include_authorized_operations": asks}
            (group,) = (await client.ask(15, 5, asked)).groups
            assert group.authorized_operations == (of_group if asks else _NOT_ASKED)

    _run(main)
