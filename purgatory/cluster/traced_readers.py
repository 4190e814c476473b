"""The readers in a trace: groups of clients, readings, and deliveries of share groups.

A fetch has a client id and no group. Its group is the one with a member of that client id, by the
requests of members; with several such groups, it is unknown.

A reading is a stretch in which one connection reads a partition without a reason to go back.
Another one begins when the client may have missed something (an error, a lost response), when its
group may have assigned partitions again, and when another connection has read the partition since.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from purgatory.cluster.protocol.wire import milliseconds
from purgatory.kafka import RecordBatch, TopicPartition
from purgatory.kafka.share_groups.in_flight_records import AcquiredRecords
from purgatory.kafka.share_groups.share_state import AcknowledgeType
from purgatory.trace.table_rows import ReadRow

if TYPE_CHECKING:
    from purgatory.cluster.protocol.wire import Request

_HEARTBEAT, _JOIN, _LEAVE, _SYNC = 12, 11, 13, 14
_CONSUMER_HEARTBEAT, _SHARE_HEARTBEAT = 68, 76
GROUP_APIS = frozenset({_HEARTBEAT, _JOIN, _LEAVE, _SYNC, _CONSUMER_HEARTBEAT, _SHARE_HEARTBEAT})
"""The requests that show the members of a group."""
_LEAVE_EPOCH = -1
_LEAVES_BY_LIST = 3
_SESSION_US = 45_000_000
"""The session timeout of members whose requests have none."""

_ACKNOWLEDGED: Mapping[AcknowledgeType, str] = {
    AcknowledgeType.ACCEPT: "accept",
    AcknowledgeType.RELEASE: "release",
    AcknowledgeType.REJECT: "reject",
}


@dataclass(slots=True)
class _Member:
    client: str
    seen_us: int
    session_us: int
    epoch: int = 0


@dataclass(slots=True)
class _Group:
    members: dict[str, _Member] = field(default_factory=dict)
    restarts: int = 0
    """The number of restarts without members."""
    was_emptied: bool = False
    session_us: int = _SESSION_US


@dataclass(slots=True)
class _Reading:
    number: int
    key: tuple[int, int]
    """The number of assignments and errors before the reading."""


@dataclass(slots=True)
class _Reader:
    """A connection that fetches."""

    errors: int = 0
    readings: dict[TopicPartition, _Reading] = field(default_factory=dict)


class TracedReaders:
    """The groups of clients, and their numbered readings."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._assignments: dict[str, tuple[int, int]] = {}
        """By client id: the number of assignments, and the time of the last one."""
        self._group_of: dict[str, tuple[str, int] | tuple[None, None]] = {}
        """The results of `group_of` since a member came or went."""
        self._readers: dict[int, _Reader] = {}
        self._last_reader: dict[tuple[str, TopicPartition], int] = {}
        self._readings = 0

    # Groups.

    def observe(self, request: Request, now_us: int) -> None:
        """Record a request of `GROUP_APIS`. O(1); O(members) if one comes or goes.

        Args:
            request: a request with a response.
            now_us: its time.
        """
        body, client, api_key = request.body, request.client_id or "", request.api_key
        group = self._groups.setdefault(body.group_id or "", _Group())
        if api_key == _JOIN:
            group.session_us = milliseconds(body.session_timeout) * 1_000
            self._assigned(client, now_us)
        elif api_key == _LEAVE:
            for leaving in body.members if request.api_version >= _LEAVES_BY_LIST else (body,):
                self._leave(group, leaving.member_id)
            self._assigned(client, now_us)
        elif api_key in (_SYNC, _HEARTBEAT):
            if api_key == _SYNC:
                self._assigned(client, now_us)
            self._see(group, body.member_id, _Member(client, now_us, group.session_us))
        else:
            self._observe_epochs(group, body, client, now_us)

    def _observe_epochs(self, group: _Group, body: Any, client: str, now_us: int) -> None:
        """Record a heartbeat of KIP-848 or KIP-932."""
        epoch = body.member_epoch
        known = group.members.get(body.member_id)
        owned = getattr(body, "topic_partitions", None)
        if known is None or known.epoch != epoch or owned is not None:
            self._assigned(client, now_us)
        if epoch <= _LEAVE_EPOCH:
            self._leave(group, body.member_id)
        elif body.member_id:
            self._see(group, body.member_id, _Member(client, now_us, _SESSION_US, epoch))

    def _see(self, group: _Group, member_id: str, member: _Member) -> None:
        if member_id not in group.members:
            gone = [
                key
                for key, other in group.members.items()
                if other.seen_us + other.session_us < member.seen_us
            ]
            for key in gone:
                self._leave(group, key)
            if not group.members and group.was_emptied:
                group.restarts += 1
                group.was_emptied = False
            self._group_of.clear()
        group.members[member_id] = member

    def _leave(self, group: _Group, member_id: str) -> None:
        if group.members.pop(member_id, None) is not None:
            group.was_emptied = not group.members
            self._group_of.clear()

    def _assigned(self, client: str, now_us: int) -> None:
        self._assignments[client] = self._assignments.get(client, (0, 0))[0] + 1, now_us

    def group_of(self, client: str) -> tuple[str, int] | tuple[None, None]:
        """Return the group of a client, and its number of restarts. O(1) mostly."""
        found = self._group_of.get(client)
        if found is None:
            groups = [
                (group_id, group.restarts)
                for group_id, group in self._groups.items()
                if any(member.client == client for member in group.members.values())
            ]
            found = self._group_of[client] = groups[0] if len(groups) == 1 else (None, None)
        return found

    def restarts(self, group_id: str) -> int:
        """Return a group's number of restarts."""
        group = self._groups.get(group_id)
        return 0 if group is None else group.restarts

    # Readings.

    def reading(
        self, connection: int, client: str, partition: TopicPartition, received_us: int | None
    ) -> int:
        """Return the number of a connection's present reading of a partition. O(1).

        Args:
            connection: the fetching connection.
            client: its client id.
            partition: the fetched partition.
            received_us: the time of the fetch, None: now. A fetch from before an assignment belongs
                to the reading before it.
        """
        reader = self._readers.setdefault(connection, _Reader())
        assignments, assigned_us = self._assignments.get(client, (0, 0))
        key = assignments, reader.errors
        reading = reader.readings.get(partition)
        last = self._last_reader.get((client, partition))
        if reading is not None and (
            (reading.key == key and last == connection)
            or (received_us is not None and received_us < assigned_us)
        ):
            return reading.number
        self._readings += 1
        reader.readings[partition] = _Reading(self._readings, key)
        self._last_reader[client, partition] = connection
        return self._readings

    def on_error(self, connection: int) -> None:
        """Begin new readings: the client did not get everything."""
        self._readers.setdefault(connection, _Reader()).errors += 1

    def on_partition_error(self, connection: int, partition: TopicPartition) -> None:
        """Begin a new reading of one partition."""
        self._readers.setdefault(connection, _Reader()).readings.pop(partition, None)

    def on_close(self, connection: int) -> None:
        """Forget a connection."""
        self._readers.pop(connection, None)


