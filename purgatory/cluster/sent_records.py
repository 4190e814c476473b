"""The identity of sent records: a send has a new record, or one that was sent before.

Records of idempotent producers are told apart by producer id, epoch and sequence number: equal
records with different numbers are different records. A producer that begins a new epoch numbers the
records again that it doesn't know to be stored.

Without such numbers an equal record is the same one if the client had no response, or may have had
none: on another connection, within ten seconds. Otherwise it is a different record, perhaps an
unintended one: its row names the earlier record, to which it is equal.

Records have the number of their content (key and value); of several equal ones in a topic the
later ones have numbers of their own. A read finds those by the numbers on the wire, or by offset.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from purgatory.kafka import RecordBatch
from purgatory.trace.table_rows import SendRow

UNKNOWN = "unknown"
RESPONSE_LOST, RESENT = "answer lost", "sent again"
LOST_REASONS = frozenset({RESPONSE_LOST, RESENT})
"""The reasons why a client may not know the outcome of a send that has a response."""

RESEND_WINDOW_US = 10_000_000
"""The time after a response in which a client that didn't get it may send the record again."""
_RETENTION_US = 300_000_000
"""The retention of a record after its last send, longer than clients retry."""

_OUTCOME = SendRow._fields.index("outcome")  # the error is behind it
_RESPONSE_TIME = SendRow._fields.index("answer_us")

Wire: TypeAlias = tuple[int, int, int, int]
"""A record's producer id, epoch, partition and sequence number."""
_Content: TypeAlias = tuple[int, str]
"""The number of a key and value, and the topic."""
_Place: TypeAlias = tuple[str, int | Wire, int]
"""A topic, partition and offset; or a topic and the numbers on the wire."""


class Sender(NamedTuple):
    """The client, connection and transaction of a batch."""

    client: str
    connection: int
    transaction: int | None


@dataclass(slots=True, eq=False)
class SentRecord:
    """A record that was sent, with its number in the producer's order."""

    value_id: int
    sequence: int
    sender: Sender
    wire: Wire | None
    equal_to: int | None = None
    attempts: int = 0
    last_us: int = 0
    """The time of the last attempt."""
    outcome: str = ""
    """The outcome of the last attempt."""
    answered_us: int | None = None
    """The time of the last delivered response."""
    pending: PendingSend | None = None
    equals: _EqualRecords | None = None

    def add_attempt(self, row: SendRow, sender: Sender) -> PendingSend:
        """Add an attempt. A retry means that the client did not receive the previous response."""
        pending = self.pending
        if pending is not None and pending.row.group == row.group and pending.row.outcome == "ok":
            pending.mark_unknown(RESENT)
        self.attempts += 1
        self.last_us = row.send_us
        self.sender = sender
        self.answered_us = None
        self.set_outcome(row.outcome)
        self.pending = send = PendingSend(row, self)
        return send

    def set_outcome(self, outcome: str) -> None:
        """Set the outcome of the last attempt."""
        self.outcome = outcome
        if self.equals is not None:
            self.equals.update(self)

    def may_have_been_answered(self, now_us: int) -> bool:
        """Whether the client may have missed the last response, as it is recent."""
        answered_us = self.answered_us
        return answered_us is not None and now_us - answered_us <= RESEND_WINDOW_US


@dataclass(slots=True, eq=False)
class PendingSend:
    """A row of the table of sends whose outcome may change until it is written."""

    row: SendRow
    sent: SentRecord

    def mark_unknown(self, reason: str) -> None:
        """Set the outcome to unknown."""
        row = self.row
        # A third of the time of `_replace`.
        self.row = SendRow._make((*row[:_OUTCOME], UNKNOWN, reason, *row[_OUTCOME + 2 :]))
        if self.sent.pending is self:
            self.sent.set_outcome(UNKNOWN)

    def row_with_response(self, answer_us: int | None) -> SendRow:
        """Return the row with the time of the response, unless the response was lost."""
        row = self.row
        if row.error in LOST_REASONS:
            return row
        return SendRow._make((*row[:_RESPONSE_TIME], answer_us, *row[_RESPONSE_TIME + 1 :]))


class _EqualRecords:
    """The equal records of a topic that may be sent again."""

    __slots__ = ("recent", "resendable")

    def __init__(self, first: SentRecord) -> None:
        self.recent = deque([first])
        """The last records, in the order of their first sends."""
        self.resendable: dict[SentRecord, None] = {}
        """The records whose last attempt failed or is unknown."""
        self.update(first)

    def update(self, record: SentRecord) -> None:
        """Update whether a record may be sent again, after a change of its outcome."""
        if record.outcome == "ok":
            self.resendable.pop(record, None)
        else:
            self.resendable.setdefault(record)

    def forget(self, now_us: int) -> None:
        """Drop old records, but the last. O(1) for each."""
        while len(self.recent) > 1 and self.recent[0].last_us < now_us - RESEND_WINDOW_US:
            first = self.recent.popleft()
            if first in self.resendable and first.last_us >= now_us - _RETENTION_US:
                self.recent.appendleft(first)
                return
            self.resendable.pop(first, None)


