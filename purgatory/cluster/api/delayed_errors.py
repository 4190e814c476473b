"""Requests that a broker refuses for a moment, where its cluster has realistic delays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from purgatory.cluster.broker_services import BrokerServices
from purgatory.cluster.protocol.connection import Response
from purgatory.cluster.protocol.error_responses import error_places, error_response
from purgatory.cluster.protocol.wire import Request
from purgatory.cluster.realistic_delays import RealisticDelays
from purgatory.kafka.errors import ErrorCode

_INIT_PRODUCER_ID, _DESCRIBE_TRANSACTIONS = 22, 65
_STEPS = frozenset({_INIT_PRODUCER_ID, 24, 25, 26})
"""The steps of a producer's transactions: its coordinator's, not those of a group's."""

_TRANSACTION_KEYS = (
    "transactional_id",
    "v3_and_below_transactional_id",
    "transactional_ids",
    "transactions",
)
_GROUP_KEYS = ("group_id", "group_ids", "groups", "groups_names")


def delayed_response(
    broker: BrokerServices, delays: RealisticDelays, request: Request, path: str
) -> Response:
    """Return the response to a coordinator's request that is refused for a moment; else None.

    Args:
        path: the error path of its API.
    """
    error = _error(broker, delays, request)
    if error is ErrorCode.NONE:
        return None
    places = error_places(request.api_key, request.api_version, path)
    response: Response = error_response(places, request.body, error)
    return response


def _error(broker: BrokerServices, delays: RealisticDelays, request: Request) -> ErrorCode:
    api_key, body = request.api_key, request.body
    if api_key == _INIT_PRODUCER_ID and body.transactional_id is None:
        lacks_ids = delays.lacks_producer_ids(broker.broker_id)
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if lacks_ids else ErrorCode.NONE
    is_transaction = api_key in _STEPS or api_key == _DESCRIBE_TRANSACTIONS
    coordinator = broker.transactions if is_transaction else broker.groups
    for key in _keys(body, _TRANSACTION_KEYS if is_transaction else _GROUP_KEYS):
        place = coordinator.coordinator_partition(key)
        error = delays.coordinator_error(broker.broker_id, place)
        if error is not ErrorCode.NONE:
            return error
        if api_key in _STEPS and delays.writes_markers(key):
            return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.NONE


def _keys(body: Any, names: Sequence[str]) -> Iterator[str]:
    """Yield the groups or the transactional ids of a request; a few have several."""
    for name in names:
        value = getattr(body, name, None) or ()
        for element in (value,) if isinstance(value, str) else value:
            yield element if isinstance(element, str) else getattr(element, _ID_OF[name])


_ID_OF = {"groups": "group_id", "transactions": "transactional_id"}
"""The field of an element that is a structure."""
