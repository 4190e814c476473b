"""How a broker copies the partitions that it follows: one fetcher for each leader's broker.

A fetcher asks its leader for all partitions it follows there, appends what comes (after a lag of
its own), pauses for its interval, and asks again. The fetch offset of the next fetch tells the
leader how far it is; that is what moves the high watermark.

A stalled follower neither appends nor fetches. An answer that came before stays in its hands until
the stall is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from purgatory.kafka import ErrorCode, FetchParams, PartitionFetch, TopicPartition
from purgatory.simulation.distributions import sampler, stream
from purgatory.simulation.engine import NS_PER_MS
from purgatory.simulation.network import Connection, Request

if TYPE_CHECKING:
    from purgatory.simulation.engine import Engine
    from purgatory.simulation.scenario import Scenario
    from purgatory.simulation.simulated_broker import Broker

_BACKOFF_NS = 100 * NS_PER_MS


class FollowerFetch(Request):
    """A follower's fetch."""

    __slots__ = ("fetcher", "fetches")
    purgatory = "Fetch"
    kind = "follower"

    def __init__(self, fetcher: Fetcher, fetches: dict[TopicPartition, PartitionFetch]) -> None:
        super().__init__(fetcher.connection)
        self.fetcher = fetcher
        self.fetches = fetches

    @property
    def timeout_ms(self) -> int:
        return self.fetcher.params.max_wait_ms

    @property
    def watch_keys(self) -> tuple[TopicPartition, ...]:
        return tuple(self.fetches)

    def execute(self, broker: Broker) -> None:
        broker.manager.fetch_records(self.fetcher.params, self.fetches, self.respond)
        broker.look(self.fetches)

    def deliver(self, answer: Any) -> None:
        self.fetcher.broker.submit(self.fetcher.answered, self, answer)

    def fail(self) -> None:
        self.fetcher.broker.submit(self.fetcher.failed, self)


class Fetcher:
    """Copies partitions from one leader's broker.

    Args:
        broker: the follower.
        leader: the broker that leads.
        followers: the settings and chances that all fetchers of the broker share.
    """

    def __init__(self, broker: Broker, leader: Broker, followers: Followers) -> None:
        self.broker = broker
        self.params = followers.params
        self.partitions: dict[TopicPartition, None] = {}
        self.connection: Connection = Connection(followers.engine, leader, followers.delay_ns)
        self._followers = followers
        self._engine = followers.engine
        self._outstanding: FollowerFetch | None = None
        self._scheduled = False
        self._starts = 0
        self._not_before_ns: dict[TopicPartition, int] = {}

    def add(self, topic_partition: TopicPartition) -> None:
        """Follow a partition from here."""
        self.partitions[topic_partition] = None
        self._not_before_ns.pop(topic_partition, None)
        self._fetch_after(0)

    def remove(self, topic_partition: TopicPartition) -> None:
        """Follow a partition no more; an answer about it that is under way finds no use."""
        self.partitions.pop(topic_partition, None)
        self._not_before_ns.pop(topic_partition, None)

    def stop(self) -> None:
        """The process ended."""
        self.partitions.clear()
        self._not_before_ns.clear()
        self._outstanding = None
        self._scheduled = False
        self._starts += 1
        self.connection.reset()

    def answered(self, request: FollowerFetch, answer: dict[TopicPartition, Any]) -> None:
        """The leader's answer arrived: append it after the follower's lag."""
        if request is self._outstanding:
            self._engine.after(
                self._followers.lag_ns(), self._followers.active, self._append, request, answer
            )

    def failed(self, request: FollowerFetch) -> None:
        """The connection broke: try again later."""
        if request is self._outstanding:
            self._outstanding = None
            self._fetch_after(_BACKOFF_NS)

    def _append(self, request: FollowerFetch, answer: dict[TopicPartition, Any]) -> None:
        if request is not self._outstanding:
            return
        self._outstanding = None
        manager = self.broker.manager
        retry_ns = self._engine.now_ns() + _BACKOFF_NS
        for topic_partition, response in answer.items():
            if topic_partition not in self.partitions:
                continue
            fetch = request.fetches[topic_partition]
            useful = manager.append_as_follower(topic_partition, fetch, response)
            if not useful and response.error is not ErrorCode.NONE:
                self._not_before_ns[topic_partition] = retry_ns
        self._fetch_after(self._followers.interval_ns())

    def _fetch_after(self, delay_ns: int) -> None:
        if not self._scheduled and self._outstanding is None:
            self._scheduled = True
            self._engine.after(delay_ns, self._followers.active, self._fetch, self._starts)

    def _fetch(self, starts: int) -> None:
        if starts != self._starts:
            return  # scheduled by a process that is gone
        self._scheduled = False
        if self._outstanding is not None:
            return
        fetches = self._next_fetches()
        if fetches:
            self._outstanding = FollowerFetch(self, fetches)
            self.connection.send(self._outstanding)
        elif self.partitions:
            self._fetch_after(_BACKOFF_NS)

    def _next_fetches(self) -> dict[TopicPartition, PartitionFetch]:
        manager, max_bytes = self.broker.manager, self._followers.partition_max_bytes
        now_ns = self._engine.now_ns()
        fetches = {}
        for topic_partition in self.partitions:
            if self._not_before_ns:
                if self._not_before_ns.get(topic_partition, 0) > now_ns:
                    continue
                self._not_before_ns.pop(topic_partition, None)
            fetch = manager.follower_fetch(topic_partition, max_bytes)
            if fetch is not None:
                fetches[topic_partition] = fetch
        return fetches


