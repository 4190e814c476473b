"""Which replica a consumer is to read from (KIP-392): one in its own rack, if that is far enough.

Ground rules: one thread, that of the controller and the brokers.
"""

from __future__ import annotations

from collections.abc import Callable

from purgatory.kafka.partition import Partition

RackOf = Callable[[int], str | None]
"""Returns the rack of a broker that lives, None of any other."""


def preferred_read_replica(
    partition: Partition, rack: str, rack_of: RackOf, fetch_offset: int
) -> int | None:
    """Return the replica to read from, None where it is the leader that is asked. O(replicas).

    It is in the consumer's rack and in sync, and has the offset that is asked for; of several, the
    one that has most.

    Args:
        partition: as its leader has it.
        rack: the consumer's.
        rack_of: of the brokers.
        fetch_offset: where the consumer stands.
    """
    if not partition.is_leader or rack_of(partition.broker_id) == rack:
        return None
    ends = {
        broker_id: partition.follower_end_offset(broker_id)
        for broker_id in partition.isr
        if broker_id != partition.broker_id and rack_of(broker_id) == rack
    }
    behind = {broker_id: end for broker_id, end in ends.items() if end >= fetch_offset}
    return max(behind, key=behind.__getitem__, default=None)
