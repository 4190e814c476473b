"""What producers know of each attempt to send a batch, and the rows of the trace about it.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from typing import Any

from purgatory.kafka import ErrorCode
from purgatory.simulation.engine import NS_PER_US
from purgatory.simulation.messages import Batch
from purgatory.simulation.produce_request import ProduceRequest
from purgatory.simulation.producer_group import ProducerGroup
from purgatory.trace.table_rows import SendRow

_MAYBE_STORED = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})
"""Errors that come after the append. With acks=all, so may NOT_LEADER_OR_FOLLOWER."""

DISCONNECTED = "DISCONNECTED"
"""The error of an attempt whose connection broke before the answer came."""


def maybe_stored(error: ErrorCode, acks: int) -> bool:
    """Whether what was refused so may be in the log all the same."""
    return error in _MAYBE_STORED or (error is ErrorCode.NOT_LEADER_OR_FOLLOWER and acks != 1)


def write_attempt(
    group: ProducerGroup,
    batch: Batch,
    outcome: str,
    error: str | None,
    answer_ns: int | None,
    offset: int = -1,
    answered: ProduceRequest | None = None,
) -> None:
    """Write one attempt of each of a batch's messages into the trace. O(messages)."""
    write = group.write
    if write is None:
        return
    queue, attempt = batch.queue, batch.attempt
    send_us = batch.sent_ns // NS_PER_US
    answer_us = None if answer_ns is None else answer_ns // NS_PER_US
    at_broker_us: tuple[Any, ...] = (None, None, None)
    if answered is not None:
        times_ns = (answered.arrived_ns, answered.received_ns, answered.settled_ns)
        at_broker_us = tuple([time_ns // NS_PER_US for time_ns in times_ns])
    rest = at_broker_us + group.transaction_of(batch)
    for index, message in enumerate(batch.messages):
        write(
            SendRow(
                group.name,
                queue.producer_number,
                message.sequence,
                attempt,
                message.key,
                message.value_id,
                group.acks,
                outcome,
                error,
                send_us,
                answer_us,
                queue.topic_partition.topic,
                queue.partition,
                None if offset < 0 else offset + index,
                message.size_bytes,
                message.created_ns // NS_PER_US,
                *rest,
            )
        )
