"""A follower that asks only for what has changed is where one is that asks for all each time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.kafka import (
    FetchParams,
    Partition,
    PartitionFetch,
    PartitionFetchResponse,
    RecordBatch,
    ReplicaManager,
    TopicPartition,
)
from purgatory.kafka.replication.fetch_session import LOOK_EVERY_MS, must_ask_anew
from tests.kafka.conftest import Broker
from timer import ManualClock

PARTITIONS = [TopicPartition("topic", number) for number in range(4)]
LEADER, FOLLOWER = 0, 1
MAX_LAG_MS = 2_000

Answers = dict[TopicPartition, PartitionFetchResponse]


class Pair:
    """A leader and its follower, in a world of their own."""

    def __init__(self, clock: ManualClock) -> None:
        self.agrees = True
        self.leader = Broker(
            LEADER, clock, max_lag_ms=MAX_LAG_MS, on_isr_change=lambda *_: self.agrees
        )
        self.follower = Broker(FOLLOWER, clock)
        self.epoch = 0
        self.asked: dict[TopicPartition, PartitionFetch] = {}
        self.changed: set[TopicPartition] = set()
        self.begun = False
        self.elect()

    def elect(self) -> None:
        """Begin a new term of the same leader."""
        self.epoch += 1
        for one in PARTITIONS:
            state = self.leader.manager.partition(one)
            isr = (LEADER, FOLLOWER) if state is None else state.isr
            self.leader.manager.become_leader(one, self.epoch, isr, (LEADER, FOLLOWER))
            self.follower.manager.become_follower(one, LEADER, self.epoch, (LEADER, FOLLOWER))
        self.changed.update(PARTITIONS)

    def append(self, topic_partition: TopicPartition) -> None:
        """Append a record at the leader."""
        batch = RecordBatch(0, 1, 100)
        self.leader.manager.append_records(0, 1, {topic_partition: batch}, lambda _: None)

    def delete(self, topic_partition: TopicPartition) -> None:
        """Delete what is committed."""
        self.leader.manager.delete_records(0, {topic_partition: -1}, lambda _: None)

    def fetch_all(self) -> None:
        """Ask for all partitions, and take what comes."""
        fetches = {one: self._next(one) for one in PARTITIONS}
        answers: list[Answers] = []
        params = FetchParams(FOLLOWER, max_wait_ms=0)
        self.leader.manager.fetch_records(params, fetches, answers.append)
        for one, answer in answers[0].items():
            self.follower.manager.append_as_follower(one, fetches[one], answer)

    def fetch_changed(self) -> int:
        """Ask for what stands elsewhere, and take what comes; return of how many that was."""
        asked = {one: self._next(one) for one in self.changed}
        self.changed.clear()
        self.asked |= asked
        params = FetchParams(FOLLOWER, max_wait_ms=0)
        anew, self.begun = not self.begun, True
        answers = self.leader.manager.fetch_in_session(params, asked, _not_woken, anew)
        assert answers is not None
        for one, answer in answers.items():
            if must_ask_anew(answer) or answer.log_start_offset != self.asked[one].log_start_offset:
                self.changed.add(one)
            self.follower.manager.append_as_follower(one, self.asked[one], answer)
        return len(asked) + len(answers)

    def _next(self, topic_partition: TopicPartition) -> PartitionFetch:
        fetch = self.follower.manager.follower_fetch(topic_partition)
        assert fetch is not None
        return fetch

    def seen(self) -> list[tuple[object, ...]]:
        """Return what both are to agree on."""
        return [
            (leads.log_end_offset, leads.high_watermark, leads.isr, follows.log_end_offset)
            for leads, follows in zip(
                _partitions(self.leader.manager), _partitions(self.follower.manager), strict=True
            )
        ]

    def pending(self) -> list[tuple[int, int]]:
        """Return what a follower is told within the time of a look."""
        return [
            (one.high_watermark, one.log_start_offset) for one in _partitions(self.follower.manager)
        ]


def _not_woken(_: Answers) -> None:
    raise AssertionError("who does not wait is not woken")


def _partitions(manager: ReplicaManager) -> list[Partition]:
    return [one for one in map(manager.partition, PARTITIONS) if one is not None]


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(PARTITIONS)),
        st.tuples(st.just("delete"), st.sampled_from(PARTITIONS)),
        st.tuples(st.just("wait"), st.sampled_from([1, 100, 499, 500, 1_500, 3_000])),
        st.tuples(st.just("fetch"), st.none()),
        st.tuples(st.just("shrink"), st.none()),
        st.tuples(st.just("elect"), st.none()),
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(steps=_steps)
def test_whatever_happens_both_are_at_the_same_place(
    steps: list[tuple[str, object]],
) -> None:
    clock = ManualClock()
    full, changed = Pair(clock), Pair(clock)
    for what, argument in steps:
        for pair in (full, changed):
            if isinstance(argument, TopicPartition):
                (pair.append if what == "append" else pair.delete)(argument)
            elif what == "shrink":
                pair.leader.manager.maybe_shrink_isr()
            elif what == "elect":
                pair.elect()
        if isinstance(argument, int):
            clock.advance(argument)
        elif what == "fetch":
            full.fetch_all()
            changed.fetch_changed()
        assert full.seen() == changed.seen(), (what, argument)
    for _ in range(4):
        clock.advance(LOOK_EVERY_MS)
        full.fetch_all()
        changed.fetch_changed()
    assert full.seen() == changed.seen()
    assert full.pending() == changed.pending()
    for pair in (full, changed):
        pair.leader.check()
        pair.follower.check()


def test_a_round_costs_what_has_changed() -> None:
    clock = ManualClock()
    pair = Pair(clock)
    assert pair.fetch_changed() == len(PARTITIONS), "it asks for all once"
    for _ in range(3):
        clock.advance(LOOK_EVERY_MS)
        pair.fetch_changed()
    assert pair.fetch_changed() == 0
    pair.append(PARTITIONS[2])
    assert pair.fetch_changed() == 1, "the record comes"
    assert pair.fetch_changed() == 1, "the follower says that it has it"
    assert pair.fetch_changed() == 0
    clock.advance(LOOK_EVERY_MS)
    assert pair.fetch_changed() == 1, "the high watermark is told"
    clock.advance(LOOK_EVERY_MS)
    assert pair.fetch_changed() == 0


def test_a_fetch_that_waits_is_woken_by_what_is_appended_and_by_nothing_else() -> None:
    clock = ManualClock()
    pair = Pair(clock)
    for _ in range(3):
        pair.fetch_changed()
        clock.advance(LOOK_EVERY_MS)
    pair.fetch_changed()
    woken: list[Answers] = []
    params = FetchParams(FOLLOWER, max_wait_ms=500)
    assert pair.leader.manager.fetch_in_session(params, {}, woken.append) is None
    clock.advance(499)
    assert not pair.leader.timer.advance_clock(0)
    assert woken == []
    pair.append(PARTITIONS[1])
    pair.append(PARTITIONS[1])
    pair.append(PARTITIONS[3])
    assert woken == [{}], "once, however much is appended until it fetches again"
    answers = pair.leader.manager.fetch_in_session(params, {}, _not_woken)
    assert answers is not None
    assert {one: len(answer.batches) for one, answer in answers.items()} == {
        PARTITIONS[1]: 2,
        PARTITIONS[3]: 1,
    }


def test_one_who_asks_anew_while_a_fetch_of_it_waits_ends_that_wait() -> None:
    pair = Pair(ManualClock())
    pair.fetch_changed()
    woken: list[Answers] = []
    params = FetchParams(FOLLOWER, max_wait_ms=500)
    for _ in range(2):
        assert pair.leader.manager.fetch_in_session(params, {}, woken.append) is None
    assert woken == [{}]
    assert pair.leader.fetches.num_delayed == 1


def test_who_does_not_fetch_lags_from_its_last_fetch_on_and_not_from_its_last_change() -> None:
    clock = ManualClock()
    pair = Pair(clock)
    for _ in range(20):
        pair.fetch_changed()
        clock.advance(LOOK_EVERY_MS)
    pair.append(PARTITIONS[0])
    clock.advance(MAX_LAG_MS - LOOK_EVERY_MS)
    pair.leader.manager.maybe_shrink_isr()
    assert _partitions(pair.leader.manager)[0].isr == (LEADER, FOLLOWER)
    clock.advance(1)
    pair.leader.manager.maybe_shrink_isr()
    assert _partitions(pair.leader.manager)[0].isr == (LEADER,)
    assert _partitions(pair.leader.manager)[1].isr == (LEADER, FOLLOWER), "it has all there"


def _with_a_follower_out_of_the_isr(clock: ManualClock) -> Pair:
    """Return two of which one did not fetch the first partition's record in time."""
    pair = Pair(clock)
    pair.fetch_changed()
    pair.append(PARTITIONS[0])
    clock.advance(MAX_LAG_MS + 1)
    pair.leader.manager.maybe_shrink_isr()
    assert _partitions(pair.leader.manager)[0].isr == (LEADER,)
    return pair


