"""Requests between the brokers of a cluster.

    InterBrokerClient           calls another broker, and waits for the response
    SharePersister              requests of share partitions to the coordinators of their state
    InterBrokerMarkerChannel    transaction markers to the leaders of partitions

Ground rules
------------
* Everything happens on the event loop's thread.
* A request completes once, by the response of its broker, or when that broker's process dies, and
  has no effect after that.
* A request of share partitions is retried for a while after retriable errors: the coordinator may
  be moving.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from purgatory.cluster.metadata import ClusterMetadata, Peer
from purgatory.core.errors import PurgatoryClosedError
from purgatory.kafka import ErrorCode, RecordBatch, ReplicaManager, TopicPartition, write_markers
from purgatory.kafka.share_groups.share_coordinator import (
    RespondCode,
    RespondState,
    ShareCoordinator,
)
from purgatory.kafka.share_groups.share_state import SHARE_STATE_TOPIC, ShareKey, ShareState

T = TypeVar("T")
_CHECK_INTERVAL_S = 0.05


class InterBrokerClient:
    """Sends one broker's requests to the others.

    Args:
        cluster: its faults may cut the links between brokers.
    """

    def __init__(self, sender: Peer, cluster: ClusterMetadata) -> None:
        self._sender = sender
        self._cluster = cluster
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[asyncio.Future[Any], ReplicaManager] = {}

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task, which is cancelled with its broker."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def call(
        self,
        broker_id: int,
        request: Callable[[Peer, Callable[[T], object]], object],
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> T | None:
        """Call ``request(broker, respond)``, and return the response; None: the broker died.

        Args:
            is_cancelled: polled while the link is cut; true: another broker is responsible by now.
                Then the result is None, too, and the request can have no more effect.
        """
        if not await self._pass_link(broker_id, is_cancelled):
            return None
        response = await self._call(broker_id, request)
        return response if await self._pass_link(broker_id, is_cancelled) else None

    async def _pass_link(self, broker_id: int, is_cancelled: Callable[[], bool]) -> bool:
        while self._cluster.fault.cuts_link(self._sender.broker_id, broker_id):
            if is_cancelled():
                return False
            await asyncio.sleep(_CHECK_INTERVAL_S)
        return True

    async def _call(
        self, broker_id: int, request: Callable[[Peer, Callable[[T], object]], object]
    ) -> T | None:
        broker = self._cluster.live_broker(broker_id)
        if broker is None:
            return None
        future: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()

        def respond(response: T) -> None:
            if not future.done():
                future.set_result(response)

        self._waiting[future] = broker.manager
        try:
            request(broker, respond)
            return await future
        except PurgatoryClosedError:
            return None
        finally:
            del self._waiting[future]

    def fail_dead_brokers(self) -> None:
        """Complete requests to dead brokers with an error."""
        alive = {id(broker.manager) for broker in self._cluster.brokers.values() if broker.alive}
        for future, manager in self._waiting.items():
            if id(manager) not in alive and not future.done():
                future.set_result(None)

    async def stop(self) -> None:
        """Cancel all tasks: the broker has stopped."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


_MAX_ATTEMPTS = 25
_RETRY_BACKOFF_S = 0.2

_RETRIABLE = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)

_Response = tuple[ErrorCode, ShareState]
_UNAVAILABLE: _Response = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ShareState())
_Call = Callable[[ShareCoordinator, RespondState], object]


