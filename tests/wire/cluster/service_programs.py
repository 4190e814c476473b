"""Services as people write them, right and wrong, with real clients: the subjects of an audit.

Each reads `orders` in a group and does something for each order (`work`), or writes `orders`. The
wrong twin of a service loses an order, does it twice or stores it twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from purgatory.cluster import ClusterConfig, GroupConfig, ThreadedCluster, TopicSpec

ORDERS, BATCH = 12, 6
TOPIC, GROUP = "orders", "billing"
PATIENCE_S = 60.0
GROUPS = GroupConfig(
    initial_rebalance_delay_ms=0,
    min_session_timeout_ms=100,
    consumer_heartbeat_interval_ms=100,
    share_heartbeat_interval_ms=100,
    share_record_lock_duration_ms=1_000,
)


class Worker(Protocol):
    """A member of the group."""

    def take(self, most: int) -> list[Any]:
        """Return some messages, or none."""

    def commit(self, messages: list[Any]) -> None:
        """Say that these were processed."""

    def leave(self) -> None:
        """Leave the group, with no more commits than the settings make."""


class GroupWorker:
    """A consumer of a classic group, or of one of KIP-848."""

    def __init__(self, run: Run, settings: Mapping[str, Any], on_revoke: Any = None) -> None:
        self._run = run
        self._consumer = Consumer(
            {
                "bootstrap.servers": run.servers,
                "group.id": GROUP,
                "group.protocol": run.kind,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
                **settings,
            }
        )
        handlers = {} if on_revoke is None else {"on_revoke": lambda *_: on_revoke(self)}
        self._consumer.subscribe([TOPIC], **handlers)

    def take(self, most: int) -> list[Any]:
        return [one for one in self._consumer.consume(most, 0.1) if one.error() is None]

    def commit(self, messages: list[Any]) -> None:
        ends: dict[tuple[str, int], int] = {}
        for message in messages:
            place = message.topic(), message.partition()
            ends[place] = max(ends.get(place, 0), message.offset() + 1)
        if ends:
            offsets = [TopicPartition(*place, end) for place, end in ends.items()]
            self._consumer.commit(offsets=offsets, asynchronous=False)

    def store(self, message: Any) -> None:
        """Have a message's offset committed by and by."""
        self._consumer.store_offsets(message)

    def leave(self) -> None:
        self._run.close(self._consumer)


