"""The state of each record that a share group has in flight on a partition.

    available     to be delivered: the first time, or again
    acquired      delivered, under a lock that expires
    acknowledged  processed
    archived      given up: rejected, delivered too often, or gone from the log

The window begins at ``start_offset``: all records before it are acknowledged or archived. Records
behind its end were never delivered. An acknowledgement takes effect once it is written: until then
the records are still acquired, and no other acknowledgement is accepted. A failed write changes
nothing. Adjacent records in one state, first delivered together, are one `InFlightBatch`.

Records that were first delivered together stay together: after a release they are delivered at once
again. As in Kafka, that ends when they differ (`InFlightBatch.is_apart`), and before the last
deliveries: from half of the limit on, fewer and fewer records are delivered at once, in the end
each alone, so that one bad record doesn't take others with it.

Ground rules
------------
* One thread at a time calls it. There is no clock: `SharePartition` passes the number of a lock to
  `acquire`, and calls `expire` when the lock has expired (`DelayedAcquisitionLock`).
* One write at a time is under way (`begin_write`, `complete_write`), with all changes before it.
* From ``start`` to ``end`` each offset is in one run; adjacent records in one state, and of one
  delivery, are in one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.share_groups.share_state import (
    NO_LOCK,
    Acknowledgement,
    AcknowledgeType,
    InFlightBatch,
    RecordState,
    ShareState,
    StateBatch,
    validate_ranges,
)

_FIRST = attrgetter("first")


class InFlightBatches:
    """The runs from ``start`` on.

    Args:
        start: the first offset of the window.
    """

    def __init__(self, start: int) -> None:
        self.start = start
        self._runs: list[InFlightBatch] = []

    def __iter__(self) -> Iterator[InFlightBatch]:
        return iter(self._runs)

    @property
    def end(self) -> int:
        """The first offset behind the window. O(1)."""
        return self._runs[-1].last + 1 if self._runs else self.start

    def in_range(self, first: int, last: int) -> list[InFlightBatch]:
        """Return the runs of these offsets, cut to them. O(log runs + those)."""
        place = max(0, self._index(first + 1) - 1)
        found = []
        for run in self._runs[place:]:
            if run.first > last:
                break
            if run.last >= first:
                found.append(run._replace(first=max(first, run.first), last=min(last, run.last)))
        return found

    def extend_to(self, last: int) -> None:
        """Extend the window to ``last``; the added offsets are available."""
        if last >= self.end:
            self._replace(len(self._runs), len(self._runs), [InFlightBatch(self.end, last)])

    def change(
        self, first: int, last: int, change: Callable[[InFlightBatch], InFlightBatch]
    ) -> None:
        """Change the state of these offsets. O(runs)."""
        self._split(first)
        self._split(last + 1)
        begin, end = self._index(first), self._index(last + 1)
        self._replace(begin, end, map(change, self._runs[begin:end]))

    def change_all(self, change: Callable[[InFlightBatch], InFlightBatch]) -> None:
        """Change the state of all. O(runs)."""
        self._replace(0, len(self._runs), map(change, self._runs))

    def drop_before(self, start: int) -> None:
        """Begin the window later. O(runs)."""
        if start <= self.start:
            return
        self._split(start)
        del self._runs[: self._index(start)]
        self.start = start

    def _index(self, offset: int) -> int:
        """Return the number of runs that begin before an offset."""
        return bisect_left(self._runs, offset, key=_FIRST)

    def _split(self, offset: int) -> None:
        place = self._index(offset) - 1
        if place < 0:
            return
        run = self._runs[place]
        if run.first < offset <= run.last:
            halves = [run._replace(last=offset - 1), run._replace(first=offset)]
            self._runs[place : place + 1] = halves

    def _replace(self, begin: int, end: int, runs: Iterable[InFlightBatch]) -> None:
        """Replace runs, and join adjacent ones in one state."""
        begin, end, middle = max(0, begin - 1), end + 1, (begin, end)
        joined: list[InFlightBatch] = []
        for run in (*self._runs[begin : middle[0]], *runs, *self._runs[middle[1] : end]):
            if joined and joined[-1][2:] == run[2:]:
                joined[-1] = joined[-1]._replace(last=run.last)
            else:
                joined.append(run)
        self._runs[begin:end] = joined

    def _check(self) -> None:
        """Assert all invariants. O(runs)."""
        expected = self.start
        previous: InFlightBatch | None = None
        for run in self._runs:
            assert run.first == expected <= run.last, "each offset is in one run"
            assert previous is None or previous[2:] != run[2:], "adjacent runs differ"
            expected, previous = run.last + 1, run


_AVAILABLE, _ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
_ARCHIVED = RecordState.ARCHIVED

_TARGETS = {
    AcknowledgeType.GAP: _ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: _AVAILABLE,
    AcknowledgeType.REJECT: _ARCHIVED,
}


class AcquiredRecords(NamedTuple):
    """Newly acquired records, with their delivery count."""

    first: int
    last: int
    delivery_count: int


NO_BATCH_SIZE = 2**31 - 1


class _Delivery:
    """The records that a member is given at once, and how much more that may be."""

    def __init__(
        self,
        fetched: Sequence[tuple[int, int]],
        lock: int,
        left: int,
        exactly: bool,
        batch_size: int,
    ) -> None:
        self.first, self.last = fetched[0][0], fetched[-1][1]
        self.lock = lock
        self.left = left
        self.exactly = exactly
        self.acquired: list[AcquiredRecords] = []
        self._fetched = fetched
        self._batch_size = batch_size

    def end_of_batch(self, offset: int) -> int:
        """Return the last offset of the batch that was read with an offset. O(batches)."""
        return next((last for first, last in self._fetched if first <= offset <= last), offset)

    def parts(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the offsets from ``first`` to ``last``, in parts that begin with batches. Each part
        but the last has ``batch_size`` records, at least. O(batches)."""
        if not self.exactly and last - first >= self._batch_size:
            for base, _ in self._fetched:
                if base <= last and base - first >= self._batch_size:
                    yield first, base - 1
                    first = base
        yield first, last


