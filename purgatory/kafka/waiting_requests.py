"""The purgatories of a broker's requests, and whom an event on a partition wakes there.

    records appended                 fetches: those whose bytes are there
    high watermark moved             produces whose records are below it, fetches as above
    high or low watermark moved      deletions on the partition
    leader changed, replica stopped,
    topic deleted, ISR changed       all that wait on the partition
    another broker died or lives     deletions on the partition

What waits is watched so:

    produces     until the high watermark is there: a threshold on the partition
    fetches      until bytes are there: a threshold on the end of the log that the fetch sees
                 (`log_ends`); or, when they are counted over several partitions, for any event on
                 each of them; a follower's that has a session, for anything that is told to that
    deletions,
    share fetches for any event on the partition

Ground rules
------------
* What is checked is checked without any lock of the manager or a partition held.
* An event is told after it happened, and who waits is checked once more after it was put on the
  lists. So where nobody is on a list yet, the event need not be told.
* Thresholds are numbers in a term (`term_numbers`): whoever is found by one has no more to wait for
  on that partition.
"""

from __future__ import annotations

from typing import NamedTuple

from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.kafka.follower_session import FollowerSession
from purgatory.kafka.log_ends import NOT_MOVED, end_keys
from purgatory.kafka.partition import Partition
from purgatory.kafka.term_numbers import in_term
from purgatory.kafka.topic_partition import TopicPartition


class WaitingRequests(NamedTuple):
    """Where the requests of each kind wait, and what followers asked, by their broker ids."""

    produces: DelayedOperationPurgatory
    fetches: DelayedOperationPurgatory
    deletions: DelayedOperationPurgatory
    sessions: dict[int, FollowerSession]
    share_fetches: DelayedOperationPurgatory | None = None

    def after_append(self, partition: Partition) -> None:
        """Complete the fetches that have their bytes now. O(those + log n), but for a new segment.

        A fetch over several partitions is checked at each append.
        """
        fetches = self.fetches
        leads = partition.leader_id == partition.broker_id  # else no follower asks for it here
        waiting_sessions = 0
        for session in self.sessions.values():
            if leads and session.tell_appended(partition):
                fetches.check_and_complete(session)
            if session.operation is not None:
                waiting_sessions += 1
        if self.share_fetches is not None and self.share_fetches.watched:
            self.share_fetches.check_and_complete(partition.topic_partition)
        if fetches.watched <= waiting_sessions:
            return  # whoever waits has a session, which was told
        fetches.check_and_complete(partition.topic_partition)
        positions = partition.take_moved_ends()
        if positions is None:
            for key in partition.end_keys:
                fetches.check_and_complete(key)
            return
        for key, position in zip(partition.end_keys, positions, strict=True):
            if position != NOT_MOVED:
                fetches.advance(key, position)

    def after_watermark(self, partition: Partition) -> None:
        """Complete what waited for the high or low watermark, which moved. O(those + log n), but
        for a new segment, deletions, and fetches over several partitions."""
        if self.produces.watched:
            # The term first: if another begins in between, its high watermark is told as one of a
            # term that is over, and finds only who has nothing to wait for any more.
            term = partition.leadership
            self.produces.advance(
                partition.topic_partition, in_term(term, partition.high_watermark)
            )
        self.after_append(partition)
        if self.deletions.watched:
            self.deletions.check_and_complete(partition.topic_partition)

    def check_all(self, topic_partition: TopicPartition) -> None:
        """Complete whatever waits on the partition and can be answered now. O(all that waits)."""
        self.produces.check_and_complete(topic_partition)
        for session in self.sessions.values():
            if session.tell_changed(topic_partition):
                self.fetches.check_and_complete(session)
        self.fetches.check_and_complete(topic_partition)
        for key in end_keys(topic_partition):
            self.fetches.check_and_complete(key)
        self.deletions.check_and_complete(topic_partition)
        if self.share_fetches is not None:
            self.share_fetches.check_and_complete(topic_partition)

    def check_all_and_forget(self, topic_partition: TopicPartition) -> None:
        """The same for a partition that went away: its values are forgotten, too."""
        self.check_all(topic_partition)
        self.produces.forget(topic_partition)
        for key in end_keys(topic_partition):
            self.fetches.forget(key)

    def _check(self) -> None:
        """Assert that each session's fetch waits: appends count on it. O(sessions)."""
        waiting = [one.operation for one in self.sessions.values() if one.operation is not None]
        assert not any(operation.is_completed for operation in waiting)
        assert len(waiting) <= self.fetches.watched
