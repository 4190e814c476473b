"""The live feed of a cluster or a proxy: one model of its state, for all viewers.

The model is made for the first viewer and released with the last: without viewers, no purgatory is
observed, and no task runs. Ten times a second the feed collects the changes, and sends every viewer
the same bytes. A broker that died or came back makes the model stale: the operations of its
purgatories are gone without a notification, and the whole state is sent again.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from purgatory.cluster.control.live_purgatory import MAX_NEW, MAX_REPORTED, FeedBatch, LiveBroker
from purgatory.cluster.observer import ClusterObserver
from purgatory.cluster.request_traces import RequestTraces
from purgatory.cluster.traced_brokers import ElapsedClock
from purgatory.core.recent_errors import Logger
from purgatory.kafka import TopicPartition
from purgatory.kafka.errors import ClusterError
from purgatory.trace import change_rows as rows
from purgatory.trace.observer import CoordinatorState, FaultState, PartitionRole

if TYPE_CHECKING:
    from purgatory.cluster.cluster import Cluster


class LiveModel(ABC):
    """A state as sent to viewers, and its changes.

    Args:
        batch: collects the changes.
    """

    def __init__(self, batch: FeedBatch) -> None:
        self._batch = batch

    async def begin(self) -> None:  # noqa: B027
        """Begin to observe, if comparisons do not suffice."""

    def release(self) -> None:  # noqa: B027
        """Stop observing."""

    @abstractmethod
    def compare(self) -> None:
        """Record the changes."""

    @abstractmethod
    def is_stale(self) -> bool:
        """Whether changes can't be described, so that a new state is needed."""

    @abstractmethod
    def report_brokers(self) -> None:
        """Record the brokers that came or went, in a stale model."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the reported state, in the format of ``view/state``."""

    def counts(self) -> dict[str, int]:
        """Return the reported number of pending operations, and how many of them are shown."""
        return {"pending": 0, "shown": 0}

    def end_batch(self) -> dict[str, Any] | None:
        """Return the changes since the last batch, in the format of ``view/changes``, or None."""
        begun_us, until_us, changes = self._batch.end()
        if not changes:
            return None
        return {"from_us": begun_us, "until_us": until_us, "changes": changes, **self.counts()}

    def _record_fault(self, number: int, before: FaultState | None, now: FaultState) -> None:
        """Describe a fault that began or ended."""
        self._batch.add(rows.FAULT, number=number, **now._asdict())
        if before is None:
            self._batch.log(f"fault {number}: {now.text}", "warning")
        else:
            self._batch.log(f"fault {number} ended: {now.text}")


def fault_list(known: Mapping[int, FaultState]) -> list[dict[str, Any]]:
    """Return faults by their numbers, in the format of ``view/state``."""
    return [{"number": number, **state._asdict()} for number, state in known.items()]


