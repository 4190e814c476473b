"""A share partition that this broker leads: its in-flight records, acquisition locks and state.

Ground rules
------------
* One thread at a time calls it.
* One write at a time is under way. Changes meanwhile go into the next one, together.
* The state is read from its coordinator when the share partition is created, and the start offset
  is written before any delivery, unless it is the log's: no record appended later is skipped,
  whatever broker leads next.
* A share partition that was dropped (`drop`) delivers and expires nothing, but sends its pending
  responses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from purgatory.core.errors import PurgatoryClosedError
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.core.recent_errors import Logger
from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.settings.group_settings import EARLIEST, GroupSettings
from purgatory.kafka.share_groups.delayed_acquisition_lock import (
    AcquisitionLockKey,
    DelayedAcquisitionLock,
)
from purgatory.kafka.share_groups.in_flight_records import AcquiredRecords, InFlightRecords
from purgatory.kafka.share_groups.share_coordinator import RespondCode, RespondState
from purgatory.kafka.share_groups.share_state import (
    NO_LOCK,
    UNKNOWN_START_OFFSET,
    Acknowledgement,
    AcknowledgeType,
    ShareKey,
    ShareState,
)
from purgatory.kafka.topic_partition import TopicPartition


class SharePurgatories(NamedTuple):
    """The purgatories: fetches are watched on their partitions, and on their share partitions."""

    fetches: DelayedOperationPurgatory
    locks: DelayedOperationPurgatory


RespondStart = Callable[[ErrorCode, int], object]
"""Takes the start offset of a group, or an error."""

_log = Logger("purgatory.kafka")

_FENCED = {
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
"""The errors for clients if another leader has read the state, or offsets were altered."""

_CLIENT_CODES = {**_FENCED, ErrorCode.INVALID_REQUEST: ErrorCode.UNKNOWN_SERVER_ERROR}
"""These, and the one if there is no state: offsets were deleted, or the group never began."""


class ShareStateStore(Protocol):
    """Requests to the coordinators of share partitions, on any broker."""

    def read(self, key: ShareKey, leader_epoch: int, respond: RespondState) -> None:
        """As `ShareCoordinator.read`, asynchronously."""

    def write(self, key: ShareKey, state: ShareState, respond: RespondCode) -> None:
        """As `ShareCoordinator.write`, asynchronously."""


class SharePartition:
    """A share partition whose leader is this broker.

    Args:
        key: group, topic id and partition.
        topic_partition: the partition of its records.
        leader_epoch: of this broker as the leader.
        settings: returns the group's settings.
        store: persists the state.
        purgatories: hold delayed fetches and acquisition locks.
        start: calls back with the start offset of a new group, or with an error.
        on_end: called when the share partition is fenced, or its state can't be read.
        on_idle: called when the state is persisted, and no record is acquired.
    """

    def __init__(
        self,
        key: ShareKey,
        topic_partition: TopicPartition,
        leader_epoch: int,
        settings: Callable[[], GroupSettings],
        store: ShareStateStore,
        purgatories: SharePurgatories,
        start: Callable[[RespondStart], object],
        on_end: Callable[[SharePartition], object],
        on_idle: Callable[[SharePartition], object],
    ) -> None:
        self.key = key
        self.topic_partition = topic_partition
        self.leader_epoch = leader_epoch
        self.in_flight: InFlightRecords | None = None
        self._settings = settings
        self._store = store
        self._purgatories = purgatories
        self._start = start
        self._on_end = on_end
        self._on_idle = on_idle
        self._last_lock = NO_LOCK
        self._is_writing = False
        self._is_dirty = False
        self._saved_start = UNKNOWN_START_OFFSET
        self._is_dropped = False
        self.failure: ErrorCode | None = None
        """The error for clients, where the state can't be read."""
        self._waiting: list[RespondCode] = []

    # Lifecycle.

    def load(self) -> None:
        """Begin to read the state."""
        self._store.read(self.key, self.leader_epoch, self._read)

    def _read(self, code: ErrorCode, state: ShareState) -> None:
        if self._is_dropped:
            return
        if code is ErrorCode.INVALID_REQUEST:  # no state: the group has not begun to read it
            self.failure = _CLIENT_CODES[code]
            self._check_waiting()
        elif code is not ErrorCode.NONE:
            self._end(code)
        elif state.start_offset != UNKNOWN_START_OFFSET:
            self._begin(state)
        else:
            try:
                self._start(lambda code, offset: self._handle_start_offset(code, offset, state))
            except PurgatoryClosedError:  # killed meanwhile: there are no responses any more
                self.drop()

    def _handle_start_offset(self, code: ErrorCode, offset: int, state: ShareState) -> None:
        if self._is_dropped:
            return
        if code is not ErrorCode.NONE:
            self._end(code)
            return
        initial = state._replace(start_offset=offset)
        if self._settings().share_start == EARLIEST:  # the next leader finds it, too
            self._begin(initial)
            return
        self._store.write(self.key, initial, lambda code: self._handle_written_start(code, initial))

    def _handle_written_start(self, code: ErrorCode, state: ShareState) -> None:
        if self._is_dropped:
            return
        if code is ErrorCode.NONE:
            self._begin(state)
        else:
            self._end(code)

    def _begin(self, state: ShareState) -> None:
        settings = self._settings()
        self._saved_start = state.first_open_offset
        self.in_flight = InFlightRecords(
            state, settings.share_max_deliveries, settings.share_max_records
        )
        self._check_waiting()

    def _end(self, code: ErrorCode) -> None:
        _log.info("share_partition_ended", share_partition=str(self.key), reason=code.name)
        self._on_end(self)
        self._check_waiting()

    def drop(self) -> None:
        """Stop expirations: another broker leads, or no member reads it."""
        self._is_dropped = True
        locks = set() if self.in_flight is None else self.in_flight.locks()
        for lock in locks:
            self._purgatories.locks.cancel_for_key(AcquisitionLockKey(self.key, lock))

    @property
    def is_idle(self) -> bool:
        """Whether all acknowledgements are stored, and no record is acquired."""
        busy = self._is_writing or self._is_dirty
        return self.in_flight is not None and not busy and not self.in_flight.locks()

    # Delivering.

    def acquire(
        self,
        member_id: str,
        lock_ms: int,
        fetched: Sequence[tuple[int, int]],
        most: int,
        exactly: bool,
        batch_size: int,
    ) -> list[AcquiredRecords]:
        """Deliver records, as `InFlightRecords.acquire`, under a lock of this duration."""
        assert self.in_flight is not None, "fetches wait until it is loaded"
        self._last_lock += 1
        acquired = self.in_flight.acquire(
            member_id, self._last_lock, fetched, most, exactly, batch_size
        )
        if acquired:
            self._start_lock_timer(self._last_lock, lock_ms)
        return acquired

    def _start_lock_timer(self, lock: int, lock_ms: int) -> None:
        in_flight = self.in_flight
        assert in_flight is not None
        waiting = DelayedAcquisitionLock(
            lock_ms,
            self.topic_partition,
            lambda: lock not in in_flight.locks(),
            lambda: self._expire(lock),
        )
        key = AcquisitionLockKey(self.key, lock)
        self._purgatories.locks.try_complete_else_watch(waiting, [key])

    def _expire(self, lock: int) -> None:
        if not self._is_dropped and self.in_flight is not None and self.in_flight.expire(lock):
            self._on_change({lock})

    # Acknowledgements.

    def acknowledge(
        self,
        member_id: str,
        acknowledgements: Sequence[Acknowledgement],
        renewal_ms: int,
        respond: RespondCode,
    ) -> None:
        """Apply acknowledgements; ``respond`` is called once they are persisted, or can't be.

        Raises:
            KafkaError: as `InFlightRecords.acknowledge`; INVALID_RECORD_STATE if it is not loaded.
        """
        in_flight = self.in_flight
        if in_flight is None or self._is_dropped:
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "no records are acquired")
        before = in_flight.locks()
        renews = any(
            AcknowledgeType.RENEW in acknowledgement.types for acknowledgement in acknowledgements
        )
        self._last_lock += renews
        must_persist = in_flight.acknowledge(member_id, acknowledgements, self._last_lock)
        if renews:
            self._check_locks(before - in_flight.locks())
            self._start_lock_timer(self._last_lock, renewal_ms)
        if must_persist:
            self._waiting.append(respond)
            self._write_if_idle()
        else:
            respond(ErrorCode.NONE)

    def release(self, member_id: str) -> None:
        """Release all records of a member, as `InFlightRecords.release`."""
        in_flight = None if self._is_dropped else self.in_flight
        if in_flight is not None and in_flight.release(member_id):
            self._is_dirty = True
            self._write_if_idle()

    def _on_change(self, locks: set[int]) -> None:
        """Records were released: deliver them to others, and persist the state."""
        assert self.in_flight is not None
        self._is_dirty = True
        self._check_locks(locks - self.in_flight.locks())
        self._check_waiting()
        self._write_if_idle()

    def _check_locks(self, expired: set[int]) -> None:
        for lock in expired:
            self._purgatories.locks.check_and_complete(AcquisitionLockKey(self.key, lock))

    def _check_waiting(self) -> None:
        try:
            self._purgatories.fetches.check_and_complete(self.key)
        except PurgatoryClosedError:  # killed meanwhile: there are no responses any more
            self.drop()

    # Persistence.

    def save_start(self) -> None:
        """Persist a start offset that no acknowledgement will: markers and aborted records moved
        it, which no member sees. Otherwise the group would seem to lag behind them."""
        in_flight = self.in_flight
        if in_flight is not None and in_flight.start_offset > self._saved_start:
            self._is_dirty = True
            self._write_if_idle()

    def _write_if_idle(self) -> None:
        in_flight = self.in_flight
        if in_flight is None or self._is_writing or not (self._waiting or self._is_dirty):
            return
        self._is_writing, self._is_dirty = True, False
        responses, self._waiting = self._waiting, []
        number, state = in_flight.begin_write()

        def written(code: ErrorCode) -> None:
            self._is_writing = False
            before = in_flight.locks()
            in_flight.complete_write(number, code is ErrorCode.NONE)
            if code is ErrorCode.NONE:
                self._saved_start = state.first_open_offset
                self._is_dirty |= in_flight.start_offset > self._saved_start
            if code in _FENCED:
                self._on_end(self)
            self._check_locks(before - in_flight.locks())
            for respond in responses:
                respond(_CLIENT_CODES.get(code, code))
            self._check_waiting()
            self._write_if_idle()
            if self.is_idle:
                self._on_idle(self)

        self._store.write(self.key, state, written)
