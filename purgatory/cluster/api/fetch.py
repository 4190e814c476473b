"""Fetch: read, or wait for bytes in the Fetch purgatory; and where leader epochs end.

A client's fetch session (`purgatory.kafka.replication.fetch_session`) adds the partitions that its
request leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast
from uuid import UUID

from purgatory.cluster.api.authorization import AuthorizationContext, authorization_context
from purgatory.cluster.api.metadata import leader_hints
from purgatory.cluster.api.response_future import response_future
from purgatory.cluster.broker_services import BrokerServices
from purgatory.cluster.protocol.connection import Connection, Response
from purgatory.cluster.protocol.fixed_layouts import FETCH_BY_IDS, NO_HINTS, FetchResponse
from purgatory.cluster.protocol.wire import Request, milliseconds
from purgatory.kafka import (
    ErrorCode,
    FetchIsolation,
    FetchParams,
    KafkaError,
    PartitionFetch,
    PartitionFetchResponse,
    TopicPartition,
)
from purgatory.kafka.client_quotas import CONSUMER_BYTE_RATE
from purgatory.kafka.log.log import ZSTD
from purgatory.kafka.log.record_batch import encode_batches
from purgatory.kafka.replication.fetch_session import (
    FINAL_EPOCH,
    NO_SESSION,
    FetchContext,
    RequestedPartition,
    SessionKey,
)
from purgatory.kafka.security.authorizer import Operation

_MAX_BYTES = 4 * 1024 * 1024
_MAX_BATCHES = 1_000
# The limits of one response, whatever the client requests: while it is made, no other client is
# served, and until it is read, it is held in memory. The next response has more.

_WITH_ZSTD = 10
"""The first version of Fetch whose responses may have batches compressed by zstd."""
_WITH_HINTS = 16
"""The first version of Fetch whose responses tell a client the new leader."""
_FROM_FOLLOWERS_MIN_VERSION = 11
"""The first version of Fetch that any replica serves (KIP-392)."""
_OUT_OF_RANGE = PartitionFetchResponse(ErrorCode.OFFSET_OUT_OF_RANGE)
_NO_EPOCH = -1
_NO_ID = UUID(int=0)
_SIZE_OF_LENGTH = 4
Responses = Mapping[TopicPartition, PartitionFetchResponse]


async def fetch(broker: BrokerServices, request: Request, connection: Connection) -> Response:
    """Return records once there are ``min_bytes``, or after ``max_wait``."""
    context = _context(broker, request)
    if context.error is not ErrorCode.NONE:
        return FetchResponse({}, error=context.error)
    results = await _read(broker, request, connection, context.fetches)
    if results is None:
        return _unknown_isolation(request)
    if broker.quota_meter.is_needed:
        shown = FetchResponse(context.preview(results))
        size_bytes = _SIZE_OF_LENGTH + len(shown.encode(request.api_version))
        throttle_ms = broker.record_quota(connection, request, CONSUMER_BYTE_RATE, size_bytes)
        if throttle_ms:  # as in Kafka: the records come after the wait, and count then
            broker.record_quota(connection, request, CONSUMER_BYTE_RATE, -size_bytes)
            return FetchResponse({}, context.session_id, throttle_ms=throttle_ms)
    session_id, partitions = context.complete(results)
    hints = NO_HINTS
    if request.api_version >= _WITH_HINTS:
        hints = leader_hints(broker.cluster, connection.listener, partitions)
    is_committed_only = request.body.isolation_level == _READ_COMMITTED
    return FetchResponse(
        partitions,
        session_id,
        hints=hints,
        lists_aborted=is_committed_only,
    )


def _unknown_isolation(request: Request) -> FetchResponse:
    """Refuse all of a request, as Kafka does: there are no names for ids."""
    refused = {
        (topic.topic, partition.partition): PartitionFetchResponse(ErrorCode.UNKNOWN_SERVER_ERROR)
        for topic in request.body.topics
        if request.api_version < FETCH_BY_IDS
        for partition in topic.partitions
    }
    return FetchResponse(refused, error=ErrorCode.UNKNOWN_SERVER_ERROR, lists_aborted=True)


def _context(broker: BrokerServices, request: Request) -> FetchContext:
    """Return the requested partitions: those of the request, and those of its session."""
    body, cluster = request.body, broker.cluster
    by_ids = request.api_version >= FETCH_BY_IDS

    def name_of(topic: UUID) -> str | None:
        known = cluster.topic_of(topic)
        return None if known is None else known.name

    requested: dict[SessionKey, RequestedPartition] = {}
    for topic in body.topics:
        named: Any = (topic.topic_id or _NO_ID) if by_ids else topic.topic
        name = name_of(named) if by_ids else named
        for partition in topic.partitions:
            partition_fetch = PartitionFetch(
                partition.fetch_offset,
                partition.partition_max_bytes,
                _epoch(getattr(partition, "current_leader_epoch", _NO_EPOCH)),
                _epoch(getattr(partition, "last_fetched_epoch", _NO_EPOCH)),
            )
            requested[named, partition.partition] = RequestedPartition(name, partition_fetch)
    forgotten = [
        ((topic.topic_id or _NO_ID) if by_ids else topic.topic, partition)
        for topic in getattr(body, "forgotten_topics_data", ())
        for partition in topic.partitions
    ]
    return broker.fetch_sessions.begin(
        getattr(body, "session_id", NO_SESSION),
        getattr(body, "session_epoch", FINAL_EPOCH),
        requested,
        forgotten,
        by_ids,
        name_of,
        int(broker.manager.clock.now_ms()),
    )


async def _read(
    broker: BrokerServices,
    request: Request,
    connection: Connection,
    requested: Mapping[SessionKey, RequestedPartition],
) -> Mapping[SessionKey, PartitionFetchResponse] | None:
    """Read the requested partitions; wait, unless any of them has an error.

    None, where there is any to read, and no such isolation.
    """
    body, trace = request.body, broker.cluster.trace
    authorization = authorization_context(broker, request, connection)
    rack = getattr(body, "rack_id", "") if broker.cluster.config.racks else ""
    version = request.api_version
    immediate: dict[SessionKey, PartitionFetchResponse] = {}
    if authorization is not None or rack or not _WITH_ZSTD <= version < FETCH_BY_IDS:
        immediate = {
            key: result
            for key, partition in requested.items()
            if (
                result := _refusal(broker, authorization, key, partition)
                or _in_zstd(broker, partition, key[1], version)
                or _redirected(broker, partition, key[1], rack)
            )
        }
    fetches = {
        TopicPartition(partition.topic, key[1]): partition.fetch
        for key, partition in requested.items()
        if partition.topic is not None and key not in immediate
    }
    if fetches and body.isolation_level not in (_READ_UNCOMMITTED, _READ_COMMITTED):
        return None
    max_bytes = min(
        body.max_bytes, _MAX_BYTES, broker.quota_window(connection, request, CONSUMER_BYTE_RATE)
    )
    params = FetchParams(
        max_wait_ms=0 if immediate else milliseconds(body.max_wait),
        min_bytes=min(body.min_bytes, max_bytes),
        max_bytes=max_bytes,
        isolation=(
            FetchIsolation.TXN_COMMITTED
            if body.isolation_level == _READ_COMMITTED
            else _HIGH_WATERMARK
        ),
        from_followers=version >= _FROM_FOLLOWERS_MIN_VERSION,
    )
    received_us = 0 if trace is None else trace.now_us()
    results: Responses = await response_future(
        partial(broker.manager.fetch_records, params, fetches)
    )
    # Only followers learn the log's bounds from this error.
    results = {
        key: replace(_OUT_OF_RANGE, message=result.message)
        if result.error is ErrorCode.OFFSET_OUT_OF_RANGE
        else result
        for key, result in bounded(results).items()
    }
    if broker.cluster.delays is not None:
        results = _with_cut_batches(broker, params, fetches, results)
    if trace is not None:
        from_offsets = {key: fetch.fetch_offset for key, fetch in fetches.items()}
        trace.record_fetch(connection, request, results, from_offsets, received_us)
    if not immediate and version < FETCH_BY_IDS:
        return cast(Mapping[SessionKey, PartitionFetchResponse], results)  # partitions by name
    return {
        key: immediate.get(key) or results[TopicPartition(partition.topic or "", key[1])]
        for key, partition in requested.items()
    }


def _refusal(
    broker: BrokerServices,
    authorization: AuthorizationContext | None,
    key: SessionKey,
    requested: RequestedPartition,
) -> PartitionFetchResponse | None:
    """Return an error of a topic's name or id, or of the client's permission, or None."""
    named, name = key[0], requested.topic
    if (
        authorization is not None
        and name is not None
        and not authorization.allows_topic(Operation.READ, name)
    ):
        return _UNAUTHORIZED
    if not isinstance(named, UUID):
        return None
    if name is None:
        return PartitionFetchResponse(ErrorCode.UNKNOWN_TOPIC_ID)
    known = broker.cluster.topic_of(name)
    if known is not None and known.topic_id != named:
        # Another topic has had that name since the session began.
        return PartitionFetchResponse(ErrorCode.INCONSISTENT_TOPIC_ID)
    return None


_UNAUTHORIZED = PartitionFetchResponse(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _in_zstd(
    broker: BrokerServices, requested: RequestedPartition, number: int, version: int
) -> PartitionFetchResponse | None:
    """Refuse topics that compress by zstd, in versions that don't have it."""
    if version >= _WITH_ZSTD or requested.topic is None:
        return None
    partition = broker.manager.partition(TopicPartition(requested.topic, number))
    if partition is None or partition.log.config.codec != ZSTD:
        return None
    return PartitionFetchResponse(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


def _redirected(
    broker: BrokerServices, requested: RequestedPartition, number: int, rack: str
) -> PartitionFetchResponse | None:
    """Return the response that sends a consumer to a replica in its rack; None without one."""
    if not rack or requested.topic is None:
        return None
    partition = broker.manager.partition(TopicPartition(requested.topic, number))
    if partition is None:
        return None
    replica = partition.preferred_read_replica(
        rack, broker.cluster.live_rack, requested.fetch.fetch_offset
    )
    if replica is None:
        return None
    return PartitionFetchResponse(
        ErrorCode.NONE,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log_start_offset,
        preferred_replica=replica,
    )


_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
_HIGH_WATERMARK = FetchIsolation.HIGH_WATERMARK


def bounded(results: Responses) -> Responses:
    """Limit the batches to ``_MAX_BATCHES``, but return at least one of each partition.

    Partitions with records get equal parts, so that none of them falls behind. O(partitions).
    """
    counts = [len(result.batches) for result in results.values()]
    if sum(counts) <= _MAX_BATCHES:
        return results
    part = max(1, _MAX_BATCHES // sum(map(bool, counts)))
    return {
        topic_partition: _cut(result, part) if len(result.batches) > part else result
        for topic_partition, result in results.items()
    }


def _with_cut_batches(
    broker: BrokerServices,
    params: FetchParams,
    fetches: Mapping[TopicPartition, PartitionFetch],
    results: Responses,
) -> Responses:
    """Fill partitions up to their limits, as Kafka does, with the beginning of the next batch."""
    free_bytes = params.max_bytes - sum(result.size_bytes for result in results.values())
    filled = dict(results)
    for key, result in results.items():
        most_bytes = min(free_bytes, fetches[key].max_bytes - result.size_bytes)
        batch = _next_batch(broker, key, result, params.isolation)
        if 0 < most_bytes < len(batch):  # a whole one is of another segment
            filled[key] = replace(result, cut_batch=batch[:most_bytes])
            free_bytes -= most_bytes
    return filled


def _next_batch(
    broker: BrokerServices,
    topic_partition: TopicPartition,
    result: PartitionFetchResponse,
    isolation: FetchIsolation,
) -> bytes:
    """Return the batch behind those of a response; empty without one."""
    partition = broker.manager.partition(topic_partition)
    if partition is None or not result.batches:
        return b""
    offset, end = result.batches[-1].next_offset, partition.visible_end(isolation)
    if not partition.log.start_offset <= offset < end:
        return b""
    return encode_batches(partition.log.read(offset, 1, end))


def _cut(result: PartitionFetchResponse, part: int) -> PartitionFetchResponse:
    batches = result.batches[:part]
    return replace(result, batches=batches, size_bytes=sum(batch.size_bytes for batch in batches))


def _epoch(number: int) -> int | None:
    return None if number == _NO_EPOCH else number


async def offset_for_leader_epoch(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Return the end offsets of leader epochs, by which clients detect truncation."""
    return {
        "throttle_time": 0,
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [
                    _end_of_epoch(broker, topic.topic, partition) for partition in topic.partitions
                ],
            }
            for topic in request.body.topics
        ],
    }


def _end_of_epoch(broker: BrokerServices, topic: str, requested: Any) -> dict[str, Any]:
    values = {
        "partition": requested.partition,
        "error_code": 0,
        "leader_epoch": -1,
        "end_offset": -1,
    }
    try:
        epoch, end_offset = broker.manager.offset_for_leader_epoch(
            TopicPartition(topic, requested.partition),
            requested.leader_epoch,
            _epoch(requested.current_leader_epoch),
        )
    except KafkaError as error:
        return {**values, "error_code": int(error.code)}
    return {**values, "leader_epoch": epoch, "end_offset": end_offset}
