"""InitProducerId: ids for idempotent producers."""

from __future__ import annotations

from purgatory.cluster.broker import Broker
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka.errors import ClusterError

_TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
_KAFKA_STORAGE_ERROR = 56


async def init_producer_id(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Give out a new id, epoch 0. Transactions are not served, and refused as if not allowed."""
    if request.body.transactional_id is not None:
        return _answer(_TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1, -1)
    try:
        return _answer(0, broker.cluster.new_producer_id(), 0)
    except ClusterError:  # which is in the log
        return _answer(_KAFKA_STORAGE_ERROR, -1, -1)


def _answer(code: int, producer_id: int, producer_epoch: int) -> Answer:
    return {
        "throttle_time": 0,
        "error_code": code,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
    }
