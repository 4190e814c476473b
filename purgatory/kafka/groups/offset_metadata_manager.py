"""The committed offsets of a broker's groups: commits, reads and deletions, as members may ask.

`GroupOffsets` stores them. Members of a classic group commit by their generation; those of consumer
and streams groups by their member epochs. Share groups have no committed offsets.

Ground rules: those of `GroupCoordinator`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

from purgatory.kafka.coordinator_log import Respond
from purgatory.kafka.errors import ErrorCode, GroupRefusal
from purgatory.kafka.groups.consumer_group_coordinator import ConsumerGroupCoordinator
from purgatory.kafka.groups.group_coordinator import GroupCoordinator, check_group_id
from purgatory.kafka.groups.offsets import CommittedOffset, GroupOffsets, OffsetKey
from purgatory.kafka.groups.share_group_coordinator import ShareGroupCoordinator
from purgatory.kafka.groups.streams_group_coordinator import StreamsGroupCoordinator
from purgatory.kafka.log.producer_state import ProducerIdentity
from purgatory.kafka.log.record_batch import TransactionResult
from purgatory.kafka.topic_partition import TopicPartition

_MAX_METADATA_BYTES = 4096
OnEnded = Callable[[int, OffsetKey, CommittedOffset, bool], object]
"""Takes a producer id, a key and an offset of its transaction, and whether the offset now holds."""


class OffsetMetadataManager:
    """Commits, reads and deletes offsets of groups of any kind.

    Args:
        offsets: the store.
        coordinators: those of the classic, consumer, share and streams groups.
        partition_of: returns the partition of the offsets topic that a group belongs to; raises
            GroupRefusal if another broker leads it.
        subscribed_topics: returns those of a group's members; None: they may read any topic. Raises
            GroupRefusal if there is no such group, or its members are no consumers.
        is_known: whether the cluster has a partition.
        on_ended: is called for each offset of a transaction that has ended.
    """

    def __init__(
        self,
        offsets: GroupOffsets,
        coordinators: tuple[
            GroupCoordinator,
            ConsumerGroupCoordinator,
            ShareGroupCoordinator,
            StreamsGroupCoordinator,
        ],
        partition_of: Callable[[str], int],
        subscribed_topics: Callable[[str], Collection[str] | None],
        is_known: Callable[[TopicPartition], bool],
        on_ended: OnEnded | None = None,
    ) -> None:
        self._offsets = offsets
        self._classic, self._consumers, self._shares, self._streams = coordinators
        self._partition_of = partition_of
        self._subscribed_topics = subscribed_topics
        self._is_known = is_known
        self._on_ended = on_ended

    def commit(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        offsets: Mapping[TopicPartition, CommittedOffset],
        respond: Callable[[Mapping[TopicPartition, ErrorCode]], object],
        knows_epochs: bool = True,
    ) -> None:
        """Commit offsets.

        Args:
            generation, member_id, instance_id: as in the request; ``generation`` is the member
                epoch in a consumer group. A client outside of the group has -1, "" and None.
            respond: takes the error code of each offset, once all are replicated; never called if
                this broker is killed meanwhile.
            knows_epochs: whether the request is of a version that has member epochs; otherwise
                members of the consumer protocol are refused.
        """
        known, respond = self._known(offsets, respond)
        try:
            partition = self._partition_of(group_id) if known else 0
            if known:
                self.check_commit(group_id, generation, member_id, instance_id, known, knows_epochs)
        except GroupRefusal as refusal:
            respond(dict.fromkeys(known, refusal.code))
            return
        commit = partial(self._offsets.commit, partition, group_id)
        self._commit_valid(known, commit, respond)

    def commit_in_transaction(
        self,
        group_id: str,
        producer: ProducerIdentity,
        generation: int,
        member_id: str,
        instance_id: str | None,
        offsets: Mapping[TopicPartition, CommittedOffset],
        respond: Callable[[Mapping[TopicPartition, ErrorCode]], object],
    ) -> None:
        """Commit offsets that hold once a producer's transaction is committed; otherwise as
        ``commit``.

        Args:
            producer: the producer of the transaction.
            generation, member_id, instance_id: the consumer whose records it transforms; -1, "" and
                None: the producer doesn't know it.
        """
        known, respond = self._known(offsets, respond)
        try:
            partition = self._partition_of(group_id) if known else 0
            if known:
                self.check_commit(
                    group_id, generation, member_id, instance_id, known, in_transaction=True
                )
        except GroupRefusal as refusal:
            # Producers know no member epochs, as in Kafka.
            is_stale = refusal.code is ErrorCode.STALE_MEMBER_EPOCH
            code = ErrorCode.ILLEGAL_GENERATION if is_stale else refusal.code
            respond(dict.fromkeys(known, code))
            return
        commit = partial(self._offsets.commit_in_transaction, partition, group_id, producer)
        self._commit_valid(known, commit, respond)

    def check_commit(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        topic_partitions: Collection[TopicPartition],
        knows_epochs: bool = True,
        in_transaction: bool = False,
    ) -> None:
        """As `GroupCoordinator.check_commit`; in a consumer group by the member's epoch, and by
        those in which it got the partitions.

        Raises:
            GroupRefusal: the commit is refused.
        """
        if group_id in self._shares.groups:
            raise GroupRefusal(ErrorCode.GROUP_ID_NOT_FOUND)
        coordinator = self._committing(group_id)
        if coordinator is not None:
            self._classic.check_coordinated(group_id)
            if not in_transaction or generation >= 0 or member_id or instance_id is not None:
                coordinator.check_commit(
                    group_id,
                    member_id,
                    generation,
                    knows_epochs or in_transaction,
                    topic_partitions,
                )
            return
        if (
            generation >= 0
            and group_id not in self._classic.groups
            and self._offsets.has_group(self._partition_of(group_id), group_id)
        ):
            # The group never had a member.
            self._classic.check_coordinated(group_id)
            raise GroupRefusal(ErrorCode.UNKNOWN_MEMBER_ID)
        self._classic.check_commit(
            group_id, generation, member_id, instance_id, knows_epochs, in_transaction
        )

    def _committing(
        self, group_id: str
    ) -> ConsumerGroupCoordinator | StreamsGroupCoordinator | None:
        """Return the coordinator of a group whose members commit by their epochs, or None."""
        for coordinator in (self._consumers, self._streams):
            if group_id in coordinator.groups:
                return coordinator
        return None

    def _known(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset],
        respond: Callable[[Mapping[TopicPartition, ErrorCode]], object],
    ) -> tuple[
        Mapping[TopicPartition, CommittedOffset],
        Callable[[Mapping[TopicPartition, ErrorCode]], object],
    ]:
        """Return the offsets of known partitions, and a callback for their codes: as in Kafka,
        the group is not asked for others."""
        known = {place: one for place, one in offsets.items() if self._is_known(place)}
        if len(known) == len(offsets):
            return offsets, respond
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return known, lambda codes: respond({**dict.fromkeys(offsets, code), **codes})

    def _commit_valid(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset],
        commit: Callable[[Mapping[TopicPartition, CommittedOffset], Respond], object],
        respond: Callable[[Mapping[TopicPartition, ErrorCode]], object],
    ) -> None:
        codes = {topic_partition: _refusal(offset) for topic_partition, offset in offsets.items()}
        valid = {
            topic_partition: offset
            for topic_partition, offset in offsets.items()
            if not codes[topic_partition]
        }
        if valid:
            commit(valid, lambda code: respond({**codes, **dict.fromkeys(valid, code)}))
        else:
            respond(codes)

    def end_transaction(self, partition: int, producer_id: int, result: TransactionResult) -> None:
        """Commit or abort the offsets of a producer's transaction.

        Args:
            partition: the partition of the offsets topic that has its marker.
            producer_id: the producer.
            result: whether it was committed.
        """
        pending = self._offsets.pending_offsets(partition, producer_id) if self._on_ended else []
        self._offsets.end_transaction(partition, producer_id, result)
        for key, offset in pending:
            if self._on_ended is not None and offset is not None:
                is_current = (
                    self._offsets.group_offsets(key.group_id).get(key.topic_partition) is offset
                )
                self._on_ended(producer_id, key, offset, is_current)

    def pending(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions of a group that have offsets in an open transaction.

        Raises:
            GroupRefusal: another broker coordinates the group.
        """
        return self._offsets.pending(self._partition_of(group_id), group_id)

    def committed(
        self, group_id: str, member_id: str = "", epoch: int = -1
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Return a group's committed offsets.

        Args:
            member_id, epoch: those of the requesting member of a consumer group.

        Raises:
            GroupRefusal: another broker coordinates the group, this one is still loading it, or the
                member is not at this epoch.
        """
        self._offsets.check_committed(self._partition_of(group_id))
        coordinator = self._committing(group_id)
        if coordinator is not None:
            coordinator.check_fetch(group_id, member_id, epoch)
        return self._offsets.group_offsets(group_id)

    def delete_offsets(
        self,
        group_id: str,
        topic_partitions: Collection[TopicPartition],
        respond: Callable[[ErrorCode, Mapping[TopicPartition, ErrorCode]], object],
    ) -> None:
        """Delete committed offsets of a group.

        Args:
            topic_partitions: the partitions.
            respond: takes the error of the whole request, or the error code of each partition.
        """
        try:
            check_group_id(group_id)
            topics = self._subscribed_topics(group_id)
        except GroupRefusal as refusal:
            respond(refusal.code, {})
            return

        def deleted(code: ErrorCode) -> None:
            respond(ErrorCode.NONE, {**codes, **dict.fromkeys(valid, code)})

        codes = {
            topic_partition: self._delete_error(topic_partition, topics)
            for topic_partition in topic_partitions
        }
        valid = [
            topic_partition for topic_partition, code in codes.items() if code is ErrorCode.NONE
        ]
        self._offsets.delete_some(
            self._partition_of(group_id),
            group_id,
            valid,
            deleted,
        )

    def _delete_error(
        self, topic_partition: TopicPartition, subscribed: Collection[str] | None
    ) -> ErrorCode:
        if not self._is_known(topic_partition):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if subscribed is None or topic_partition.topic in subscribed:
            return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        return ErrorCode.NONE


def _refusal(offset: CommittedOffset) -> ErrorCode:
    if len(offset.metadata.encode()) > _MAX_METADATA_BYTES:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE
