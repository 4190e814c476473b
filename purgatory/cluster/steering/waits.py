"""Waits of tests for a running cluster: for requests, groups, offsets, in-sync replicas, faults.

    cluster.wait_for(requests="Produce", count=3)
    cluster.wait_for.group_stable("billing", members=2)

Each is an operation in a purgatory of the cluster, completed by events: a request, an answer, a
change of a partition, a use of a fault. A wait that ends without says what was there instead.

A `Wait` is data, as a fault is: the control and the command make the same ones.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from purgatory.cluster.faulty_responses import ServedApi
from purgatory.cluster.metadata import Peer
from purgatory.cluster.steering import ANSWERS, FAULTS, PARTITIONS, REQUESTS
from purgatory.cluster.steering.seen_requests import RequestLog, checked_filter
from purgatory.core.async_purgatory import AsyncPurgatory
from purgatory.core.errors import PurgatoryClosedError
from purgatory.kafka import TopicPartition
from purgatory.kafka.controller import Controller
from purgatory.kafka.errors import ClusterError, GroupRefusal
from purgatory.kafka.faults.active_faults import ActiveFaults
from purgatory.kafka.groups.consumer_group import ConsumerGroup
from purgatory.kafka.groups.group import Group
from purgatory.kafka.log.log import Log
from purgatory.settings.problems import did_you_mean
from timer.durations import checked_timeout_s

DEFAULT_TIMEOUT_S = 10.0


class WatchedRequests(Protocol):
    """The cluster or proxy whose requests and faults are waited for."""

    request_log: RequestLog

    @property
    def apis(self) -> Mapping[int, ServedApi]:
        """The rows of the APIs."""

    @property
    def fault(self) -> ActiveFaults:
        """The faults."""


class WatchedCluster(WatchedRequests, Protocol):
    """The cluster that is waited for."""

    controller: Controller

    @property
    def brokers(self) -> Mapping[int, Peer]:
        """All brokers by id."""


Missing = Callable[[], str | None]
"""Returns what is there instead of what is waited for; None: nothing is missing."""


@dataclass(frozen=True)
class Wait(ABC):
    """The goal of a wait; ``keys`` are the events that may bring it."""

    kind: ClassVar[str]
    keys: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        for name in ("group_id", "topic"):
            value = getattr(self, name, None)
            if value is not None and not isinstance(value, str):
                raise ClusterError(f"{name}={value!r}: a name")

    @abstractmethod
    def watch(self, cluster: WatchedCluster) -> Missing:
        """Return a function that says what is missing.

        Raises:
            ClusterError: what is named can never be there.
        """


@dataclass(frozen=True)
class RequestsCame(Wait):
    """Wait until requests came, counted from the start, or from `Cluster.clear_requests` on."""

    kind, keys = "requests", (REQUESTS,)
    api: str | None = None
    count: int = 1
    client_id: str | None = None
    topic: str | None = None
    broker: int | None = None

    def __str__(self) -> str:
        return f"{self.count} {self.api or ''} requests"

    def watch(self, cluster: WatchedRequests) -> Missing:
        _check_count("count", self.count)
        chosen = checked_filter(cluster.apis, self.api, self.client_id, self.topic, self.broker)
        came, last = 0, 0

        def missing() -> str | None:
            nonlocal came, last
            for seen in cluster.request_log.since(last):
                last = seen.number
                came += chosen.selects(seen, cluster.request_log.topic_of)
            if came >= self.count:
                return None
            others: dict[str, int] = {}
            for seen in cluster.request_log.since(0):
                others[seen.api] = others.get(seen.api, 0) + 1
            listed = ", ".join(f"{count} {api}" for api, count in sorted(others.items()))
            return f"{chosen}: {came} came; of all APIs: {listed or 'none'}"

        return missing


@dataclass(frozen=True)
class GroupStable(Wait):
    """Wait until a group of any type is stable, with so many members; None: at least one."""

    kind, keys = "group_stable", (ANSWERS, PARTITIONS)
    group_id: str
    members: int | None = None

    def watch(self, cluster: WatchedCluster) -> Missing:
        if self.members is not None:
            _check_count("members", self.members)

        def missing() -> str | None:
            group = _group(cluster, self.group_id)
            if group is None:
                return _no_group(cluster, self.group_id)
            state, count = group.state.value, len(group.members)
            if state == "Stable" and count == (self.members or count or -1):
                return None
            members = ", ".join(sorted(group.members)) or "no member"
            return f"it is {state} with {count}: {members}"

        return missing


@dataclass(frozen=True)
class CaughtUp(Wait):
    """Wait until a group has committed all records of the partitions that it reads."""

    kind, keys = "caught_up", (ANSWERS, PARTITIONS)
    group_id: str

    def watch(self, cluster: WatchedCluster) -> Missing:
        def missing() -> str | None:
            behind = _lags(cluster, self.group_id)
            if behind is None:
                return _no_group(cluster, self.group_id)
            if not behind:
                return f"group {self.group_id} reads no partition"
            lags = [f"{key} at {at} of {end}" for key, (at, end) in behind.items() if at < end]
            return ", ".join(lags) or None

        return missing


@dataclass(frozen=True)
class IsrIs(Wait):
    """Wait until a partition has exactly these brokers in sync."""

    kind, keys = "isr", (PARTITIONS,)
    topic: str
    partition: int
    brokers: Collection[int]

    def watch(self, cluster: WatchedCluster) -> Missing:
        try:
            wanted = set(self.brokers)
        except TypeError:
            raise ClusterError(f"brokers={self.brokers!r}: a list of brokers") from None
        unknown = sorted(wanted - set(cluster.brokers), key=str)
        if unknown or not wanted:
            known = ", ".join(map(str, cluster.brokers))
            raise ClusterError(f"brokers={sorted(wanted, key=str)}: some of {known}")
        if type(self.partition) is not int:
            raise ClusterError(f"partition={self.partition!r}: the number of a partition, from 0")

        def missing() -> str | None:
            state = cluster.controller.state_of(TopicPartition(self.topic, self.partition))
            if state is None:
                names = ", ".join(cluster.controller.topics) or "none"
                return f"there is no partition {self.topic}-{self.partition}; topics are {names}"
            if set(state.isr) == wanted:
                return None
            return f"the ISR is {sorted(state.isr)}, and broker {state.leader} leads"

        return missing


@dataclass(frozen=True)
class FaultUses(Wait):
    """Wait until a fault, by its number, was injected so many times."""

    kind, keys = "uses", (FAULTS,)
    fault: int
    count: int = 1

    def watch(self, cluster: WatchedRequests) -> Missing:
        _check_count("count", self.count)
        faults = cluster.fault
        found = {fault.number: fault for fault in (*faults.recent, *faults.active)}
        if self.fault not in found:
            known = ", ".join(map(str, found)) or "none"
            raise ClusterError(f"there was no fault {self.fault!r}; there are {known}")
        begun = found[self.fault]

        def missing() -> str | None:
            if begun.uses >= self.count:
                return None
            state = "is active" if begun.active else "has ended"
            return f"{begun.fault.kind} was injected {begun.uses} times, and {state}"

        return missing


WAITS: Mapping[str, type[Wait]] = {
    wait.kind: wait for wait in (RequestsCame, GroupStable, CaughtUp, IsrIs, FaultUses)
}
"""By kind."""


def parse_wait(arguments: object) -> tuple[Wait, float]:
    """Return a wait and its timeout in seconds, from a mapping of its kind and arguments.

    Raises:
        ClusterError: there is no such kind, or these are not its arguments.
    """
    if not isinstance(arguments, dict):
        raise ClusterError('a wait is an object with a "kind": ' + ", ".join(WAITS))
    given = dict(arguments)
    kind, timeout_s = given.pop("kind", None), given.pop("timeout_s", DEFAULT_TIMEOUT_S)
    if not isinstance(kind, str) or kind not in WAITS:
        raise ClusterError(f"there is no wait {kind!r}; there are {', '.join(WAITS)}")
    if type(timeout_s) not in (int, float) or not timeout_s >= 0:
        raise ClusterError(f"timeout_s={timeout_s!r}: a number of seconds, 0 or more")
    signature = inspect.signature(WAITS[kind])
    if unknown := [name for name in given if name not in signature.parameters]:
        hint = did_you_mean(unknown[0], signature.parameters)
        takes = ", ".join(signature.parameters)
        raise ClusterError(f"{kind}: takes no {unknown[0]!r}; {hint}it takes {takes}")
    try:
        return WAITS[kind](**given), timeout_s
    except TypeError as error:
        raise ClusterError(f"{kind}: {error}") from None


Waited = TypeVar("Waited")
Timeout = float | timedelta | None


class Numbered(Protocol):
    """A fault that has begun."""

    @property
    def number(self) -> int:
        """Its number."""


class WaitMethods(ABC, Generic[Waited]):
    """Each method waits for something, for ``timeout`` seconds, or a timedelta; None: for ever.

    Each raises `TimeoutError`, which says what was there instead, and `ClusterError` for an invalid
    argument, or if the cluster stops.
    """

    @abstractmethod
    def _until(self, wait: Wait, timeout: Timeout) -> Waited:
        """Wait."""

    def __call__(
        self,
        *,
        requests: str | None,
        count: int = 1,
        client_id: str | None = None,
        topic: str | None = None,
        broker: int | None = None,
        timeout: Timeout = DEFAULT_TIMEOUT_S,
    ) -> Waited:
        """Wait until ``count`` requests of an API came (None: of any), also before the call."""
        return self._until(RequestsCame(requests, count, client_id, topic, broker), timeout)

    def group_stable(
        self, group_id: str, *, members: int | None = None, timeout: Timeout = DEFAULT_TIMEOUT_S
    ) -> Waited:
        """Wait until a group of any type is stable, with so many members (None: any)."""
        return self._until(GroupStable(group_id, members), timeout)

    def caught_up(self, group_id: str, *, timeout: Timeout = DEFAULT_TIMEOUT_S) -> Waited:
        """Wait until a group has committed all records of the partitions that it reads."""
        return self._until(CaughtUp(group_id), timeout)

    def isr(
        self,
        topic: str,
        partition: int,
        brokers: Collection[int],
        *,
        timeout: Timeout = DEFAULT_TIMEOUT_S,
    ) -> Waited:
        """Wait until exactly these brokers are in a partition's ISR."""
        return self._until(IsrIs(topic, partition, brokers), timeout)

    def uses(
        self, fault: Numbered, count: int = 1, *, timeout: Timeout = DEFAULT_TIMEOUT_S
    ) -> Waited:
        """Wait until a fault was injected ``count`` times."""
        return self._until(FaultUses(fault.number, count), timeout)


