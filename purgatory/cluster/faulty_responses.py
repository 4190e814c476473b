"""Responses with injected faults: errors, throttle times, lower leader epochs, delays, losses.

An error is injected into a part of a request, such as one of its topics: that part is taken out of
the request, the rest is carried out, and the error is added to the response where Kafka has it.
Throttle times and lower leader epochs alter a response that is otherwise true.

Ground rules
------------
* Everything happens on the event loop's thread.
* Requests and responses are not changed, but copied.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from kio.index import load_request_schema
from kio.schema.errors import ErrorCode as WireError

from purgatory.cluster.protocol.connection import Response, ResponseConnection, await_response
from purgatory.cluster.protocol.error_responses import (
    ErrorArray,
    ErrorPlaces,
    error_places,
    error_response,
)
from purgatory.cluster.protocol.wire import (
    Request,
    Versions,
    element_class,
    new_entity,
    response_entity,
)
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.faults import (
    TARGET_KEYS,
    LowerLeaderEpochs,
    ReturnError,
    Throttle,
)
from purgatory.kafka.faults.active_faults import ActiveFaults, ResponseOutcome, draw_injection

TopicOf = Callable[[uuid.UUID], str | None]
"""Returns the name of the topic that has an id, or None."""

SessionPartition = tuple[str | uuid.UUID, int]
"""A partition of a fetch session, by its topic's name or id."""

_FETCH, _METADATA, _FIND_COORDINATOR = 1, 3, 10
_TRANSACTION_KEY = 1
_TOPIC_RESOURCE = 2
_PARTITION_DEPTH = 2
"""The depth of errors of partitions, within topics."""
_OLD_FIELD_PREFIX = "v3_and_below_"
"""The prefix of AddPartitionsToTxn's fields in the versions of clients."""


class ServedApi(Protocol):
    """An API, as far as faults are injected into its messages: a row of `api.registry`."""

    @property
    def versions(self) -> Versions:
        """The oldest and the newest version that is served."""

    @property
    def errors(self) -> str:
        """The error path of its responses: see `error_responses`."""

    @property
    def redirect(self) -> ErrorCode | None:
        """The error by which brokers other than the leader or the coordinator redirect clients."""

    @property
    def all_versions(self) -> range:
        """Each version that is served."""


class FaultyResponse(NamedTuple):
    """A response, whether it hides that the request was executed, and the refused parts."""

    response: Response
    hides_execution: bool = False
    refused: Sequence[InjectedError] = ()


async def faulty_response(
    faults: ActiveFaults,
    broker: int,
    request: Request,
    api: ServedApi,
    connection: ResponseConnection,
    handle: Callable[[Request], Response | Awaitable[Response]],
    topic_of: TopicOf,
    session: Sequence[SessionPartition] = (),
) -> FaultyResponse:
    """Execute what a broker's faults leave of a request, and return the altered response.

    A produce with acks=0 has no response: on an error its connection is closed, as in Kafka.
    """
    places = error_places(request.api_key, request.api_version, api.errors)
    injected: list[InjectedError] = []
    altering = []
    remaining: Request | None = request
    for active, fault in faults.matching(broker, request.api_name, request.client_id):
        if isinstance(fault, LowerLeaderEpochs) or (
            isinstance(fault, Throttle) and hasattr(places.response, "throttle_time")
        ):
            altering.append((active, fault))
        if isinstance(fault, ReturnError) and remaining is not None:
            passes, uses = fault.passes(active.uses), active.uses
            error = inject_error(remaining, api, fault.at(uses), topic_of, session)
            if error is not None and draw_injection(active, fault) and not passes:
                injected.append(error)
                remaining = (
                    None if error.remaining is None else replace(remaining, body=error.remaining)
                )
    response = None if remaining is None else await await_response(handle(remaining))
    if not injected and not altering:
        return FaultyResponse(response)
    hides_execution = any(error.fault.after for error in injected)
    refused = [error for error in injected if not error.fault.after]
    if getattr(request.body, "acks", None) == 0:
        if injected:
            connection.abort()
        return FaultyResponse(None, hides_execution, refused)
    entity = None if response is None else response_entity(request, response)
    for error in reversed(injected):
        entity = error.apply(entity)
    if entity is None:
        return FaultyResponse(None, hides_execution, refused)
    for active, fault in altering:
        if isinstance(fault, Throttle):
            altered = add_throttle_time(entity, fault.throttle_ms)
        else:
            altered = lower_epochs(entity, fault.epochs, fault.topic, topic_of)
        if altered is not entity and draw_injection(active, fault):
            entity = altered
    return FaultyResponse(entity, hides_execution, refused)


