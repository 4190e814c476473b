"""DescribeTransactions, ListTransactions, DescribeProducers: looking at transactions."""

from __future__ import annotations

import re
from typing import Any

from purgatory.cluster.broker import Broker
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request
from purgatory.cluster.record_times import max_timestamp_ms
from purgatory.kafka import (
    ErrorCode,
    Partition,
    TopicPartition,
    TransactionRecord,
    TransactionRefusal,
    TransactionState,
)
from purgatory.kafka.log.producer_state import ProducerEntry

_NOTHING = TransactionRecord(TransactionState.DEAD, -1, -1, 0, start_ms=0)
_STATES = frozenset(state.value for state in TransactionState)
_NO_TIME = -1


async def describe_transactions(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Tell how it stands with some transactional ids."""
    return {
        "throttle_time": 0,
        "transaction_states": [
            _description(broker, transactional_id)
            for transactional_id in request.body.transactional_ids
        ],
    }


def _description(broker: Broker, transactional_id: str) -> dict[str, Any]:
    code = ErrorCode.NONE
    try:
        record = broker.transactions.describe(transactional_id)
    except TransactionRefusal as refusal:
        code, record = refusal.code, _NOTHING
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(record.partitions):
        topics.setdefault(topic, []).append(partition)
    return {
        "error_code": int(code),
        "transactional_id": transactional_id,
        "transaction_state": record.state.value if code is ErrorCode.NONE else "",
        "transaction_timeout": record.timeout_ms,
        "transaction_start_time": record.start_ms,
        "producer_id": record.producer_id,
        "producer_epoch": record.producer_epoch,
        "topics": [
            {"topic": topic, "partitions": partitions} for topic, partitions in topics.items()
        ],
    }


async def list_transactions(broker: Broker, request: Request, connection: Connection) -> Answer:
    """List the transactional ids that are coordinated here, by state, producer, age and name."""
    body = request.body
    states, producers = set(body.state_filters), set(body.producer_id_filters)
    lasted_ms = getattr(body, "duration_filter", -1)
    begun_until_ms = broker.now_ms() - lasted_ms
    pattern = getattr(body, "transactional_id_pattern", None)
    try:
        fits = re.compile(pattern or ".*", re.DOTALL)
    except re.error:
        return {
            "throttle_time": 0,
            "error_code": int(ErrorCode.INVALID_REQUEST),
            "unknown_state_filters": (),
            "transaction_states": (),
        }
    return {
        "throttle_time": 0,
        "error_code": 0,
        "unknown_state_filters": sorted(states - _STATES),
        "transaction_states": [
            {
                "transactional_id": one.transactional_id,
                "producer_id": one.record.producer_id,
                "transaction_state": one.record.state.value,
            }
            for one in broker.transactions.all_transactions()
            if (not states or one.record.state.value in states)
            and (not producers or one.record.producer_id in producers)
            and (lasted_ms < 0 or _NO_TIME < one.record.start_ms <= begun_until_ms)
            and fits.fullmatch(one.transactional_id)
        ],
    }


async def describe_producers(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Tell what leaders know of the producers of their partitions."""
    return {
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _producers(broker, TopicPartition(topic.name, number))
                    for number in topic.partition_indexes
                ],
            }
            for topic in request.body.topics
        ],
    }


def _producers(broker: Broker, topic_partition: TopicPartition) -> dict[str, Any]:
    partition = broker.manager.partition(topic_partition)
    code, message, active = ErrorCode.NONE, None, []
    if partition is None:
        code, message = broker.manager.why_absent(topic_partition)
    elif not partition.is_leader:
        code, message = ErrorCode.NOT_LEADER_OR_FOLLOWER, "another broker leads it"
    else:
        states = partition.log.producers
        active = [
            {
                "producer_id": producer_id,
                "producer_epoch": entry.producer_epoch,
                "last_sequence": entry.last_sequence,
                "last_timestamp": _last_ms(partition, entry),
                "coordinator_epoch": entry.coordinator_epoch,
                "current_txn_start_offset": states.ongoing.get(producer_id, -1),
            }
            for producer_id, entry in states.entries().items()
        ]
    return {
        "partition_index": topic_partition.partition,
        "error_code": int(code),
        "error_message": message,
        "active_producers": active,
    }


def _last_ms(partition: Partition, entry: ProducerEntry) -> int:
    """When its last records were made; -1 where they are gone."""
    if not entry.batches:
        return _NO_TIME
    offset = entry.batches[-1].first_offset
    if offset < partition.log.start_offset:
        return _NO_TIME
    return max_timestamp_ms(partition.log.read(offset, 1)[0])