def test_who_is_put_out_of_the_isr_comes_back_though_nothing_is_appended() -> None:
    pair = _with_a_follower_out_of_the_isr(ManualClock())
    for _ in range(2):
        pair.fetch_changed()
    assert _partitions(pair.leader.manager)[0].isr == (LEADER, FOLLOWER)


def test_who_may_not_come_back_into_the_isr_waits_all_the_same() -> None:
    clock = ManualClock()
    pair = _with_a_follower_out_of_the_isr(clock)
    pair.agrees = False
    pair.fetch_changed()
    pair.fetch_changed()
    clock.advance(LOOK_EVERY_MS)
    pair.fetch_changed()  # of the watermark
    params = FetchParams(FOLLOWER, max_wait_ms=500)
    for _ in range(2):
        clock.advance(LOOK_EVERY_MS)
        pair.leader.manager.fetch_in_session(params, {}, lambda _: None)
        assert pair.leader.fetches.num_delayed == 1, "refused, it is not woken to ask again"
    assert _partitions(pair.leader.manager)[0].isr == (LEADER,)


def test_a_consumer_that_waits_beside_a_session_is_woken_by_an_append_as_well() -> None:
    """Where only sessions wait, an append looks for nobody else."""
    pair = Pair(ManualClock())
    for _ in range(2):
        pair.fetch_changed()
    manager, woken, read = pair.leader.manager, list[Answers](), list[Answers]()
    assert manager.fetch_in_session(FetchParams(FOLLOWER), {}, woken.append) is None
    end = _partitions(manager)[0].high_watermark
    manager.fetch_records(FetchParams(), {PARTITIONS[0]: PartitionFetch(end)}, read.append)
    manager._check()
    assert not woken and not read
    pair.append(PARTITIONS[0])
    assert woken == [{}]
    for _ in range(2):  # copies it, and says so
        pair.fetch_changed()
    assert [len(answers[PARTITIONS[0]].batches) for answers in read] == [1]
    manager._check()