class InjectedElement(NamedTuple):
    """An element of a request, by index and keys, that gets an error, or whose elements do."""

    place: int
    keys: Mapping[str, Any]
    elements: tuple[InjectedElement, ...]


class InjectedError(NamedTuple):
    """An error that is injected into a request.

    Args:
        body: the original request.
        remaining: the part of the request to execute; None: nothing.
        fault: has the error and its targets.
        places: the places of errors in the response.
        depth: how many arrays contain the error code; 0: it is a top-level field.
        elements: the elements of the request that get it; None: targets among the response's.
        topic_of: returns a topic's name by its id.
    """

    body: Any
    remaining: Any
    fault: ReturnError
    places: ErrorPlaces
    depth: int
    elements: tuple[InjectedElement, ...] | None
    topic_of: TopicOf

    def partitions(self) -> set[tuple[str, int]] | None:
        """Return the partitions that get it; None: the whole request does."""
        if self.depth < _PARTITION_DEPTH or self.elements is None:
            return None
        found = set()
        for topic in self.elements:
            name = topic.keys.get("topic") or self.topic_of(topic.keys["topic_id"])
            if name is not None:
                found |= {(name, element.keys["partition"]) for element in topic.elements}
        return found

    def apply(self, response: Any) -> Any:
        """Return a response, an entity of `kio` or None, with the error."""
        if self.depth == 0:
            code, message = self.fault.error_code, self._message
            return error_response(self.places, self.body, code, message)
        if response is None:
            response = new_entity(self.places.response, {})
        arrays = self.places.arrays[: self.depth]
        if self.elements is None:
            return self._apply_to_chosen(response, arrays)
        return self._apply_to_elements(response, arrays, self.elements)

    def _apply_to_elements(
        self, response: Any, arrays: Sequence[ErrorArray], injected: Sequence[InjectedElement]
    ) -> Any:
        array, *inner = arrays
        elements = list(getattr(response, array.response) or ())
        for injected_element in injected:
            index = self._index_of(injected_element, elements, array)
            if inner:
                element = (
                    array.new_element(injected_element.keys) if index is None else elements[index]
                )
                element = self._apply_to_elements(element, inner, injected_element.elements)
            else:
                element = self._error_element(array, injected_element.keys)
            if index is not None:
                elements[index] = element
            else:
                elements.insert(len(elements) if array.fields else injected_element.place, element)
        return replace(response, **{array.response: tuple(elements)})

    def _index_of(
        self, injected: InjectedElement, elements: Sequence[Any], array: ErrorArray
    ) -> int | None:
        """Return the index of the response's element for one of the request, or None."""
        if not array.fields:
            is_there = self.fault.after and injected.place < len(elements)
            return injected.place if is_there else None
        keys = [(array.fields[key], value) for key, value in injected.keys.items()]
        for index, element in enumerate(elements):
            if all(value in (None, getattr(element, field)) for field, value in keys):
                return index
        return None

    def _apply_to_chosen(self, response: Any, arrays: Sequence[ErrorArray]) -> Any:
        array, *inner = arrays
        elements = []
        for element in getattr(response, array.response) or ():
            keys = array.element_keys(element)
            if not _is_chosen(self.fault.chosen, keys, self.topic_of):
                elements.append(element)
            elif inner:
                elements.append(self._apply_to_chosen(element, inner))
            else:
                elements.append(self._error_element(array, keys))
        return replace(response, **{array.response: tuple(elements)})

    def _error_element(self, array: ErrorArray, keys: Mapping[str, Any]) -> Any:
        return array.new_element(keys, self.fault.error_code, self._message)

    @property
    def _message(self) -> str:
        return f"{WireError(self.fault.error_code).name.upper()} is injected by a fault"


_HEARTBEAT = 12


def tells_of_loading(api_key: int, api: ServedApi) -> bool:
    """Whether coordinators respond to the API with an error while they load.

    They do to all that is sent to them but heartbeats of classic groups: as in Kafka, those get
    none.
    """
    return api.redirect == ErrorCode.NOT_COORDINATOR and api_key != _HEARTBEAT


