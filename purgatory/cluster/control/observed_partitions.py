"""The observed state of topics, groups, transactions and faults, for the live feed and the trace.

Each turn the current state is compared with the last one: of many partitions some, the others in
the turns after it. `StateTracer` writes the changes into the trace's table `changes`, ten times a
second; the trace hears of waits, and of brokers that live or die, as it happens.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from purgatory.cluster.control.observed_purgatory import Change, FeedBatch, FeedClock
from purgatory.core.recent_errors import Logger
from purgatory.kafka import TopicPartition
from purgatory.kafka.faults.active_faults import ActiveFault, fault_text
from purgatory.kafka.transactions.transaction_metadata import IDLE, TransactionState
from purgatory.trace import change_rows as rows
from purgatory.trace.change_rows import ChangeRow

if TYPE_CHECKING:
    from purgatory.cluster.broker import Broker
    from purgatory.cluster.cluster import Cluster
    from purgatory.cluster.metadata import ClusterMetadata, Peer
    from purgatory.core.async_purgatory import AsyncPurgatory


def partition_state(cluster: ClusterMetadata, topic_partition: TopicPartition) -> dict[str, Any]:
    """Return the state of one partition. O(its replicas)."""
    state = cluster.controller.state_of(topic_partition)
    assert state is not None, "the controller was just asked for it"
    values: dict[str, Any] = {
        "partition": topic_partition.partition,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "replicas": state.replicas,
        "isr": state.isr,
        "high_watermark": None,
        "log_end_offsets": {},
    }
    for broker_id in state.replicas:
        broker = cluster.live_broker(broker_id)
        replica = None if broker is None else broker.manager.partition(topic_partition)
        if replica is not None:
            values["log_end_offsets"][broker_id] = replica.log_end_offset
            if broker_id == state.leader:
                values["high_watermark"] = replica.high_watermark
    return values


Values = dict[str, Any]
PARTITIONS_A_TURN = 200
_ROLE = ("leader", "leader_epoch", "isr", "replicas")

_STATES = {
    TransactionState.ONGOING: "begun",
    TransactionState.PREPARE_COMMIT: "committing",
    TransactionState.PREPARE_ABORT: "aborting",
    TransactionState.PREPARE_EPOCH_FENCE: "aborting",
}


class ObservedPartitions:
    """Remembers what was told of a cluster.

    Args:
        cluster: which.
        turn: takes the changes.
        told: whether what there is now counts as told; else the first look tells of it.
    """

    def __init__(self, cluster: ClusterMetadata, turn: FeedBatch, told: bool = True) -> None:
        self._cluster = cluster
        self._turn = turn
        self._counts = self._partition_counts() if told else {}
        self._partitions = {key: self._state_of(key) for key in self._keys()}
        self._next = 0
        self._groups = self._current_groups() if told else {}
        self._transactions = self._current_transactions() if told else {}
        self._faults = self._active_faults() if told else {}
        self.gone = False
        """Whether a partition or a replica has gone, so that all is to be told again."""

    def state(self) -> Values:
        """Return what was told, as parts of ``view/state``."""
        topics: dict[str, Values] = {}
        for (topic, _), values in self._partitions.items():
            known = topics.setdefault(
                topic, {"name": topic, "internal": values["internal"], "partitions": []}
            )
            known["partitions"].append(_without(values, "internal"))
        return {
            "topics": list(topics.values()),
            "groups": list(self._groups.values()),
            "transactions": list(self._transactions.values()),
            "faults": list(self._faults.values()),
        }

    def look(self) -> None:
        """Tell what has changed. O(PARTITIONS_A_TURN * replicas + groups + transactions)."""
        self._look_at_partitions()
        for what, told, now in (
            ("group", self._groups, self._current_groups()),
            ("transaction", self._transactions, self._current_transactions()),
            ("fault", self._faults, self._active_faults()),
        ):
            self._compare(what, told, now)

    def forget_gone(self) -> list[TopicPartition]:
        """Forget the partitions that are there no more, and return them. O(partitions) if any."""
        if not self.gone:
            return []
        self.gone = False
        gone = list(self._partitions.keys() - set(self._keys()))
        for key in gone:
            del self._partitions[key]
        return gone

    # Partitions.

    def _partition_counts(self) -> dict[str, int]:
        topics = self._cluster.controller.topics
        return {name: len(topic.partitions) for name, topic in topics.items()}

    def _keys(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic, number)
            for topic, count in self._counts.items()
            for number in range(count)
        ]

    def _look_at_partitions(self) -> None:
        counts = self._partition_counts()
        if counts != self._counts:
            for topic in self._counts.keys() - counts.keys():
                self.gone = True
                self._say(f"topic {topic} was deleted")
            for topic in counts.keys() - self._counts.keys():
                self._say(f"topic {topic} was created, with {counts[topic]} partitions")
            self._counts = counts
        keys = self._keys()
        new = [key for key in keys if key not in self._partitions] if counts else []
        if len(keys) < len(self._partitions) + len(new):
            self.gone = True
        begin = self._next if self._next < len(keys) else 0
        self._next = begin + PARTITIONS_A_TURN
        for key in dict.fromkeys([*new, *keys[begin : self._next]]):
            self._look_at(key)

    def _look_at(self, key: TopicPartition) -> None:
        told, now = self._partitions.get(key), self._state_of(key)
        self._partitions[key] = now
        topic, partition = key
        at_us = self._turn.clock.now_us()
        place = {"topic": topic, "partition": partition}
        if told is None or any(told[name] != now[name] for name in _ROLE):
            role = {name: now[name] for name in (*_ROLE, "internal")}
            self._turn.add(at_us, "partition", **place, **role)
            if told is not None and not now["internal"]:
                self._say_role(key, told, now)
        told_offset = None if told is None else told["high_watermark"]
        if now["high_watermark"] != told_offset:
            self._turn.add(at_us, "high_watermark", **place, offset=now["high_watermark"])
        ends: Mapping[str, int] = {} if told is None else told["log_end_offsets"]
        for broker in ends.keys() - now["log_end_offsets"].keys():
            self.gone = True
            self._turn.add(at_us, "log_end", **place, broker=int(broker), offset=None)
        for broker, offset in now["log_end_offsets"].items():
            if ends.get(broker) != offset:
                self._turn.add(at_us, "log_end", **place, broker=int(broker), offset=offset)

    def _state_of(self, key: TopicPartition) -> Values:
        state = partition_state(self._cluster, key)
        ends = {str(broker): end for broker, end in state["log_end_offsets"].items()}
        return {
            **state,
            "replicas": list(state["replicas"]),
            "isr": sorted(state["isr"]),
            "log_end_offsets": ends,
            "internal": self._cluster.controller.topics[key.topic].internal,
        }

    def _say_role(self, key: TopicPartition, told: Values, now: Values) -> None:
        if told["leader"] != now["leader"]:
            leads = f"broker {now['leader']} leads" if now["leader"] >= 0 else "nobody leads"
            self._say(f"{leads} {key}", "info" if now["leader"] >= 0 else "warning")
        for broker in set(told["isr"]) - set(now["isr"]):
            self._say(f"broker {broker} left the ISR of {key}", "warning")
        for broker in set(now["isr"]) - set(told["isr"]):
            self._say(f"broker {broker} is back in the ISR of {key}")

    # All else, of which there is not much.

    def _compare(self, what: str, told: dict[Any, Values], now: dict[Any, Values]) -> None:
        at_us = self._turn.clock.now_us()
        for key, values in now.items():
            if told.get(key) != values:
                self._turn.add(at_us, what, **values)
                self._say_more(what, told.get(key), values)
        for key in told.keys() - now.keys():
            state = {"group": "Gone", "transaction": "ended"}.get(what)
            if state is not None:
                self._turn.add(at_us, what, **(told[key] | {"state": state}))
        told.clear()
        told.update(now)

    def _say_more(self, what: str, told: Values | None, now: Values) -> None:
        if what == "fault" and told is None:
            self._say(f"fault {now['number']}: {now['text']}", "warning")
        elif what == "fault" and told is not None and told["active"] and not now["active"]:
            self._say(f"fault {now['number']} ended: {now['text']}")
        elif what == "group" and (told is None or told["state"] != now["state"]):
            count = len(now["members"])
            members = f"{count} member{'' if count == 1 else 's'}"
            self._say(f"group {now['name']} is {now['state']}, with {members}")

    def _say(self, text: str, level: str = "info") -> None:
        self._turn.add(self._turn.clock.now_us(), "log", text=text, level=level)

    def _live_brokers(self) -> Iterator[Peer]:
        return (broker for broker in self._cluster.brokers.values() if broker.alive)

    def _current_groups(self) -> dict[Any, Values]:
        found: dict[Any, Values] = {}
        for broker in self._live_brokers():
            groups = broker.groups
            for classic in groups.groups.values():
                found[classic.group_id] = _group(
                    broker, classic.group_id, classic.state.value, classic.generation,
                    classic.members,
                )  # fmt: skip
            for coordinator in (groups.consumers, groups.shares):
                for group in coordinator.groups.values():
                    found[group.group_id] = _group(
                        broker, group.group_id, group.state.value, group.epoch, group.members
                    )
        return found

    def _current_transactions(self) -> dict[Any, Values]:
        return {
            one.transactional_id: {
                "id": one.transactional_id,
                "epoch": one.record.producer_epoch,
                "state": _STATES.get(one.record.state, one.record.state.value),
                "since_us": self._turn.clock.us_of_wall_s(one.record.start_ms / 1_000),
            }
            for broker in self._live_brokers()
            for one in broker.transactions.all_transactions()
            if one.record.state not in IDLE and one.record.state is not TransactionState.DEAD
        }

    def _active_faults(self) -> dict[Any, Values]:
        faults = self._cluster.fault
        chosen = {fault.number: fault for fault in (*faults.recent, *faults.active)}
        return {number: self._fault(chosen[number]) for number in sorted(chosen)}

    def _fault(self, begun: ActiveFault) -> Values:
        until_s = begun.ended_s
        if until_s is None and begun.fault.for_s is not None:
            until_s = begun.began_s + begun.fault.for_s
        of_wall_s = self._turn.clock.us_of_wall_s
        return {
            "number": begun.number,
            "kind": begun.fault.kind,
            "text": fault_text(begun.fault),
            "brokers": list(begun.fault.brokers),
            "active": begun.active,
            "since_us": of_wall_s(begun.began_s),
            "until_us": None if until_s is None else of_wall_s(until_s),
        }


def _group(broker: Peer, name: str, state: str, generation: int, members: Iterable[str]) -> Values:
    return {
        "name": name,
        "broker": broker.broker_id,
        "state": state,
        "generation": generation,
        "members": list(members),
    }


def _without(values: Values, key: str) -> Values:
    return {name: value for name, value in values.items() if name != key}


LOOK_S = 0.1
_log = Logger("purgatory.cluster")


class StateTracer:
    """Follows a cluster.

    Args:
        cluster: which.
        start_ns: when its trace began, by the monotonic clock.
        write: takes the rows.
    """

    def __init__(
        self, cluster: ClusterMetadata, start_ns: int, write: Callable[[ChangeRow], object]
    ) -> None:
        self._turn = FeedBatch(FeedClock(start_ns))
        self._parts = ObservedPartitions(cluster, self._turn, told=False)
        self._write = write
        self._faults: set[int] = set()

    @classmethod
    def of(cls, cluster: ClusterMetadata) -> StateTracer | None:
        """What follows a cluster; None where it is not traced for the view."""
        trace = cluster.trace
        if trace is None or trace.change is None:
            return None
        return cls(cluster, trace.start_ns, trace.change)

    async def follow(self) -> None:
        """Look again and again."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Write what has changed; that it could not be found is logged.

        O(200 partitions * replicas + groups + transactions).
        """
        try:
            self._parts.look()
        except Exception as error:
            _log.error("trace_failed", exc_info=error)
        for topic, partition in self._parts.forget_gone():
            place = {"topic": topic, "partition": partition, "isr": [], "replicas": []}
            now_us = self._turn.clock.now_us()
            self._turn.add(now_us, "partition", **place, leader=-1, leader_epoch=0, state=rows.GONE)
        for change in self._turn.end()[2]:
            for row in self._rows(change):
                self._write(row)

    def _rows(self, change: Change) -> Iterator[ChangeRow]:
        at_us, what = change["at_us"], change["what"]
        row = ChangeRow(at_us, what, change.get("broker"), state=change.get("state"))
        if what == rows.FAULT:
            yield from self._fault(row, change)
        elif what == rows.GROUP:
            number, names = change["generation"], tuple(change["members"])
            yield row._replace(name=change["name"], number=number, names=names)
        elif what == rows.TRANSACTION:
            yield row._replace(name=change["id"], number=change["epoch"])
        elif what in (rows.LOG_END, rows.HIGH_WATERMARK, rows.PARTITION):
            row = row._replace(name=change["topic"], partition=change["partition"])
            if what == rows.PARTITION:
                yield row._replace(
                    broker=change["leader"],
                    number=change["leader_epoch"],
                    names=tuple(change["replicas"]),
                    in_sync=tuple(change["isr"]),
                )
            else:
                yield row._replace(number=change["offset"])

    def _fault(self, row: ChangeRow, fault: dict[str, Any]) -> Iterator[ChangeRow]:
        until_us = fault["until_us"]
        begun = row._replace(
            name=fault["text"],
            number=fault["number"],
            state=fault["kind"],
            due_ms=None if until_us is None else max(0, until_us // 1_000),
            names=tuple(fault["brokers"]),
        )
        if fault["active"] or fault["number"] not in self._faults:
            self._faults.add(fault["number"])
            yield begun
        if not fault["active"]:
            yield begun._replace(state=rows.ENDED, due_ms=None)


_NS_PER_MS = 1_000_000


def cluster_state(cluster: Cluster) -> dict[str, Any]:
    """Return brokers, topics, groups, purgatories and faults. O(partitions)."""
    return {
        "bootstrap_servers": cluster.bootstrap_servers,
        "elections": cluster.controller.elections,
        "brokers": [_broker(broker) for broker in cluster.brokers.values()],
        "topics": [
            {
                "name": topic.name,
                "internal": topic.internal,
                "settings": topic.configs,
                "partitions": [
                    _partition(cluster, TopicPartition(topic.name, number))
                    for number in range(len(topic.partitions))
                ],
            }
            for topic in cluster.controller.topics.values()
        ],
        "groups": [
            {
                "name": group.group_id,
                "broker": broker.broker_id,
                "state": group.state.value,
                "generation": group.generation,
                "members": list(group.members),
            }
            for broker in cluster.brokers.values()
            if broker.alive
            for group in broker.groups.groups.values()
        ],
        "faults": [fault.as_dict() for fault in cluster.fault.recent],
    }


def _partition(cluster: Cluster, topic_partition: TopicPartition) -> dict[str, Any]:
    state = partition_state(cluster, topic_partition)
    leader = cluster.live_broker(state["leader"])
    led = None if leader is None else leader.manager.partition(topic_partition)
    return {**state, "log_start_offset": None if led is None else led.log_start_offset}


def _broker(broker: Broker) -> dict[str, Any]:
    return {
        "id": broker.broker_id,
        "host": broker.host,
        "port": broker.port,
        "alive": broker.alive,
        "connections": broker.connection_count,
        "purgatories": [_purgatory(one) for one in broker.purgatories] if broker.alive else [],
    }


def _purgatory(purgatory: AsyncPurgatory) -> dict[str, Any]:
    return {
        "name": purgatory.name,
        "pending": purgatory.num_delayed,
        "oldest_ms": purgatory.core.oldest_pending_ns // _NS_PER_MS,
        "outcomes": purgatory.counters.outcomes,
    }