class ClusterWaits(WaitMethods[Coroutine[Any, Any, None]]):
    """The waits for one cluster or proxy: each method's result is awaited.

    Args:
        watch: calls `Wait.watch` with it.
        name: its name in errors.
    """

    def __init__(self, watch: Callable[[Wait], Missing], name: str = "cluster") -> None:
        self._watch = watch
        self._name = name
        self._purgatory: AsyncPurgatory | None = None
        self._pending = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._pending} pending>"

    def start(self) -> None:
        """Begin, on the loop. Beginning twice has no effect."""
        if self._purgatory is None:
            self._purgatory = AsyncPurgatory("Test")

    async def stop(self) -> None:
        """End all waits."""
        if self._purgatory is not None:
            await self._purgatory.aclose()

    def notify(self, event: str) -> None:
        """Check the waits for an event. O(1) if there are none."""
        if self._pending and self._purgatory is not None:  # counted here: each request calls it
            self._purgatory.notify(event)

    def _until(self, wait: Wait, timeout: Timeout) -> Coroutine[Any, Any, None]:
        return self.until(wait, timeout)

    async def until(self, wait: Wait, timeout: Timeout = DEFAULT_TIMEOUT_S) -> None:
        """Wait until nothing is missing; raises as `WaitMethods` has it."""
        if self._purgatory is None:
            raise ClusterError(f"the {self._name} was not started")
        timeout_s, missing = checked_timeout_s(timeout), self._watch(wait)
        self._pending += 1
        try:
            await self._purgatory.wait(wait.keys, lambda: missing() is None, timeout)
        except TimeoutError:
            raise TimeoutError(f"{wait}: not within {timeout_s:g} s: {missing()}") from None
        except PurgatoryClosedError:
            raise ClusterError(f"{wait}: the {self._name} was stopped") from None
        finally:
            self._pending -= 1


