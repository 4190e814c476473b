"""Where a share group begins that reads from a time on: in the remote tier, or in the log here."""

from __future__ import annotations

from collections.abc import Mapping

from purgatory.cluster.record_times import first_at_or_after
from purgatory.core.recent_errors import Logger
from purgatory.kafka import ErrorCode, Partition, ReplicaManager, TopicPartition
from purgatory.kafka.requests import UNKNOWN_OFFSET
from purgatory.kafka.share_groups.led_share_partition import RespondStart
from purgatory.kafka.tiers.remote_offsets import RemoteOffset

_log = Logger("purgatory.cluster")


def find_first_since(
    manager: ReplicaManager,
    partition: Partition,
    since_ms: int,
    timeout_ms: int,
    respond: RespondStart,
) -> None:
    """Tell the offset of the first record that is no older; -1: there is none. O(batches).

    Args:
        manager: what the broker has, of the remote tier as well.
        partition: which it leads.
        since_ms: in milliseconds since 1970.
        timeout_ms: how long the tier may take, in milliseconds.
        respond: takes it, or why the tier could not be read. Where a batch that is here can't be
            looked into, it is the log's start.

    Raises:
        PurgatoryClosedError: it would have to wait, but the broker was stopped.
    """
    key = partition.topic_partition

    def found(in_tier: Mapping[TopicPartition, RemoteOffset]) -> None:
        remote = in_tier.get(key)
        if remote is not None and (remote.error is not ErrorCode.NONE or remote.offset >= 0):
            respond(remote.error, remote.offset)
            return
        offset = partition.log_start_offset
        try:
            here = first_at_or_after(partition.log, since_ms, partition.high_watermark)
            offset = UNKNOWN_OFFSET if here is None else here.offset
        except ValueError as error:
            _log.warning("times_unreadable", partition=str(key), reason=str(error))
        respond(ErrorCode.NONE, offset)

    if manager.remote_offsets is None:
        found({})
    else:
        manager.remote_offsets.find(timeout_ms, {key: since_ms}, found)
