"""Offsets that are asked for by time and may be in the remote tier: they wait in the purgatory
RemoteListOffsets.

Ground rules: those of `remote_tasks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.hosted_partitions import HostedPartitions
from purgatory.kafka.requests import UNKNOWN_OFFSET
from purgatory.kafka.tiers.remote_tasks import DelayedRemoteTasks, RemoteLookup, RemoteTier
from purgatory.kafka.topic_partition import TopicPartition


class RemoteOffset(NamedTuple):
    """What was found in the remote tier; an ``offset`` of -1: nothing."""

    error: ErrorCode
    offset: int = UNKNOWN_OFFSET
    timestamp_ms: int = UNKNOWN_OFFSET
    leader_epoch: int = UNKNOWN_OFFSET


RespondOffsets = Callable[[Mapping[TopicPartition, RemoteOffset]], object]


class DelayedRemoteListOffsets(DelayedRemoteTasks):
    """Waits for offsets; those that weren't found in time have REQUEST_TIMED_OUT.

    Args:
        timeout_ms: the longest wait.
        partitions: what is here.
        lookups: what is looked for in the tier.
        respond: takes what was found.
    """

    __slots__ = ("_lookups", "_respond")

    def __init__(
        self,
        timeout_ms: int,
        partitions: HostedPartitions,
        lookups: Mapping[TopicPartition, RemoteLookup],
        respond: RespondOffsets,
    ) -> None:
        super().__init__(timeout_ms, partitions, lookups, from_followers=False)
        self._lookups = lookups
        self._respond = respond

    def on_complete(self) -> None:
        self._answer(ErrorCode.REQUEST_TIMED_OUT)

    def on_failure(self, error: BaseException) -> None:
        if not self._answered:
            self._answer(ErrorCode.UNKNOWN_SERVER_ERROR)

    def _answer(self, to_waiting: ErrorCode) -> None:
        self._cancel_tasks()
        self._answered = True
        self._respond({key: self._found(one, to_waiting) for key, one in self._lookups.items()})

    def _found(self, lookup: RemoteLookup, to_waiting: ErrorCode) -> RemoteOffset:
        key = lookup.topic_partition
        if self._partitions.get(key) is None:
            return RemoteOffset(self._partitions.why_absent(key)[0])
        term = self._term(key)
        if term is None or term != self._terms[key]:
            return RemoteOffset(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not lookup.is_done:
            return RemoteOffset(to_waiting)
        if lookup.error is not ErrorCode.NONE:
            return RemoteOffset(lookup.error)
        return RemoteOffset(ErrorCode.NONE, lookup.offset, lookup.found_ms, lookup.leader_epoch)


class RemoteOffsets:
    """Looks for offsets in the remote tier.

    Args:
        partitions: what is here.
        purgatory: where requests wait.
        tier: what is looked into.
    """

    def __init__(
        self,
        partitions: HostedPartitions,
        purgatory: DelayedOperationPurgatory,
        tier: RemoteTier,
    ) -> None:
        self._partitions = partitions
        self._purgatory = purgatory
        self._tier = tier

    def find(
        self,
        timeout_ms: int,
        times_ms: Mapping[TopicPartition, int],
        respond: RespondOffsets,
    ) -> None:
        """Find the first record at or after a time in each partition that this broker leads.

        What isn't found there may be in the log that is here: whoever asks looks there next.

        Args:
            timeout_ms: the longest wait, in milliseconds.
            times_ms: in milliseconds since 1970.
            respond: takes what was found of those partitions where the tier had to be looked into.

        Raises:
            PurgatoryClosedError: it would have to wait, but the purgatory was closed.
        """
        lookups = {}
        for key, timestamp_ms in times_ms.items():
            partition = self._partitions.get(key)
            if partition is None or not partition.is_leader:
                continue
            log = partition.log
            segments = tuple(self._tier.log_of(key).since(timestamp_ms, log))
            if segments:
                lookups[key] = RemoteLookup(
                    key,
                    self._purgatory.check_and_complete,
                    segments,
                    timestamp_ms,
                    log.start_offset,
                )
        if not lookups:
            respond({})
            return
        operation = DelayedRemoteListOffsets(timeout_ms, self._partitions, lookups, respond)
        for lookup in lookups.values():
            self._tier.begin(lookup)
        self._purgatory.try_complete_else_watch(operation, tuple(lookups))
