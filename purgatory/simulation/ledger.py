"""The simulation's own books: which messages were acknowledged, and which are in the log.

The simulation sees what no client sees: each record that falls below a leader's high watermark, and
which message it is. From that it tells duplicates, reorderings and losses, one message at a time,
without keeping any of them: what must be remembered is on the message, which lives as long as some
log or queue holds it.

* duplicate: a copy of a message that is in the log already.
* reordering: a message whose first copy lies behind that of a later message of its producer in the
  same partition.
* lost: acknowledged (with acks=0: sent), and in no log at the end of the run.
"""

from __future__ import annotations

from purgatory.simulation.invariants import Invariants
from purgatory.simulation.messages import Batch, Message

_ALL = -1


class Ledger:
    """Keeps the books of all groups.

    Args:
        invariants: told of an acks=all acknowledgement for what is not committed.
    """

    def __init__(self, invariants: Invariants) -> None:
        self._invariants = invariants

    def acknowledged(self, batch: Batch) -> list[Message]:
        """The producer was told that the batch is stored; with acks=0, it was sent.

        Returns:
            The messages of which it wasn't told before.
        """
        queue = batch.queue
        books = queue.books
        counts = books.counts
        news = [message for message in batch.messages if not message.acked]
        if books.acks == 0:
            counts.unanswered += len(news)
        else:
            counts.acknowledged += len(news)
        for message in news:
            message.acked = True
            if message.copies == 0:
                counts.lost += 1
                if books.acks == _ALL and not queue.unclean:
                    self._invariants.acknowledged_without_commit(message)
        return news

    def committed(self, batch: Batch) -> None:
        """A batch of messages is below the high watermark now."""
        queue = batch.queue
        counts = queue.books.counts
        for message in batch.messages:
            message.copies += 1
            if message.copies > 1:
                counts.duplicates += 1
                continue
            counts.committed += 1
            if message.acked:
                counts.lost -= 1
            if message.sequence < queue.highest_committed:
                counts.reorderings += 1
            else:
                queue.highest_committed = message.sequence

    def withdrawn(self, batch: Batch) -> list[Message]:
        """A batch that was below the high watermark is in the new leader's log no more.

        Returns:
            The messages of it that were acknowledged and have no other copy.
        """
        counts = batch.queue.books.counts
        batch.queue.unclean = True
        lost = []
        for message in batch.messages:
            message.copies -= 1
            if message.copies > 0:
                counts.duplicates -= 1
                continue
            counts.committed -= 1
            if message.acked:
                counts.lost += 1
                lost.append(message)
        return lost
