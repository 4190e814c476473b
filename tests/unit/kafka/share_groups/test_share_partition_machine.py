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
from tests.proofs.drawn import width

MEMBERS = ("a", "b", "c")
MOST_DELIVERIES, MOST_RECORDS = 5, 12
THROTTLED = 3
"""The deliveries from which on fewer records are delivered at once."""

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
    batch: tuple[int, int] | None = None
    is_apart: bool = False

    def complete_move(self) -> None:
        """No member holds the lock any more."""
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
                self.records[at].batch = batch.first, batch.last
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
        size=st.integers(1, 8),
    )
    def acquire(
        self, member: str, lengths: list[int], back: int, most: int, exactly: bool, size: int
    ) -> None:
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
        expected = self.expected(member, fetched, begin, most, exactly, size)
        acquired = self.tested.acquire(member, self.locks, fetched, most, exactly, size)
        given = [
            (offset, one.delivery_count)
            for one in acquired
            for offset in range(one.first, one.last + 1)
        ]
        assert given == expected
        assert not exactly or len(given) <= most
        for offset, _ in given:
            assert offset not in self.told_done, "acknowledged, and delivered again"

    def expected(
        self,
        member: str,
        fetched: list[tuple[int, int]],
        begin: int,
        most: int,
        exactly: bool,
        size: int,
    ) -> list[tuple[int, int]]:
        """Deliver records, offset by offset, and return the offsets with their counts."""
        first, last = max(fetched[0][0], self.start), fetched[-1][1]
        left = min(most, MOST_RECORDS - (self.end - self.start))
        if last < self.start:
            return []
        if left <= 0:
            left, last = min(most, self.end - begin), min(last, self.end - 1)
        found: list[tuple[int, int]] = []

        def give(at: int) -> None:
            one = self.records[at]
            one.state, one.owner, one.lock, one.count = HELD, member, self.locks, one.count + 1
            found.append((at, one.count))

        def give_new(first: int, last: int) -> None:
            least = first + left - len(found) - 1
            end = next((end for at, end in fetched if at <= least <= end), least)
            last = min(last, end)
            cuts = [] if exactly or last - first < size else [at for at, _ in fetched]
            self.reach(last)
            while first <= last:
                end = next((cut for cut in cuts if size <= cut - first <= last - first), last + 1)
                taken = min(end, first + left - len(found)) if exactly else end
                for at in range(first, end):
                    self.records[at].batch, self.records[at].is_apart = (
                        (first, end - 1),
                        taken < end,
                    )
                for at in range(first, taken):
                    give(at)
                first = end

        at = first
        while at < self.end and at <= last and len(found) < left:
            batch = self.records[at].batch
            if batch is None:
                end = at
                while end < self.end and end <= last and self.same(at, end):
                    end += 1
                if self.records[at].state == FREE:
                    give_new(at, end - 1)
                at = end
                continue
            whole = range(max(batch[0], self.start), batch[1] + 1)
            free = [one for one in whole if self.records[one].state == FREE and at <= one <= last]
            at = batch[1] + 1
            if not free:
                continue
            is_late = max(self.records[one].count for one in free) >= THROTTLED
            if is_late and found:
                return found
            is_whole = batch[0] >= fetched[0][0] and batch[1] <= last
            is_apart = self.records[whole[0]].is_apart
            too_long = exactly and batch[1] - batch[0] >= left - len(found)
            if not is_whole or is_apart or too_long or is_late:
                for one in whole:
                    self.records[one].is_apart = True
                before, budget = len(found), 0
                for one in free:
                    count = self.records[one].count
                    if count == MOST_DELIVERIES - 1 and len(found) > before:
                        break
                    if count >= THROTTLED and not budget:
                        budget = max(1, (batch[1] - batch[0] + 1) >> (count - THROTTLED + 1))
                    give(one)
                    is_full = exactly and len(found) == left
                    if is_full or count + 1 == MOST_DELIVERIES or len(found) - before == budget:
                        break
                if is_late:
                    return found
            else:
                for one in free:
                    give(one)
        if len(found) < left and last >= self.end:
            give_new(max(first, self.end), last)
        return found

    def same(self, one: int, other: int) -> bool:
        return (self.records[one].batch, self.records[one].state) == (
            self.records[other].batch,
            self.records[other].state,
        )

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
            is_ahead = self.start < self.end <= last
            error = "INVALID_REQUEST" if is_ahead else "INVALID_RECORD_STATE"
            with pytest.raises(KafkaError, match=error):
                self.tested.acknowledge(member, said, self.locks)
            return
        must_persist = self.tested.acknowledge(member, said, self.locks)
        for at in concerned:
            batch = self.records[at].batch
            if batch and (len(types) > 1 or batch[0] < begin or batch[1] > last):
                self.split_up(batch)
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
        self.take_back(concerned)

    @rule(member=members)
    def release(self, member: str) -> None:
        concerned = [
            one
            for _, one in self.entries()
            if one.state == HELD and one.owner == member and one.lock and one.ends is None
        ]
        assert self.tested.release(member) == bool(concerned)
        for one in concerned:
            one.ends, one.write = FREE, self.next_write

    def take_back(self, concerned: list[Record]) -> None:
        for one in concerned:
            if one.ends is None:
                one.complete_move()
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
            batch = self.records[at].batch
            if batch:
                self.split_up(batch)
            if self.records[at].state == FREE:
                self.records[at].state = GONE
        self.move_start()

    def split_up(self, batch: tuple[int, int]) -> None:
        for at in range(max(batch[0], self.start), batch[1] + 1):
            self.records[at].is_apart = True

    @invariant()
    def records_match_the_model(self) -> None:
        self.tested._check()
        assert (self.tested.start_offset, self.tested.end_offset) == (self.start, self.end)
        found = [
            (at, NAMES[run.state], run.deliveries, run.lock, run.batch, run.is_apart)
            for run in self.tested.runs
            for at in range(run.first, run.last + 1)
        ]
        assert found == [
            (at, one.state, one.count, one.lock, one.batch, one.is_apart)
            for at, one in self.entries()
        ]
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


SharePartitionMachine.TestCase.settings = settings(
    max_examples=width(60, 150), stateful_step_count=40
)
test_each_record_is_in_one_state_whatever_happens = SharePartitionMachine.TestCase