class SharePersister:
    """The coordinators of share partitions, for one broker (`ShareStateStore`).

    Args:
        calls: the broker's client of the others.
        cluster: the state that all brokers share.
        own: its own coordinator, which knows the partition of each key.
    """

    def __init__(
        self, calls: InterBrokerClient, cluster: ClusterMetadata, own: ShareCoordinator
    ) -> None:
        self._calls = calls
        self._cluster = cluster
        self._own = own

    def read(self, key: ShareKey, leader_epoch: int, respond: RespondState) -> None:
        """As `ShareCoordinator.read`."""
        self._begin(
            key,
            lambda coordinator, respond_state: coordinator.read(key, leader_epoch, respond_state),
            respond,
        )

    def write(self, key: ShareKey, state: ShareState, respond: RespondCode) -> None:
        """As `ShareCoordinator.write`."""
        self._change(
            key,
            lambda coordinator, respond_state: coordinator.write(key, state, respond_state),
            respond,
        )

    def initialize(
        self, key: ShareKey, state_epoch: int, start_offset: int, respond: RespondCode
    ) -> None:
        """As `ShareCoordinator.initialize`."""
        self._change(
            key,
            lambda coordinator, respond_state: coordinator.initialize(
                key, state_epoch, start_offset, respond_state
            ),
            respond,
        )

    def delete(self, key: ShareKey, respond: RespondCode) -> None:
        """As `ShareCoordinator.delete`."""
        self._change(
            key, lambda coordinator, respond_state: coordinator.delete(key, respond_state), respond
        )

    async def group_state(self, group_id: str) -> Mapping[ShareKey, ShareState] | None:
        """Return the states of a group; None: not all coordinators are available."""
        found: dict[ShareKey, ShareState] = {}
        for number in range(self._cluster.share_state_partitions()):

            def call(
                broker: Peer,
                respond: Callable[[Mapping[ShareKey, ShareState] | None], object],
                number: int = number,
            ) -> None:
                respond(broker.share_coordinator.group_state(group_id, number))

            leader = self._leader_of(TopicPartition(SHARE_STATE_TOPIC, number))
            of_partition = await self._calls.call(leader, call)
            if of_partition is None:
                return None
            found.update(of_partition)
        return found

    def _change(
        self,
        key: ShareKey,
        request: Callable[[ShareCoordinator, RespondCode], object],
        respond: RespondCode,
    ) -> None:
        def call(coordinator: ShareCoordinator, respond_state: RespondState) -> None:
            request(coordinator, lambda code: respond_state(code, ShareState()))

        self._begin(key, call, lambda code, _: respond(code))

    def _begin(self, key: ShareKey, request: _Call, respond: RespondState) -> None:
        self._calls.begin(self._call(key, request, respond))

    async def _call(self, key: ShareKey, request: _Call, respond: RespondState) -> None:
        def call(broker: Peer, respond_state: Callable[[_Response], object]) -> None:
            request(broker.share_coordinator, lambda code, state: respond_state((code, state)))

        response = _UNAVAILABLE
        for number in range(_MAX_ATTEMPTS):
            if number:
                await asyncio.sleep(_RETRY_BACKOFF_S)
            leader = self._leader_of(self._own.coordinator_partition(key))
            response = await self._calls.call(leader, call) or _UNAVAILABLE
            if response[0] not in _RETRIABLE:
                break
        respond(*response)

    def _leader_of(self, topic_partition: TopicPartition) -> int:
        state = self._cluster.controller.state_of(topic_partition)
        return -1 if state is None else state.leader


Codes = Mapping[TopicPartition, ErrorCode]


class InterBrokerMarkerChannel:
    """The leaders of partitions, for the coordinator of one broker (`MarkerChannel`).

    Args:
        calls: the broker's client of the others.
        cluster: the state that all brokers share.
    """

    def __init__(self, calls: InterBrokerClient, cluster: ClusterMetadata) -> None:
        self._calls = calls
        self._cluster = cluster

    def leader_of(self, topic_partition: TopicPartition) -> int | None:
        """As `MarkerChannel`."""
        state = self._cluster.controller.state_of(topic_partition)
        return None if state is None else state.leader

    def send_markers(
        self,
        broker_id: int,
        markers: Mapping[TopicPartition, RecordBatch],
        respond: Callable[[Codes], object],
    ) -> None:
        """Send markers to a broker; ``respond`` is called with their error codes.

        If the link is cut, and another broker leads by then, the markers fail, and the new leader
        gets them next. A marker that is written twice ends nothing else: until all are written, the
        producer has no other transaction.
        """
        self._calls.begin(self._send(broker_id, markers, respond))

    async def _send(
        self,
        broker_id: int,
        markers: Mapping[TopicPartition, RecordBatch],
        respond: Callable[[Codes], object],
    ) -> None:
        def write(leader: Peer, written: Callable[[Codes], object]) -> None:
            write_markers(leader.manager, leader.groups, markers, written)

        def is_moved() -> bool:
            return any(self.leader_of(topic_partition) != broker_id for topic_partition in markers)

        codes = await self._calls.call(broker_id, write, is_moved)
        refused = dict.fromkeys(markers, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        respond({**refused, **(codes or {})})
