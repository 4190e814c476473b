"""Members of groups of each type, by bare requests: they read the topic, and commit.

A member has two clients, as real ones have two connections: one for its coordinator, and one for
fetches, which may wait.
"""

from __future__ import annotations

import asyncio
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from purgatory.kafka.errors import ErrorCode
from tests.world.reading import fetch
from tests.world.wire_client import (
    CONSUMER_HEARTBEAT,
    GROUP,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SHARE_FETCH,
    SHARE_HEARTBEAT,
    STREAMS_HEARTBEAT,
    SYNC_GROUP,
    NoAnswerError,
    WireClient,
)
from tests.world.wiretap import read_assignment

TOPIC, GROUP_ID = "data", "readers"
SESSION_S, REBALANCE_S, HEARTBEAT_S = 10.0, 20.0, 2.5
_AGAIN_S = 0.3
_INSTANCES_LEAST = {JOIN_GROUP: 5, SYNC_GROUP: 3, HEARTBEAT: 3, LEAVE_GROUP: 3, OFFSET_COMMIT: 7}
"""The oldest versions with static members."""
_EPOCHS_LEAST = 9
"""The oldest version of OffsetCommit and OffsetFetch with member epochs."""
_LEAVE_EPOCH = -1


class WireMember(ABC):
    """One member, or a reader without a group.

    Args:
        client: for its coordinator.
        fetcher: for fetches.
    """

    def __init__(self, client: WireClient, fetcher: WireClient) -> None:
        self.client = client
        self.fetcher = fetcher
        self.consumed = 0
        self.member_id = ""
        self._silent_until_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._lock = asyncio.Lock()
        """Held while its place in the group changes or is used."""

    def start(self) -> None:
        """Begin to read."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run(one)) for one in (self._stay, self._read)]

    async def stop(self, leaves: bool) -> None:
        """End, with a farewell or without one."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if leaves and self.member_id:
            for _ in range(3):
                try:
                    await self._leave()
                    break
                except NoAnswerError:
                    await asyncio.sleep(_AGAIN_S)
        self.client.cut()
        self.fetcher.cut()

    def be_silent(self, for_s: float) -> None:
        """Do nothing for so many seconds, as a process that stands still."""
        self._silent_until_s = asyncio.get_running_loop().time() + for_s

    async def _run(self, step: Any) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if (left_s := self._silent_until_s - loop.time()) > 0:
                await asyncio.sleep(left_s)
            try:
                await step()
            except NoAnswerError:
                self.client.forget()
                self.fetcher.forget()
                await asyncio.sleep(_AGAIN_S)

    @abstractmethod
    async def _stay(self) -> None:
        """Join, or send a heartbeat, and wait for the next one."""

    @abstractmethod
    async def _read(self) -> None:
        """Read once, and commit."""

    async def _leave(self) -> None:
        """Leave the group; a reader without one has nothing to do."""
        return

    async def _ask(self, api_key: int, values: Mapping[str, Any], least: int = 0) -> Any:
        answer = await self.client.ask_coordinator(GROUP_ID, GROUP, api_key, values, least)
        if getattr(answer, "error_code", 0) in _ELSEWHERE:
            self.client.forget_coordinator(GROUP_ID, GROUP)
            await asyncio.sleep(_AGAIN_S)
        return answer


_ELSEWHERE = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


