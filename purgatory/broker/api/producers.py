"""InitProducerId: ids for idempotent producers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory.broker.connection import Answer, Connection
from purgatory.broker.wire import Request

if TYPE_CHECKING:
    from purgatory.broker.broker import Broker

_TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53


async def init_producer_id(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Give out a new id, epoch 0. Transactions are not served, and refused as if not allowed."""
    if request.body.transactional_id is not None:
        return {
            "throttle_time": 0,
            "error_code": _TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "producer_id": -1,
            "producer_epoch": -1,
        }
    return {
        "throttle_time": 0,
        "error_code": 0,
        "producer_id": broker.cluster.new_producer_id(),
        "producer_epoch": 0,
    }
