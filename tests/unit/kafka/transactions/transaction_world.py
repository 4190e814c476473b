"""Three brokers that coordinate transactions, on a manual clock, and their messages.

Everything that happens is a turn: a message arrives, or followers fetch, and 10 ms pass. A broker
can be killed between any two turns. The visible records are computed as by clients, from fetches
and the aborted transactions that they tell, and share no code with the tested coordinator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from purgatory.core.errors import PurgatoryClosedError
from purgatory.kafka import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    ErrorCode,
    FetchIsolation,
    FetchParams,
    GroupConfig,
    GroupManager,
    Log,
    PartitionFetch,
    ProducerIdentity,
    RecordBatch,
    TopicPartition,
    TransactionConfig,
    TransactionCoordinator,
    TransactionEntry,
    TransactionResult,
    write_markers,
)
from tests.unit.kafka.conftest import Broker
from tests.unit.kafka.groups.consumer_group_client import FakeTopics
from tests.unit.kafka.groups.group_client import TagCodec
from timer import ManualClock

STATE = TopicPartition(TRANSACTIONS_TOPIC, 0)
OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)
OUT = (TopicPartition("out", 0), TopicPartition("out", 1))
IN = TopicPartition("in", 0)
ALL = (STATE, OFFSETS, *OUT)
TURN_MS = 10
IDS = (0, 1, 2)

Codes = Mapping[TopicPartition, ErrorCode]


class TransactionTags:
    """Keeps the state of transactional ids as a batch's tag."""

    def batch(self, entries: Sequence[TransactionEntry]) -> RecordBatch:
        return RecordBatch(0, len(entries), 100 * len(entries), tag=tuple(entries))

    def entries(self, batch: RecordBatch) -> Sequence[TransactionEntry]:
        assert isinstance(batch.tag, tuple)
        return batch.tag

    def marker(
        self, producer: ProducerIdentity, how: TransactionResult, coordinator_epoch: int
    ) -> RecordBatch:
        return RecordBatch.end_transaction(*producer, how, coordinator_epoch=coordinator_epoch)