class PositionedMember(WireMember):
    """A member that reads partitions from positions on; by itself, a reader without a group."""

    def __init__(self, client: WireClient, fetcher: WireClient) -> None:
        super().__init__(client, fetcher)
        self.positions: dict[int, int] = {}

    async def _stay(self) -> None:
        for number in range((await self.client.refresh([TOPIC])).get(TOPIC, 0)):
            self.positions.setdefault(number, 0)
        await asyncio.sleep(5)

    async def _read(self) -> None:
        if not self.positions:
            await asyncio.sleep(_AGAIN_S)
            return
        asked = self.positions
        found = await fetch(self.fetcher, TOPIC, asked)
        if self.positions is not asked:
            return  # it has other partitions now
        moved = False
        for number, fetched in found.items():
            if fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                asked[number] = 0  # of a topic that was made anew
            moved |= fetched.next_offset > asked[number]
            asked[number] = max(asked[number], fetched.next_offset)
            self.consumed += len(fetched.records)
        if any(fetched.error for fetched in found.values()):
            await asyncio.sleep(_AGAIN_S)
            await self.fetcher.refresh([TOPIC])
        if moved:
            async with self._lock:
                if self.positions is asked:
                    await self._commit(asked)

    async def _commit(self, positions: Mapping[int, int]) -> None:
        """Commit positions; a reader without a group has nowhere to."""

    async def _commit_as(
        self, generation: int, positions: Mapping[int, int], least: int, instance: str | None = None
    ) -> None:
        partitions = [
            {"partition_index": number, "committed_offset": offset}
            for number, offset in positions.items()
        ]
        topic_id = self.fetcher.topic_ids.get(TOPIC)
        await self._ask(
            OFFSET_COMMIT,
            {
                "group_id": GROUP_ID,
                "generation_id_or_member_epoch": generation,
                "member_id": self.member_id,
                "group_instance_id": instance,
                "topics": [{"name": TOPIC, "topic_id": topic_id, "partitions": partitions}],
            },
            least,
        )

    async def _committed(
        self, numbers: list[int], epoch: int | None, least: int = 0
    ) -> dict[int, int]:
        """Return the committed offsets, or 0."""
        if not numbers:
            return {}
        await self.client.refresh([TOPIC])
        topic = {
            "name": TOPIC,
            "topic_id": self.client.topic_ids.get(TOPIC),
            "partition_indexes": numbers,
        }
        group: dict[str, Any] = {"group_id": GROUP_ID, "topics": [topic]}
        group["member_id"] = None if epoch is None else self.member_id
        group["member_epoch"] = -1 if epoch is None else epoch
        asked = {"groups": [group], "group_id": GROUP_ID, "topics": [topic]}
        answer = await self._ask(OFFSET_FETCH, asked, least)
        of_group = answer.groups[0] if hasattr(answer, "groups") else answer
        offsets = dict.fromkeys(numbers, 0)
        for of_topic in of_group.topics:
            for one in of_topic.partitions:
                if one.error_code in _ELSEWHERE:
                    self.client.forget_coordinator(GROUP_ID, GROUP)
                if one.error_code:
                    raise NoAnswerError(f"no offset of {one}")
                offsets[one.partition_index] = max(0, one.committed_offset)
        if getattr(of_group, "error_code", 0):
            self.client.forget_coordinator(GROUP_ID, GROUP)
            raise NoAnswerError(f"no offsets: {of_group.error_code}")
        return offsets


class ClassicMember(PositionedMember):
    """A member of the classic protocol.

    Args:
        instance_id: of a static member.
    """

    def __init__(
        self, client: WireClient, fetcher: WireClient, instance_id: str | None = None
    ) -> None:
        super().__init__(client, fetcher)
        self._instance_id = instance_id
        self._generation = -1
        self._known_partitions = 0
        self._leads = False

    def _least(self, api_key: int) -> int:
        return _INSTANCES_LEAST.get(api_key, 0) if self._instance_id else 0

    @property
    def _member(self) -> dict[str, Any]:
        return {
            "group_id": GROUP_ID,
            "member_id": self.member_id,
            "group_instance_id": self._instance_id,
            "generation_id": self._generation,
        }

    async def _stay(self) -> None:
        if self._generation < 0:
            async with self._lock:
                await self._join()
            return
        await asyncio.sleep(HEARTBEAT_S)
        async with self._lock:
            answer = await self._ask(HEARTBEAT, self._member, self._least(HEARTBEAT))
            self._react(answer.error_code)
        if self._leads and self._generation >= 0:
            count = (await self.client.refresh([TOPIC])).get(TOPIC, 0)
            if count not in (0, self._known_partitions):
                self._generation = -1

    def _react(self, code: int) -> bool:
        """Change its place after an error; return whether there was none."""
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id = ""
        if code not in (ErrorCode.NONE, *_ELSEWHERE):
            self._generation = -1
            if code != ErrorCode.REBALANCE_IN_PROGRESS:
                self.positions = {}
        return code == ErrorCode.NONE

    async def _join(self) -> None:
        topic = TOPIC.encode()
        subscription = struct.pack(f">hih{len(topic)}si", 0, 1, len(topic), topic, 0)
        asked = {
            **self._member,
            "session_timeout": timedelta(seconds=SESSION_S),
            "rebalance_timeout": timedelta(seconds=REBALANCE_S),
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": subscription}],
        }
        joined = await self._ask(JOIN_GROUP, asked, self._least(JOIN_GROUP))
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            return
        if not self._react(joined.error_code):
            await asyncio.sleep(_AGAIN_S)
            return
        self.member_id = joined.member_id
        self._leads = joined.leader == joined.member_id
        self._generation = joined.generation_id
        assignments = []
        if self._leads:
            members = sorted(one.member_id for one in joined.members)
            self._known_partitions = (await self.client.refresh([TOPIC])).get(TOPIC, 0)
            assignments = _ranges(members, self._known_partitions)
        sync = {
            **self._member,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": assignments,
        }
        synced = await self._ask(SYNC_GROUP, sync, self._least(SYNC_GROUP))
        if synced.error_code in _ELSEWHERE:
            self._generation = -1
        if self._react(synced.error_code):
            numbers = [number for _, number in read_assignment(synced.assignment)]
            try:
                self.positions = await self._committed(numbers, None)
            except NoAnswerError:
                self._generation = -1
                raise

    async def _commit(self, positions: Mapping[int, int]) -> None:
        if self._generation >= 0:
            least = self._least(OFFSET_COMMIT)
            await self._commit_as(self._generation, positions, least, self._instance_id)

    async def _leave(self) -> None:
        one = {"member_id": self.member_id, "group_instance_id": self._instance_id}
        asked = {**self._member, "members": [one]}
        await self._ask(LEAVE_GROUP, asked, self._least(LEAVE_GROUP))


