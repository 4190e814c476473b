"""The places of errors in responses, and responses that refuse a request or a part of it.

A response has an error at the top, in the elements of nested arrays (groups, topics, partitions),
or in several of these places. The row of an API in `api.registry` lists these arrays as an error
path, from the outermost on:

    "groups topics partition_indexes:partitions"

has an array of the request before the colon, and the array of the response for it behind; without a
colon, both have the same name. In ":partitions", the request has no such array. The array of
"deletions|upsertions:results" is for two arrays of the request. Arrays that a version of an API
lacks are skipped.

Ground rules: no state but a cache of the places in each version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import Any, NamedTuple

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as WireError

from purgatory.cluster.protocol.wire import element_class, new_entity
from purgatory.kafka.errors import ErrorCode

_KEYS: Mapping[str, tuple[str, ...]] = {
    "topic": ("topic", "name", "topic_name"),
    "topic_id": ("topic_id",),
    "partition": ("partition", "index", "partition_index", "partition_id"),
    "group_id": ("group_id", "key"),
    "transactional_id": ("transactional_id",),
    "producer_id": ("producer_id",),
    "member_id": ("member_id",),
    "group_instance_id": ("group_instance_id",),
    "resource_type": ("resource_type",),
    "resource_name": ("resource_name",),
    "user": ("user", "name"),
}
"""The keys of elements of arrays, and their fields in the APIs."""


class ErrorArray(NamedTuple):
    """An array of a response whose elements have errors, or contain such an array.

    Args:
        response: the array.
        request: the arrays of the request that it is for.
        fields: the fields of an element by key; empty: an element is identified by its index.
        element: the class of an element.
        error: its field for the error, or None.
    """

    response: str
    request: tuple[str, ...]
    fields: Mapping[str, str]
    element: type[Any]
    error: str | None

    def has_key(self, key: str) -> bool:
        """Whether elements can be targeted by a key; by "topic" also topic ids and resources."""
        keys = (key, "topic_id", "resource_name") if key == "topic" else (key,)
        return any(key in self.fields for key in keys)

    def element_keys(self, element: Any) -> dict[str, Any]:
        """Return the keys of an element of the request or of the response, with their values."""
        if not is_dataclass(element):
            return {next(iter(self.fields)): element}
        entity_class: Any = type(element)
        names = {key: _key_field(entity_class, key) for key in self.fields}
        return {key: getattr(element, name) for key, name in names.items() if name is not None}

    def new_element(
        self, keys: Mapping[str, Any], code: int = 0, message: str | None = None, **values: Any
    ) -> Any:
        """Return an element of the response with these keys and values, and an error."""
        values |= {self.fields[key]: value for key, value in keys.items()}
        if self.error is not None and code:
            values |= {self.error: WireError(code), "error_message": message}
        return new_entity(self.element, values)


class ErrorPlaces(NamedTuple):
    """The error fields in responses of one version of an API.

    Args:
        response: the class of the response.
        top: its field for an error, or None.
        arrays: each in the elements of the previous one.
    """

    response: type[Any]
    top: str | None
    arrays: tuple[ErrorArray, ...]

    def depth(self, code: int, of_partition: bool) -> int:
        """Return the depth of the array in which an error belongs; 0: the top.

        Args:
            code: the error code.
            of_partition: whether the error is of a partition, also if the request lists none.
        """
        depths = [0] if self.top is not None else []
        with_error = [n for n, array in enumerate(self.arrays, 1) if array.error is not None]
        depths += [n for n in with_error if self.arrays[n - 1].request or of_partition]
        depths = depths or with_error[:1]  # such as the folders of logs, which no request lists
        if code in _TOP_LEVEL_ERRORS:
            return depths[0]
        inner = set()
        if code in _COORDINATOR_ERRORS | _MEMBER_ERRORS:
            inner |= {"topic", "topic_id", "partition"}
        if code in _COORDINATOR_ERRORS:
            inner.add("member_id")
        outer = [n for n in depths if n == 0 or inner.isdisjoint(self.arrays[n - 1].fields)]
        return (outer or depths)[-1]


_TOP_LEVEL_ERRORS = {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ErrorCode.INCONSISTENT_CLUSTER_ID,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_SHARE_SESSION_EPOCH,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.REBOOTSTRAP_REQUIRED,
    ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    ErrorCode.SHARE_SESSION_NOT_FOUND,
    ErrorCode.UNSUPPORTED_VERSION,
}

_COORDINATOR_ERRORS = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.NON_EMPTY_GROUP,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

_MEMBER_ERRORS = {
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.UNRELEASED_INSTANCE_ID,
}


@cache
def error_places(api_key: int, version: int, path: str) -> ErrorPlaces:
    """Return the error fields in responses of a version of an API, by its error path."""
    response, request = (
        load_response_schema(api_key, version),
        load_request_schema(api_key, version),
    )
    arrays: list[ErrorArray] = []
    element: Any = response
    for step in path.split():
        before, colon, name = step.rpartition(":")
        if not hasattr(element, name):
            continue
        element = element_class(element, name)
        requested = tuple(
            array for array in (before if colon else name).split("|") if hasattr(request, array)
        )
        if requested:
            request = element_class(request, requested[0])
        fields = _key_fields(element, request if requested else element)
        arrays.append(ErrorArray(name, requested, fields, element, _error_field(element)))
    return ErrorPlaces(response, _error_field(response), tuple(arrays))


def _key_fields(element: Any, requested: Any) -> Mapping[str, str]:
    """Return the fields of a response's element for the keys that it and a request's have."""
    fields: dict[str, str] = {}
    for key in _KEYS:
        name = _key_field(element, key)
        if name is not None and name not in fields.values():  # a "name" is a topic's first
            fields[key] = name
    is_plain = not is_dataclass(requested)
    if is_plain:
        return dict(list(fields.items())[:1])
    return {key: name for key, name in fields.items() if _key_field(requested, key) is not None}


@cache
def _key_field(entity_class: Any, key: str) -> str | None:
    return next((name for name in _KEYS[key] if hasattr(entity_class, name)), None)


def _error_field(entity_class: Any) -> str | None:
    names = ("error_code", "partition_error_code")
    return next((name for name in names if hasattr(entity_class, name)), None)


def error_response(places: ErrorPlaces, body: Any, code: int, message: str | None = None) -> Any:
    """Return a response that refuses all of a request, as an entity of `kio`.

    The error and its message are at the top, if the response has an error there; otherwise in each
    element for one of the request. With 0, there are no elements. O(the request's
    elements).
    """
    values: dict[str, Any] = {}
    if places.top is not None:
        values = {places.top: WireError(code), "error_message": message}
        values["member_id"] = getattr(body, "member_id", None)
    elif code:
        values = _error_elements(places.arrays, body, code)
    return new_entity(places.response, values)


def error_element(arrays: Sequence[ErrorArray], element: Any, code: int) -> Any:
    """Return the response's element with the error of a request's element.

    Args:
        arrays: the response's array, and those in its elements.
        element: the request's element, a structure or a plain value such as a name.
        code: the error code.
    """
    array, *inner = arrays
    keys = array.element_keys(element)
    if array.error is not None:
        return array.new_element(keys, code)
    return array.new_element(keys, **_error_elements(inner, element, code))


def _error_elements(arrays: Sequence[ErrorArray], request: Any, code: int) -> dict[str, Any]:
    elements = (
        error_element(arrays, element, code)
        for name in arrays[0].request
        for element in getattr(request, name) or ()
    )
    return {arrays[0].response: tuple(elements)}