class Node:
    """One broker's process."""

    def __init__(
        self, world: World, broker_id: int, logs: Mapping[TopicPartition, Log], config: Any
    ) -> None:
        self.world = world
        self.broker_id = broker_id
        self.broker = Broker(broker_id, world.clock, logs=logs, min_insync_replicas=1)
        self.purgatories = [self.broker.produces, self.broker.fetches, self.broker.deletions]
        self.groups = GroupManager(
            self.broker.manager,
            GroupConfig(),
            TagCodec(),
            new_purgatory=self._purgatory,
            new_member_id=lambda begin: begin,
            now_ms=world.clock.now_ms,
            offsets_partitions=lambda: 1,
            is_known=lambda _: True,
            known_topics=FakeTopics(),
        )
        self.transactions = TransactionCoordinator(
            self.broker.manager,
            config,
            TransactionTags(),
            self,
            new_purgatory=self._purgatory,
            new_producer_id=world.new_producer_id,
            now_ms=world.clock.now_ms,
            state_partitions=lambda: 1,
        )

    def _purgatory(self, name: str) -> Any:
        purgatory = self.broker._purgatory(name, self.broker_id)
        self.purgatories.append(purgatory)
        return purgatory

    def update_role(self, tp: TopicPartition) -> None:
        leader, epoch, isr = self.world.leaders[tp]
        manager = self.broker.manager
        leads = leader == self.broker_id
        if leads:
            manager.become_leader(tp, epoch, isr, IDS)
        self.groups.update_role(tp, leads)
        self.transactions.update_role(tp, leads, epoch)
        if not leads:
            manager.become_follower(tp, leader, epoch, IDS)

    # The cluster, for its coordinator.

    def leader_of(self, topic_partition: TopicPartition) -> int | None:
        known = self.world.leaders.get(topic_partition)
        return None if known is None else known[0]

    def send_markers(
        self,
        broker_id: int,
        markers: Mapping[TopicPartition, RecordBatch],
        respond: Callable[[Codes], object],
    ) -> None:
        refused = dict.fromkeys(markers, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.world.ask(
            broker_id,
            lambda node, answer: write_markers(node.broker.manager, node.groups, markers, answer),
            lambda codes: self.world.post(self, lambda: respond(codes)),
            gone=refused,
        )

    def die(self) -> Mapping[TopicPartition, Log]:
        for purgatory in self.purgatories:
            purgatory.close("leave")
        return self.broker.manager.detach_logs()

    def check(self) -> None:
        self.transactions._check()
        self.broker.manager._check()
        for purgatory in self.purgatories:
            purgatory._check()
            assert not sum(purgatory.counters.callback_errors.values()), purgatory.name


class World:
    """The brokers, their messages, and the leaders."""

    def __init__(self, **config: int) -> None:
        self.clock = ManualClock(start_ms=1_000_000)
        self.config = TransactionConfig(**config)
        self.messages: deque[Callable[[], object]] = deque()
        self.leaders: dict[TopicPartition, tuple[int, int, tuple[int, ...]]] = {
            tp: (number % 3, 1, IDS) for number, tp in enumerate(ALL)
        }
        self.turns = 0
        self.kill_at: dict[int, int] = {}
        self.revive_at: dict[int, int] = {}
        self.move_at: dict[int, TopicPartition] = {}
        self._next_id = 100
        self._waiting: list[tuple[Node, Callable[[], object]]] = []
        self._logs: dict[int, Mapping[TopicPartition, Log]] = {one: {} for one in IDS}
        self.nodes: dict[int, Node] = {}
        for broker_id in IDS:
            self.revive(broker_id)

    def new_producer_id(self) -> int:
        self._next_id += 1
        return self._next_id

    # Messages.

    def post(self, node: Node, message: Callable[[], object]) -> None:
        """Bring a message to a process; it is lost if that is killed before."""
        self.messages.append(lambda: message() if self._lives(node) else None)

    def ask(
        self,
        broker_id: int,
        request: Callable[[Node, Callable[[Any], object]], object],
        respond: Callable[[Any], object],
        gone: Any,
    ) -> None:
        """Bring a request to a broker; ``respond`` takes the answer, or ``gone`` if it dies."""
        asked = self.nodes.get(broker_id)
        answered = False

        def answer(value: Any) -> None:
            nonlocal answered
            assert not answered, "a request was answered twice"
            answered = True
            self.messages.append(lambda: respond(value))

        def give_up() -> None:
            if not answered:
                answer(gone)

        def arrive() -> None:
            if answered:
                return
            if asked is None or not self._lives(asked):
                give_up()
                return
            try:
                request(asked, answer)
            except PurgatoryClosedError:
                give_up()

        if asked is not None:
            self._waiting.append((asked, give_up))
        self.messages.append(arrive)

    def _lives(self, node: Node) -> bool:
        return self.nodes.get(node.broker_id) is node

    # Brokers that go and come.

    def kill(self, broker_id: int) -> None:
        node = self.nodes.pop(broker_id)
        self._logs[broker_id] = node.die()
        for asked, give_up in self._waiting:
            if asked is node:
                give_up()
        self._waiting = [one for one in self._waiting if one[0] is not node]
        for tp, (leader, epoch, isr) in self.leaders.items():
            left = tuple(one for one in isr if one != broker_id and one in self.nodes)
            if leader == broker_id:
                new = left[0] if left else -1
                self.leaders[tp] = new, epoch + 1, left or isr
            elif left:
                self.leaders[tp] = leader, epoch + 1, left
        self._tell_all()

    def revive(self, broker_id: int) -> None:
        self.nodes[broker_id] = Node(self, broker_id, self._logs[broker_id], self.config)
        for tp, (leader, epoch, isr) in self.leaders.items():
            if leader == -1 and broker_id in isr:
                self.leaders[tp] = broker_id, epoch + 1, (broker_id,)
        self._tell_all()

    def lead(self, tp: TopicPartition, broker_id: int) -> None:
        """Have another broker in sync lead."""
        _, epoch, isr = self.leaders[tp]
        assert broker_id in isr
        self.leaders[tp] = broker_id, epoch + 1, isr
        self._tell_all()

    def _tell_all(self) -> None:
        for node in list(self.nodes.values()):
            for tp in self.leaders:
                node.update_role(tp)

    # Time.

    def turn(self) -> None:
        """One message arrives, or all followers fetch; then time passes."""
        self.turns += 1
        if self.turns in self.kill_at:
            self.kill(self.kill_at[self.turns])
        if self.turns in self.revive_at:
            self.revive(self.revive_at[self.turns])
        if self.turns in self.move_at:
            tp = self.move_at[self.turns]
            leader, _, isr = self.leaders[tp]
            self.lead(tp, next(one for one in isr if one != leader))
        if self.messages:
            self.messages.popleft()()
        else:
            self.replicate()
        self.clock.advance(TURN_MS)
        for node in list(self.nodes.values()):
            while self._lives(node) and node.broker.timer.advance_clock(0):
                pass

    def replicate(self) -> None:
        """Each follower fetches once, and comes into the ISR if it has all."""
        for tp in self.leaders:
            leader, epoch, _ = self.leaders[tp]
            if leader not in self.nodes:
                continue
            manager = self.nodes[leader].broker.manager
            for follower in [one for one in IDS if one in self.nodes and one != leader]:
                copying = self.nodes[follower].broker.manager
                fetch = copying.follower_fetch(tp)
                if fetch is None:
                    continue
                answers: list[Any] = []
                manager.fetch_records(
                    FetchParams(follower, max_wait_ms=0), {tp: fetch}, answers.append
                )
                copying.append_as_follower(tp, fetch, answers[0][tp])
            replica = manager.partition(tp)
            if replica is not None and replica.isr:
                self.leaders[tp] = leader, epoch, replica.isr

    def run_until(self, condition: Callable[[], object], most_turns: int = 3_000) -> None:
        """Take turns until a condition holds."""
        end = self.turns + most_turns
        while not condition():
            assert self.turns < end, f"not so after {most_turns} turns"
            self.turn()

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.turn()

    def pass_time(self, ms: int) -> None:
        self.run(ms // TURN_MS)

    # Visible records.

    def leader(self, tp: TopicPartition) -> Node:
        return self.nodes[self.leaders[tp][0]]

    def coordinator(self) -> TransactionCoordinator:
        return self.leader(STATE).transactions

    def live_coordinator(self) -> TransactionCoordinator | None:
        """Return the coordinator, for leaders that verify transactions."""
        node = self.nodes.get(self.leaders[STATE][0])
        return None if node is None else node.transactions

    def read_committed(self, tp: TopicPartition) -> list[object]:
        """Return the tags of the records that a read_committed consumer takes, in order."""
        taken: list[object] = []
        offset = 0
        while True:
            fetch = PartitionFetch(offset, 250)
            params = FetchParams(isolation=FetchIsolation.TXN_COMMITTED)
            answer = self.leader(tp).broker.manager.read(params, {tp: fetch})[tp]
            assert answer.error is ErrorCode.NONE
            if not answer.batches:
                return taken
            aborted = sorted(answer.aborted_transactions, key=lambda one: one.first_offset)
            filtered: set[int] = set()
            for batch in answer.batches:
                while aborted and aborted[0].first_offset <= batch.last_offset:
                    filtered.add(aborted.pop(0).producer_id)
                if batch.control is not None:
                    filtered.discard(batch.producer_id)
                elif not (batch.transactional and batch.producer_id in filtered):
                    taken.append(batch.tag)
                offset = batch.next_offset

    def committed_offset(self, group: str = "g") -> int:
        found = self.leader(OFFSETS).groups.offset_metadata.committed(group).get(IN)
        return -1 if found is None else found.offset

    def hangs(self) -> list[TopicPartition]:
        """Return the partitions that readers are held up in."""
        return [
            tp
            for tp in ALL
            if self.leader(tp).broker.replica(tp).last_stable_offset
            < self.leader(tp).broker.replica(tp).log_end_offset
        ]

    def check(self) -> None:
        for node in self.nodes.values():
            node.check()