def _check_count(name: str, value: int) -> None:
    if type(value) is not int or value < 1:
        raise ClusterError(f"{name}={value!r}: a whole number from 1 on")


def _group(cluster: WatchedCluster, group_id: str) -> Group | ConsumerGroup | None:
    """Return a group of any type with its members, from its coordinator; None: there is none."""
    for broker in cluster.brokers.values():
        if not broker.alive:
            continue
        groups = broker.groups
        for coordinator in (groups.consumers, groups.shares):
            if group_id in coordinator.groups:
                return coordinator.groups[group_id]
        if group_id in groups.classic.groups:
            return groups.classic.groups[group_id]
    return None


def _no_group(cluster: WatchedCluster, group_id: str) -> str:
    names = set()
    for broker in cluster.brokers.values():
        if broker.alive:
            groups = broker.groups
            for coordinator in (groups.classic, groups.consumers, groups.shares):
                names |= set(coordinator.groups)
    return f"there is no group {group_id}; groups are {', '.join(sorted(names)) or 'none'}"


def _lags(
    cluster: WatchedCluster, group_id: str
) -> Mapping[TopicPartition, tuple[int, int]] | None:
    """Return the position and the end of each partition that a group reads; None: no such group.

    A position is behind the markers of transactions that follow it.
    """
    for broker in cluster.brokers.values():
        if not broker.alive:
            continue
        committed = broker.groups.offsets.group_offsets(group_id)
        try:
            topics = broker.groups.subscribed_topics(group_id) or ()
        except GroupRefusal:
            continue
        lags = {}
        for key, state in cluster.controller.partitions():
            if key not in committed and key.topic not in topics:
                continue
            leader = cluster.brokers.get(state.leader)
            replica = None if leader is None else leader.manager.partition(key)
            if replica is None:
                lags[key] = (-1, 0)
                continue
            at = committed[key].offset if key in committed else replica.log_start_offset
            end = replica.high_watermark
            lags[key] = (_after_markers(replica.log, at, end), end)
        return lags
    return None


def _after_markers(log: Log, at: int, end: int) -> int:
    """Return the offset of the next batch of records, behind markers of transactions."""
    at = max(at, log.start_offset)
    while at < end:
        batches = log.read(at, 1, end)
        if not batches or (batches[0].control is None and not batches[0].is_placeholder):
            break
        at = batches[0].next_offset
    return at
