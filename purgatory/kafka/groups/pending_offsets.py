"""Offsets that were committed in transactions whose end isn't known yet.

They hold once the transaction is committed, if nothing newer was committed for the same key by
then: of all that is committed for a key the record that is written last holds, as in Kafka.
"""

from __future__ import annotations

from purgatory.kafka.groups.committed_offset import OffsetEntry, OffsetKey
from purgatory.kafka.record_batch import EndTransaction
from purgatory.kafka.topic_partition import TopicPartition


class PendingOffsets:
    """Those of one partition of the offsets' topic, in the order of their records."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[tuple[int, OffsetKey], OffsetEntry] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, producer_id: int, entry: OffsetEntry) -> None:
        """Hold what is committed in a producer's transaction. O(1)."""
        at = producer_id, entry[0]
        self._held.pop(at, None)
        self._held[at] = entry

    def supersede(self, key: OffsetKey) -> None:
        """Drop what is held for a key: something newer was committed. O(what is held)."""
        for at in [at for at in self._held if at[1] == key]:
            del self._held[at]

    def end(self, producer_id: int, how: EndTransaction) -> list[OffsetEntry]:
        """Return what holds with the end of a producer's transaction. O(what is held)."""
        ended = [at for at in self._held if at[0] == producer_id]
        if how is EndTransaction.ABORT:
            for at in ended:
                del self._held[at]
            return []
        entries = []
        for at in ended:
            entries.append(self._held[at])
            # Of other transactions, what was written before it.
            for older in list(self._held):
                if older[1] == at[1]:
                    del self._held[older]
                if older == at:
                    break
        return entries

    def of_producer(self, producer_id: int) -> list[OffsetEntry]:
        """Return what ends with a producer's transaction. O(what is held)."""
        return [entry for at, entry in self._held.items() if at[0] == producer_id]

    def of_group(self, group_id: str) -> set[TopicPartition]:
        """Return what a group's offsets may yet change of. O(what is held)."""
        return {key.place for _, key in self._held if key.group_id == group_id}
