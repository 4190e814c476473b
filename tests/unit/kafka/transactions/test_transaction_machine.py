"""Transactions under random calls of producers and brokers, compared with an oracle of a few sets.

The oracle knows only the responses to producers: a transaction is committed exactly if its commit
was acknowledged. Hence all of its records are read, or none, and only the producer that was given
the transactional id last can use it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from purgatory.kafka import ErrorCode, TopicPartition
from tests.proofs.drawn import width
from tests.unit.kafka.transactions.transaction_client import ABORT, COMMIT, TransactionClient
from tests.unit.kafka.transactions.transaction_world import ALL, IDS, OFFSETS, OUT, World

_IDS = ("t", "u")
_TIMEOUT_MS = 20_000
_ids = st.sampled_from(_IDS)
_places = st.sampled_from(OUT)


@dataclass
class _Producer:
    """A producer, and the acknowledged records of its open transaction."""

    client: TransactionClient
    added: set[TopicPartition] = field(default_factory=set)
    open: list[tuple[TopicPartition, int]] = field(default_factory=list)
    offset: int | None = None

    def forget(self) -> None:
        self.added, self.open, self.offset = set(), [], None


class TransactionMachine(RuleBasedStateMachine):
    """Two transactional ids, whose producers are replaced, and three brokers that go and come."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.owners: dict[str, _Producer] = {}
        self.zombies: dict[str, list[_Producer]] = {one: [] for one in _IDS}
        self.committed: dict[TopicPartition, list[int]] = {tp: [] for tp in OUT}
        self.committed_offsets: dict[str, int] = {}
        self.count = 0

    @initialize()
    def begin_both(self) -> None:
        """Each transactional id has a producer."""
        for transactional_id in _IDS:
            self.begin(transactional_id, anew=False)

    # Steps of producers.

    @rule(transactional_id=_ids, anew=st.booleans())
    def begin(self, transactional_id: str, anew: bool) -> None:
        """Another producer begins: the one before is a zombie, and its transaction aborted. Either
        may be one whose epoch rises with each transaction, and for whom leaders add partitions."""
        if transactional_id in self.owners:
            self.zombies[transactional_id].append(self.owners[transactional_id])
        client = TransactionClient(self.world, transactional_id, _TIMEOUT_MS, True, anew)
        self.owners[transactional_id] = _Producer(client)
        assert client.init() is ErrorCode.NONE

    @rule(transactional_id=_ids, tp=_places, is_added=st.sampled_from([True, True, True, False]))
    def produce(self, transactional_id: str, tp: TopicPartition, is_added: bool) -> None:
        """The owner sends a record; without its partition in the transaction that is refused."""
        owner = self.owners.get(transactional_id)
        if owner is None:
            return
        if owner.client.anew:
            owner.added.add(tp)
        elif is_added and tp not in owner.added:
            if self._is_refused(owner, owner.client.add(tp)):
                return
            owner.added.add(tp)
        self.count += 1
        code = owner.client.produce(tp, self.count)
        if tp not in owner.added:
            assert code is not ErrorCode.NONE, "it is in no transaction"
        elif not self._is_refused(owner, code):
            owner.open.append((tp, self.count))

    @rule(transactional_id=_ids)
    def send_offset(self, transactional_id: str) -> None:
        """The owner commits an offset of a group of its own with the transaction."""
        owner = self.owners.get(transactional_id)
        if owner is None:
            return
        if not owner.client.anew and self._is_refused(owner, owner.client.add(OFFSETS)):
            return
        owner.added.add(OFFSETS)
        self.count += 1
        code = owner.client.commit_offset(self.count, f"group-{transactional_id}")
        if not self._is_refused(owner, code):
            owner.offset = self.count

    @rule(transactional_id=_ids, how=st.sampled_from([COMMIT, COMMIT, ABORT]))
    def end(self, transactional_id: str, how: object) -> None:
        """The owner commits or aborts; without a transaction that is refused, or repeats the last
        end."""
        owner = self.owners.get(transactional_id)
        if owner is None:
            return
        code = owner.client.end(COMMIT if how is COMMIT else ABORT)
        if not owner.added:
            assert code in (ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED)
            assert not owner.client.anew or code is not ErrorCode.NONE or how is ABORT
            return
        if self._is_refused(owner, code):
            return
        if how is COMMIT:
            for tp, number in owner.open:
                self.committed[tp].append(number)
            if owner.offset is not None:
                self.committed_offsets[transactional_id] = owner.offset
        owner.forget()

    def _is_refused(self, owner: _Producer, code: ErrorCode) -> bool:
        """Whether a step was refused, as it may be only because the time of its transaction is up:
        then that is aborted."""
        if code is ErrorCode.NONE:
            return False
        assert code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH), code
        owner.forget()
        return True

    @rule(transactional_id=_ids, tp=_places, step=st.integers(0, 3), which=st.integers(0, 3))
    def haunt(self, transactional_id: str, tp: TopicPartition, step: int, which: int) -> None:
        """A zombie continues: whatever it does is refused."""
        zombies = self.zombies[transactional_id]
        if not zombies:
            return
        client = zombies[which % len(zombies)].client
        steps = (
            lambda: client.produce(tp, 0) if client.anew else client.add(tp),
            lambda: client.produce(tp, "zombie"),
            lambda: client.commit_offset(99_999, f"group-{transactional_id}"),
            lambda: client.end(COMMIT),
        )
        assert steps[step]() is not ErrorCode.NONE, step

    # Steps of brokers.

    @rule(broker_id=st.sampled_from(IDS))
    def kill(self, broker_id: int) -> None:
        """A broker dies, unless it is the last one in sync of anything."""
        living = set(self.world.nodes) - {broker_id}
        if broker_id in self.world.nodes and all(
            living & set(isr) for _, _, isr in self.world.leaders.values()
        ):
            self.world.kill(broker_id)

    @precondition(lambda self: len(self.world.nodes) < len(IDS))
    @rule()
    def revive(self) -> None:
        """Those that are dead come back."""
        for broker_id in set(IDS) - set(self.world.nodes):
            self.world.revive(broker_id)

    @rule(tp=st.sampled_from(ALL))
    def move(self, tp: TopicPartition) -> None:
        """Another broker in sync leads a partition."""
        leader, _, isr = self.world.leaders[tp]
        others = [one for one in isr if one != leader and one in self.world.nodes]
        if others:
            self.world.lead(tp, others[0])

    @rule(turns=st.integers(1, 30))
    def pass_turns(self, turns: int) -> None:
        """Messages arrive, and followers fetch."""
        self.world.run(turns)

    @rule()
    def pass_the_timeout(self) -> None:
        """Transactions that are open last too long."""
        self.world.run(_TIMEOUT_MS // 10 + 50)
        assert not any(owner.added for owner in self.owners.values()) or not self.world.hangs()

    # Invariants.

    @invariant()
    def readers_see_only_committed_records(self) -> None:
        """Readers get committed records, and no part of the rest; the last stable offset lies
        before the first record of an open transaction."""
        for tp in OUT:
            if self.world.leaders[tp][0] not in self.world.nodes:
                continue
            seen = self.world.read_committed(tp)
            assert set(seen) <= set(self.committed[tp]), (tp, seen, self.committed[tp])
            assert len(set(seen)) == len(seen)
            replica = self.world.leader(tp).broker.replica(tp)
            batches = replica.log.read(0, 2**31) if replica.log_end_offset else ()
            may_be_open = {
                number for owner in self.owners.values() for at, number in owner.open if at == tp
            }
            still_open = may_be_open & {
                batch.tag for batch in batches if self._is_unended(batch, batches)
            }
            for batch in batches:
                if batch.tag in still_open:
                    assert replica.last_stable_offset <= batch.base_offset, (tp, batch)

    @staticmethod
    def _is_unended(batch: object, batches: object) -> bool:
        """Whether no marker of a batch's producer lies behind it."""
        return not any(
            one.control is not None
            and one.producer_id == batch.producer_id  # type: ignore[attr-defined]
            and one.base_offset > batch.base_offset  # type: ignore[attr-defined]
            for one in batches  # type: ignore[attr-defined]
        )

    def teardown(self) -> None:
        """When all brokers are back and no transaction is open, all that is committed is read."""
        for broker_id in set(IDS) - set(self.world.nodes):
            self.world.revive(broker_id)
        for transactional_id in self.owners:
            self.begin(transactional_id, anew=False)
        self.world.run_until(lambda: not self.world.messages and not self.world.hangs())
        self.world.run(20)
        for tp in OUT:
            seen = self.world.read_committed(tp)
            assert sorted(map(int, map(str, seen))) == sorted(self.committed[tp]), tp
        for transactional_id in _IDS:
            offset = self.committed_offsets.get(transactional_id, -1)
            assert self.world.committed_offset(f"group-{transactional_id}") == offset
        self.world.check()


TestTransactionMachine = pytest.mark.slow(TransactionMachine.TestCase)
TestTransactionMachine.settings = settings(
    max_examples=width(6, 12), stateful_step_count=25, deadline=None
)
