"""Responses with injected faults: errors, throttle times, lower leader epochs.

Ground rules
------------
* Everything happens on the event loop's thread.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from purgatory.cluster.protocol.connection import Answer, Connection, waited_for
from purgatory.cluster.protocol.error_responses import (
    InjectedError,
    TopicOf,
    can_throttle,
    inject_error,
    throttled,
    with_lower_epochs,
)
from purgatory.cluster.protocol.response_shape import read_response, response_shape, write_response
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka.faults import ErrorFault, Throttle, TurnBackEpochs
from purgatory.kafka.faults.active_faults import ActiveFault, ActiveFaults, has_its_share

Handle = Callable[[Request], Answer | Awaitable[Answer]]


class FaultyResponse(NamedTuple):
    """What a client is answered, and whether that hides what was done."""

    answer: Answer
    is_untrue: bool = False


async def faulty_response(
    faults: ActiveFaults,
    broker: int,
    request: Request,
    connection: Connection,
    handle: Handle,
    topic_of: TopicOf,
    known: Sequence[tuple[str | uuid.UUID, int]] = (),
) -> FaultyResponse:
    """Answer a request.

    Args:
        faults: the active ones.
        broker: who is asked.
        request, connection: what, and by whom. The connection is cut, as by Kafka, where an error
            can't be told: to a produce with acks=0.
        handle: carries a request out.
        topic_of: tells the name of a topic by its id.
        known: the partitions that the session of a fetch has.
    """
    struck = _injected_errors(faults, broker, request, topic_of, known)
    altering = _altering(faults, broker, request)
    if not struck and not altering:
        return FaultyResponse(await waited_for(handle(request)))
    entity = None
    if not struck or struck[-1].rest is not None:
        rest = request._replace(body=struck[-1].rest) if struck else request
        answer = await waited_for(handle(rest))
        if answer is not None:
            entity = read_response(request, answer)
    is_untrue = any(one.fault.is_carried_out for one in struck)
    if getattr(request.body, "acks", None) == 0:
        if struck:
            connection.abort()
        return FaultyResponse(None, is_untrue)
    for one in reversed(struck):
        entity = one.with_errors(entity)
    if entity is None:
        return FaultyResponse(None, is_untrue)
    for begun, fault in altering:
        entity = _altered(entity, begun, fault, topic_of)
    return FaultyResponse(write_response(entity), is_untrue)


def _injected_errors(
    faults: ActiveFaults,
    broker: int,
    request: Request,
    topic_of: TopicOf,
    known: Sequence[tuple[str | uuid.UUID, int]],
) -> list[InjectedError]:
    """Have each fault take its part of the request, from what those before it left."""
    struck: list[InjectedError] = []
    for begun, fault in faults.matching(broker, request.api_name, request.client_id):
        if not isinstance(fault, ErrorFault):
            continue
        one = inject_error(request, fault, topic_of, known)
        if one is None or not has_its_share(begun, fault):
            continue
        struck.append(one)
        if one.rest is None:
            break
        request = request._replace(body=one.rest)
    return struck


def _altering(
    faults: ActiveFaults, broker: int, request: Request
) -> list[tuple[ActiveFault, Throttle | TurnBackEpochs]]:
    """Return those faults that alter answers, of which there may be something to alter here."""
    throttles = can_throttle(response_shape(request.api_key, request.api_version).of)
    return [
        (begun, fault)
        for begun, fault in faults.matching(broker, request.api_name, request.client_id)
        if isinstance(fault, TurnBackEpochs) or (throttles and isinstance(fault, Throttle))
    ]


def _altered(
    entity: Any, begun: ActiveFault, fault: Throttle | TurnBackEpochs, topic_of: TopicOf
) -> Any:
    """Return a response as a fault has it; it counts as a strike where that is another one."""
    if isinstance(fault, Throttle):
        other = throttled(entity, fault.throttle_ms)
    else:
        other = with_lower_epochs(entity, fault.epochs, fault.topic, topic_of)
    return other if other is not entity and has_its_share(begun, fault) else entity
