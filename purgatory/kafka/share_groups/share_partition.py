"""A share partition that this broker leads: its window, its acquisition locks, its state.

Ground rules
------------
* One thread at a time calls it.
* One write at a time is under way. Changes meanwhile go with the next one, together.
* The state is read from its coordinator when the share partition is made, and the start is written
  before anything is delivered: no record that comes to the log from then on is skipped, whoever
  leads next.
* A share partition that was dropped (`drop`) delivers nothing and expires nothing, but responds to
  what it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from purgatory.core.errors import PurgatoryClosedError
from purgatory.core.operation import DelayedOperation
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.core.recent_errors import Logger
from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.settings.group_settings import GroupConfig
from purgatory.kafka.share_groups.in_flight_records import AcquiredRecords, InFlightRecords
from purgatory.kafka.share_groups.share_coordinator import RespondCode, RespondState
from purgatory.kafka.share_groups.share_state import (
    NO_LOCK,
    NO_START,
    Acknowledgement,
    AcknowledgeType,
    ShareKey,
    ShareState,
)
from purgatory.kafka.topic_partition import TopicPartition


class AcquisitionLockKey(NamedTuple):
    """A lock of acquired records: under what its end is waited for."""

    of: ShareKey
    lock: int

    def __str__(self) -> str:
        return f"{self.of}:{self.lock}"


class DelayedAcquisitionLock(DelayedOperation):
    """Waits until none of the records under a lock is acquired any more.

    Args:
        delay_ms: how long the lock holds.
        topic_partition: where the records are.
        is_over: whether that is so.
        expire: takes the records back.
    """

    __slots__ = ("_expire", "_is_over", "topic_partitions")

    def __init__(
        self,
        delay_ms: int,
        topic_partition: TopicPartition,
        is_over: Callable[[], bool],
        expire: Callable[[], object],
    ) -> None:
        super().__init__(delay_ms)
        self.topic_partitions = (topic_partition,)
        self._is_over = is_over
        self._expire = expire

    def try_complete(self) -> bool:
        return self._is_over() and self.force_complete()

    def on_expiration(self) -> None:
        self._expire()


class ShareWaits(NamedTuple):
    """The purgatories: fetches are watched on their partitions, and on their share partitions."""

    fetches: DelayedOperationPurgatory
    locks: DelayedOperationPurgatory


RespondStart = Callable[[ErrorCode, int], object]
"""Takes the offset at which a group begins, where there is no error."""

_log = Logger("purgatory.kafka")

_FENCED = {
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.FENCED_STATE_EPOCH,
}
"""The errors for clients where another leader has read, or offsets were set."""


class ShareStateStore(Protocol):
    """Asks the coordinators of share partitions, wherever they are."""

    def read(self, key: ShareKey, leader_epoch: int, respond: RespondState) -> None:
        """As `ShareCoordinator.read`; it may take some time."""

    def write(self, key: ShareKey, state: ShareState, respond: RespondCode) -> None:
        """As `ShareCoordinator.write`; it may take some time."""


class SharePartition:
    """One share partition, from when this broker leads it until another one does.

    Args:
        key: which.
        topic_partition: where its records are.
        leader_epoch: of this broker as the leader.
        config: what share groups are allowed.
        store: keeps how it stands.
        waits: where fetches and locks wait.
        start: returns the offset that a group begins at that has read nothing yet, or why it can't;
            it may take some time.
        on_end: is called when it can't go on: it was fenced, or could not be read.
        on_idle: is called when all is kept, and nobody has any of its records.
    """

    def __init__(
        self,
        key: ShareKey,
        topic_partition: TopicPartition,
        leader_epoch: int,
        config: GroupConfig,
        store: ShareStateStore,
        waits: ShareWaits,
        start: Callable[[RespondStart], object],
        on_end: Callable[[SharePartition], object],
        on_idle: Callable[[SharePartition], object],
    ) -> None:
        self.key = key
        self.topic_partition = topic_partition
        self.leader_epoch = leader_epoch
        self.window: InFlightRecords | None = None
        self._config = config
        self._store = store
        self._waits = waits
        self._start = start
        self._on_end = on_end
        self._on_idle = on_idle
        self._last_lock = NO_LOCK
        self._is_writing = False
        self._is_dirty = False
        self._is_dropped = False
        self._waiting: list[RespondCode] = []

    # Its life.

    def load(self) -> None:
        """Begin to read how it stands."""
        self._store.read(self.key, self.leader_epoch, self._read)

    def _read(self, code: ErrorCode, state: ShareState) -> None:
        if self._is_dropped:
            return
        if code is not ErrorCode.NONE:
            self._end(code)
        elif state.start_offset != NO_START:
            self._begin(state)
        else:
            try:
                self._start(lambda code, offset: self._found_start(code, offset, state))
            except PurgatoryClosedError:  # killed just now: nobody gets a response any more
                self.drop()

    def _found_start(self, code: ErrorCode, offset: int, state: ShareState) -> None:
        if self._is_dropped:
            return
        if code is not ErrorCode.NONE:
            self._end(code)
            return
        begun = state._replace(start_offset=offset)
        self._store.write(self.key, begun, lambda code: self._written_start(code, begun))

    def _written_start(self, code: ErrorCode, state: ShareState) -> None:
        if self._is_dropped:
            return
        if code is ErrorCode.NONE:
            self._begin(state)
        else:
            self._end(code)

    def _begin(self, state: ShareState) -> None:
        config = self._config
        self.window = InFlightRecords(
            state, config.share_delivery_count_limit, config.share_partition_max_record_locks
        )
        self._check_waiting()

    def _end(self, code: ErrorCode) -> None:
        _log.info("share_partition_ended", share_partition=str(self.key), reason=code.name)
        self._on_end(self)
        self._check_waiting()

    def drop(self) -> None:
        """Expire nothing any more: another broker leads, or nobody reads."""
        self._is_dropped = True
        locks = set() if self.window is None else self.window.locks()
        for lock in locks:
            self._waits.locks.cancel_for_key(AcquisitionLockKey(self.key, lock))

    @property
    def is_idle(self) -> bool:
        """Whether all acknowledgements are stored, and nobody has any of its records."""
        busy = self._is_writing or self._is_dirty
        return self.window is not None and not busy and not self.window.locks()

    # Delivering.

    def acquire(
        self,
        member_id: str,
        lock_ms: int,
        fetched: Sequence[tuple[int, int]],
        most: int,
        exactly: bool,
    ) -> list[AcquiredRecords]:
        """Deliver records, as `InFlightRecords.acquire` does, under a lock that holds so long."""
        assert self.window is not None, "fetches wait until it is loaded"
        self._last_lock += 1
        acquired = self.window.acquire(member_id, self._last_lock, fetched, most, exactly)
        if acquired:
            self._watch_lock(self._last_lock, lock_ms)
        return acquired

    def _watch_lock(self, lock: int, lock_ms: int) -> None:
        window = self.window
        assert window is not None
        waiting = DelayedAcquisitionLock(
            lock_ms,
            self.topic_partition,
            lambda: lock not in window.locks(),
            lambda: self._expire(lock),
        )
        key = AcquisitionLockKey(self.key, lock)
        self._waits.locks.try_complete_else_watch(waiting, [key])

    def _expire(self, lock: int) -> None:
        if not self._is_dropped and self.window is not None and self.window.expire(lock):
            self._changed({lock})

    # What members say.

    def acknowledge(
        self,
        member_id: str,
        acknowledgements: Sequence[Acknowledgement],
        renewal_ms: int,
        respond: RespondCode,
    ) -> None:
        """Take acknowledgements; ``respond`` is called once they are kept, or can't be.

        Raises:
            KafkaError: as `InFlightRecords.acknowledge` does; or it is not loaded, and nobody has
                acquired anything: INVALID_RECORD_STATE.
        """
        window = self.window
        if window is None or self._is_dropped:
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "no records are acquired")
        before = window.locks()
        renews = any(AcknowledgeType.RENEW in one.types for one in acknowledgements)
        self._last_lock += renews
        is_to_be_kept = window.acknowledge(member_id, acknowledgements, self._last_lock)
        if renews:
            self._check_locks(before - window.locks())
            self._watch_lock(self._last_lock, renewal_ms)
        if is_to_be_kept:
            self._waiting.append(respond)
            self._write_if_idle()
        else:
            respond(ErrorCode.NONE)

    def release(self, member_id: str, delivered: bool) -> None:
        """Take back all that a member has, as `InFlightRecords.release` does."""
        if self.window is not None and not self._is_dropped:
            before = self.window.locks()
            if self.window.release(member_id, delivered):
                self._changed(before)

    def _changed(self, locks: set[int]) -> None:
        """Records came back: others may have them, and that is kept."""
        assert self.window is not None
        self._is_dirty = True
        self._check_locks(locks - self.window.locks())
        self._check_waiting()
        self._write_if_idle()

    def _check_locks(self, over: set[int]) -> None:
        for lock in over:
            self._waits.locks.check_and_complete(AcquisitionLockKey(self.key, lock))

    def _check_waiting(self) -> None:
        try:
            self._waits.fetches.check_and_complete(self.key)
        except PurgatoryClosedError:  # killed just now: nobody gets a response any more
            self.drop()

    # Keeping it.

    def _write_if_idle(self) -> None:
        window = self.window
        if window is None or self._is_writing or not (self._waiting or self._is_dirty):
            return
        self._is_writing, self._is_dirty = True, False
        responses, self._waiting = self._waiting, []
        number, state = window.begin_write()

        def written(code: ErrorCode) -> None:
            self._is_writing = False
            before = window.locks()
            window.settle(number, code is ErrorCode.NONE)
            if code in _FENCED:
                self._on_end(self)
            self._check_locks(before - window.locks())
            for respond in responses:
                respond(_FENCED.get(code, code))
            self._check_waiting()
            self._write_if_idle()
            if self.is_idle:
                self._on_idle(self)

        self._store.write(self.key, state, written)