def inject_error(
    request: Request,
    api: ServedApi,
    fault: ReturnError,
    topic_of: TopicOf,
    session: Sequence[SessionPartition] = (),
) -> InjectedError | None:
    """Inject an error into the elements of a request that a fault targets; None if there are none.

    O(the request's elements).

    Args:
        request, api: the request, and the row of its API.
        fault: has the error and its targets.
        topic_of: returns a topic's name by its id.
        session: the partitions that a fetch requests without listing them.
    """
    body = request.body
    if fault.only_coordinators and (
        not tells_of_loading(request.api_key, api) or getattr(body, "transactional_id", "") is None
    ):
        return None
    places = error_places(request.api_key, request.api_version, api.errors)
    chosen = _element_choices(request, places, fault.chosen)
    if chosen is None:
        return None
    depth = places.depth(fault.error_code, "partition" in chosen)
    elements: tuple[InjectedElement, ...] | None = None
    remaining = body
    if (depth or chosen) and all(array.request for array in places.arrays[:depth]):
        listed = _list_session(body, session) if session else body
        last = [n for n, array in enumerate(places.arrays, 1) if any(map(array.has_key, chosen))]
        arrays = [
            error_array
            for error_array in places.arrays[: max([depth, *last])]
            if error_array.request
        ]
        try:
            remaining, elements = _remove_chosen(
                listed, arrays, depth, lambda keys: _is_chosen(chosen, keys, topic_of)
            )
        except _RequestsAllError:
            remaining = body
        else:
            if not elements:
                return None
    if fault.after:
        remaining = body
    elif depth == 0:
        remaining = None
    elif request.api_key == _FETCH:
        # The session keeps what its first fetch listed, also the partitions that get the error.
        remaining = replace(body, max_wait=timedelta(0))
    elif request.api_key == _METADATA and remaining is None:
        remaining = replace(body, topics=())  # clients need the brokers, too
    return InjectedError(body, remaining, fault, places, depth, elements, topic_of)


class _RequestsAllError(Exception):
    """The request lists no elements, and so requests all."""


def _remove_chosen(
    request: Any,
    arrays: Sequence[ErrorArray],
    depth: int,
    is_chosen: Callable[[Mapping[str, Any]], bool],
) -> tuple[Any, tuple[InjectedElement, ...]]:
    """Remove the targets from a request: whole elements of the arrays at ``depth``.

    Returns:
        The remaining request, or None; and the removed elements.
    """
    array, *inner = arrays
    removed: list[InjectedElement] = []
    remaining_arrays: dict[str, tuple[Any, ...]] = {}
    for name in array.request:
        if getattr(request, name) is None:
            raise _RequestsAllError
        remaining_elements = []
        for index, element in enumerate(getattr(request, name)):
            keys = array.element_keys(element)
            remaining: Any = None
            elements: tuple[InjectedElement, ...] = ()
            is_removed = is_chosen(keys)
            if is_removed and inner:
                remaining, elements = _remove_chosen(element, inner, depth - 1, is_chosen)
                is_removed = bool(elements)
            if not is_removed:
                remaining_elements.append(element)
                continue
            removed.append(InjectedElement(index, keys, elements))
            if remaining is not None and depth > 1:
                remaining_elements.append(remaining)
        remaining_arrays[name] = tuple(remaining_elements)
    return replace(request, **remaining_arrays) if any(remaining_arrays.values()) else None, tuple(
        removed
    )


def _list_session(body: Any, session: Sequence[SessionPartition]) -> Any:
    """Return a fetch that lists the partitions of its session, too."""
    topic_class = element_class(type(body), "topics")
    partition_class = element_class(topic_class, "partitions")
    topics = {
        getattr(requested_topic, "topic", None)
        or getattr(requested_topic, "topic_id", None): requested_topic
        for requested_topic in body.topics
    }
    for topic_key, partition in session:
        key = "topic" if isinstance(topic_key, str) else "topic_id"
        topic = topics.get(topic_key) or new_entity(topic_class, {key: topic_key})
        if all(listed.partition != partition for listed in topic.partitions):
            added = new_entity(partition_class, {"partition": partition})
            topic = replace(topic, partitions=(*topic.partitions, added))
        topics[topic_key] = topic
    return replace(body, topics=tuple(topics.values()))


# Targets of a fault.


def supported_choices(api_key: int, api: ServedApi) -> set[str]:
    """Return the keys by which a fault can target requests of an API, of all versions."""
    if api_key == _FIND_COORDINATOR:
        return {"group_id", "transactional_id"}
    choices: set[str] = set()
    for version in api.all_versions:
        request_fields = fields(load_request_schema(api_key, version))
        names = {field.name.removeprefix(_OLD_FIELD_PREFIX) for field in request_fields}
        arrays = error_places(api_key, version, api.errors).arrays
        choices |= {
            choice
            for choice in TARGET_KEYS
            if choice in names or any(a.has_key(choice) for a in arrays)
        }
    return choices