class InFlightRecords:
    """The window of one share partition.

    Args:
        state: the persisted state, with a start offset.
        max_deliveries: the limit of deliveries of a record.
        max_records: the limit of offsets in the window.
    """

    def __init__(self, state: ShareState, max_deliveries: int, max_records: int) -> None:
        self.state_epoch = state.state_epoch
        self.leader_epoch = state.leader_epoch
        self.max_deliveries = max_deliveries
        self.max_records = max_records
        self._members: dict[int, str] = {}
        self._write = 1
        self._runs = InFlightBatches(state.start_offset)
        for batch in sorted(state.batches):
            self._runs.extend_to(batch.last)
            self._runs.change(batch.first, batch.last, _restored(batch, self._released))
        self._advance_start()

    # State.

    @property
    def start_offset(self) -> int:
        """The first offset that is not acknowledged or archived. O(1)."""
        return self._runs.start

    @property
    def end_offset(self) -> int:
        """The offset behind the last delivered one. O(1)."""
        return self._runs.end

    @property
    def runs(self) -> Iterator[InFlightBatch]:
        """The state of the records of the window."""
        return iter(self._runs)

    def next_offset(self) -> int | None:
        """Return the first available offset, or None. O(runs)."""
        for run in self._runs:
            if run.is_free:
                return run.first
        return self.end_offset if self._free_records() > 0 else None

    def _free_records(self) -> int:
        return self.max_records - (self.end_offset - self.start_offset)

    def locks(self) -> set[int]:
        """Return the locks under which records are acquired. O(runs)."""
        return {run.lock for run in self._runs if run.lock != NO_LOCK}

    # Delivering.

    def acquire(
        self,
        member_id: str,
        lock: int,
        fetched: Sequence[tuple[int, int]],
        most: int,
        exactly: bool = False,
        batch_size: int = NO_BATCH_SIZE,
    ) -> list[AcquiredRecords]:
        """Deliver records to a member. O(batches * runs).

        Args:
            lock: a unique number from 1.
            fetched: the first and the last offset of each batch that was read, in order.
            most: the number of records that suffices; new records are delivered up to the end of
                the batch that reaches it, and those of a former delivery all together.
            exactly: never deliver more than ``most``.
            batch_size: the number of new records after which others are delivered apart.
        """
        begin = self.next_offset()
        if begin is None or not fetched or fetched[-1][1] < self.start_offset or most <= 0:
            return []
        delivery = _Delivery(fetched, lock, min(most, self._free_records()), exactly, batch_size)
        if delivery.left <= 0:
            delivery.left = min(most, self.end_offset - begin)
            delivery.last = min(delivery.last, self.end_offset - 1)
        first = max(delivery.first, self.start_offset)
        runs = self._runs.in_range(first, delivery.last)
        for batch, group in groupby(runs, attrgetter("batch")):
            if delivery.left <= 0:
                break
            if batch is None:
                for run in group:
                    if run.is_free and delivery.left > 0:
                        self._deliver_new(delivery, run.first, run.last)
            else:
                self._deliver_again(delivery, batch, list(group))
        if delivery.left > 0 and delivery.last >= self.end_offset:
            self._deliver_new(delivery, max(first, self.end_offset), delivery.last)
        if delivery.acquired:
            self._members[lock] = member_id
        return delivery.acquired

    def _deliver_new(self, delivery: _Delivery, first: int, last: int) -> None:
        """Deliver records from ``first`` on, not beyond ``last``, for the first time."""
        if delivery.left <= last - first:
            last = min(last, delivery.end_of_batch(first + delivery.left - 1))
        for begin, end in delivery.parts(first, last):
            taken = end
            if delivery.exactly:
                taken = min(end, begin + delivery.left - 1)
            self._runs.extend_to(end)
            batch, is_apart = (begin, end), taken < end
            self._runs.change(
                begin,
                end,
                lambda run: run._replace(batch=batch, is_apart=is_apart),  # noqa: B023
            )
            self._deliver(delivery, self._runs.in_range(begin, taken))

    def _deliver_again(
        self, delivery: _Delivery, batch: tuple[int, int], runs: list[InFlightBatch]
    ) -> None:
        """Deliver the free ones of the records that were first delivered together."""
        free = [run for run in runs if run.is_free]
        if not free:
            return
        is_throttled = max(run.deliveries for run in free) >= self._throttle_limit
        if is_throttled and delivery.acquired:
            delivery.left = 0
            return
        is_whole = batch[0] >= delivery.first and batch[1] <= delivery.last
        is_too_long = delivery.exactly and batch[1] - batch[0] >= delivery.left
        if is_whole and not runs[0].is_apart and not is_too_long and not is_throttled:
            self._deliver(delivery, free)
            return
        self._split_up(batch)
        free = [run._replace(is_apart=True) for run in free]
        taken = list(self._taken_singly(free, batch[1] - batch[0] + 1, delivery))
        self._deliver(delivery, taken)
        if is_throttled and taken:
            delivery.left = 0

    @property
    def _throttle_limit(self) -> int:
        """The deliveries from which on fewer records are delivered at once."""
        return max(2, -(-self.max_deliveries // 2))

    def _taken_singly(
        self, free: Iterable[InFlightBatch], size: int, delivery: _Delivery
    ) -> Iterator[InFlightBatch]:
        """Yield those of the free records of one batch that are to be delivered now.

        Args:
            size: the number of records of the batch.
        """
        taken = budget = 0
        for run in free:
            is_last_delivery = self.max_deliveries > 2 and run.deliveries == self.max_deliveries - 1
            if is_last_delivery and taken:
                return
            if run.deliveries >= self._throttle_limit and not budget:
                budget = max(1, size >> (run.deliveries - self._throttle_limit + 1))
            most = run.length
            if is_last_delivery:
                most = 1
            if budget > taken:
                most = min(most, budget - taken)
            if delivery.exactly:
                most = min(most, delivery.left - taken)
            yield run._replace(last=run.first + most - 1)
            taken += most
            is_full = delivery.exactly and taken == delivery.left
            if is_last_delivery or taken == budget or is_full:
                return

    def _deliver(self, delivery: _Delivery, runs: Iterable[InFlightBatch]) -> None:
        """Deliver the records of one batch; adjacent ones with one delivery count in one piece."""
        pieces: list[AcquiredRecords] = []
        for run in runs:
            taken = run._replace(state=_ACQUIRED, deliveries=run.deliveries + 1, lock=delivery.lock)
            self._runs.change(run.first, run.last, _replace_with(taken))
            delivery.left -= run.length
            piece = AcquiredRecords(run.first, run.last, taken.deliveries)
            if pieces and (pieces[-1].last + 1, pieces[-1].delivery_count) == (
                piece.first,
                piece.delivery_count,
            ):
                pieces[-1] = pieces[-1]._replace(last=piece.last)
            else:
                pieces.append(piece)
        delivery.acquired += pieces

    def _split_up(self, batch: tuple[int, int]) -> None:
        """Deliver the records of a batch one by one from now on."""
        first = max(batch[0], self.start_offset)
        self._runs.change(first, batch[1], lambda run: run._replace(is_apart=True))

    # Acknowledgements, expirations, releases.

    def acknowledge(
        self, member_id: str, acknowledgements: Sequence[Acknowledgement], renewal: int = NO_LOCK
    ) -> bool:
        """Apply all of a member's acknowledgements, or none.

        Offsets before the window are ignored. O(ranges * runs).

        Args:
            acknowledgements: in the order of the offsets.
            renewal: the lock of renewed records.

        Returns:
            Whether the state has to be persisted (`begin_write`).

        Raises:
            KafkaError: INVALID_REQUEST: also for records behind the window; or
                INVALID_RECORD_STATE: the member has not acquired them, has acknowledged them
                already, or its lock has expired.
        """
        ranges = validate_ranges(acknowledgements)
        for acknowledgement in acknowledgements:
            self._check_acquired(member_id, acknowledgement.first, acknowledgement.last)
        for acknowledgement in acknowledgements:
            self._split_up_for(acknowledgement)
        must_persist = False
        start = self.start_offset
        for first, last, record_state in (
            (max(first, start), last, of) for first, last, of in ranges if last >= start
        ):
            if record_state is AcknowledgeType.RENEW:
                self._runs.change(first, last, lambda run: run._replace(lock=renewal))
                self._members[renewal] = member_id
            else:
                target, write = _TARGETS[record_state], self._write
                self._runs.change(first, last, _transition_to(target, write))
                must_persist = True
        return must_persist

    def _check_acquired(self, member_id: str, first: int, last: int) -> None:
        first = max(first, self.start_offset)
        if first > last:
            return
        if self.end_offset > self.start_offset and last >= self.end_offset:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"no member was given offset {self.end_offset} yet"
            )
        runs = self._runs.in_range(first, last)
        if not runs or not all(
            run.state is _ACQUIRED
            and run.target is None
            and self._members.get(run.lock) == member_id
            for run in runs
        ):
            raise KafkaError(
                ErrorCode.INVALID_RECORD_STATE,
                f"not all records from {first} to {last} are acquired by {member_id}",
            )

    def _split_up_for(self, acknowledgement: Acknowledgement) -> None:
        """Deliver the records of a batch one by one, if some of them are acknowledged apart."""
        first, last = max(acknowledgement.first, self.start_offset), acknowledgement.last
        for run in self._runs.in_range(first, last):
            if run.batch is not None and (
                len(acknowledgement.types) > 1
                or run.batch[0] < acknowledgement.first
                or run.batch[1] > last
            ):
                self._split_up(run.batch)

    def expire(self, lock: int) -> bool:
        """Release the records of an expired lock; return whether there were any. O(runs)."""
        found = [run for run in self._runs if run.lock != NO_LOCK and run.lock == lock]
        for run in found:
            free = run._replace(lock=NO_LOCK)
            if run.target is None:
                free = self._released(free)
            self._runs.change(run.first, run.last, _replace_with(free))
        self._advance_start()
        return bool(found)

    def release(self, member_id: str) -> bool:
        """Release all records of a member, with the next write; return whether it has any that are
        not acknowledged. O(runs)."""
        found = [
            run
            for run in self._runs
            if run.state is _ACQUIRED
            and run.target is None
            and self._members.get(run.lock) == member_id
        ]
        for run in found:
            self._runs.change(run.first, run.last, _transition_to(_AVAILABLE, self._write))
        return bool(found)

    def _released(self, run: InFlightBatch) -> InFlightBatch:
        """Return records after their release: available, or archived after the last delivery."""
        done = run.deliveries >= self.max_deliveries
        return run._replace(state=_ARCHIVED if done else _AVAILABLE, lock=NO_LOCK)

    def archive(self, first: int, last: int) -> None:
        """Archive the available ones of these records: no member may see them. O(runs)."""
        self._runs.extend_to(last)
        first = max(first, self.start_offset)
        for run in self._runs.in_range(first, last):
            if run.batch is not None:
                self._split_up(run.batch)
        self._runs.change(
            first, last, lambda run: run._replace(state=_ARCHIVED) if run.is_free else run
        )
        self._advance_start()

    def raise_start(self, offset: int) -> None:
        """Drop records before the log's start offset. O(runs)."""
        self._runs.drop_before(offset)
        self._advance_start()

    # Persistence.

    def state(self) -> ShareState:
        """Return the state to persist, with all acknowledgements applied. As in Kafka its start
        offset is the present one, also where that will rise with them. O(runs)."""
        batches: list[StateBatch] = []
        for run in self._runs:
            batch = self._persisted(run)
            if batches and batches[-1][2:] == batch[2:]:
                batches[-1] = batches[-1]._replace(last=batch.last)
            else:
                batches.append(batch)
        while batches and batches[-1][2:] == (_AVAILABLE, 0):
            batches.pop()
        return ShareState(self.state_epoch, self.leader_epoch, self.start_offset, tuple(batches))

    def _persisted(self, run: InFlightBatch) -> StateBatch:
        """Return records as the next leader loads them: acquired ones count as delivered and
        released."""
        state = run.state if run.target is None else run.target
        if state in (_AVAILABLE, _ACQUIRED):
            state = self._released(run).state
        return StateBatch(run.first, run.last, state, run.deliveries)

    def begin_write(self) -> tuple[int, ShareState]:
        """Return the number of a write, and the state to persist."""
        number, self._write = self._write, self._write + 1
        return number, self.state()

    def complete_write(self, number: int, is_persisted: bool) -> None:
        """Complete a write: apply its acknowledgements, or revert them. O(runs)."""

        def completed(run: InFlightBatch) -> InFlightBatch:
            if run.target is None or run.write > number:
                return run
            after = run._replace(target=None, write=0)
            if is_persisted:
                if run.target is _AVAILABLE:
                    return self._released(after)
                return after._replace(state=run.target, lock=NO_LOCK)
            return after if run.lock != NO_LOCK else self._released(after)

        self._runs.change_all(completed)
        self._advance_start()

    def _advance_start(self) -> None:
        start = self.start_offset
        for run in self._runs:
            if not run.state.is_final:
                break
            start = run.last + 1
        self._runs.drop_before(start)
        if len(self._members) > 2 * len(locks := self.locks()) + 8:
            self._members = {
                lock: member_id for lock, member_id in self._members.items() if lock in locks
            }

    def _check(self) -> None:
        """Assert all invariants. O(runs)."""
        self._runs._check()
        for run in self._runs:
            assert 0 <= run.deliveries <= self.max_deliveries
            if run.state is _ACQUIRED:
                assert run.lock in self._members or run.target is not None
            else:
                assert run.lock == NO_LOCK
                assert run.target is None
        for run in self._runs:
            assert not run.state.is_final, "the window begins with a record that is not final"
            break


def _restored(
    batch: StateBatch, freed: Callable[[InFlightBatch], InFlightBatch]
) -> Callable[[InFlightBatch], InFlightBatch]:
    def change(run: InFlightBatch) -> InFlightBatch:
        run = run._replace(
            state=batch.state, deliveries=batch.deliveries, batch=(batch.first, batch.last)
        )
        return run if batch.state.is_final else freed(run)

    return change


def _transition_to(target: RecordState, write: int) -> Callable[[InFlightBatch], InFlightBatch]:
    return lambda run: run._replace(target=target, write=write)


def _replace_with(replacement: InFlightBatch) -> Callable[[InFlightBatch], InFlightBatch]:
    return lambda run: replacement._replace(first=run.first, last=run.last)
