"""DescribeClientQuotas and AlterClientQuotas; `purgatory.kafka.client_quotas` has the rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from purgatory.cluster.broker_services import BrokerServices
from purgatory.cluster.protocol.connection import Connection, Response
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka import ErrorCode, KafkaError
from purgatory.kafka.client_quotas import (
    CLIENT_ID,
    IP,
    USER,
    QuotaChange,
    QuotaEntity,
    QuotaMatch,
    checked_quotas,
)

_EXACT, _DEFAULT, _ANY = range(3)


async def describe_client_quotas(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Return the quotas of the entities that meet the request's conditions."""
    body = request.body
    values: dict[str, Any] = {"throttle_time": 0, "error_code": 0, "error_message": ""}
    try:
        matches = _matches(body.components)
    except KafkaError as error:
        refusal = {"error_code": int(error.code), "error_message": error.message}
        return {**values, **refusal, "entries": None}
    found = broker.cluster.controller.client_quotas.matching(matches, body.strict)
    return {
        **values,
        "entries": [
            {
                "entity": _entity(entity),
                "values": [{"key": key, "value": value} for key, value in quotas.items()],
            }
            for entity, quotas in found
        ],
    }


def _matches(components: Sequence[Any]) -> list[QuotaMatch]:
    matches = []
    types = [component.entity_type for component in components]
    for component in components:
        entity_type, match_type, name = (
            component.entity_type,
            component.match_type,
            component.match,
        )
        if not entity_type:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a component has an empty type")
        if types.count(entity_type) > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{entity_type} is there twice")
        if entity_type not in (USER, CLIENT_ID, IP):
            error = f"there is no type {entity_type!r} of entities"
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, error)
        if match_type not in (_EXACT, _DEFAULT, _ANY):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"match type {match_type}: it is 0, 1 or 2")
        if (match_type == _EXACT) == (name is None):
            error = f"match type {match_type} with the name {name!r}: it is for 0 alone"
            raise KafkaError(ErrorCode.INVALID_REQUEST, error)
        matches.append(QuotaMatch(entity_type, name, match_type == _ANY))
    if IP in types and len(types) > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "an ip stands alone, without user or client-id")
    return matches


async def alter_client_quotas(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Change quotas; each entity succeeds or fails by itself."""
    body, controller = request.body, broker.cluster.controller
    entries = []
    seen: set[QuotaEntity] = set()
    for entry in body.entries:
        # As in Kafka: the last name of a type is the one.
        named = list({part.entity_type: part.entity_name for part in entry.entity}.items())
        entity = tuple(sorted(named, key=lambda part: part[0]))
        changes = [QuotaChange(op.key, None if op.remove else op.value) for op in entry.ops]
        code, message = ErrorCode.NONE, None
        try:
            checked_quotas(entity, changes)
            if entity in seen:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the entity is there twice")
            seen.add(entity)
            if not body.validate_only and not controller.change_quotas(entity, changes):
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the change can't be saved")
        except KafkaError as error:
            code, message = error.code, error.message
        entries.append(
            {"error_code": int(code), "error_message": message, "entity": _entity(named)}
        )
    return {"throttle_time": 0, "entries": entries}


def _entity(parts: Sequence[tuple[str, str | None]]) -> list[dict[str, str | None]]:
    return [{"entity_type": entity_type, "entity_name": name} for entity_type, name in parts]
