"""ApiVersions and UpdateFeatures; `purgatory.kafka.features` has the rules of features."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from purgatory.cluster.broker_services import BrokerServices
from purgatory.cluster.protocol.connection import Connection, Response
from purgatory.cluster.protocol.fixed_layouts import PRODUCE
from purgatory.cluster.protocol.wire import API_VERSIONS, Request, Versions
from purgatory.kafka import ErrorCode, KafkaError
from purgatory.kafka.features import SAFE_DOWNGRADE, UPGRADE, check_update
from purgatory.kafka.kafka_versions import names_own_versions

_ZERO_REPLICAS_MIN_VERSION = 4
"""Clients of former versions don't know features whose least level is 0."""

_PRODUCE_OLDEST = 0
"""The oldest in ApiVersions, not served, as in Kafka 4: older librdkafkas compress by it."""

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")
"""A name or a version of a client's software, by Kafka's rule."""


def api_versions(
    broker: BrokerServices, request: Request, served: Mapping[int, Versions]
) -> Response:
    """Return all APIs and features; for a version that is too new, the API itself alone."""
    body, controller = request.body, broker.cluster.controller
    if body is None:
        is_named = names_own_versions(broker.cluster.config.kafka_version)
        own = {API_VERSIONS: served[API_VERSIONS]} if is_named else {}
        return _versions(ErrorCode.UNSUPPORTED_VERSION, own)
    software = (
        getattr(body, name, None) for name in ("client_software_name", "client_software_version")
    )
    if any(text is not None and not _SOFTWARE.fullmatch(text) for text in software):
        return _versions(ErrorCode.INVALID_REQUEST, {})
    knows_zero = request.api_version >= _ZERO_REPLICAS_MIN_VERSION
    return {
        **_versions(ErrorCode.NONE, served),
        "supported_features": [
            {"name": name, "min_version": feature.least, "max_version": feature.most}
            for name, feature in controller.features.items()
            if feature.least or knows_zero
        ],
        "finalized_features_epoch": controller.feature_updates,
        "finalized_features": [
            {"name": name, "min_version_level": level, "max_version_level": level}
            for name, level in controller.feature_levels.items()
            if level
        ],
    }


def _versions(code: ErrorCode, served: Mapping[int, Versions]) -> dict[str, Any]:
    return {
        "error_code": int(code),
        "api_keys": [
            {
                "api_key": key,
                "min_version": _PRODUCE_OLDEST if key == PRODUCE else oldest,
                "max_version": newest,
            }
            for key, (oldest, newest) in served.items()
        ],
        "throttle_time": 0,
    }


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