class Followers:
    """All that a broker follows.

    Args:
        broker: the follower.
        brokers: all brokers, by number.
        engine: runs the events.
        scenario: the settings.
    """

    def __init__(
        self, broker: Broker, brokers: list[Broker], engine: Engine, scenario: Scenario
    ) -> None:
        section, seed = scenario.followers, scenario.seed
        self.engine = engine
        self.params = FetchParams(
            broker.id,
            section.fetch_max_wait_ms,
            section.fetch_min_bytes,
            section.fetch_max_bytes,
        )
        self.partition_max_bytes = section.partition_max_bytes
        name = ("follower", broker.id)
        self.lag_ns = sampler(section.lag_ms, stream(seed, *name, "lag"), NS_PER_MS)
        self.interval_ns = sampler(
            section.fetch_interval_ms, stream(seed, *name, "interval"), NS_PER_MS
        )
        self.delay_ns = sampler(
            scenario.network.delay_ms, stream(seed, *name, "network"), NS_PER_MS
        )
        self._broker = broker
        self._stalled = False
        self._held: list[tuple[int, Callable[..., object], tuple[Any, ...]]] = []
        self._fetchers = {
            other.id: Fetcher(broker, other, self) for other in brokers if other is not broker
        }

    def assigned(self, topic_partition: TopicPartition, leader: int) -> None:
        """The controller said who leads a partition: follow that one, or nobody (-1, or itself)."""
        for fetcher in self._fetchers.values():
            fetcher.remove(topic_partition)
        fetcher_for_leader = self._fetchers.get(leader)
        if fetcher_for_leader is not None:
            fetcher_for_leader.add(topic_partition)

    def stop(self) -> None:
        """The broker's process ended."""
        self._held.clear()
        for fetcher in self._fetchers.values():
            fetcher.stop()

    def stall(self) -> None:
        """Neither append nor fetch, until `go_on`."""
        self._stalled = True

    def go_on(self) -> None:
        """End a stall."""
        self._stalled = False
        held, self._held = self._held, []
        for process, function, args in held:
            if process == self._broker.process_number:
                self._broker.submit(function, *args)

    def active(self, function: Callable[..., object], *args: Any) -> None:
        """Call `function(*args)` in the broker's process, after a stall or a pause."""
        if self._stalled:
            self._held.append((self._broker.process_number, function, args))
        else:
            self._broker.submit(function, *args)
