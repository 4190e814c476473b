"""What a consumer gives to its application of what it fetched: neither markers nor aborted records.

A fetch with read_committed is told the aborted transactions that reach into it. Clients leave their
batches out: from each one's first offset to its marker.
"""

from __future__ import annotations

from collections.abc import Iterator

from purgatory.kafka.record_batch import RecordBatch
from purgatory.kafka.requests import PartitionFetchResponse


def seen_batches(answer: PartitionFetchResponse) -> Iterator[RecordBatch]:
    """Yield the batches that a client shows. O(batches + aborted transactions)."""
    aborted = sorted(answer.aborted_transactions, key=lambda one: one.first_offset, reverse=True)
    left_out: set[int] = set()
    for batch in answer.batches:
        while aborted and aborted[-1].first_offset <= batch.last_offset:
            left_out.add(aborted.pop().producer_id)
        if batch.control is not None:
            left_out.discard(batch.producer_id)
        elif not (batch.transactional and batch.producer_id in left_out):
            yield batch
