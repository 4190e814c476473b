"""The topology of a Kafka Streams application (KIP-1071), and the topics that it needs.

A subtopology reads topics of others, and repartition topics, which another subtopology writes; its
changelog topics hold its state. `configured` decides the partitions of those two, the internal
topics, from the topics that exist:

* a repartition topic without a number has as many as the largest topic of a subtopology that writes
  it;
* topics of a copartition group have one number; that of topics of others wins;
* a changelog topic has as many as the largest topic that its subtopology reads: so many tasks there
  are.

Texts are Kafka's: clients log them, and stop at some.

Ground rules: all values are immutable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from hashlib import blake2b
from typing import NamedTuple

from purgatory.kafka.errors import ErrorCode, GroupRefusal
from purgatory.kafka.groups.subscription import KnownTopic

_SHOWN_TOPICS = 3
_HASH_BYTES = 8


class StatusCode(IntEnum):
    """The states of a streams group that its members are told of, in Kafka's numbers."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class Status(NamedTuple):
    """One such state, and its details."""

    code: StatusCode
    detail: str


class InternalTopic(NamedTuple):
    """A repartition topic or a changelog topic.

    Args:
        name: of the topic.
        partitions: their number; 0: the coordinator decides it.
        replication_factor: 0: that of the cluster.
        configs: names and values of settings.
    """

    name: str
    partitions: int = 0
    replication_factor: int = 0
    configs: tuple[tuple[str, str], ...] = ()


class CopartitionGroup(NamedTuple):
    """Topics of a subtopology with the same number of partitions, by their places in its lists."""

    source_topics: tuple[int, ...] = ()
    source_topic_regex: tuple[int, ...] = ()
    repartition_source_topics: tuple[int, ...] = ()


class Subtopology(NamedTuple):
    """A connected part of a topology: a task of it reads one partition of each of its topics."""

    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    source_topic_regex: tuple[str, ...] = ()
    changelog_topics: tuple[InternalTopic, ...] = ()
    repartition_sink_topics: tuple[str, ...] = ()
    repartition_source_topics: tuple[InternalTopic, ...] = ()
    copartition_groups: tuple[CopartitionGroup, ...] = ()

    @property
    def read_topics(self) -> tuple[str, ...]:
        """The topics that it reads, repartition topics last."""
        return (*self.source_topics, *(topic.name for topic in self.repartition_source_topics))

    @property
    def named_topics(self) -> Iterator[str]:
        """Each topic that it names."""
        yield from self.read_topics
        yield from self.repartition_sink_topics
        yield from (topic.name for topic in self.changelog_topics)


class Topology(NamedTuple):
    """The topology that a group's members report, and its epoch."""

    epoch: int
    subtopologies: tuple[Subtopology, ...] = ()

    @property
    def by_id(self) -> Mapping[str, Subtopology]:
        """The subtopologies by id, in order."""
        return {one.subtopology_id: one for one in sorted(self.subtopologies)}

    @property
    def required_topics(self) -> set[str]:
        """The topics without which nothing is assigned. O(topics)."""
        changelogs = {t.name for one in self.subtopologies for t in one.changelog_topics}
        return changelogs.union(*(one.read_topics for one in self.subtopologies))

    def subtopology_of(self, topic: str) -> str | None:
        """Return the subtopology that reads a topic; None: none does. O(topics)."""
        for name, one in self.by_id.items():
            if topic in one.read_topics:
                return name
        return None

    def check(self) -> None:
        """Validate it.

        Raises:
            GroupRefusal: STREAMS_INVALID_TOPOLOGY: a changelog topic has a number of partitions;
                UNKNOWN_SERVER_ERROR, as in Kafka: the epoch is negative, or two parts have one id.
        """
        for topic in (topic for one in self.subtopologies for topic in one.changelog_topics):
            if topic.partitions:
                raise _invalid(
                    f"Changelog topic {topic.name} must have an undefined partition count, but it "
                    f"is set to {topic.partitions}."
                )
        if self.epoch < 0:
            raise _broken("Topology epoch must be non-negative.")
        if len(self.by_id) < len(self.subtopologies):
            raise _broken("two subtopologies have one id")


class ConfiguredSubtopology(NamedTuple):
    """A subtopology with the partitions of its internal topics.

    Args:
        tasks: their number.
        subtopology: it, with decided numbers.
    """

    tasks: int
    subtopology: Subtopology

    @property
    def is_stateful(self) -> bool:
        """Whether it has changelog topics."""
        return bool(self.subtopology.changelog_topics)


