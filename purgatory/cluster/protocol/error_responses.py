"""Errors in responses: refusals of access control, and injected faults.

A response has up to four places for an error: the whole, and nested arrays, such as groups, topics
and partitions. An error of a coordinator or a session belongs to an outer one, an error of a
partition to the innermost. An injected error is taken out of the request, and the rest is carried
out; then it is put into the response where Kafka has it. Throttle times and lower leader epochs
alter a response that is otherwise true.

Ground rules: no state; requests and responses are not changed, but copied.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple

from kio.index import load_request_schema
from kio.schema.errors import ErrorCode as WireError

from purgatory.cluster.protocol.response_shape import (
    ONE,
    Level,
    ResponseShape,
    blank,
    response_shape,
)
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.faults import CHOICES, ErrorFault, LoadCoordinator


def _numbers(*names: str) -> frozenset[int]:
    return frozenset(ErrorCode[name] for name in names)


_OF_THE_WHOLE = _numbers(
    "CLUSTER_AUTHORIZATION_FAILED",
    "FETCH_SESSION_ID_NOT_FOUND",
    "FETCH_SESSION_TOPIC_ID_ERROR",
    "INCONSISTENT_CLUSTER_ID",
    "INVALID_FETCH_SESSION_EPOCH",
    "INVALID_REQUEST",
    "INVALID_SHARE_SESSION_EPOCH",
    "NOT_CONTROLLER",
    "REBOOTSTRAP_REQUIRED",
    "SHARE_SESSION_LIMIT_REACHED",
    "SHARE_SESSION_NOT_FOUND",
    "UNSUPPORTED_VERSION",
)

_OF_COORDINATORS = _numbers(
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "GROUP_AUTHORIZATION_FAILED",
    "GROUP_ID_NOT_FOUND",
    "INVALID_GROUP_ID",
    "NON_EMPTY_GROUP",
    "NOT_COORDINATOR",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
)

_OF_MEMBERS = _numbers(
    "FENCED_INSTANCE_ID",
    "FENCED_MEMBER_EPOCH",
    "ILLEGAL_GENERATION",
    "REBALANCE_IN_PROGRESS",
    "STALE_MEMBER_EPOCH",
    "UNKNOWN_MEMBER_ID",
    "UNRELEASED_INSTANCE_ID",
)


def has_place(api_key: int, version: int) -> bool:
    """Whether the responses of a version of an API can have an error."""
    shape = response_shape(api_key, version)
    return shape.error is not None or any(one.error for one in shape.levels)


def depth_of(shape: ResponseShape, code: int, is_of_partition: bool) -> int | None:
    """Return how many arrays lead to where an error belongs; None where a response has no place."""
    places = [] if shape.error is None else [0]
    for depth, level in enumerate(shape.levels, 1):
        if level.error is not None and (level.asked or is_of_partition):
            places.append(depth)
    if not places:  # but at what nobody named, such as the folders of logs
        places = [depth for depth, level in enumerate(shape.levels, 1) if level.error][:1]
    if not places:
        return None
    if code in _OF_THE_WHOLE:
        return places[0]
    if code in _OF_COORDINATORS or code in _OF_MEMBERS:
        beyond = {"topic", "topic_id", "partition"}
        beyond |= {"member_id"} if code in _OF_COORDINATORS else set()
        outer = [at for at in places if at == 0 or not beyond & set(shape.levels[at - 1].names)]
        return outer[-1] if outer else places[-1]
    return places[-1]


def error_response(request: Request, code: int, message: str | None = None) -> Any:
    """Return a response that refuses all of a request, as an entity of `kio`.

    The code stands at the top where the response has one there, else at each thing that is asked
    about. O(the request's elements).
    """
    shape = response_shape(request.api_key, request.api_version)
    if shape.error is not None:
        member_id = getattr(request.body, "member_id", None)
        return blank(shape.of, {**_error(shape.error, code, message), "member_id": member_id})
    values = _refused_within(request.body, shape.levels, code) if code else {}
    return blank(shape.of, values)


def error_part(request: Request, array: str, part: Any, code: int) -> Any:
    """Return the element of a response that refuses one thing that a request asks about.

    Args:
        request: what was asked.
        array: one of the request's, whose elements its response answers one by one.
        part: an element of it: a structure, a name or a number.
        code: of the refusal.
    """
    levels = response_shape(request.api_key, request.api_version).levels
    return _refused(part, levels[0].asked.index(array), levels, code)


def response_array(request: Request) -> str:
    """Return the array of a response that answers, one by one, what its request asks about."""
    return response_shape(request.api_key, request.api_version).levels[0].answered


def names_in(element: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Return what names an element of a request, by `response_shape`'s names for its fields."""
    return {key: element if name == ONE else getattr(element, name) for key, name in names.items()}


def response_element(
    level: Level, named: Mapping[str, Any], code: int = 0, message: str | None = None
) -> Any:
    """Return an element of a response about something, with an error if there is one."""
    values = {field: named[key] for key, field in level.names.items() if key in named}
    if code:
        assert level.error is not None, "the place was chosen for its error"
        values.update(_error(level.error, code, message))
    return blank(level.of, values)


def _refused(part: Any, array: int, levels: Sequence[Level], code: int) -> Any:
    level, *deeper = levels
    named = names_in(part, level.asked_names[array])
    if level.error is not None:
        return response_element(level, named, code)
    values = {field: named[key] for key, field in level.names.items() if key in named}
    return blank(level.of, {**values, **_refused_within(part, deeper, code)})


def _refused_within(asked: Any, levels: Sequence[Level], code: int) -> dict[str, Any]:
    refused = (
        _refused(part, array, levels, code)
        for array, name in enumerate(levels[0].asked)
        for part in getattr(asked, name) or ()
    )
    return {levels[0].answered: tuple(refused)}


def _error(field: str, code: int, message: str | None) -> dict[str, Any]:
    return {field: WireError(code), "error_message": message}


TopicOf = Callable[[uuid.UUID], str | None]
"""Returns the name of the topic that has an id, or None."""

_TOPIC_RESOURCE = 2
_TRANSACTION_KEY = 1
_FETCH = 1
_FIND_COORDINATOR = 10
_OLD = "v3_and_below_"
"""How names begin in the old versions of AddPartitionsToTxn, which are those that clients speak."""

_ASK_BESIDE = frozenset({"metadata"})
"""APIs whose responses have what clients need, beside what they asked for: the brokers."""


class Found(NamedTuple):
    """An element of a request that is struck: where it stands, what names it, and what in it."""

    place: int
    named: Mapping[str, Any]
    inner: tuple[Found, ...]


class _AsksAllError(Exception):
    """The request names nothing, and asks for all."""


class InjectedError(NamedTuple):
    """A request of which something is answered with an error.

    Args:
        request: as it came.
        rest: what is to be carried out: its body; None for nothing.
        fault: what is told, of what.
        depth: how many arrays of the response lead to the error; 0: it is of the whole.
        found: what is struck; None: what of the response it concerns.
        topic_of: tells the names of topics.
    """

    request: Request
    rest: Any
    fault: ErrorFault
    depth: int
    found: tuple[Found, ...] | None
    topic_of: TopicOf

    def with_errors(self, answer: Any) -> Any:
        """Return a response with the errors in it.

        Args:
            answer: to ``rest``, as an entity of `kio`; None where nothing was carried out.
        """
        shape = response_shape(self.request.api_key, self.request.api_version)
        if self.depth == 0:
            return error_response(self.request, self.fault.error_code, self._message)
        if answer is None:
            answer = blank(shape.of, {})
        levels = shape.levels[: self.depth]
        if self.found is None:
            return self._with_errors_there(answer, levels)
        return self._put(answer, levels, self.found)

    def _put(self, answer: Any, levels: Sequence[Level], found: Sequence[Found]) -> Any:
        level, *deeper = levels
        elements = list(getattr(answer, level.answered) or ())
        for one in found:
            at = _place_of(one, level, elements, self.fault.is_carried_out)
            if deeper:
                around = elements[at] if at is not None else response_element(level, one.named)
                element = self._put(around, deeper, one.inner)
            else:
                element = self._refused(level, one.named)
            if at is not None:
                elements[at] = element
            elif level.is_by_place:
                elements.insert(one.place, element)
            else:
                elements.append(element)
        return replace(answer, **{level.answered: tuple(elements)})

    def _with_errors_there(self, answer: Any, levels: Sequence[Level]) -> Any:
        """Put the error at whatever the response has that the fault chooses."""
        level, *deeper = levels
        elements = []
        for element in getattr(answer, level.answered) or ():
            named = {key: getattr(element, name) for key, name in level.names.items()}
            if not is_chosen(self.fault.chosen, named, self.topic_of):
                elements.append(element)
            elif deeper:
                elements.append(self._with_errors_there(element, deeper))
            else:
                elements.append(self._refused(level, named))
        return replace(answer, **{level.answered: tuple(elements)})

    def _refused(self, level: Level, named: Mapping[str, Any]) -> Any:
        return response_element(level, named, self.fault.error_code, self._message)

    @property
    def _message(self) -> str:
        return f"a fault answers {WireError(self.fault.error_code).name.upper()}"


def inject_error(
    request: Request,
    fault: ErrorFault,
    topic_of: TopicOf,
    known: Iterable[tuple[str | uuid.UUID, int]] = (),
) -> InjectedError | None:
    """Return what of a request is answered with an error; None where the fault strikes nothing.

    O(the request's elements).

    Args:
        request: what is requested.
        fault: what is to be told.
        topic_of: tells the name of a topic by its id.
        known: what a fetch asks besides, because its session has it: topics' names or ids, and
            numbers of partitions.
    """
    shape = response_shape(request.api_key, request.api_version)
    chosen = _still_to_choose(request, shape, fault.chosen)
    is_without = getattr(request.body, "transactional_id", "") is None
    if chosen is None or (is_without and isinstance(fault, LoadCoordinator)):
        return None
    depth = depth_of(shape, fault.error_code, "partition" in chosen)
    if depth is None:
        return None
    inject_error = _Injection(chosen, depth, topic_of)
    rest = found = None
    by_element = bool(depth or chosen)
    if by_element and all(level.asked for level in shape.levels[:depth]):
        try:
            asked = _with_session(request.body, known) if known else request.body
            rest, found = inject_error.take(asked, _named_levels(shape), 1)
        except _AsksAllError:
            rest = request.body
        else:
            if not found:
                return None
    elif depth:
        rest = request.body
    if fault.is_carried_out:
        rest = request.body
    elif depth == 0:
        rest = None
    elif request.api_key == _FETCH:
        # A session has what its first fetch named: the partitions that are struck stay in it.
        rest = replace(request.body, max_wait=timedelta(0))
    elif rest is None and request.api_name in _ASK_BESIDE:
        rest = replace(request.body, **dict.fromkeys(shape.levels[0].asked, ()))
    return InjectedError(request, rest, fault, depth, found, topic_of)


@dataclass
class _KnownPartition:
    """A partition of a fetch session."""

    partition: int


@dataclass
class _KnownTopic:
    """A topic of a fetch session, by its name or its id."""

    topic: str | None
    topic_id: uuid.UUID | None
    partitions: tuple[Any, ...]


def _with_session(asked: Any, known: Iterable[tuple[str | uuid.UUID, int]]) -> Any:
    """Return a fetch that names what its session has, too: to look at, not to carry out."""
    topics: dict[str | uuid.UUID | None, _KnownTopic] = {}
    for topic in asked.topics:
        named = getattr(topic, "topic", None) or getattr(topic, "topic_id", None)
        topics[named] = _KnownTopic(*_name_and_id(named), topic.partitions)
    for named, partition in known:
        topic = topics.setdefault(named, _KnownTopic(*_name_and_id(named), ()))
        if all(one.partition != partition for one in topic.partitions):
            topic.partitions = (*topic.partitions, _KnownPartition(partition))
    return replace(asked, topics=tuple(topics.values()))


def _name_and_id(named: str | uuid.UUID | None) -> tuple[str | None, uuid.UUID | None]:
    return (named, None) if isinstance(named, str) else (None, named)


class _Injection(NamedTuple):
    """Takes out of a request what is chosen, down to the arrays at ``depth``."""

    chosen: Mapping[str, object]
    depth: int
    topic_of: TopicOf

    def take(
        self, asked: Any, levels: Sequence[Level], depth: int
    ) -> tuple[Any, tuple[Found, ...]]:
        """Return what is left, or None for nothing, and what was taken."""
        level, *deeper = levels
        found: list[Found] = []
        kept: dict[str, tuple[Any, ...]] = {}
        for array, names in zip(level.asked, level.asked_names, strict=True):
            elements = getattr(asked, array)
            if elements is None:
                raise _AsksAllError
            kept[array] = tuple(
                left
                for place, element in enumerate(elements)
                for left in self._left(place, element, names, deeper, depth, found)
            )
        left = any(kept.values())
        return (replace(asked, **kept) if left else None), tuple(found)

    def _left(
        self,
        place: int,
        element: Any,
        names: Mapping[str, str],
        deeper: Sequence[Level],
        depth: int,
        found: list[Found],
    ) -> tuple[Any, ...]:
        """Record an element if it is struck, and return what is left of it."""
        named = names_in(element, names)
        if not is_chosen(self.chosen, named, self.topic_of):
            return (element,)
        rest: Any = None
        inner: tuple[Found, ...] = ()
        if deeper and (depth < self.depth or _is_chosen_deeper(self.chosen, deeper)):
            rest, inner = self.take(element, deeper, depth + 1)
            if not inner:
                return (element,)
        found.append(Found(place, named, inner))
        return () if rest is None or depth >= self.depth else (rest,)


def is_chosen(chosen: Mapping[str, object], named: Mapping[str, Any], topic_of: TopicOf) -> bool:
    """Whether an element is of those that are chosen, as far as its own names tell."""
    for key, wanted in chosen.items():
        if key == "topic" and "topic_id" in named and not named.get("topic"):
            topic_id = named["topic_id"]
            if topic_id is None or topic_of(topic_id) != wanted:
                return False
        elif key == "topic" and "resource_name" in named:
            if (named["resource_type"], named["resource_name"]) != (_TOPIC_RESOURCE, wanted):
                return False
        elif key in named and named[key] != wanted:
            return False
    return True


def choices_of(api_key: int, version: int) -> set[str]:
    """Return by what can be chosen among what a version of an API asks."""
    if api_key == _FIND_COORDINATOR:
        return {"group_id", "transactional_id"}
    levels = response_shape(api_key, version).levels
    asked = (one.name.removeprefix(_OLD) for one in fields(load_request_schema(api_key, version)))
    found = set(asked) & set(CHOICES)
    return found | {key for key in CHOICES for level in levels if _names(level, key)}


def _still_to_choose(
    request: Request, shape: ResponseShape, chosen: Mapping[str, object]
) -> Mapping[str, object] | None:
    """Return what is to be chosen among the elements; None where the request is about another."""
    asked = request.body
    left = {}
    for key, wanted in chosen.items():
        if request.api_key == _FIND_COORDINATOR:
            if not _is_key(asked, key, wanted):
                return None
            if shape.levels:
                left["group_id"] = wanted  # the names of transactions, too, are keys there
        elif any(_names(level, key) for level in shape.levels):
            left[key] = wanted
        elif getattr(asked, key, None) != wanted and getattr(asked, _OLD + key, None) != wanted:
            return None
    return left


def _is_key(asked: Any, key: str, wanted: object) -> bool:
    """Whether a coordinator is asked for that is chosen."""
    is_transaction = getattr(asked, "key_type", 0) == _TRANSACTION_KEY
    if key != ("transactional_id" if is_transaction else "group_id"):
        return False
    keys = (asked.key,) if hasattr(asked, "key") else asked.coordinator_keys
    return wanted in keys


def _names(level: Level, key: str) -> bool:
    names = set(level.names)
    return key in names or (key == "topic" and bool(names & {"topic_id", "resource_name"}))


def _is_chosen_deeper(chosen: Mapping[str, object], levels: Sequence[Level]) -> bool:
    return any(_names(level, key) for level in levels for key in chosen)


def _named_levels(shape: ResponseShape) -> tuple[Level, ...]:
    """The arrays that answer what a request names."""
    number = next((n for n, one in enumerate(shape.levels) if not one.asked), len(shape.levels))
    return shape.levels[:number]


def _place_of(
    one: Found, level: Level, elements: Sequence[Any], is_carried_out: bool
) -> int | None:
    """Return where a response has the element that answers one of the request; None: nowhere."""
    if level.is_by_place:
        return one.place if is_carried_out and one.place < len(elements) else None
    for at, element in enumerate(elements):
        for key, name in level.names.items():
            named = one.named.get(key)
            if named is not None and getattr(element, name) != named:
                break
        else:
            return at
    return None


_THROTTLE = "throttle_time"
_EPOCHS = frozenset({"leader_epoch", "committed_leader_epoch"})
_TOPICS = frozenset({"name", "topic", "topic_name"})


def can_throttle(of: type[Any]) -> bool:
    """Whether a response of this class has a throttle time."""
    return any(one.name == _THROTTLE for one in fields(of))


def throttled(answer: Any, throttle_ms: int) -> Any:
    """Return a response with that much more of a throttle time."""
    told = getattr(answer, _THROTTLE)
    return replace(answer, **{_THROTTLE: told + timedelta(milliseconds=throttle_ms)})


def with_lower_epochs(answer: Any, epochs: int, topic: str | None, topic_of: TopicOf) -> Any:
    """Return a response whose leader epochs are lower, of one topic or of all; they stay above -1.

    Where it has none, the response itself is returned. O(the response's elements).
    """
    changes: dict[str, Any] = {}
    for field in fields(answer):
        value = getattr(answer, field.name)
        if field.name in _TOPICS or field.name == "topic_id":
            if topic is not None and not _is_topic(field.name, value, topic, topic_of):
                return answer
        elif field.name in _EPOCHS and value > 0:
            changes[field.name] = max(0, value - epochs)
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            lower = tuple(with_lower_epochs(one, epochs, topic, topic_of) for one in value)
            if any(new is not old for new, old in zip(lower, value, strict=True)):
                changes[field.name] = lower
        elif is_dataclass(value):
            lowered = with_lower_epochs(value, epochs, topic, topic_of)
            if lowered is not value:
                changes[field.name] = lowered
    return replace(answer, **changes) if changes else answer


def _is_topic(field: str, value: Any, topic: str, topic_of: TopicOf) -> bool:
    if field == "topic_id":
        return value is None or not isinstance(value, uuid.UUID) or topic_of(value) == topic
    return value is None or value == topic
