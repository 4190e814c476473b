"""A share partition against an oracle that has one entry for each record, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from purgatory.kafka import KafkaError
from purgatory.kafka.share_groups.in_flight_records import InFlightRecords
from purgatory.kafka.share_groups.share_state import Acknowledgement, ShareState

MEMBERS = ("a", "b", "c")
MOST_DELIVERIES, MOST_RECORDS = 3, 12
FREE, HELD, DONE, GONE = "available", "acquired", "acknowledged", "archived"
NAMES = {0: FREE, 1: HELD, 2: DONE, 4: GONE}
ENDS = {0: GONE, 1: DONE, 2: FREE, 3: GONE}
RENEW = 4

members = st.sampled_from(MEMBERS)


@dataclass
class Record:
    """One record, as the oracle knows it."""

    state: str = FREE
    count: int = 0
    owner: str | None = None
    lock: int = 0
    ends: str | None = None
    write: int = 0

    def complete_move(self, back: int = 0) -> None:
        """No member holds the lock any more."""
        self.count -= back
        self.state = GONE if self.count >= MOST_DELIVERIES else FREE
        self.owner, self.lock = None, 0


class SharePartitionMachine(RuleBasedStateMachine):
    """Members that acquire and say things, locks that expire, writes that end either way."""

    @initialize(start=st.integers(0, 3))
    def begin(self, start: int) -> None:
        self.kept = ShareState(start_offset=start)
        self.locks = 0
        self.told_done: set[int] = set()
        self.another_leader()

    @rule()
    def another_leader(self) -> None:
        """The next leader resumes from the stored state, without acquired records."""
        self.tested = InFlightRecords(self.kept, MOST_DELIVERIES, MOST_RECORDS)
        self.start = self.end = self.kept.start_offset
        self.records: dict[int, Record] = {}
        self.next_write = 1
        self.under_way: int | None = None
        for batch in self.kept.batches:
            assert batch.first >= self.end
            self.reach(batch.last)
            for at in range(batch.first, batch.last + 1):
                self.records[at] = Record(NAMES[batch.state], batch.deliveries)
        self.move_start()
        for at in self.told_done:
            assert at < self.start or self.records[at].state == DONE, "acknowledged, and forgotten"

    def entries(self) -> Iterator[tuple[int, Record]]:
        yield from ((at, self.records[at]) for at in range(self.start, self.end))

    def reach(self, last: int) -> None:
        while self.end <= last:
            self.records[self.end] = Record()
            self.end += 1

    def move_start(self) -> None:
        while self.start < self.end and self.records[self.start].state in (DONE, GONE):
            del self.records[self.start]
            self.start += 1

    @rule(
        member=members,
        lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
        back=st.integers(0, 4),
        most=st.integers(1, 8),
        exactly=st.booleans(),
    )
    def acquire(self, member: str, lengths: list[int], back: int, most: int, exactly: bool) -> None:
        begin = self.tested.next_offset()
        if begin is None:
            assert all(one.state != FREE for _, one in self.entries())
            assert self.end - self.start >= MOST_RECORDS
            return
        fetched, at = [], max(0, begin - back)
        for length in lengths:
            fetched.append((at, at + length - 1))
            at += length
        self.locks += 1
        expected, left = [], most
        for first, last in fetched:
            if left <= 0:
                break
            room = max(0, MOST_RECORDS - (self.end - self.start))
            self.reach(last if room and not exactly else min(last, self.end + room - 1))
            for offset in range(max(first, self.start), min(last + 1, self.end)):
                one = self.records[offset]
                if one.state == FREE and (left > 0 or not exactly):
                    one.state, one.owner, one.lock = HELD, member, self.locks
                    one.count += 1
                    left -= 1
                    expected.append((offset, one.count))
        acquired = self.tested.acquire(member, self.locks, fetched, most, exactly)
        given = [
            (offset, one.delivery_count)
            for one in acquired
            for offset in range(one.first, one.last + 1)
        ]
        assert given == expected
        assert not exactly or len(given) <= most
        for offset, _ in given:
            assert offset not in self.told_done, "acknowledged, and delivered again"

    @rule(
        member=members,
        begin=st.integers(-2, 12),
        types=st.lists(st.integers(0, 4), min_size=1, max_size=5),
        length=st.integers(1, 5),
    )
    def acknowledge(self, member: str, begin: int, types: list[int], length: int) -> None:
        begin = max(0, self.start + begin)
        last = begin + (length if len(types) == 1 else len(types)) - 1
        of = {at: types[0 if len(types) == 1 else at - begin] for at in range(begin, last + 1)}
        concerned = [at for at in of if at >= self.start]
        may = all(
            at < self.end
            and self.records[at].state == HELD
            and self.records[at].owner == member
            and self.records[at].lock
            and self.records[at].ends is None
            for at in concerned
        )
        said = [Acknowledgement(begin, last, types)]
        self.locks += 1
        if not may:
            with pytest.raises(KafkaError, match="INVALID_RECORD_STATE"):
                self.tested.acknowledge(member, said, self.locks)
            return
        must_persist = self.tested.acknowledge(member, said, self.locks)
        for at in concerned:
            one = self.records[at]
            if of[at] == RENEW:
                one.lock = self.locks
            else:
                assert must_persist
                one.ends, one.write = ENDS[of[at]], self.next_write

    @precondition(lambda self: any(one.state == HELD for _, one in self.entries()))
    @rule(which=st.integers(0, 11), of=st.integers(0, 3), length=st.integers(1, 3))
    def acknowledge_held_records(self, which: int, of: int, length: int) -> None:
        held = [(at, one) for at, one in self.entries() if one.state == HELD]
        at, one = held[which % len(held)]
        self.acknowledge(one.owner or "", at - self.start, [of], length)

    @precondition(lambda self: self.under_way is None)
    @rule()
    def begin_write(self) -> None:
        self.under_way, self.written = self.tested.begin_write()
        assert self.under_way == self.next_write
        self.next_write += 1

    @precondition(lambda self: self.under_way is not None)
    @rule(is_persisted=st.booleans())
    def finish_write(self, is_persisted: bool) -> None:
        number, self.under_way = self.under_way, None
        assert number is not None
        self.tested.complete_write(number, is_persisted)
        if is_persisted:
            self.kept = self.written
        for at, one in self.entries():
            if one.ends is None or one.write > number:
                continue
            ends, one.ends = one.ends, None
            if is_persisted and ends != FREE:
                one.state, one.owner, one.lock = ends, None, 0
                if ends == DONE:
                    self.told_done.add(at)
            elif is_persisted or not one.lock:
                one.complete_move()
        self.move_start()

    @rule(which=st.integers(0, 5))
    def expire(self, which: int) -> None:
        held = sorted(self.tested.locks())
        lock = held[which % len(held)] if held else self.locks + 1
        concerned = [one for _, one in self.entries() if one.lock == lock]
        assert self.tested.expire(lock) == bool(concerned)
        self.take_back(concerned, 0)

    @rule(member=members, delivered=st.booleans())
    def release(self, member: str, delivered: bool) -> None:
        concerned = [one for _, one in self.entries() if one.owner == member and one.lock]
        assert self.tested.release(member, delivered) == bool(concerned)
        self.take_back(concerned, 0 if delivered else 1)

    def take_back(self, concerned: list[Record], back: int) -> None:
        for one in concerned:
            if one.ends is None:
                one.complete_move(back)
            else:
                one.lock = 0
        self.move_start()

    @rule(by=st.integers(0, 4))
    def log_start_moves(self, by: int) -> None:
        start = self.start + by
        self.tested.raise_start(start)
        for at in range(self.start, start):
            self.records.pop(at, None)
        self.start, self.end = start, max(start, self.end)
        self.move_start()

    @rule(ahead=st.integers(0, 6), length=st.integers(1, 4))
    def archive(self, ahead: int, length: int) -> None:
        first = self.start + ahead
        self.tested.archive(first, first + length - 1)
        self.reach(first + length - 1)
        for at in range(first, first + length):
            if self.records[at].state == FREE:
                self.records[at].state = GONE
        self.move_start()

    @invariant()
    def records_match_the_model(self) -> None:
        self.tested._check()
        assert (self.tested.start_offset, self.tested.end_offset) == (self.start, self.end)
        found = [
            (at, NAMES[run.state], run.deliveries, run.lock)
            for run in self.tested.runs
            for at in range(run.first, run.last + 1)
        ]
        assert found == [(at, one.state, one.count, one.lock) for at, one in self.entries()]
        assert all(one.count <= MOST_DELIVERIES for _, one in self.entries())
        assert self.tested.locks() == {one.lock for _, one in self.entries() if one.lock}

    @invariant()
    def next_leader_delivers_the_rest(self) -> None:
        after = InFlightRecords(self.tested.state(), MOST_DELIVERIES, MOST_RECORDS)
        found = {
            at: NAMES[run.state] for run in after.runs for at in range(run.first, run.last + 1)
        }
        for at, one in self.entries():
            ends = one.ends or one.state
            is_over = ends in (DONE, GONE) or one.count >= MOST_DELIVERIES
            there = FREE if at >= after.end_offset else found.get(at, GONE)
            assert (there == FREE) == (not is_over)


SharePartitionMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
test_each_record_is_in_one_state_whatever_happens = SharePartitionMachine.TestCase