def _ranges(members: list[str], count: int) -> list[dict[str, Any]]:
    """Assign the partitions of the topic in ranges."""
    assignments = []
    for place, member in enumerate(members):
        numbers = [one for one in range(count) if one * len(members) // count == place]
        topic = TOPIC.encode()
        name = struct.pack(f">h{len(topic)}s", len(topic), topic)
        parts = struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
        data = struct.pack(">hi", 0, 1) + name + parts + struct.pack(">i", 0)
        assignments.append({"member_id": member, "assignment": data})
    return assignments


class ConsumerMember(PositionedMember):
    """A member of the consumer protocol."""

    def __init__(self, client: WireClient, fetcher: WireClient) -> None:
        super().__init__(client, fetcher)
        self._epoch = 0
        self._topic_id: UUID | None = None
        self._is_heard = True

    async def _stay(self) -> None:
        async with self._lock:
            await self._heartbeat()
        await asyncio.sleep(HEARTBEAT_S)

    async def _heartbeat(self) -> None:
        # A member tells everything again, as Java's does, if its last heartbeat had no answer or it
        # didn't take its last assignment: else the coordinator fences an epoch before the one that
        # it never learned, or waits for partitions that it doesn't have any more.
        joins, tells = self._epoch == 0, not self._is_heard
        if joins and not self.member_id and self.client.version(CONSUMER_HEARTBEAT) > 0:
            self.member_id = f"member of {self.client.client_id}"
        if joins:
            self.positions, self._topic_id = {}, None
        asked: dict[str, Any] = {
            "group_id": GROUP_ID,
            "member_id": self.member_id,
            "member_epoch": self._epoch,
            "rebalance_timeout": timedelta(seconds=REBALANCE_S) if joins or tells else _UNCHANGED,
            "subscribed_topic_names": [TOPIC] if joins or tells else None,
            "topic_partitions": self._owned() if joins or tells else None,
        }
        self._is_heard = False
        answer = await self._ask(CONSUMER_HEARTBEAT, asked)
        if answer.error_code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self._epoch, self.positions = 0, {}
        if answer.error_code != ErrorCode.NONE:
            return
        self.member_id, self._epoch = answer.member_id, answer.member_epoch
        if answer.assignment is None or await self._takes(answer.assignment):
            self._is_heard = True
        else:
            await self._heartbeat()

    def _owned(self) -> list[dict[str, Any]]:
        if not self.positions or self._topic_id is None:
            return []
        return [{"topic_id": self._topic_id, "partitions": list(self.positions)}]

    async def _takes(self, assignment: Any) -> bool:
        """Take the partitions of an assignment; return whether it had them already."""
        assigned = {
            (topic.topic_id, number)
            for topic in assignment.topic_partitions
            for number in topic.partitions
        }
        topic_id = next(iter(assigned))[0] if assigned else None
        numbers = sorted(number for _, number in assigned)
        if topic_id == self._topic_id and numbers == sorted(self.positions):
            return True
        kept = self.positions if topic_id == self._topic_id else {}
        gained = [number for number in numbers if number not in kept]
        offsets = await self._committed(gained, self._epoch, _EPOCHS_LEAST)
        self._topic_id = topic_id
        self.positions = {number: kept.get(number, offsets.get(number, 0)) for number in numbers}
        return False

    async def _commit(self, positions: Mapping[int, int]) -> None:
        if self._epoch > 0:
            await self._commit_as(self._epoch, positions, _EPOCHS_LEAST)

    async def _leave(self) -> None:
        asked = {"group_id": GROUP_ID, "member_id": self.member_id, "member_epoch": _LEAVE_EPOCH}
        await self._ask(CONSUMER_HEARTBEAT, {**asked, "rebalance_timeout": _UNCHANGED})


_UNCHANGED = timedelta(milliseconds=-1)


class StreamsMember(PositionedMember):
    """A member of a streams group, whose topology has no state: tasks are partitions.

    After a heartbeat without an answer it joins again, since an assignment is told once.
    """

    def __init__(self, client: WireClient, fetcher: WireClient) -> None:
        super().__init__(client, fetcher)
        self.member_id = f"member of {client.client_id}"
        self._epoch = 0
        self._topic_id: UUID | None = None
        self._owned: list[int] = []

    async def _stay(self) -> None:
        async with self._lock:
            await self._heartbeat()
        await asyncio.sleep(HEARTBEAT_S)

    async def _heartbeat(self) -> None:
        joins = self._epoch == 0
        if joins:
            self.positions, self._owned = {}, []
        subtopology = {
            "subtopology_id": "0",
            "source_topics": [TOPIC],
            "state_changelog_topics": [],
            "repartition_source_topics": [],
            "copartition_groups": [],
        }
        owned = [{"subtopology_id": "0", "partitions": self._owned}] if self._owned else []
        asked: dict[str, Any] = {
            "group_id": GROUP_ID,
            "member_id": self.member_id,
            "member_epoch": self._epoch,
            "endpoint_information_epoch": 0,
            "rebalance_timeout": timedelta(seconds=REBALANCE_S) if joins else _UNCHANGED,
            "topology": {"epoch": 0, "subtopologies": [subtopology]} if joins else None,
            "process_id": self.member_id if joins else None,
            **{f"{kind}_tasks": owned if kind == "active" else [] for kind in _TASK_KINDS},
        }
        self._epoch = 0
        answer = await self._ask(STREAMS_HEARTBEAT, asked)
        if answer.error_code != ErrorCode.NONE:
            self.positions, self._owned = {}, []
            return
        self._epoch = answer.member_epoch
        if answer.active_tasks is not None:
            self._owned = sorted(n for one in answer.active_tasks for n in one.partitions)
        if await self._takes():
            await self._heartbeat()

    async def _takes(self) -> bool:
        """Take the tasks; return whether it had others, of which the coordinator is told."""
        await self.client.refresh([TOPIC])
        topic_id = self.client.topic_ids.get(TOPIC)
        kept = self.positions if topic_id == self._topic_id else {}
        if kept is self.positions and sorted(kept) == self._owned:
            return False
        gained = [number for number in self._owned if number not in kept]
        offsets = await self._committed(gained, self._epoch, _EPOCHS_LEAST)
        self._topic_id = topic_id
        self.positions = {
            number: kept.get(number, offsets.get(number, 0)) for number in self._owned
        }
        return True

    async def _commit(self, positions: Mapping[int, int]) -> None:
        if self._epoch > 0:
            await self._commit_as(self._epoch, positions, _EPOCHS_LEAST)

    async def _leave(self) -> None:
        asked: dict[str, Any] = {
            "group_id": GROUP_ID,
            "member_id": self.member_id,
            "member_epoch": _LEAVE_EPOCH,
            "endpoint_information_epoch": 0,
            "rebalance_timeout": _UNCHANGED,
            **{f"{kind}_tasks": None for kind in _TASK_KINDS},
        }
        await self._ask(STREAMS_HEARTBEAT, asked)


_TASK_KINDS = ("active", "standby", "warmup")


class ShareMember(WireMember):
    """A member of a share group: it accepts each record."""

    def __init__(self, client: WireClient, fetcher: WireClient) -> None:
        super().__init__(client, fetcher)
        self.member_id = f"member of {client.client_id}"
        self._epoch = 0
        self._is_heard = True
        self._assigned: dict[UUID, list[int]] = {}
        self._sessions: dict[int, int] = {}
        self._asked: dict[int, list[tuple[UUID, int]]] = {}
        self._accepted: dict[tuple[UUID, int], list[tuple[int, int]]] = {}

    async def _stay(self) -> None:
        tells = self._epoch == 0 or not self._is_heard
        asked = {
            "group_id": GROUP_ID,
            "member_id": self.member_id,
            "member_epoch": self._epoch,
            "subscribed_topic_names": [TOPIC] if tells else None,
        }
        self._is_heard = False
        answer = await self._ask(SHARE_HEARTBEAT, asked)
        if answer.error_code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self._epoch = 0
        if answer.error_code == ErrorCode.NONE:
            self._is_heard, self._epoch = True, answer.member_epoch
            if answer.assignment is not None:
                self._assigned = {
                    topic.topic_id: sorted(topic.partitions)
                    for topic in answer.assignment.topic_partitions
                }
        await asyncio.sleep(HEARTBEAT_S)

    async def _read(self) -> None:
        by_leader: dict[int, list[tuple[UUID, int]]] = {}
        await self.fetcher.refresh([TOPIC])
        for topic_id, numbers in self._assigned.items():
            if topic_id == self.fetcher.topic_ids.get(TOPIC):
                for number in numbers:
                    leader = await self.fetcher.leader(TOPIC, number)
                    by_leader.setdefault(leader, []).append((topic_id, number))
        if not by_leader:
            await asyncio.sleep(1)
        for leader, partitions in by_leader.items():
            await self._fetch(leader, partitions, 1_000 // len(by_leader))

    async def _fetch(self, leader: int, partitions: list[tuple[UUID, int]], wait_ms: int) -> None:
        # With other partitions, a session begins anew: the former ones would still be delivered.
        epoch = self._sessions.get(leader, 0) if self._asked.get(leader) == partitions else 0
        self._asked[leader] = partitions
        topics: dict[UUID, list[dict[str, Any]]] = {}
        for topic_id, number in partitions:
            accepted = self._accepted.pop((topic_id, number), [])
            if epoch == 0:  # those of a former session: they are delivered again
                accepted = []
            batches = [
                {"first_offset": first, "last_offset": last, "acknowledge_types": [1]}
                for first, last in accepted
            ]
            one = {"partition_index": number, "acknowledgement_batches": batches}
            topics.setdefault(topic_id, []).append(one)
        asked = {
            "group_id": GROUP_ID,
            "member_id": self.member_id,
            "share_session_epoch": epoch,
            "max_wait": timedelta(milliseconds=wait_ms),
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "topics": [{"topic_id": of, "partitions": ones} for of, ones in topics.items()],
        }
        try:
            answer = await self.fetcher.ask(leader, SHARE_FETCH, asked)
        except NoAnswerError:
            self._sessions.pop(leader, None)
            raise
        if answer.error_code != ErrorCode.NONE:
            self._sessions.pop(leader, None)
            self.fetcher.forget()
            await asyncio.sleep(_AGAIN_S)
            return
        self._sessions[leader] = epoch + 1
        for topic in answer.responses:
            for one in topic.partitions:
                if one.error_code != ErrorCode.NONE:
                    self.fetcher.forget()
                    await asyncio.sleep(_AGAIN_S)
                for acquired in one.acquired_records:
                    batch = (acquired.first_offset, acquired.last_offset)
                    self._accepted.setdefault((topic.topic_id, one.partition_index), []).append(
                        batch
                    )
                    self.consumed += batch[1] - batch[0] + 1

    async def _leave(self) -> None:
        asked = {"group_id": GROUP_ID, "member_id": self.member_id, "member_epoch": _LEAVE_EPOCH}
        await self._ask(SHARE_HEARTBEAT, asked)
