"""Where in an answer an error belongs.

An answer has up to four places for one: the whole, and arrays in each other, such as groups, topics
and partitions. What is wrong with a coordinator or a session is told at an outer one, and what is
wrong with a partition at the innermost.

Ground rules: no state.
"""

from __future__ import annotations

from purgatory.cluster.protocol.answer_shape import AnswerShape, answer_shape
from purgatory.kafka.errors import ERROR_NUMBERS


def _numbers(*names: str) -> frozenset[int]:
    return frozenset(ERROR_NUMBERS[name] for name in names)


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
    """Whether the answers of a version of an API can have an error."""
    shape = answer_shape(api_key, version)
    return shape.error is not None or any(one.error for one in shape.levels)


def depth_of(shape: AnswerShape, code: int, is_of_partition: bool) -> int | None:
    """Return how many arrays lead to where an error belongs; None where an answer has no place."""
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
