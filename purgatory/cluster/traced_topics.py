"""How a trace names topics: one that was deleted and made anew is another one, "orders#2"."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID


class TopicFacts(NamedTuple):
    """What a trace has to know of a topic."""

    topic_id: UUID | None
    compacts: bool
    """Whether older records of a key may be removed."""


class TracedTopics:
    """Names topics. No topic may have a name with `#`, so that these are unique.

    Attributes:
        facts: returns those of the topic that has a name now; None: nothing is known of topics.
            Set by what is traced.
    """

    def __init__(self) -> None:
        self.facts: Callable[[str], TopicFacts | None] | None = None
        self._names: dict[str, dict[UUID, str]] = {}

    def name(self, name: str) -> str:
        """Return how the trace names the topic that has a name now. O(1)."""
        facts = None if self.facts is None else self.facts(name)
        if facts is None or facts.topic_id is None:
            known = self._names.get(name)
            return name if known is None else next(reversed(known.values()))
        known = self._names.setdefault(name, {})
        traced = known.get(facts.topic_id)
        if traced is None:
            traced = known[facts.topic_id] = f"{name}#{len(known) + 1}" if known else name
        return traced

    def compacts(self, name: str) -> bool:
        """Whether a topic is known to be compacted. O(1)."""
        facts = None if self.facts is None else self.facts(name)
        return facts is not None and facts.compacts