class ConfiguredTopology(NamedTuple):
    """A topology as the existing topics configure it.

    Args:
        topology: the topology.
        topics_hash: changes with the topics that it needs: their ids and partitions.
        subtopologies: by id; None: topics are missing, or have other numbers of partitions.
        missing: the internal topics that don't exist.
        problem: what hinders an assignment; None: it is ready.
    """

    topology: Topology
    topics_hash: int
    subtopologies: Mapping[str, ConfiguredSubtopology] | None
    missing: Mapping[str, InternalTopic]
    problem: Status | None

    @property
    def is_ready(self) -> bool:
        """Whether tasks can be assigned."""
        return self.problem is None


class _UnfitTopicsError(Exception):
    """The topics that exist don't fit a topology."""

    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = Status(code, detail)


def _unfit(detail: str) -> _UnfitTopicsError:
    return _UnfitTopicsError(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, detail)


def _invalid(message: str) -> GroupRefusal:
    return GroupRefusal(ErrorCode.STREAMS_INVALID_TOPOLOGY, message=message)


def _broken(message: str) -> GroupRefusal:
    return GroupRefusal(ErrorCode.UNKNOWN_SERVER_ERROR, message=message)


def _topics_hash(names: set[str], topics: Mapping[str, KnownTopic]) -> int:
    digest = blake2b(digest_size=_HASH_BYTES)
    for name in sorted(names & topics.keys()):
        digest.update(f"{name} {topics[name].topic_id} {len(topics[name].partitions)};".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)


def configured(topology: Topology, topics: Mapping[str, KnownTopic]) -> ConfiguredTopology:
    """Decide the partitions of a topology's internal topics. O(topics of the topology squared).

    Args:
        topology: the topology.
        topics: those that exist, by name.

    Raises:
        GroupRefusal: STREAMS_INVALID_TOPOLOGY; or UNKNOWN_SERVER_ERROR, as in Kafka, for places of
            no topic and numbers below 1.
    """
    topics_hash = _topics_hash(topology.required_topics, topics)
    try:
        _check_sources(topology, topics)
        counts = _Counts(topology, topics)
        counts.decide()
        subtopologies = {
            name: counts.configured(subtopology) for name, subtopology in topology.by_id.items()
        }
        missing = _missing(topology, subtopologies, topics)
    except _UnfitTopicsError as error:
        return ConfiguredTopology(topology, topics_hash, None, {}, error.status)
    problem = None
    if missing:
        detail = f"Internal topics are missing: {_summary(missing)}"
        problem = Status(StatusCode.MISSING_INTERNAL_TOPICS, detail)
    return ConfiguredTopology(topology, topics_hash, subtopologies, missing, problem)


def _check_sources(topology: Topology, topics: Mapping[str, KnownTopic]) -> None:
    sources = {name for one in topology.subtopologies for name in one.source_topics}
    missing = sorted(sources - topics.keys())
    if missing:
        raise _UnfitTopicsError(
            StatusCode.MISSING_SOURCE_TOPICS, f"Source topics {_summary(missing)} are missing."
        )


def _missing(
    topology: Topology,
    subtopologies: Mapping[str, ConfiguredSubtopology],
    topics: Mapping[str, KnownTopic],
) -> Mapping[str, InternalTopic]:
    """Return the internal topics that don't exist, and check those that do."""
    internal = {
        topic.name: topic
        for one in subtopologies.values()
        for kind in (one.subtopology.repartition_source_topics, one.subtopology.changelog_topics)
        for topic in kind
    }
    for name in sorted(topology.required_topics & internal.keys() & topics.keys()):
        expected, found = internal.pop(name).partitions, len(topics[name].partitions)
        if expected != found:
            raise _unfit(
                f"Existing topic {name} has different number of partitions: expected {expected}, "
                f"found {found}"
            )
    return internal


def _summary(names: Mapping[str, object] | Sequence[str]) -> str:
    shown = ", ".join([*names][:_SHOWN_TOPICS])
    more = len(names) - _SHOWN_TOPICS
    return f"{shown} and {more} additional topics" if more > 0 else shown


