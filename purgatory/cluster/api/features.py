"""UpdateFeatures; `purgatory.kafka.features` has the rules."""

from __future__ import annotations

from typing import Any

from purgatory.cluster.broker_services import BrokerServices
from purgatory.cluster.protocol.connection import Connection, Response
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka import ErrorCode, KafkaError
from purgatory.kafka.features import SAFE_DOWNGRADE, UPGRADE, check_update


async def update_features(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Change the levels of features: all of them, or none."""
    body, controller = request.body, broker.cluster.controller
    code, message = ErrorCode.NONE, None
    try:
        levels: dict[str, int] = {}
        for update in body.feature_updates:
            now = controller.feature_levels.get(update.feature, 0)
            level, upgrade_type = update.max_version_level, _upgrade_type(update)
            check_update(controller.features, update.feature, now, level, upgrade_type)
            levels[update.feature] = update.max_version_level
        if not getattr(body, "validate_only", False) and not controller.change_features(levels):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the change can't be saved")
    except KafkaError as error:
        code, message = error.code, error.message
    results = () if code else body.feature_updates
    return {
        "throttle_time": 0,
        "error_code": int(code),
        "error_message": message,
        "results": [
            {"feature": update.feature, "error_code": 0, "error_message": None}
            for update in results
        ],
    }


def _upgrade_type(update: Any) -> int:
    """Return the type of an update; version 0 has ``allow_downgrade`` for it."""
    former = SAFE_DOWNGRADE if getattr(update, "allow_downgrade", False) else UPGRADE
    return int(getattr(update, "upgrade_type", former))
