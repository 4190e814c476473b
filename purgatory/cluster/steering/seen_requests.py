"""The latest requests of clients with their answers, for the assertions of tests.

A cluster keeps the latest `MOST_REQUESTS`, of at most `MOST_BYTES`; numbers count all of them.
Requests and answers are kept as they came, and decoded where a test looks at them.

Ground rules: everything happens on the event loop's thread; a `SeenRequest` may be read on others.
"""

from __future__ import annotations

import base64
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple

from kio.schema.index import api_key_map

from purgatory.cluster.faulty_responses import ServedApi, TopicOf, inject_error
from purgatory.cluster.protocol.error_responses import error_places, error_response
from purgatory.cluster.protocol.wire import (
    Request,
    decode_request,
    decode_response,
    given_entity,
    request_entity,
)
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults import ReturnError
from purgatory.kafka.faults.fault import (
    kafka_api_name,
    normalize_api_name,
    suggest_name,
)
from timer.machine_time import time

MOST_REQUESTS = 5_000
MOST_BYTES = 16 * 1024 * 1024

_TOPIC_RESOURCE = 2
_TOPIC_FIELDS = frozenset({"name", "topic", "topic_name"})
_TOPIC_LISTS = frozenset({"topic_names", "subscribed_topic_names"})
_TOPIC_PARENTS = frozenset({"topics", "topic_data", "responses", "v3_and_below_topics"})
_SECRETS = frozenset({"auth_bytes", "salt", "salted_password"})
_ONE_MS = timedelta(milliseconds=1)


