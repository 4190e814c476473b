"""Bare requests of transactional and idempotent producers: what each may do, by version."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from purgatory.kafka import ErrorCode, ProducerIdentity
from purgatory.virtual import World
from purgatory.virtual.cluster import WorldCluster
from tests.wire.cluster.wire_values import record_batch
from tests.world.security import security_of
from tests.world.wire_client import (
    ADD_PARTITIONS,
    END_TXN,
    GROUP,
    INIT_PRODUCER_ID,
    PRODUCE,
    TRANSACTION,
    TXN_OFFSET_COMMIT,
    WireClient,
)

_TOPIC, _ID, _MARKERS = "payments", "billing", 27
_TIMEOUT_S, _PASSED_S = 10, 20
_NOBODY = ProducerIdentity(-1, -1)
_ADDS = 12
"""From this version of Produce on, leaders add partitions to transactions."""


@pytest.fixture
def cluster(world: World) -> WorldCluster:
    return world.cluster(brokers=1, topics=[_TOPIC])


@pytest.fixture
def client(cluster: WorldCluster) -> WireClient:
    return WireClient(cluster, "client", True, security_of("none"))


async def _init(
    client: WireClient, known: ProducerIdentity = _NOBODY, transactional_id: str | None = _ID
) -> tuple[int, ProducerIdentity]:
    values = {"transaction_timeout": timedelta(seconds=_TIMEOUT_S), **known._asdict()}
    asked = {"transactional_id": transactional_id, **values}
    if transactional_id is None:
        answer = await client.ask(1, INIT_PRODUCER_ID, asked)
    else:
        answer = await client.ask_coordinator(_ID, TRANSACTION, INIT_PRODUCER_ID, asked)
    return answer.error_code, ProducerIdentity(answer.producer_id, answer.producer_epoch)


async def _begun(client: WireClient) -> ProducerIdentity:
    code, producer = await _init(client)
    assert code == ErrorCode.NONE
    return producer


async def _add(client: WireClient, producer: ProducerIdentity, partition: int = 0) -> None:
    names = {"transactional_id": _ID, **producer._asdict()}
    names["topics"] = [{"name": _TOPIC, "partitions": [partition]}]
    asked = {f"v3_and_below_{name}": value for name, value in names.items()}
    answer = await client.ask_coordinator(_ID, TRANSACTION, ADD_PARTITIONS, asked, version=3)
    [topic] = answer.results_by_topic_v3_and_below
    assert topic.results_by_partition[0].partition_error_code == ErrorCode.NONE


async def _produce(
    client: WireClient,
    batches: dict[int, bytes],
    version: int = _ADDS,
    transactional_id: str | None = _ID,
) -> list[int]:
    data = [{"index": index, "records": records} for index, records in batches.items()]
    asked = {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout": timedelta(seconds=10),
        "topic_data": [{"name": _TOPIC, "partition_data": data}],
    }
    answer = await client.ask(1, PRODUCE, asked, version=version)
    codes = {one.index: one.error_code for one in answer.responses[0].partition_responses}
    return [codes[index] for index in batches]


async def _send(
    client: WireClient,
    producer: ProducerIdentity,
    sequence: int = 0,
    version: int = _ADDS,
    transactional: bool = True,
) -> int:
    batch = _batch(producer, sequence, transactional)
    [code] = await _produce(client, {0: batch}, version, _ID if transactional else None)
    return code


def _batch(producer: ProducerIdentity, sequence: int = 0, transactional: bool = True) -> bytes:
    producer_id, epoch = producer
    return record_batch([b"x"], producer_id, sequence, epoch, transactional)


async def _end(
    client: WireClient, producer: ProducerIdentity, committed: bool, version: int = 5
) -> tuple[int, ProducerIdentity]:
    asked = {"transactional_id": _ID, **producer._asdict(), "committed": committed}
    answer = await client.ask_coordinator(_ID, TRANSACTION, END_TXN, asked, version=version)
    if version < 5:
        return answer.error_code, _NOBODY
    return answer.error_code, ProducerIdentity(answer.producer_id, answer.producer_epoch)


async def _timed_out(client: WireClient, version: int = _ADDS) -> ProducerIdentity:
    """A producer whose transaction its coordinator has aborted."""
    producer = await _begun(client)
    if version < _ADDS:
        await _add(client, producer)
    assert await _send(client, producer, version=version) == ErrorCode.NONE
    await asyncio.sleep(_PASSED_S)
    return producer


def _next(producer: ProducerIdentity) -> ProducerIdentity:
    return producer._replace(producer_epoch=producer.producer_epoch + 1)


# Transactions that their coordinator aborts.


@pytest.mark.virtual
async def test_timed_out_producer_aborts_and_goes_on(client: WireClient) -> None:
    producer = await _timed_out(client)
    assert await _end(client, producer, False) == (ErrorCode.NONE, _next(producer))
    assert await _end(client, producer, False) == (ErrorCode.NONE, _next(producer))
    assert await _send(client, _next(producer)) == ErrorCode.NONE
    assert (await _end(client, _next(producer), True))[0] == ErrorCode.NONE


@pytest.mark.virtual
async def test_timed_out_producer_commits_nothing(client: WireClient) -> None:
    producer = await _timed_out(client)
    assert await _end(client, producer, True) == (ErrorCode.INVALID_TXN_STATE, _NOBODY)
    assert await _send(client, producer, 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert (await _end(client, producer, False, version=4))[0] == ErrorCode.PRODUCER_FENCED


@pytest.mark.virtual
@pytest.mark.parametrize("version", [9, 11, 12])
async def test_timed_out_producer_gets_one_more_epoch(client: WireClient, version: int) -> None:
    producer = await _timed_out(client, version)
    assert await _init(client, producer) == (ErrorCode.NONE, _next(producer))
    assert await _init(client, producer) == (ErrorCode.NONE, _next(producer))
    assert (await _init(client))[1].producer_epoch == producer.producer_epoch + 2
    assert (await _init(client, producer))[0] == ErrorCode.PRODUCER_FENCED


@pytest.mark.virtual
@pytest.mark.parametrize("version", [9, 12])
async def test_open_producer_aborts_and_gets_one_more_epoch(
    client: WireClient, version: int
) -> None:
    producer = await _begun(client)
    if version < _ADDS:
        await _add(client, producer)
    assert await _send(client, producer, version=version) == ErrorCode.NONE
    assert (await _init(client, producer))[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    assert await _init(client, producer) == (ErrorCode.NONE, _next(producer))
    assert await _send(client, _next(producer)) == ErrorCode.NONE
    assert (await _end(client, _next(producer), True))[0] == ErrorCode.NONE


@pytest.mark.virtual
async def test_producer_with_a_lost_end_gets_its_epoch(client: WireClient) -> None:
    producer = await _begun(client)
    assert await _send(client, producer) == ErrorCode.NONE
    assert await _end(client, producer, True) == (ErrorCode.NONE, _next(producer))
    assert await _init(client, producer) == (ErrorCode.NONE, _next(producer))


# Batches with a transactional id, and without.


@pytest.mark.virtual
async def test_transactional_batch_needs_a_transactional_id(client: WireClient) -> None:
    producer = await _begun(client)
    assert await _send(client, producer) == ErrorCode.NONE
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert await _produce(client, {0: _batch(producer, 1)}, transactional_id=None) == [refused]
    plain = {7: record_batch([b"plain"]), 0: _batch(producer, 1)}
    assert await _produce(client, plain, transactional_id=None) == [refused, refused]
    # An open transaction is not verified: the id may be another one's.
    assert await _produce(client, {0: _batch(producer, 1)}, transactional_id="other") == [0]


@pytest.mark.virtual
async def test_request_has_transactional_batches_of_one_producer(client: WireClient) -> None:
    producer = await _begun(client)
    other = producer._replace(producer_id=producer.producer_id + 1_000)
    batches = {0: _batch(producer), 1: _batch(other)}
    assert await _produce(client, batches) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("version", "code"),
    [
        (9, ErrorCode.INVALID_TXN_STATE),
        (10, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
async def test_records_outside_of_a_transaction_are_refused(
    client: WireClient, version: int, code: ErrorCode
) -> None:
    producer = await _begun(client)
    assert await _send(client, producer, version=version) == code


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("version", "code"),
    [(3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE)],
)
async def test_offsets_outside_of_a_transaction_are_refused(
    client: WireClient, version: int, code: ErrorCode
) -> None:
    producer = await _begun(client)
    partition = {"partition_index": 0, "committed_offset": 7}
    topics = [{"name": _TOPIC, "partitions": [partition]}]
    asked: dict[str, Any] = {"transactional_id": _ID, "group_id": "g", "generation_id": -1}
    asked |= {"topics": topics, **producer._asdict()}
    answer = await client.ask_coordinator("g", GROUP, TXN_OFFSET_COMMIT, asked, version=version)
    assert answer.topics[0].partitions[0].error_code == code


# Sequences.


@pytest.mark.virtual
async def test_unknown_producer_begins_at_any_sequence(client: WireClient) -> None:
    code, producer = await _init(client, transactional_id=None)
    assert code == ErrorCode.NONE
    assert await _send(client, producer, 5, transactional=False) == ErrorCode.NONE
    gap = await _send(client, producer, 7, transactional=False)
    assert gap == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await _send(client, producer, 6, transactional=False) == ErrorCode.NONE


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("version", "code"),
    [
        (9, ErrorCode.NONE),
        (11, ErrorCode.NONE),
        (12, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ],
)
async def test_transaction_begins_at_any_sequence_by_version(
    client: WireClient, version: int, code: ErrorCode
) -> None:
    producer = await _begun(client)
    if version < _ADDS:
        await _add(client, producer)
    assert await _send(client, producer, 5, version) == code


@pytest.mark.virtual
async def test_transaction_begins_with_its_first_batch(client: WireClient) -> None:
    producer = await _begun(client)
    assert await _send(client, producer, 5, version=11) == ErrorCode.TRANSACTION_ABORTABLE
    await _add(client, producer)
    # A later batch may not be the log's first one while an earlier one is sent again.
    later = await _send(client, producer, 6, version=11)
    assert later == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await _send(client, producer, 5, version=11) == ErrorCode.NONE
    assert await _send(client, producer, 6, version=11) == ErrorCode.NONE


# Markers.


async def _mark(client: WireClient, producer: ProducerIdentity, transaction_version: int) -> int:
    marker = {
        **producer._asdict(),
        "transaction_result": False,
        "coordinator_epoch": 5,
        "transaction_version": transaction_version,
        "topics": [{"name": _TOPIC, "partition_indexes": [0]}],
    }
    answer = await client.ask(1, _MARKERS, {"markers": [marker]}, version=2)
    return int(answer.markers[0].topics[0].partitions[0].error_code)


@pytest.mark.virtual
async def test_late_marker_ends_no_transaction(client: WireClient) -> None:
    producer = await _begun(client)
    assert await _send(client, producer) == ErrorCode.NONE
    assert await _mark(client, producer, 2) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert await _mark(client, _next(producer), 2) == ErrorCode.NONE
    assert await _mark(client, _next(producer), 2) == ErrorCode.NONE, "a repeated one"
    assert await _mark(client, producer, 2) == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.virtual
async def test_marker_of_version_1_ends_a_transaction_of_its_epoch(client: WireClient) -> None:
    producer = await _begun(client)
    await _add(client, producer)
    assert await _send(client, producer, version=11) == ErrorCode.NONE
    assert await _mark(client, producer, 1) == ErrorCode.NONE


@pytest.mark.parametrize(
    ("back_after_s", "code", "took_ms"),
    [(0.03, ErrorCode.NONE, range(30, 90)), (9, ErrorCode.NOT_ENOUGH_REPLICAS, range(100, 130))],
)
def test_leader_waits_for_the_end_of_the_transaction_before(
    back_after_s: float, code: ErrorCode, took_ms: range
) -> None:
    async def use(world: World, cluster: WorldCluster, client: WireClient) -> None:
        producer = await _begun(client)
        await _add(client, producer, 0)
        await _add(client, producer, 1)
        await cluster.kill(2)  # the leader of partition 1 writes no marker
        client.cut()
        ended, producer = await _end(client, producer, True)
        assert ended == ErrorCode.NONE
        back = asyncio.create_task(_revive(cluster, back_after_s))
        began_s = world.now_s
        assert await _send(client, producer) == code
        assert round(1000 * (world.now_s - began_s)) in took_ms
        await back
        await asyncio.sleep(1)
        assert await _send(client, producer, sequence=int(code == ErrorCode.NONE)) == ErrorCode.NONE

    with World(1, plain_network=True) as world:
        cluster = world.cluster(
            2, topics={_TOPIC: 2}, transactions_partitions=1, default_replication=1
        )
        client = WireClient(cluster, "client", True, security_of("none"))
        world.run(use(world, cluster, client))
        client.cut()


async def _revive(cluster: WorldCluster, after_s: float) -> None:
    await asyncio.sleep(after_s)
    await cluster.revive(2)
