"""The records that clients sent, for the trace: their numbers and their attempts.

Ground rules
------------
* Everything happens on the event loop's thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from purgatory.kafka import RecordBatch
from purgatory.trace.table_rows import SendRow

UNKNOWN = "unknown"
ANSWER_LOST, SENT_AGAIN = "answer lost", "sent again"
UNTOLD = frozenset({ANSWER_LOST, SENT_AGAIN})
"""Why a client may not know what became of a send whose response was made."""


_OUTCOME = SendRow._fields.index("outcome")  # the error is behind it
_ANSWER = SendRow._fields.index("answer_us")


@dataclass(slots=True, eq=False)
class PendingSend:
    """A row of the table of sends until it is written: what is known of it may change.

    Args:
        row: what is known.
        sent: the value that it sends.
    """

    row: SendRow
    sent: Sent

    def doubt(self, why: str) -> None:
        """Take what became of it for unknown to its client."""
        row = self.row
        # As `_replace` does it, in a third of the time.
        self.row = SendRow._make((*row[:_OUTCOME], UNKNOWN, why, *row[_OUTCOME + 2 :]))

    def answered(self, at_us: int | None) -> None:
        """Record when it was answered, unless its client never had the response."""
        row = self.row
        if row.error not in UNTOLD:
            self.row = SendRow._make((*row[:_ANSWER], at_us, *row[_ANSWER + 1 :]))

    def written(self) -> None:
        """Nothing that happens changes it any more."""
        if self.sent.held is self:
            self.sent.held = None


@dataclass(slots=True, eq=False)
class Sent:
    """What is known of a value that was sent: its place in the producer's order."""

    sequence: int
    attempts: int = 0
    came_us: int = 0
    held: PendingSend | None = None

    def attempt(self, row: SendRow) -> PendingSend:
        """Hold one more attempt: a client that sends again didn't take the response before."""
        held = self.held
        if held is not None and held.row.group == row.group and held.row.outcome == "ok":
            held.doubt(SENT_AGAIN)
        self.attempts += 1
        self.came_us = row.send_us
        self.held = send = PendingSend(row, self)
        return send


class Place:
    """Where a producer is in the order of its records in one partition.

    An idempotent producer numbers its records itself, and begins again at 0 in a new epoch: with
    those that it didn't know to be stored, which have their numbers already, or with new ones.
    """

    __slots__ = ("_epoch", "_last", "_start")

    def __init__(self) -> None:
        self._epoch = -1
        self._start = 0
        self._last = -1

    def begin(self, batch: RecordBatch, known: int | None) -> None:
        """Record a batch, whose first record has the number `known`, if it was sent before."""
        if batch.producer_epoch > self._epoch:
            first = batch.base_sequence
            self._start = self._last + 1 if known is None else known - first
            self._epoch = batch.producer_epoch

    def sequence(self, batch: RecordBatch, number: int) -> int:
        """Return the number of a batch's record: its own, or the order of arrival."""
        if batch.base_sequence < 0:
            found = self._last + 1
        else:
            found = self._start + batch.base_sequence + number
        self._last = max(self._last, found)
        return found
