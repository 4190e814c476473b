"""The replica fetchers of a simulated broker: one for each leader's broker.

A fetcher fetches the partitions that it follows from their leader, appends the response after its
lag, pauses for its interval, and fetches again. The fetch offset of its next fetch moves the
leader's high watermark. `purgatory.kafka.replication.replica_fetcher` makes its requests, in a
fetch session with the leader, and handles the responses.

A follower that is stalled by a fault, or whose link is cut, neither appends nor fetches. An arrived
response is held until the fault ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from purgatory.kafka import FetchParams, TopicPartition
from purgatory.kafka.replication.replica_fetcher import BACKOFF_MS, FollowerFetching
from purgatory.kafka.replication.requests import SessionFetchRequest, SessionFetchResponse
from purgatory.simulation.distributions import sampler, stream
from purgatory.simulation.engine import NS_PER_MS, Engine
from purgatory.simulation.network import Connection, Request, Server
from purgatory.simulation.scenario import Scenario

_BACKOFF_NS = BACKOFF_MS * NS_PER_MS


class FollowerFetch(Request):
    """A follower's fetch."""

    __slots__ = ("fetch", "fetcher", "topic_partitions")
    api = "fetch"
    purgatory = "Fetch"
    kind = "follower"

    def __init__(
        self,
        fetcher: Fetcher,
        fetch: SessionFetchRequest,
        topic_partitions: tuple[TopicPartition, ...],
    ) -> None:
        super().__init__(fetcher.connection)
        self.fetcher = fetcher
        self.fetch = fetch
        self.topic_partitions = topic_partitions

    @property
    def timeout_ms(self) -> int:
        return self.fetcher.params.max_wait_ms

    @property
    def watch_keys(self) -> tuple[TopicPartition, ...]:
        return self.topic_partitions

    def execute(self, broker: Server) -> None:
        broker.manager.fetch_in_session(self.fetcher.params, self.fetch, self.respond)
        broker.observe_commits(self.topic_partitions)

    def deliver(self, response: Any) -> None:
        self.fetcher.broker.submit(self.fetcher.handle_response, self, response)

    def fail(self) -> None:
        self.fetcher.broker.submit(self.fetcher.handle_disconnect, self)


class Fetcher:
    """Replicates partitions from one leader's broker.

    Args:
        followers: the settings and random draws that all fetchers of the broker share.
    """

    def __init__(self, broker: Server, leader: Server, followers: Followers) -> None:
        self.broker = broker
        self.leader_id = leader.id
        self.params = followers.params
        self.connection: Connection = Connection(followers.engine, leader, followers.delay_ns)
        self._fetching: FollowerFetching
        self._followers = followers
        self._engine = followers.engine
        self._pending_fetch: FollowerFetch | None = None
        self._scheduled = False
        self._starts = 0

    def start(self) -> None:
        """A process began. The controller sends its partitions (`update_partition`)."""
        max_bytes = self._followers.partition_max_bytes
        self._fetching = FollowerFetching(self.broker.manager, self.leader_id, max_bytes)

    def update_partition(self, topic_partition: TopicPartition) -> None:
        """A partition's role changed: begin to follow it, or cease."""
        self._fetching.update_partition(topic_partition)
        self._fetch_after(0)

    def stop(self) -> None:
        """The process ended."""
        self._pending_fetch = None
        self._scheduled = False
        self._starts += 1
        self.connection.reset()

    def handle_response(self, request: FollowerFetch, response: SessionFetchResponse) -> None:
        """The leader's response arrived: append it after the follower's lag."""
        if request is self._pending_fetch:
            lag_ns, faults = self._followers.lag_ns(), self.broker.faults
            if faults.active:
                lag_ns += round(faults.follower_lag_ms(self.broker.id) * NS_PER_MS)
            self._engine.call_after(lag_ns, self.call_when_active, self._append, request, response)

    def handle_disconnect(self, request: FollowerFetch) -> None:
        """The connection broke: try again later."""
        if request is self._pending_fetch:
            self._pending_fetch = None
            self._fetching.handle_error()
            self._fetch_after(_BACKOFF_NS)

    def _append(self, request: FollowerFetch, response: SessionFetchResponse) -> None:
        if request is self._pending_fetch:
            self._pending_fetch = None
            self._fetching.handle_response(response)
            interval_ns = self._followers.interval_ns()
            if interval_ns or self._scheduled:
                self._fetch_after(interval_ns)
            else:
                self._fetch(self._starts)

    def _fetch_after(self, delay_ns: int) -> None:
        if not self._scheduled and self._pending_fetch is None:
            self._scheduled = True
            self._engine.call_after(delay_ns, self.call_when_active, self._fetch, self._starts)

    def _fetch(self, starts: int) -> None:
        if starts != self._starts:
            return  # scheduled by a former process
        self._scheduled = False
        if self._pending_fetch is not None:
            return
        fetching = self._fetching
        request = fetching.next_request()
        if request is not None:
            self._pending_fetch = FollowerFetch(self, request, tuple(fetching.requested))
            self.connection.send(self._pending_fetch)
        elif fetching.is_backing_off:
            self._fetch_after(_BACKOFF_NS)

    def call_when_active(self, function: Callable[..., object], *args: Any) -> None:
        """Call `function(*args)` in the broker's process once no fault holds its fetches."""
        broker = self.broker
        if broker.faults.active and broker.faults.blocks_fetch(broker.id, self.leader_id):
            self._followers.held.append((self.call_when_active, function, args))
        else:
            broker.submit(function, *args)


class Followers:
    """All fetchers of a broker."""

    def __init__(
        self, broker: Server, brokers: Sequence[Server], engine: Engine, scenario: Scenario
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
        self.held: list[tuple[Callable[..., object], Callable[..., object], tuple[Any, ...]]] = []
        """The calls that a fault holds, in order: the fetcher's `call_when_active`, function and
        arguments."""
        self._fetchers = [
            Fetcher(broker, leader, self) for leader in brokers if leader is not broker
        ]

    def start(self) -> None:
        """A process of the broker began."""
        for fetcher in self._fetchers:
            fetcher.start()

    def update_partition(self, topic_partition: TopicPartition) -> None:
        """A partition's role changed: follow its current leader."""
        for fetcher in self._fetchers:
            fetcher.update_partition(topic_partition)

    def stop(self) -> None:
        """The broker's process ended."""
        self.held.clear()
        for fetcher in self._fetchers:
            fetcher.stop()

    def on_faults_changed(self) -> None:
        """Resume the fetchers that no fault blocks."""
        held, self.held = self.held, []
        for call_when_active, function, args in held:
            call_when_active(function, *args)