class ShareWorker:
    """A member of a share group."""

    def __init__(self, run: Run, settings: Mapping[str, Any], on_revoke: Any = None) -> None:
        self._run = run
        self._consumer = ShareConsumer(
            {
                "bootstrap.servers": run.servers,
                "group.id": GROUP,
                "share.acknowledgement.mode": settings.get("mode", "explicit"),
                "max.poll.records": BATCH,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([TOPIC])

    def take(self, most: int) -> list[Any]:
        return [one for one in self._consumer.poll(0.1) if one.error() is None]

    def commit(self, messages: list[Any]) -> None:
        for message in messages:
            self._consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        self._consumer.commit_sync(10.0)

    def release(self, messages: list[Any]) -> None:
        """Give messages back."""
        for message in messages:
            self._consumer.acknowledge(message, AcknowledgeType.RELEASE)
        self._consumer.commit_sync(10.0)

    def leave(self) -> None:
        self._run.close(self._consumer)


@dataclass
class Run:
    """One run of a service."""

    cluster: ThreadedCluster
    kind: str
    """Of the group: classic, consumer or share."""
    is_right: bool
    with_faults: bool = False
    effects: list[tuple[str, int, int]] = field(default_factory=list)
    """For which orders it had its effect, in this order."""

    @property
    def servers(self) -> str:
        return self.cluster.bootstrap_servers

    def worker(self, on_revoke: Any = None, **settings: Any) -> Any:
        kind = ShareWorker if self.kind == "share" else GroupWorker
        return kind(self, settings, on_revoke)

    def work(self, message: Any) -> None:
        self.effects.append((message.topic(), message.partition(), message.offset()))

    @property
    def done(self) -> int:
        return len(set(self.effects))

    def producer(self, **settings: Any) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self.servers,
                "enable.idempotence": True,
                "log_level": 0,
                **settings,
            }
        )

    def order(self) -> None:
        """Send the orders, all well."""
        producer = self.producer()
        for number in range(ORDERS):
            producer.produce(TOPIC, f"order {number}", partition=number % 2)
        assert producer.flush(PATIENCE_S) == 0

    def until(self, condition: Callable[[], Any], turn: Callable[[], Any], what: str) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end_s, f"{what}: {self.done} of {ORDERS} were done"
            turn()

    def take(self, worker: Worker, count: int) -> list[Any]:
        """Take so many messages, or a few more."""
        taken: list[Any] = []
        self.until(
            lambda: len(taken) >= count,
            lambda: taken.extend(worker.take(count - len(taken))),
            f"taken {len(taken)}",
        )
        return taken

    def close(self, consumer: Any) -> None:
        """Close a consumer.

        A client's `close` has no limit, and was seen to hang. What it waits for must then not be a
        broker's response; its group goes on when its session has ended.
        """
        closing = threading.Thread(target=consumer.close, daemon=True)
        closing.start()
        closing.join(PATIENCE_S)
        if closing.is_alive():
            waiting = [seen for seen in self.cluster.requests() if seen.answered_s is None]
            assert not waiting, f"close waits for the responses to {waiting}"

    def finish(self, orders: int = ORDERS, effects: int = 0) -> None:
        """Let another worker do the rest, as one should: work, then commit.

        Args:
            orders: how many are to be done then.
            effects: how many effects there are to be, at least.
        """
        worker = self.worker()

        def turn() -> None:
            messages = worker.take(BATCH)
            for message in messages:
                self.work(message)
            worker.commit(messages)

        self.until(lambda: self.done >= orders and len(self.effects) >= effects, turn, "the rest")
        worker.leave()


