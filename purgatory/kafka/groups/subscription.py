"""The topics that the members of a group subscribe to, by name or by regular expression (KIP-848).

Expressions have RE2's syntax, as in Kafka: they match in linear time, so no subscription can hold
up the broker, and look-arounds and back references are refused. The whole name has to match.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias
from uuid import UUID

from purgatory.kafka.groups.consumer_group_member import Principal, Subscription
from purgatory.kafka.topic_partition import Partitions, TopicIdPartition
from purgatory.settings.problems import show

_MAX_REASON_CHARACTERS = 100
"""The maximal length of RE2's reason, which may repeat the expression."""


class PatternError(Exception):
    """An expression that RE2 refuses, with its reason."""


class TopicPattern:
    """A regular expression over topic names, or over transactional ids.

    Raises:
        PatternError: RE2 refuses it.
    """

    def __init__(self, text: str) -> None:
        # Only where a group subscribes by expression: simulations do without the library.
        import re2

        options = re2.Options()
        options.log_errors = False
        # With captures, 16,000 groups in each other take gigabytes to match one name.
        options.never_capture = True
        try:
            self._pattern = re2.compile(text, options)
        except re2.error as error:
            reason = error.args[0].decode(errors="replace")[:_MAX_REASON_CHARACTERS]
            raise PatternError(f"{show(text)} is not an RE2 expression: {reason}") from None

    def matches(self, name: str) -> bool:
        """Whether the whole name matches. O(length of the name)."""
        return self._pattern.fullmatch(name) is not None


class KnownTopic(Protocol):
    """A topic, as groups see it."""

    @property
    def topic_id(self) -> UUID:
        """The id in assignments."""

    @property
    def partitions(self) -> Sequence[object]:
        """Its partitions; only their number is used."""


class KnownTopics(Protocol):
    """The topics of the cluster."""

    @property
    def topics(self) -> Mapping[str, KnownTopic]:
        """By name."""

    @property
    def topics_version(self) -> int:
        """Changes with topics, partitions, or the permission to describe them."""

    def may_describe(self, requester: Principal, topic: str) -> bool:
        """Whether a client may describe a topic."""


_STALE = -1
_Selection: TypeAlias = tuple[tuple[str, ...], str | None, Principal | None]
"""Topic names, an expression, and the client that subscribes by it."""


class SubscribedTopics:
    """The current topics of a group's subscriptions."""

    def __init__(self, known: KnownTopics) -> None:
        self.known = known
        self._version = _STALE
        self._matched: set[str] = set()
        self._expressions: set[str] = set()
        self._patterns: dict[str, TopicPattern] = {}
        self._topic_ids: dict[_Selection, frozenset[UUID]] = {}
        self.partition_counts: Mapping[UUID, int] = {}
        """The partition counts of all subscribed topics."""

    @property
    def is_stale(self) -> bool:
        """Whether topics or partitions have changed since ``refresh``. O(1)."""
        return self._version != self.known.topics_version

    @property
    def has_unmatched(self) -> bool:
        """Whether an expression was not matched yet. O(expressions)."""
        return not self._expressions <= self._matched

    def is_known_change(self, before: Subscription, after: Subscription) -> bool:
        """Whether what a changed subscription reads is known before its expression is matched."""
        if before.topic_names != after.topic_names:
            return True
        regex = after.topic_regex
        if regex == before.topic_regex:
            return before.requester != after.requester
        return regex in self._matched if regex else bool(before.topic_regex)

    def refresh(self, subscriptions: Iterable[Subscription], matches: bool = False) -> bool:
        """Resolve the topics of all members; return whether topics or partitions have changed.

        O(members + topics * different subscriptions).

        Args:
            subscriptions: of all members.
            matches: match new expressions, too.
        """
        topics = self.known.topics
        self._version = self.known.topics_version
        selections = set(map(_selection_key, subscriptions))
        self._expressions = {regex for _, regex, _ in selections if regex}
        self._matched = self._expressions if matches else self._matched & self._expressions
        names = {
            (named, regex, requester): self._names(
                named, regex if regex in self._matched else None, requester
            )
            for named, regex, requester in selections
        }
        self._patterns = {
            text: pattern
            for text, pattern in self._patterns.items()
            if any(text == regex for _, regex, _ in selections)
        }
        previous_ids, previous_counts = self._topic_ids, self.partition_counts
        self._topic_ids = {
            selection: frozenset(topics[name].topic_id for name in found if name in topics)
            for selection, found in names.items()
        }
        self.partition_counts = {
            topics[name].topic_id: len(topics[name].partitions)
            for name in sorted(set[str]().union(*names.values()))
            if name in topics
        }
        return self.partition_counts != previous_counts or any(
            previous_ids.get(selection, found) != found
            for selection, found in self._topic_ids.items()
        )

    def topic_ids(self, subscription: Subscription) -> frozenset[UUID]:
        """Return the topics of one member, as of the last ``refresh``. O(1)."""
        return self._topic_ids[_selection_key(subscription)]

    @property
    def partitions(self) -> Partitions:
        """All subscribed partitions. O(partitions)."""
        return frozenset(
            TopicIdPartition(topic_id, number)
            for topic_id, count in self.partition_counts.items()
            for number in range(count)
        )

    def names(self, subscription: Subscription) -> set[str]:
        """Return the current topics of one member by name. O(topics of the cluster)."""
        return self._names(*_selection_key(subscription))

    def _names(
        self, names: tuple[str, ...], regex: str | None, requester: Principal | None
    ) -> set[str]:
        found = set(names)
        if regex:
            pattern = self._patterns.get(regex)
            if pattern is None:
                pattern = self._patterns[regex] = TopicPattern(regex)
            matches = filter(pattern.matches, self.known.topics)
            found.update(
                name
                for name in matches
                if requester is None or self.known.may_describe(requester, name)
            )
        return found


def _selection_key(subscription: Subscription) -> _Selection:
    return subscription.topic_names, subscription.topic_regex, subscription.requester
