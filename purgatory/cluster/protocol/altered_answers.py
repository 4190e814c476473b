"""Answers that say something else than was found: a throttle time, leader epochs that are lower.

Ground rules: no state, and answers are not changed; what is altered is another one.
"""

from __future__ import annotations

import uuid
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from typing import Any

from purgatory.cluster.protocol.error_answers import TopicOf

_THROTTLE = "throttle_time"
_EPOCHS = frozenset({"leader_epoch", "committed_leader_epoch"})
_TOPICS = frozenset({"name", "topic", "topic_name"})


def can_throttle(of: type[Any]) -> bool:
    """Whether an answer of this class has a throttle time."""
    return any(one.name == _THROTTLE for one in fields(of))


def throttled(answer: Any, throttle_ms: int) -> Any:
    """Return an answer with that much more of a throttle time."""
    told = getattr(answer, _THROTTLE)
    return replace(answer, **{_THROTTLE: told + timedelta(milliseconds=throttle_ms)})


def with_lower_epochs(answer: Any, epochs: int, topic: str | None, topic_of: TopicOf) -> Any:
    """Return an answer whose leader epochs are lower, of one topic or of all; they stay above -1.

    Where it has none, the answer itself is returned. O(the answer's elements).
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