def commit_before_work(run: Run) -> None:
    """Commits a batch before it works, and crashes in the middle; its twin commits the completed
    work."""
    run.order()
    worker = run.worker()
    batch = run.take(worker, BATCH)
    done = batch[: BATCH // 2]
    if not run.is_right:
        worker.commit(batch)
    for message in done:
        run.work(message)
    if run.is_right:
        worker.commit(done)
    worker.leave()
    run.finish(ORDERS if run.is_right else ORDERS - (len(batch) - len(done)))


def retries_without_idempotence(run: Run) -> None:
    """Sends records without a response again, under no number."""
    with run.cluster.fault.lose_responses(api="Produce", count=1):
        producer = run.producer(**{"enable.idempotence": run.is_right, "linger.ms": 200})
        for number in range(ORDERS):
            producer.produce(TOPIC, f"order {number}", partition=number % 2)
        assert producer.flush(PATIENCE_S) == 0
    run.finish()


def no_commit_on_revoke(run: Run) -> None:
    """Works, and doesn't commit its completed work when it loses partitions."""
    run.order()
    done: list[Any] = []

    def on_revoke(worker: Worker) -> None:
        if run.is_right and done:
            worker.commit(done)

    first = run.worker(on_revoke)
    for message in run.take(first, BATCH):
        run.work(message)
        done.append(message)
    if run.kind == "share" and run.is_right:
        first.commit(done)
    first.leave()
    run.finish(effects=0 if run.is_right else ORDERS + len(done))


def commit_past_failure(run: Run) -> None:
    """Fails at an order, goes on and commits the batch; its twin tries the order again first."""
    run.order()
    worker = run.worker()
    failed, *others = batch = run.take(worker, BATCH)
    for message in others:
        run.work(message)
    if run.is_right:
        run.work(failed)
    worker.commit(batch)
    worker.leave()
    run.finish(ORDERS if run.is_right else ORDERS - 1)


def rebalance_in_the_middle(run: Run) -> None:
    """Two workers do as one should; the second one comes when the first has done some."""
    run.order()
    workers = [run.worker()]

    def turn() -> None:
        for worker in workers:
            messages = worker.take(2)
            for message in messages:
                run.work(message)
            worker.commit(messages)

    run.until(lambda: run.done >= BATCH // 2, turn, "the first half")
    workers.append(run.worker())
    run.until(lambda: run.done >= ORDERS, turn, "the second half")
    for worker in workers:
        worker.leave()


def outbox(run: Run) -> None:
    """Marks orders of its table as sent: before the response comes, or when it has come."""
    table = dict.fromkeys((f"order {number}" for number in range(ORDERS)), False)
    producer = run.producer(**{"linger.ms": 0, "batch.num.messages": 1})

    def send(order: str) -> None:
        def on_response(error: Any, _: Any) -> None:
            table[order] = table[order] or error is None

        if not run.is_right:
            table[order] = True
        producer.produce(TOPIC, order, partition=0, callback=on_response)
        producer.flush(PATIENCE_S)

    with run.cluster.fault.return_error(api="Produce", error="MESSAGE_TOO_LARGE", count=1) as fault:
        send("order 0")
        assert fault.uses == 1

    def send_what_is_left() -> None:
        for order in [order for order, is_sent in table.items() if not is_sent]:
            send(order)

    run.until(lambda: all(table.values()), send_what_is_left, "to be sent")
    run.finish(ORDERS if run.is_right else ORDERS - 1)


def auto_commit_and_crash(run: Run) -> None:
    """Has offsets committed by and by: of what it took, or of what it did; then it crashes."""
    run.order()
    if run.kind == "share":
        worker = run.worker(mode="explicit" if run.is_right else "implicit")
        batch = run.take(worker, BATCH)
        done = batch[: BATCH // 2]
        for message in done:
            run.work(message)
        if run.is_right:
            worker.commit(done)
            worker.release(batch[BATCH // 2 :])
            lost = 0
        else:
            worker.take(1)  # which acknowledges all that it took before
            time.sleep(0.5)
            lost = len(batch) - len(done)
    else:
        automatic = {"enable.auto.commit": True, "auto.commit.interval.ms": 100}
        worker = run.worker(**automatic, **{"enable.auto.offset.store": not run.is_right})
        batch = run.take(worker, BATCH)
        done = batch[: BATCH // 2]
        for message in done:
            run.work(message)
            if run.is_right:
                worker.store(message)
        time.sleep(0.5)
        lost = 0 if run.is_right else len(batch) - len(done)
    worker.leave()
    if run.kind == "share" and not run.is_right:
        time.sleep(1.5)  # until the locks of its last records expire
    run.finish(ORDERS - lost)


@contextmanager
def faults(run: Run) -> Iterator[None]:
    """Lose a response to a fetch, and respond to another one with an error."""
    api = "ShareFetch" if run.kind == "share" else "Fetch"
    with ExitStack() as stack:
        if run.with_faults:
            fault = run.cluster.fault
            stack.enter_context(fault.lose_responses(api=api, count=1))
            error = "NOT_LEADER_OR_FOLLOWER"
            stack.enter_context(fault.return_error(api=api, error=error, count=1))
        yield


@contextmanager
def running(kind: str, is_right: bool, with_faults: bool = False) -> Iterator[Run]:
    """A run on a cluster of its own."""
    config = ClusterConfig(brokers=1, topics=[TopicSpec(TOPIC, 2)], groups=GROUPS)
    with ThreadedCluster(config, recorded=True) as cluster:
        if kind == "share":
            _read_from_the_start(cluster)
        yield Run(cluster, kind, is_right, with_faults)


def _read_from_the_start(cluster: ThreadedCluster) -> None:
    change = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ConfigResource.Type.GROUP, GROUP, incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(PATIENCE_S)