class ClusterModel(LiveModel):
    """The state of a cluster as sent to viewers, updated by the observer.

    Args:
        cluster: the cluster.
        batch: collects the changes.
        request_traces: records the cluster's requests.
    """

    def __init__(self, cluster: Cluster, batch: FeedBatch, request_traces: RequestTraces) -> None:
        super().__init__(batch)
        self._cluster = cluster
        self._request_traces = request_traces
        self._brokers = [LiveBroker(broker, batch) for broker in cluster.brokers.values()]
        self._is_outdated = False
        self._observer = ClusterObserver(cluster, batch.clock, self._record)
        self._observer.observe()
        self._topics = self._count_partitions()
        batch.end()  # changes so far are part of the state

    async def begin(self) -> None:
        """Find parked operations, in chunks, and let other tasks run between them."""
        for _ in range(MAX_REPORTED // MAX_NEW + 1):
            self.compare()
            if self._batch.new < MAX_NEW:
                break
            self._batch.end()
            await asyncio.sleep(0)
        self._batch.end()
        self._cluster.request_traces = self._request_traces

    def release(self) -> None:
        self._cluster.request_traces = None
        for broker in self._brokers:
            for purgatory in broker.purgatories:
                purgatory.release()

    def compare(self) -> None:
        """Record the changes. O(tasks on the wheels), most of which cost some nanoseconds."""
        waiting = sum(broker.pending_count for broker in self._brokers)
        for broker in self._brokers:
            broker.compare(waiting)
        self._observe()

    def is_stale(self) -> bool:
        return self._is_outdated or any(broker.is_stale for broker in self._brokers)

    def report_brokers(self) -> None:
        for broker in self._brokers:
            broker.report_state()
        self._observe()

    def state(self) -> dict[str, Any]:
        operations = [
            row
            for broker in self._brokers
            for purgatory in broker.purgatories
            for row in purgatory.rows()
        ]
        known = self._observer.state.last_values
        return {
            "at_us": self._batch.begin_us,
            "brokers": [broker.state() for broker in self._brokers],
            "operations": operations,
            **self.counts(),
            "topics": self._topics_state(),
            "groups": [_group(*entry) for entry in known[rows.GROUP].items()],
            "transactions": [_transaction(*entry) for entry in known[rows.TRANSACTION].items()],
            "faults": fault_list(known[rows.FAULT]),
            "unknown": [],
        }

    def counts(self) -> dict[str, int]:
        purgatories = (purgatory for broker in self._brokers for purgatory in broker.purgatories)
        pending = sum(purgatory.pending for purgatory in purgatories)
        return {"pending": pending, "shown": self._batch.reported}

    def _observe(self) -> None:
        topics = self._count_partitions()
        if topics != self._topics:
            for topic in self._topics.keys() - topics.keys():
                self._is_outdated = True
                self._batch.log(f"topic {topic} was deleted")
            for topic in topics.keys() - self._topics.keys():
                self._batch.log(f"topic {topic} was created, with {topics[topic]} partitions")
            self._topics = topics
        self._observer.observe()

    def _count_partitions(self) -> dict[str, int]:
        topics = self._cluster.controller.topics
        return {name: len(topic.partitions) for name, topic in topics.items()}

    def _topics_state(self) -> list[dict[str, Any]]:
        known = self._observer.state.last_values
        topics: dict[str, dict[str, Any]] = {}
        for (topic, partition), role in known[rows.PARTITION].items():
            values = {**role._asdict(), "partition": partition, "log_end_offsets": {}}
            values["high_watermark"] = known[rows.HIGH_WATERMARK].get((topic, partition))
            internal = values.pop("internal")
            topics.setdefault(topic, {"name": topic, "internal": internal, "partitions": {}})
            topics[topic]["partitions"][partition] = values
        for ((topic, partition), broker), offset in known[rows.LOG_END].items():
            topics[topic]["partitions"][partition]["log_end_offsets"][str(broker)] = offset
        return [
            {**topic, "partitions": list(topic["partitions"].values())} for topic in topics.values()
        ]

    def _record(self, kind: str, key: Any, before: Any, value: Any) -> None:
        """Describe a change of the observer."""
        add = self._batch.add
        if value is None and kind in (rows.PARTITION, rows.LOG_END):
            self._is_outdated = True
        match kind:
            case rows.PARTITION if value is not None:
                add(kind, topic=key.topic, partition=key.partition, **value._asdict())
                if before is not None and not value.internal:
                    self._report_role(key, before, value)
            case rows.LOG_END:
                (topic, partition), broker = key
                add(kind, topic=topic, partition=partition, broker=broker, offset=value)
            case rows.HIGH_WATERMARK:
                add(kind, topic=key.topic, partition=key.partition, offset=value)
            case rows.GROUP:
                add(kind, **_group(key, value or before._replace(state=rows.GONE)))
                if value is not None and (before is None or before.state != value.state):
                    count = len(value.members)
                    members = f"{count} member{'' if count == 1 else 's'}"
                    self._batch.log(f"group {key} is {value.state}, with {members}")
            case rows.TRANSACTION:
                add(kind, **_transaction(key, value or before._replace(state=rows.ENDED)))
            case rows.FAULT:
                self._record_fault(key, before, value)

    def _report_role(
        self, place: TopicPartition, before: PartitionRole, now: PartitionRole
    ) -> None:
        log = self._batch.log
        if before.leader != now.leader:
            if now.leader >= 0:
                log(f"broker {now.leader} leads {place}")
            else:
                log(f"nobody leads {place}", "warning")
        for broker in set(before.isr) - set(now.isr):
            log(f"broker {broker} left the ISR of {place}", "warning")
        for broker in set(now.isr) - set(before.isr):
            log(f"broker {broker} is back in the ISR of {place}")


def _group(name: str, state: CoordinatorState) -> dict[str, Any]:
    return {
        "name": name,
        "broker": state.broker,
        "state": state.state,
        "generation": state.number,
        "members": state.members,
    }


def _transaction(name: str, state: CoordinatorState) -> dict[str, Any]:
    return {"id": name, "epoch": state.number, "state": state.state, "since_us": state.since_us}


MAX_PENDING_BYTES = 2_000_000
"""The most pending bytes of a viewer; beyond it they are dropped, and a new state is sent."""


class LiveViewer:
    """The pending events of one viewer, which needs a state first."""

    def __init__(self) -> None:
        self.needs_state = True
        self.is_closed = False
        self._pending: deque[bytes] = deque()
        self._bytes = 0
        self._wake_event = asyncio.Event()
        self._wake_event.set()

    def send(self, event: bytes) -> None:
        """Enqueue an event, unless the viewer needs a state first."""
        if self.needs_state:
            return
        if self._bytes + len(event) > MAX_PENDING_BYTES:
            self.reset()
            return
        self._pending.append(event)
        self._bytes += len(event)
        self._wake_event.set()

    def reset(self) -> None:
        """Drop pending events and request a new state."""
        self._pending.clear()
        self._bytes = 0
        self.request_state()

    def request_state(self) -> None:
        """Request a new state after the pending events."""
        self.needs_state = True
        self._wake_event.set()

    def close(self) -> None:
        """End the viewer's events."""
        self.is_closed = True
        self._wake_event.set()

    def drain(self) -> list[bytes]:
        """Return and remove the pending events."""
        events = list(self._pending)
        self._pending.clear()
        self._bytes = 0
        if not (self.needs_state or self.is_closed):
            self._wake_event.clear()
        return events

    async def wait(self) -> None:
        """Wait for an event, a state request or the end."""
        await self._wake_event.wait()


MAX_VIEWERS = 50
INTERVAL_S = 0.1
MAX_CHANGES = 5_000
"""The most changes of a batch; instead of more, a new state is sent."""

_ROWS_PER_CHUNK = 500
_log = Logger("purgatory.cluster")


NewModel = Callable[[FeedBatch, RequestTraces], LiveModel]


class LiveFeed:
    """Sends viewers a state, and its changes.

    Args:
        new_model: makes the model.
    """

    def __init__(self, new_model: NewModel) -> None:
        self.clock = ElapsedClock()
        self._new_model = new_model
        self._batch = FeedBatch(self.clock)
        self._viewers: set[LiveViewer] = set()
        self._model: LiveModel | None = None
        self._user_count = 0
        self._model_lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.request_traces = RequestTraces(self.clock.now_us)

    @property
    def viewers(self) -> int:
        """The number of viewers."""
        return len(self._viewers)

    # Viewers.

    def join(self) -> LiveViewer:
        """Return a new viewer; end it with ``leave``.

        Raises:
            ClusterError: there are too many, or the feed was closed.
        """
        if self._closed:
            raise ClusterError("the control is being closed")
        if len(self._viewers) >= MAX_VIEWERS:
            raise ClusterError(f"{MAX_VIEWERS} viewers look already; close a page")
        viewer = LiveViewer()
        self._viewers.add(viewer)
        self._user_count += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="LiveFeed")
        return viewer

    def leave(self, viewer: LiveViewer) -> None:
        """Remove a viewer; the last one ends the observation."""
        if viewer in self._viewers:
            self._viewers.remove(viewer)
            if not self._viewers and self._task is not None:
                self._task.cancel()
                self._task = None
            self._release()

    def close(self) -> None:
        """End all viewers."""
        self._closed = True
        for viewer in list(self._viewers):
            viewer.close()

    async def events(self, viewer: LiveViewer) -> AsyncIterator[bytes]:
        """Yield a viewer's events as bytes, in chunks."""
        while True:
            await viewer.wait()
            if viewer.is_closed:
                return
            for event in viewer.drain():
                yield event
            if viewer.needs_state:
                state = await self._current_state()
                viewer.needs_state = False  # later changes wait until the state is written
                yield b"event: state\ndata: "
                async for piece in encoded(state):
                    yield piece
                yield b"\n\n"

    async def state(self) -> dict[str, Any]:
        """Return the current state."""
        self._user_count += 1
        try:
            return await self._current_state()
        finally:
            self._release()

    # The model.

    async def _current_state(self) -> dict[str, Any]:
        """Return a state that contains all changes sent so far, and none of the later ones."""
        while True:
            model = await self._current_model()
            self._send_changes()
            if self._model is model:
                return model.state()

    async def _current_model(self) -> LiveModel:
        async with self._model_lock:
            while self._model is None:
                model = self._new_model(self._batch, self.request_traces)
                try:
                    await model.begin()
                except BaseException:
                    model.release()
                    raise
                if model.is_stale():
                    model.release()
                else:
                    self._model = model
            return self._model

    def _release(self) -> None:
        self._user_count -= 1
        if not self._user_count:
            self._drop_model()

    def _drop_model(self) -> None:
        if self._model is not None:
            self._model.release()
            self._model = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                self._send_changes()
            except Exception as error:
                _log.error("view_failed", exc_info=error)
                self._reset()

    def _send_changes(self) -> None:
        """Send all viewers the changes since the last call."""
        model = self._model
        if model is None:
            return
        stale = model.is_stale()
        if stale:
            model.report_brokers()
        else:
            model.compare()
            stale = model.is_stale()
        changes = model.end_batch()
        if changes is not None and len(changes["changes"]) <= MAX_CHANGES:
            event = b"event: changes\ndata: " + _json(changes) + b"\n\n"
            for viewer in self._viewers:
                viewer.send(event)
        elif changes is not None:
            for viewer in self._viewers:
                viewer.reset()
        if stale:
            self._reset()

    def _reset(self) -> None:
        """Send all viewers a new state: the model is stale."""
        self._drop_model()
        for viewer in self._viewers:
            viewer.request_state()


async def encoded(state: dict[str, Any]) -> AsyncIterator[bytes]:
    """Yield a state as JSON, in chunks, and let other tasks run between them."""
    rows = state["operations"]
    begin = _json({**state, "operations": []})
    before, after = begin.split(b'"operations":[]', 1)
    yield before + b'"operations":['
    for start in range(0, len(rows), _ROWS_PER_CHUNK):
        piece = _json(rows[start : start + _ROWS_PER_CHUNK])[1:-1]
        yield piece if start + _ROWS_PER_CHUNK >= len(rows) else piece + b","
        await asyncio.sleep(0)
    yield b"]" + after


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