class SeenRequest:
    """One request of a client.

    ``number`` counts a cluster's requests from 1 on, ``at_s`` and ``answered_s`` are seconds since
    1970, ``broker`` is the broker that it came to, ``client_id`` and ``peer`` tell who sent it,
    ``api`` is Kafka's name of its API ("Produce"), ``version`` the version.
    """

    __slots__ = (
        "_api",
        "_frame",
        "_request",
        "answered_s",
        "at_s",
        "broker",
        "number",
        "peer",
        "size_bytes",
    )

    def __init__(
        self, number: int, broker: int, peer: str, request: Request, api: ServedApi, size_bytes: int
    ) -> None:
        self.number = number
        self.at_s = time.time()
        self.answered_s: float | None = None
        self.broker = broker
        self.peer = peer
        self.size_bytes = size_bytes
        self._request = request
        self._api = api
        self._frame: bytes | None = None

    def __repr__(self) -> str:
        state = "unanswered" if self._frame is None else "answered"
        return f"<{type(self).__name__} {self.number}: {self}, {state}>"

    def __str__(self) -> str:
        return f"{self.api} v{self.version} of {self.client_id!r} at broker {self.broker}"

    @property
    def api(self) -> str:
        """Kafka's name of the API: "ListOffsets"."""
        return kafka_api_name(self._request.api_name)

    @property
    def version(self) -> int:
        """The version of the API."""
        return self._request.api_version

    @property
    def client_id(self) -> str | None:
        """The ``client.id``."""
        return self._request.client_id

    @property
    def fields(self) -> Any:
        """The request's fields, as an entity of `kio`."""
        request = self._request
        if isinstance(request.body, bytes):  # it passed a proxy
            known = {request.api_key: (request.api_version, request.api_version)}
            request = decode_request(request.body, known)
        return request_entity(request)

    @property
    def answer(self) -> Any:
        """The answer's fields, as an entity of `kio`; None: the client has got none so far."""
        return None if self._frame is None else decode_response(self._request, self._frame)

    def topics(self, topic_of: TopicOf) -> set[str]:
        """Return the topics that the request names. O(its elements)."""
        return set(_topics_in(self.fields, topic_of))

    def refusal(self, error: str) -> Any:
        """Return an answer with an error, by its Kafka name, for all that is requested.

        Raises:
            ClusterError: no error has that name.
        """
        request, fault = replace(self._request, body=self.fields), ReturnError(error=error)
        injected = inject_error(request, self._api, fault, lambda _: None)
        if injected is not None:
            return injected.apply(None)
        places = error_places(request.api_key, request.api_version, self._api.errors)
        return error_response(places, request.body, fault.error_code)

    def answer_with(self, values: Mapping[str, Any]) -> Any:
        """Return an answer with some fields, by their names in `kio`; others are empty.

        Times are numbers of milliseconds, error codes numbers or names, bytes may be base64, arrays
        lists of mappings.

        Raises:
            ClusterError: the answer of this version has no such field, or it has another type.
        """
        request = self._request
        answer_class = error_places(request.api_key, request.api_version, self._api.errors).response
        try:
            return given_entity(answer_class, values)
        except ValueError as error:
            raise ClusterError(f"no answer to {self.api} v{self.version}: {error}") from error

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON; bytes are base64, secrets are left out."""
        return {
            "number": self.number,
            "at_s": self.at_s,
            "broker": self.broker,
            "client_id": self.client_id,
            "peer": self.peer,
            "api": self.api,
            "version": self.version,
            "fields": _plain(self.fields),
            "answered_s": self.answered_s,
            "answer": _plain(self.answer),
        }

    def add_answer(self, frame: bytes) -> None:
        """Note the answer that the client got."""
        self._frame = frame
        self.answered_s = time.time()


def _topics_in(value: Any, topic_of: TopicOf, parent: str = "") -> Iterator[str]:
    if isinstance(value, tuple):
        for element in value:
            if isinstance(element, str):
                if parent in _TOPIC_LISTS | _TOPIC_PARENTS:
                    yield element
            else:
                yield from _topics_in(element, topic_of, parent)
        return
    if not is_dataclass(value):
        return
    if getattr(value, "resource_type", None) == _TOPIC_RESOURCE:
        yield getattr(value, "resource_name", "")
    for field in fields(value):
        inner = getattr(value, field.name)
        if isinstance(inner, str):
            if field.name in _TOPIC_FIELDS and (parent in _TOPIC_PARENTS or field.name != "name"):
                yield inner
        elif field.name == "topic_id" and isinstance(inner, uuid.UUID):
            name = topic_of(inner)
            if name is not None:
                yield name
        else:
            yield from _topics_in(inner, topic_of, field.name)


def _plain(value: Any) -> Any:
    """Return a value of `kio` as plain data: times in milliseconds, bytes in base64."""
    if is_dataclass(value):
        return {
            field.name: _plain(getattr(value, field.name))
            for field in fields(value)
            if field.name not in _SECRETS
        }
    match value:
        case tuple() | list():
            return [_plain(element) for element in value]
        case bytes():
            return base64.b64encode(value).decode()
        case timedelta():
            return value // _ONE_MS
        case datetime():
            return round(value.timestamp() * 1_000)
        case uuid.UUID():
            return str(value)
        case Enum():
            return value.name.upper()
    return value


class RequestFilter(NamedTuple):
    """Selects requests: those of one API, client, topic or broker; None: of any."""

    api: str | None = None
    client_id: str | None = None
    topic: str | None = None
    broker: int | None = None

    def selects(self, seen: SeenRequest, topic_of: TopicOf) -> bool:
        """Whether a request is selected. O(1), with a topic O(the request's elements)."""
        return (
            self.api in (None, seen.api)
            and self.client_id in (None, seen.client_id)
            and self.broker in (None, seen.broker)
            and (self.topic is None or self.topic in seen.topics(topic_of))
        )

    def __str__(self) -> str:
        values = (("client_id", self.client_id), ("topic", self.topic), ("broker", self.broker))
        given = [f"{name}={value!r}" for name, value in values if value is not None]
        return f"{self.api or 'any'} requests{' with ' if given else ''}{', '.join(given)}"


def checked_filter(
    apis: Mapping[int, ServedApi],
    api: str | None = None,
    client_id: str | None = None,
    topic: str | None = None,
    broker: int | None = None,
) -> RequestFilter:
    """Return a filter; the API's name may be Kafka's or the trace's.

    Raises:
        ClusterError: no API has that name, or an argument has another type.
    """
    for name, value in (("api", api), ("client_id", client_id), ("topic", topic)):
        if value is not None and not isinstance(value, str):
            raise ClusterError(f"{name}={value!r}: a text, or left out")
    if broker is not None and type(broker) is not int:
        raise ClusterError(f"broker={broker!r}: a broker's number, or left out")
    if api is not None:
        names = {kafka_api_name(api_key_map[key]) for key in apis}
        found = kafka_api_name(normalize_api_name(api))
        if found not in names:
            hint = suggest_name(found, sorted(names))
            raise ClusterError(f"api={api!r}: no such API is served; {hint}")
        api = found
    return RequestFilter(api, client_id, topic, broker)


class RequestLog:
    """The latest requests of a cluster.

    Args:
        apis: the rows of the APIs.
        topic_of: returns a topic's name by its id.
    """

    def __init__(self, apis: Mapping[int, ServedApi], topic_of: TopicOf) -> None:
        self._apis = apis
        self._kept: deque[SeenRequest] = deque()
        self._kept_bytes = 0
        self._count = 0
        self.topic_of = topic_of
        self.listeners: list[Callable[[SeenRequest], object]] = []
        """Called with each request that was answered."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self._kept)} of {self._count} requests>"

    @property
    def count(self) -> int:
        """The number of all requests so far."""
        return self._count

    @property
    def kept_bytes(self) -> int:
        """The bytes of the requests and answers that are kept."""
        return self._kept_bytes

    def add(self, broker: int, peer: str, request: Request, size_bytes: int) -> SeenRequest:
        """Add a request, and drop the oldest above the limits."""
        self._count += 1
        api = self._apis[request.api_key]
        seen = SeenRequest(self._count, broker, peer, request, api, size_bytes)
        self._kept.append(seen)
        self._kept_bytes += size_bytes
        if len(self._kept) > MOST_REQUESTS or self._kept_bytes > MOST_BYTES:
            self._drop_oldest()
        return seen

    def add_answer(self, seen: SeenRequest, frame: bytes) -> None:
        """Note the answer that a client got."""
        seen.add_answer(frame)
        if self._kept and seen.number >= self._kept[0].number:
            seen.size_bytes += len(frame)
            self._kept_bytes += len(frame)
            if self._kept_bytes > MOST_BYTES:
                self._drop_oldest()
        if self.listeners:
            for listener in list(self.listeners):
                listener(seen)

    def _drop_oldest(self) -> None:
        while self._kept and (len(self._kept) > MOST_REQUESTS or self._kept_bytes > MOST_BYTES):
            self._kept_bytes -= self._kept.popleft().size_bytes

    def since(self, number: int) -> list[SeenRequest]:
        """Return the kept requests after a number, oldest first. O(these)."""
        found = []
        for seen in reversed(self._kept):
            if seen.number <= number:
                break
            found.append(seen)
        return found[::-1]

    def matching(self, chosen: RequestFilter, since: int = 0) -> list[SeenRequest]:
        """Return the kept requests that a filter selects, oldest first."""
        return [seen for seen in self.since(since) if chosen.selects(seen, self.topic_of)]

    def clear(self) -> None:
        """Forget all requests; their number goes on."""
        self._kept.clear()
        self._kept_bytes = 0