def _element_choices(
    request: Request, places: ErrorPlaces, chosen: Mapping[str, object]
) -> Mapping[str, object] | None:
    """Return the target keys that elements have; None if the request does not match the others."""
    body = request.body
    element_choices = {}
    for key, value in chosen.items():
        if request.api_key == _FIND_COORDINATOR:
            is_transaction = getattr(body, "key_type", 0) == _TRANSACTION_KEY
            names = (body.key,) if hasattr(body, "key") else body.coordinator_keys
            if key != ("transactional_id" if is_transaction else "group_id") or value not in names:
                return None
            if places.arrays:
                element_choices["group_id"] = value  # the key of a transaction, too
        elif any(array.has_key(key) for array in places.arrays):
            element_choices[key] = value
        elif value not in (getattr(body, key, None), getattr(body, _OLD_FIELD_PREFIX + key, None)):
            return None
    return element_choices


def _is_chosen(chosen: Mapping[str, object], keys: Mapping[str, Any], topic_of: TopicOf) -> bool:
    """Whether an element's keys match the target."""
    for key, value in chosen.items():
        if key == "topic" and "topic_id" in keys and not keys.get("topic"):
            topic_id = keys["topic_id"]
            found = None if topic_id is None else topic_of(topic_id)
        elif key == "topic" and "resource_name" in keys:
            is_topic = keys["resource_type"] == _TOPIC_RESOURCE
            found = keys["resource_name"] if is_topic else None
        else:
            found = keys.get(key, value)
        if found != value:
            return False
    return True


# Throttle times and leader epochs.

_EPOCHS = frozenset({"leader_epoch", "committed_leader_epoch"})
_TOPIC_FIELDS = frozenset({"name", "topic", "topic_name", "topic_id"})


def add_throttle_time(response: Any, throttle_ms: int) -> Any:
    """Return a response with a longer throttle time."""
    longer = response.throttle_time + timedelta(milliseconds=throttle_ms)
    return replace(response, throttle_time=longer)


def lower_epochs(response: Any, epochs: int, topic: str | None, topic_of: TopicOf) -> Any:
    """Return a response with lower leader epochs, of one topic or all; at least 0.

    A response without leader epochs is returned unchanged. O(the response's elements).
    """
    changes: dict[str, Any] = {}
    for field in fields(response):
        value = getattr(response, field.name)
        if field.name in _TOPIC_FIELDS and topic is not None and value is not None:
            if (topic_of(value) if isinstance(value, uuid.UUID) else value) != topic:
                return response
        elif field.name in _EPOCHS and value > 0:
            changes[field.name] = max(0, value - epochs)
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            lower = tuple(lower_epochs(element, epochs, topic, topic_of) for element in value)
            if any(new is not old for new, old in zip(lower, value, strict=True)):
                changes[field.name] = lower
        elif is_dataclass(value):
            lowered = lower_epochs(value, epochs, topic, topic_of)
            if lowered is not value:
                changes[field.name] = lowered
    return replace(response, **changes) if changes else response


# Delays, losses, truncation.

_CHUNKS_PER_S = 20
"""The chunks of a slow response, per second."""


async def send_faulty(
    connection: ResponseConnection, frame: bytes, outcome: ResponseOutcome
) -> bool:
    """Send a response late, in part, slowly, twice or never; return whether all of it was sent."""
    if outcome.delay_ms:
        await asyncio.sleep(outcome.delay_ms / 1_000)
    if outcome.lost:
        if outcome.cut:
            connection.abort()
        return False
    sent = frame
    if outcome.truncated is not None:
        kept = outcome.truncated.keep_bytes
        sent = frame[: min(len(frame) - 1, len(frame) // 2 if kept is None else kept)]
    arrived = False
    for _ in range(outcome.copies):
        if outcome.bytes_per_s is None:
            arrived = connection.write(sent)
        else:
            arrived = await _write_slowly(connection, sent, outcome.bytes_per_s)
    if outcome.truncated is not None:
        connection.abort()
        return False
    return arrived


async def _write_slowly(connection: ResponseConnection, frame: bytes, bytes_per_s: int) -> bool:
    step = max(1, bytes_per_s // _CHUNKS_PER_S)
    for start in range(0, len(frame), step):
        part = frame[start : start + step]
        await asyncio.sleep(len(part) / bytes_per_s)
        if not connection.write(part):
            return False
    return True