class _Counts:
    """The numbers of partitions while they are decided."""

    def __init__(self, topology: Topology, topics: Mapping[str, KnownTopic]) -> None:
        self._subtopologies = list(topology.by_id.values())
        self._topics = topics
        self._decided: dict[str, int] = {}
        repartitions = [
            topic for one in self._subtopologies for topic in one.repartition_source_topics
        ]
        self._fixed = {topic.name: topic.partitions for topic in repartitions if topic.partitions}
        self._flexible = {topic.name for topic in repartitions if not topic.partitions}

    def decide(self) -> None:
        """Decide the number of each internal topic."""
        self._decide_repartitions()
        for subtopology in self._subtopologies:
            for group in subtopology.copartition_groups:
                self._copartition(_topics_of(subtopology, group))
        for subtopology in self._subtopologies:
            most = self._most(subtopology.read_topics)
            if most is None:
                raise _invalid(
                    f"No source topics found for subtopology {subtopology.subtopology_id}"
                )
            for topic in subtopology.changelog_topics:
                self._decided[topic.name] = most

    def configured(self, subtopology: Subtopology) -> ConfiguredSubtopology:
        """Return a subtopology with decided numbers."""

        def decided(topics: Sequence[InternalTopic]) -> tuple[InternalTopic, ...]:
            numbers = (topic.partitions or self._decided.get(topic.name, 0) for topic in topics)
            found = tuple(
                topic._replace(partitions=number)
                for topic, number in zip(topics, numbers, strict=True)
            )
            if any(topic.partitions < 1 for topic in found):
                raise _broken("Number of partitions must be at least 1.")
            return found

        tasks = self._most(subtopology.read_topics)
        assert tasks is not None, "its changelogs have been decided"
        if tasks < 1:
            raise _broken("Number of tasks must be positive")
        return ConfiguredSubtopology(
            tasks,
            subtopology._replace(
                changelog_topics=decided(subtopology.changelog_topics),
                repartition_source_topics=decided(subtopology.repartition_source_topics),
            ),
        )

    def _count(self, topic: str) -> int | None:
        """Return the number of partitions that exist, or else that is decided."""
        found = self._topics.get(topic)
        return self._decided.get(topic) if found is None else len(found.partitions)

    def _known_count(self, topic: str) -> int:
        count = self._count(topic)
        if count is None:
            raise _broken(f"Number of partitions is not set for topic: {topic}")
        return count

    def _most(self, topics: Sequence[str]) -> int | None:
        return max(map(self._known_count, topics), default=None)

    def _decide_repartitions(self) -> None:
        decided = dict(self._fixed)
        unknown = {
            sink: None for one in self._subtopologies for sink in one.repartition_sink_topics
        }
        while unknown := {sink: None for sink in unknown if sink not in decided}:
            before = len(decided)
            for subtopology in self._subtopologies:
                read = [
                    *(decided.get(one.name) for one in subtopology.repartition_source_topics),
                    *map(self._count, subtopology.source_topics),
                ]
                most = max((number for number in read if number is not None), default=None)
                for sink in subtopology.repartition_sink_topics:
                    if most is not None:
                        decided.setdefault(sink, most)
            if len(decided) == before:
                raise _invalid(
                    "Failed to compute number of partitions for all repartition topics. There may "
                    "be loops in the topology that cannot be resolved."
                )
        if not self._flexible <= decided.keys():
            raise _invalid(
                "Failed to compute number of partitions for all repartition topics, because a "
                "repartition source topic is never used as a sink topic."
            )
        self._decided.update(decided)

    def _copartition(self, group: frozenset[str]) -> None:
        """Give the repartition topics of a group the number of its topics."""
        if not group:
            return
        counts = {topic: self._known_count(topic) for topic in group}
        repartitions = group & (self._fixed.keys() | self._flexible)
        others = group - repartitions
        if others:
            number = _one_number({topic: counts[topic] for topic in others}, counts_shown=others)
        elif self._fixed:
            # As in Kafka: of all fixed ones of the topology.
            number = _one_number(
                {topic: self._known_count(topic) for topic in self._fixed}, repartitions, counts
            )
        else:
            number = max(counts.values())
        for topic in sorted(repartitions):
            if topic in self._fixed and counts[topic] != number:
                raise _unfit(
                    f"Number of partitions [{counts[topic]}] of repartition topic [{topic}] "
                    f"doesn't match number of partitions [{number}] of the source topic."
                )
            self._decided[topic] = number


def _one_number(
    counts: Mapping[str, int],
    counts_shown: frozenset[str],
    shown: Mapping[str, int] | None = None,
) -> int:
    numbers = set(counts.values())
    if len(numbers) > 1:
        of = counts if shown is None else shown
        text = ", ".join(f"{topic}={of[topic]}" for topic in sorted(counts_shown))
        raise _unfit(f"Following topics do not have the same number of partitions: [{{{text}}}]")
    return numbers.pop()


def _topics_of(subtopology: Subtopology, group: CopartitionGroup) -> frozenset[str]:
    sources, repartitions = subtopology.source_topics, subtopology.repartition_source_topics
    places = [(sources, place) for place in group.source_topics]
    of_repartitions = [(repartitions, place) for place in group.repartition_source_topics]
    for topics, place in (*places, *of_repartitions):
        if not 0 <= place < len(topics):
            raise _broken(f"Index {place} out of bounds for length {len(topics)}")
    names = {sources[place] for place in group.source_topics}
    return frozenset(names | {repartitions[one].name for one in group.repartition_source_topics})
