"""The delays of a real Kafka, which tests seldom expect: `ClusterConfig.realistic_delays`.

A broker learns from the controller some milliseconds after a change, a coordinator loads its
partition, and the markers of a transaction follow the response to its end. Clients see errors that
they have to retry, and old values.

Ground rules
------------
* Only the cluster's loop calls it, by whose clock the delays pass.
* A seed's delays are the same for the same requests.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from purgatory.kafka import TopicPartition
from purgatory.kafka.errors import ErrorCode

Key = TypeVar("Key", bound=Hashable)
Configs = Sequence[Mapping[str, Any]]
"""The settings of a resource, as a response has them."""

_AUTO_CREATED_MS = (10.0, 100.0)
_CREATED_MS = (0.0, 69.0)
_LOADING_MS = (5.0, 50.0)
_PRODUCER_IDS_MS = (5.0, 50.0)
_MARKERS_MS = (1.0, 10.0)
_CONFIG_MS = (5.0, 50.0)
_MAX_PASSED = 1_000


class _Delayed(Generic[Key]):
    """Keys that are delayed, with the end of each delay. Amortised O(1)."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._ends_s: dict[Key, float] = {}
        self._purge_above = _MAX_PASSED

    def __contains__(self, key: Key) -> bool:
        end_s = self._ends_s.get(key)
        return end_s is not None and _now_s() < end_s

    def begin(self, key: Key, between_ms: tuple[float, float], from_s: float = 0.0) -> float:
        """Delay a key by a drawn time, from now on, or from a later time; return its end."""
        if len(self._ends_s) >= self._purge_above:
            now_s = _now_s()
            self._ends_s = {one: end_s for one, end_s in self._ends_s.items() if now_s < end_s}
            self._purge_above = _MAX_PASSED + len(self._ends_s)
        end_s = max(_now_s(), from_s) + self._rng.uniform(*between_ms) / 1_000
        self._ends_s[key] = end_s
        return end_s

    def end_s(self, key: Key) -> float:
        """Return the end of a key's last delay; 0: there was none, or long ago."""
        return self._ends_s.get(key, 0.0)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


class RealisticDelays:
    """The delays of one cluster.

    Args:
        broker_ids: all brokers.
    """

    def __init__(self, broker_ids: Sequence[int]) -> None:
        # Seeded by `random`, so that a program with a seed has the same delays in each run.
        rng = random.Random(random.getrandbits(64))
        self.broker_ids = broker_ids
        self._topics = _Delayed[tuple[int, str]](rng)
        self._loading = _Delayed[tuple[int, TopicPartition]](rng)
        self._led: dict[tuple[int, TopicPartition], int] = {}
        self._producer_ids = _Delayed[int](rng)
        self._have_producer_ids: set[int] = set()
        self._markers = _Delayed[str](rng)
        self._configs = _Delayed[tuple[int, int, str]](rng)
        self._old_configs: dict[tuple[int, int, str], Configs] = {}

    # Topics.

    def begin_topic(self, name: str, is_automatic: bool) -> None:
        """Hide a topic that is about to be created: each broker learns of it later.

        Args:
            name: its name.
            is_automatic: whether a request for it creates it.
        """
        between_ms = _AUTO_CREATED_MS if is_automatic else _CREATED_MS
        for broker_id in self.broker_ids:
            self._topics.begin((broker_id, name), between_ms)

    def hides_topic(self, broker_id: int, name: str) -> bool:
        """Whether a broker doesn't know a topic yet."""
        return (broker_id, name) in self._topics

    # Coordinators.

    def begin_loading(self, broker_id: int, place: TopicPartition, leader_epoch: int) -> None:
        """Have a broker load a partition that it leads, once it knows the topic. Idempotent."""
        key = broker_id, place
        if self._led.get(key) != leader_epoch:
            self._led[key] = leader_epoch
            known_s = self._topics.end_s((broker_id, place.topic))
            self._loading.begin(key, _LOADING_MS, known_s)

    def coordinator_error(self, broker_id: int, place: TopicPartition) -> ErrorCode:
        """Return why a broker doesn't coordinate yet what a partition stores, or NONE."""
        if self.hides_topic(broker_id, place.topic):
            return ErrorCode.NOT_COORDINATOR
        if (broker_id, place) in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NONE

    # Producers.

    def lacks_producer_ids(self, broker_id: int) -> bool:
        """Whether a broker waits for its first producer ids; the first call asks for them."""
        if broker_id not in self._have_producer_ids:
            self._have_producer_ids.add(broker_id)
            self._producer_ids.begin(broker_id, _PRODUCER_IDS_MS)
        return broker_id in self._producer_ids

    def forget_broker(self, broker_id: int) -> None:
        """Forget the producer ids of a process that ended."""
        self._have_producer_ids.discard(broker_id)

    def begin_markers(self, transactional_id: str) -> None:
        """Write the markers of a transaction later than its end is acknowledged."""
        self._markers.begin(transactional_id, _MARKERS_MS)

    def writes_markers(self, transactional_id: str | None) -> bool:
        """Whether the markers of the last transaction are being written."""
        return transactional_id is not None and transactional_id in self._markers

    # Settings.

    def begin_config(self, kind: int, name: str, old: Iterable[Mapping[str, Any]]) -> None:
        """Have brokers return the old settings of a resource for a while.

        Args:
            kind: the resource's type.
            old: its settings before the change.
        """
        configs = list(old)
        for broker_id in self.broker_ids:
            key = broker_id, kind, name
            if key not in self._configs:  # after two changes the first one's settings
                self._old_configs[key] = configs
            self._configs.begin(key, _CONFIG_MS)

    def old_config(self, broker_id: int, kind: int, name: str) -> Configs | None:
        """Return the settings of a resource that a broker doesn't know to be changed, or None."""
        key = broker_id, kind, name
        if key in self._configs:
            return self._old_configs[key]
        self._old_configs.pop(key, None)
        return None
