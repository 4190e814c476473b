"""InitProducerId: who a producer is, by id and epoch."""

from __future__ import annotations

from functools import partial
from typing import Any

from purgatory.cluster.api.answer_of import answer_of
from purgatory.cluster.broker import Broker
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request, milliseconds
from purgatory.kafka import ErrorCode, InitAnswer, ProducerIdentity
from purgatory.kafka.errors import ClusterError

_NOBODY = ProducerIdentity(-1, -1)
_PRODUCER_FENCED_SINCE = 4
_UNSAVED = InitAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)


async def init_producer_id(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Give out a new id, epoch 0; to a transactional producer its own, in the next epoch."""
    body = request.body
    asked = ProducerIdentity(getattr(body, "producer_id", -1), getattr(body, "producer_epoch", -1))
    try:
        if (asked.producer_id < 0) is not (asked.producer_epoch < 0) or body.transactional_id == "":
            answer = InitAnswer(ErrorCode.INVALID_REQUEST)
        elif body.transactional_id is None:
            answer = InitAnswer(ErrorCode.NONE, broker.cluster.new_producer_id(), 0)
        else:
            answer = await _init_transactional(broker, body, asked)
    except ClusterError:  # which is in the log
        answer = InitAnswer(ErrorCode.KAFKA_STORAGE_ERROR)
    code = answer.error
    if code is ErrorCode.PRODUCER_FENCED and request.api_version < _PRODUCER_FENCED_SINCE:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return {
        "throttle_time": 0,
        "error_code": int(code),
        "producer_id": answer.producer_id,
        "producer_epoch": answer.producer_epoch,
    }


async def _init_transactional(broker: Broker, body: Any, asked: ProducerIdentity) -> InitAnswer:
    if not broker.cluster.is_saved():
        return _UNSAVED
    answer: InitAnswer = await answer_of(
        partial(
            broker.transactions.init_producer_id,
            body.transactional_id,
            milliseconds(body.transaction_timeout),
            None if asked == _NOBODY else asked,
        )
    )
    return answer if broker.cluster.is_saved() else _UNSAVED