class SentRecords:
    """The records that were sent, by their content.

    Args:
        forgets: whether records that were not sent for five minutes are dropped: later equal ones
            then count as the same.
    """

    def __init__(self, forgets: bool = True) -> None:
        self._forgets = forgets
        self._latest: dict[_Content, SentRecord] = {}
        self._by_time: deque[tuple[int, _Content]] = deque()
        self._ids: dict[_Place, int] = {}
        """The numbers of records that don't have that of their content, by place."""
        self._equal = 0

    def __len__(self) -> int:
        return len(self._latest)

    def __contains__(self, content: _Content) -> bool:
        return content in self._latest

    def find(
        self, content: _Content, sender: Sender, wire: Wire | None, is_next: bool, now_us: int
    ) -> SentRecord | None:
        """Return the record that is sent again; None: the record is new. O(equal records), O(1) if
        there are none.

        Args:
            content: the record's content.
            sender: its sender.
            wire: its numbers.
            is_next: whether its number is beyond all of its producer in its epoch.
            now_us: its time.
        """
        latest = self._latest.get(content)
        if latest is None:
            return None
        equals = latest.equals
        if wire is None:
            if equals is not None:
                for record in equals.resendable:
                    if record.wire is None and record.sender.client == sender.client:
                        return record
            return latest if _is_resent(latest, sender, now_us) else None
        if not is_next:
            for record in (latest,) if equals is None else reversed(equals.recent):
                if record.wire == wire:
                    return record
        for record in (latest,) if equals is None else equals.resendable:
            if _is_renumbered(record, sender, wire):
                record.wire = wire
                return record
        return None

    def add(
        self, content: _Content, sequence: int, sender: Sender, wire: Wire | None, now_us: int
    ) -> SentRecord:
        """Add a new record. O(1)."""
        record = SentRecord(content[0], sequence, sender, wire)
        latest = self._latest.get(content)
        if latest is None:
            if self._forgets:
                self._by_time.append((now_us, content))
        else:
            self._equal += 1
            record.value_id = _hashed(b"%d:%d" % (content[0], self._equal))
            record.equals = latest.equals or _EqualRecords(latest)
            latest.equals = record.equals
            record.equals.forget(now_us)
            record.equals.recent.append(record)
            if wire is None or latest.wire is None or latest.wire[0] != wire[0]:
                record.equal_to = latest.value_id
        self._latest[content] = record
        return record

    def place(
        self, record: SentRecord, content: _Content, partition: int, offset: int | None
    ) -> None:
        """Store the place of a record that doesn't have the number of its content."""
        if record.value_id == content[0]:
            return
        topic, wire = content[1], record.wire
        if wire is not None:
            self._ids[topic, wire, -1] = record.value_id
        elif offset is not None:
            self._ids[topic, partition, offset] = record.value_id

    def id_of(self, content: _Content, partition: int, batch: RecordBatch, offset: int) -> int:
        """Return the number of a record that was read. O(1)."""
        if not self._ids:
            return content[0]
        topic = content[1]
        place: _Place = topic, partition, offset
        if batch.base_sequence >= 0:
            sequence = batch.base_sequence + offset - batch.base_offset
            place = topic, (batch.producer_id, batch.producer_epoch, partition, sequence), -1
        return self._ids.get(place, content[0])

    def expire(self, now_us: int) -> None:
        """Drop records that were not sent for long. O(1) for each."""
        known, us = self._by_time, now_us - _RETENTION_US
        while known and known[0][0] < us:
            _, content = known.popleft()
            latest = self._latest[content]
            if latest.last_us < us and latest.pending is None:
                del self._latest[content]
            else:
                known.append((now_us, content))


def _is_resent(latest: SentRecord, sender: Sender, now_us: int) -> bool:
    """Whether a record without numbers may be sent again by the client that sent it."""
    before = latest.sender
    if latest.wire is not None or before.client != sender.client:
        return False
    if latest.outcome != "ok":
        return True
    return before.connection != sender.connection and latest.may_have_been_answered(now_us)


def _is_renumbered(record: SentRecord, sender: Sender, wire: Wire) -> bool:
    """Whether a record was sent in an earlier epoch of its producer, which doesn't know of it."""
    before = record.wire
    return (
        before is not None
        and record.outcome != "ok"
        and record.sender.transaction == sender.transaction
        and before[0] == wire[0]
        and before[1] < wire[1]
        and before[2] == wire[2]
    )


def _hashed(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1


def record_number(data: bytes | None, before: bytes = b"") -> int:
    """Return the number of a key, or with the key before it, of a value: 63 bits of their hash."""
    if data is None and not before:
        return 0
    return _hashed(before + (b"null" if data is None else b"=" + data))


class ProducerOrder:
    """The order of a producer's records in one partition.

    An idempotent producer numbers its records itself, and begins again at 0 in a new epoch: with
    those that it didn't know to be stored, which have their numbers already, or with new ones.
    """

    __slots__ = ("_epoch", "_last", "_last_on_wire", "_start")

    def __init__(self) -> None:
        self._epoch = -1
        self._start = 0
        self._last = self._last_on_wire = -1

    def is_next(self, batch: RecordBatch) -> bool:
        """Whether the producer has sent no such number in this epoch."""
        epoch = batch.producer_epoch
        return epoch > self._epoch or (
            epoch == self._epoch and batch.base_sequence > self._last_on_wire
        )

    def begin(self, batch: RecordBatch, known: int | None) -> None:
        """Begin a batch, whose first record has the number `known`, if it was sent before."""
        if batch.producer_epoch > self._epoch:
            first = batch.base_sequence
            self._start = self._last + 1 if known is None else known - first
            self._epoch = batch.producer_epoch
            self._last_on_wire = -1
        if batch.producer_epoch == self._epoch:
            end = batch.base_sequence + batch.record_count - 1
            self._last_on_wire = max(self._last_on_wire, end)

    def sequence(self, batch: RecordBatch, number: int) -> int:
        """Return the number of a batch's record: its own, or the order of arrival."""
        if batch.base_sequence < 0:
            sequence = self._last + 1
        else:
            sequence = self._start + batch.base_sequence + number
        self._last = max(self._last, sequence)
        return sequence