class SharedReads:
    """The deliveries of share groups: each is written once its outcome is known.

    Args:
        write: writes a row.
    """

    def __init__(self, write: Callable[[ReadRow], object]) -> None:
        self._write = write
        self._open: dict[tuple[str, TopicPartition, int], ReadRow] = {}

    def deliver(self, row: ReadRow) -> None:
        """Record a delivery; an earlier one of the same record had no acknowledgement."""
        key = row.consumer_group or "", TopicPartition(row.topic, row.partition), row.offset
        before = self._open.pop(key, None)
        if before is not None:
            self._write(before)
        self._open[key] = row

    def acknowledge(
        self,
        group_id: str,
        partition: TopicPartition,
        ranges: Iterable[tuple[int, int, AcknowledgeType]],
    ) -> None:
        """Record acknowledgements of deliveries. O(records)."""
        for first, last, kind in ranges:
            name = _ACKNOWLEDGED.get(kind)
            if name is None:
                continue
            for offset in range(first, last + 1):
                row = self._open.pop((group_id, partition, offset), None)
                if row is not None:
                    self._write(row._replace(acknowledged=name))

    def open_rows(self) -> list[ReadRow]:
        """Return the deliveries without an acknowledgement."""
        return list(self._open.values())

    def close(self) -> None:
        """Write the deliveries without an acknowledgement."""
        for row in self._open.values():
            self._write(row)
        self._open.clear()


@dataclass(frozen=True, slots=True)
class SharedRecords:
    """The records of one partition that a share fetch acquired."""

    batches: Sequence[RecordBatch]
    acquired: Sequence[AcquiredRecords]

    def delivery_of(self, offset: int) -> int | None:
        """Return the delivery count of a record; None: not acquired. O(ranges)."""
        for one in self.acquired:
            if one.first <= offset <= one.last:
                return one.delivery_count
        return None
