"""Random sequences of requests, of one seed each, as programs.

A sequence mixes up to five kinds of requests over several connections. It decides by the seed and
by what it was answered, so that it goes alike at two clusters whose answers are equal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any
from uuid import UUID

from tests.recorded.batches import batch
from tests.recorded.bodies import (
    add_partitions_body,
    commit_body,
    end_body,
    fetch_body,
    heartbeat_body,
    init_body,
    join_body,
    leave_body,
    list_offsets_body,
    offset_fetch_body,
    produce_body,
    sync_body,
    transactional_batch,
    txn_commit_body,
)
from tests.recorded.codec import Message
from tests.recorded.recorder import TRANSACTION, Coordinator, Leader, Place, Program, Recorder

REQUESTS = 60
MOST_KINDS = 5
_CONNECTIONS = ("one", "two", "three")
_PARTITIONS = 2
_REPLICATED_S = 0.3
_YEAR_2014_MS = 1_400_000_000_000
_READ_MS, _READ_AFTER_DEATHS_MS = 400, 2_000
"""How long leaders take at most to read the state of a share group."""


class _Kind:
    """The acts of all kinds.

    Args:
        recorder: of the program.
        random: by its seed.
        number: what tells its names from other kinds'.
        kills: whether brokers are killed: topics have three replicas, and timeouts are long.
    """

    def __init__(self, recorder: Recorder, random: Random, number: str, kills: bool) -> None:
        self.recorder = recorder
        self.random = random
        self.number = number
        self.kills = kills
        self.replicas = 3 if kills else 1
        self._asked = 0

    async def start(self) -> None:
        """Make what the requests need."""
        raise NotImplementedError

    async def act(self) -> None:
        """Send a request, or a few that belong together."""
        raise NotImplementedError

    async def end(self) -> None:
        """Mend what others would notice."""

    def choose(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    async def ask(self, api: str, version: int, body: Message, to: Place = None) -> Any:
        self._asked += 1
        name = f"{type(self).__name__.strip('_')} {self._asked}"
        client_id = self.choose(*_CONNECTIONS)
        return await self.recorder.ask(api, version, name, body, to, client_id)


class _Data(_Kind):
    """Records that are produced, fetched and deleted, in a topic that is made anew at times."""

    topic = ""
    made = 0

    async def start(self) -> None:
        self.made += 1
        start = f"q{self.number}-{self.made}"
        configs = {"retention.ms": "-1"}
        self.topic = await self.recorder.topic(start, _PARTITIONS, 3, configs)
        self._id = await self.recorder.topic_id(self.topic)

    async def act(self) -> None:
        partition = self.random.randrange(_PARTITIONS)
        leader = Leader(self.topic, partition)
        what = self.choose("produce", "produce", "fetch", "fetch", "list", "delete", "end", "anew")
        if what == "produce":
            pairs = [(b"k", b"%d" % one) for one in range(self.choose(1, 1, 2, 5))]
            codec = self.choose("none", "none", "gzip", "zstd")
            at_ms = _YEAR_2014_MS + self.choose(0, 10, 1_000)
            data = batch(pairs, codec=codec, at_ms=at_ms)
            version, acks = self.choose(3, 9, 12, 13), self.choose(1, -1)
            body = produce_body(
                self.topic, [(partition, data)], version=version, topic_id=self._id, acks=acks
            )
            await self.ask("Produce", version, body, leader)
            if acks == 1:  # a real follower takes some milliseconds to copy them
                await asyncio.sleep(_REPLICATED_S)
        elif what == "fetch":
            version = self.choose(4, 11, 12, 13, 17)
            offset = self.choose(0, 1, 2, 3, 5, 8, 99)
            more = {"isolation": self.choose(0, 1), "partition_bytes": self.choose(1, 1 << 20)}
            body = fetch_body(
                self.topic, [(partition, offset)], version=version, topic_id=self._id, **more
            )
            await self.ask("Fetch", version, body, leader)
        elif what == "list":
            timestamp = self.choose(-1, -2, -3, _YEAR_2014_MS, _YEAR_2014_MS + 11)
            body = list_offsets_body(self.topic, [(partition, timestamp)], self.choose(0, 1))
            await self.ask("ListOffsets", self.choose(2, 5, 8, 10), body, leader)
        elif what == "delete":
            deleted = {"PartitionIndex": partition, "Offset": self.choose(-1, 1, 3, 50)}
            topics = [{"Name": self.topic, "Partitions": [deleted]}]
            await self.ask("DeleteRecords", 2, {"TimeoutMs": 5_000, "Topics": topics}, leader)
        elif what == "end":
            asked = {"Partition": partition, "CurrentLeaderEpoch": self.choose(-1, 0, 1)}
            asked["LeaderEpoch"] = self.choose(0, 1)
            topics = [{"Topic": self.topic, "Partitions": [asked]}]
            await self.ask("OffsetForLeaderEpoch", 4, {"Topics": topics}, leader)
        else:
            body = {"Topics": [{"Name": self.topic}], "TimeoutMs": 10_000}
            await self.ask("DeleteTopics", 6, body)
            await asyncio.sleep(0.5)
            await self.start()


class _Classic(_Kind):
    """A classic group of up to three members that rejoin within half a second."""

    async def start(self) -> None:
        self.group = self.recorder.name(f"qc{self.number}")
        self.members: list[str] = []
        self.generation = 0

    async def act(self) -> None:
        to, group = Coordinator(self.group), self.group
        member = self.choose(*self.members) if self.members else ""
        what = self.choose("join", "join", "sync", "sync", "beat", "leave", "commit", "look")
        if what == "join":
            if len(self.members) < 3 and self.choose(True, False):
                member = ""
            body = join_body(group, member, rebalance_ms=500, session_ms=60_000)
            answer = await self.ask("JoinGroup", self.choose(3, 5, 9), body, to)
            if answer["MemberId"] and answer["MemberId"] not in self.members:
                self.members.append(answer["MemberId"])
            self.generation = max(self.generation, answer["GenerationId"] or 0)
        elif what == "sync":
            given = {one: b"%d" % place for place, one in enumerate(self.members)}
            body = sync_body(group, member, self.generation, given)
            await self.recorder.ask(
                "SyncGroup", 5, f"Classic sync {len(self.recorder.steps)}", body, to, timeout_s=2
            )
        elif what == "beat":
            body = heartbeat_body(group, member, self.generation - self.choose(0, 0, 1))
            await self.ask("Heartbeat", 4, body, to)
        elif what == "leave":
            await self.ask("LeaveGroup", 5, leave_body(group, (member, None)), to)
            if member in self.members:
                self.members.remove(member)
        elif what == "commit":
            offsets = [(0, self.random.randrange(9), "")]
            body = commit_body(group, "q", offsets, member=member, generation=self.generation)
            await self.ask("OffsetCommit", 9, body, to)
        else:
            await self.ask("DescribeGroups", 6, {"Groups": [group]}, to)
            await self.ask("OffsetFetch", 8, offset_fetch_body(group, "q", None, version=8), to)


_GROUP = 32


async def _configure(recorder: Recorder, group: str, settings: Mapping[str, str]) -> None:
    configs = [
        {"Name": name, "ConfigOperation": 0, "Value": value} for name, value in settings.items()
    ]
    resource = {"ResourceType": _GROUP, "ResourceName": group, "Configs": configs}
    await recorder.ask_quietly("IncrementalAlterConfigs", 1, {"Resources": [resource]})


class _Assigned(_Kind):
    """A consumer group (KIP-848) of two members."""

    async def start(self) -> None:
        self.topic = await self.recorder.topic(f"qa{self.number}", 4, self.replicas)
        self._id = await self.recorder.topic_id(self.topic)
        self.group = self.recorder.name(f"qa{self.number}")
        if self.kills:
            await _configure(self.recorder, self.group, {"consumer.session.timeout.ms": "60000"})
        self.epochs = {f"{letter * 21}g": 0 for letter in "AB"}
        self.owned: dict[str, Sequence[int]] = {}

    async def act(self) -> None:
        to, group = Coordinator(self.group), self.group
        member = self.choose(*self.epochs)
        epoch = self.epochs[member]
        what = self.choose("beat", "beat", "beat", "leave", "commit", "look")
        if what == "beat":
            owned = self.owned.get(member, [])
            body = {
                "GroupId": group,
                "MemberId": member,
                "MemberEpoch": max(epoch, 0),
                "RebalanceTimeoutMs": 60_000,
                "SubscribedTopicNames": [self.topic],
                "TopicPartitions": _owned(self._id, owned) if epoch > 0 else [],
            }
            answer = await self.ask("ConsumerGroupHeartbeat", 1, body, to)
            self.epochs[member] = answer["MemberEpoch"] or 0
            given = (answer["Assignment"] or {}).get("TopicPartitions")
            if given is not None:
                self.owned[member] = sorted(one for each in given for one in each["Partitions"])
            await asyncio.sleep(1.5)
        elif what == "leave":
            body = {"GroupId": group, "MemberId": member, "MemberEpoch": -1}
            await self.ask("ConsumerGroupHeartbeat", 1, body, to)
            self.epochs[member] = 0
            self.owned.pop(member, None)
            await asyncio.sleep(1.5)
        elif what == "commit":
            at = epoch - self.choose(0, 0, 1)
            offsets = [(0, self.random.randrange(9), "")]
            body = commit_body(group, self.topic, offsets, member=member, generation=at)
            await self.ask("OffsetCommit", 9, body, to)
        else:
            await self.ask("ConsumerGroupDescribe", 1, {"GroupIds": [group]}, to)


def _owned(topic_id: UUID, partitions: Sequence[int]) -> Sequence[Message]:
    return [{"TopicId": topic_id, "Partitions": list(partitions)}] if partitions else []


class _Transactions(_Kind):
    """Two producers with transactional ids, old and new, and a group's offsets."""

    async def start(self) -> None:
        self.topic = await self.recorder.topic(f"qt{self.number}", _PARTITIONS, self.replicas)
        self.group = self.recorder.name(f"qt{self.number}")
        self.producers: dict[int, tuple[int, int]] = {}
        self.sequences: dict[tuple[int, int], int] = {}

    async def act(self) -> None:
        which = self.choose(0, 1)
        is_old, name = which == 0, self.recorder.name(f"qx{self.number}{which}")
        to = Coordinator(name, TRANSACTION)
        producer = self.producers.get(which)
        what = self.choose("produce", "produce", "produce", "end", "end", "offsets", "look", "init")
        if producer is None or what == "init":
            version = 4 if is_old else 5
            body = init_body(name, 600_000 if self.kills else 60_000)
            answer = await self.recorder.settled(
                "InitProducerId", version, f"Transactions {which}", body, to
            )
            self._restart(which, (answer["ProducerId"] or 0, answer["ProducerEpoch"] or 0))
        elif what == "produce":
            partition = self.random.randrange(_PARTITIONS)
            sequence = self.sequences.get((which, partition), 0)
            data = [(partition, transactional_batch(producer, sequence))]
            if is_old:
                added = add_partitions_body(name, producer, self.topic, partition)
                await self.ask("AddPartitionsToTxn", 3, added, to)
            body = produce_body(self.topic, data, transactional_id=name)
            leader = Leader(self.topic, partition)
            answer = await self.ask("Produce", 11 if is_old else 12, body, leader)
            if answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0:
                self.sequences[which, partition] = sequence + 1
        elif what == "end":
            body = end_body(name, producer, self.choose(True, False))
            answer = await self.ask("EndTxn", 4 if is_old else 5, body, to)
            if not is_old and answer["ErrorCode"] == 0:
                self._restart(which, (answer["ProducerId"], answer["ProducerEpoch"]))
            await self.recorder.ended(name)
        elif what == "offsets":
            offset, version = self.random.randrange(9), 3 if is_old else 5
            if is_old:
                added = {"TransactionalId": name, "ProducerId": producer[0]}
                added |= {"ProducerEpoch": producer[1], "GroupId": self.group}
                await self.ask("AddOffsetsToTxn", 3, added, to)
            body = txn_commit_body(name, producer, self.group, self.topic, offset, version=version)
            await self.ask("TxnOffsetCommit", version, body, Coordinator(self.group))
        else:
            for stable in (True, False):
                body = offset_fetch_body(self.group, self.topic, [0], stable=stable)
                await self.ask("OffsetFetch", 9, body, Coordinator(self.group))
            body = fetch_body(self.topic, [(0, 0)], isolation=1)
            await self.ask("Fetch", 12, body, Leader(self.topic))
            await self.ask("DescribeTransactions", 0, {"TransactionalIds": [name]}, to)

    def _restart(self, which: int, producer: tuple[int, int]) -> None:
        self.producers[which] = producer
        for partition in range(_PARTITIONS):
            self.sequences.pop((which, partition), None)


class _Configs(_Kind):
    """A topic's settings."""

    async def start(self) -> None:
        self.topic = await self.recorder.topic(f"qs{self.number}", 1, self.replicas)

    async def act(self) -> None:
        key, value = self.choose(
            *(("retention.ms", "5000"), ("retention.ms", "x"), ("cleanup.policy", "compact")),
            *(("cleanup.policy", "compact,delete"), ("segment.ms", "777"), ("nope", "1")),
            *(("max.message.bytes", "2000"), ("compression.type", "zstd")),
        )
        if self.choose(True, False):
            config = {"Name": key, "ConfigOperation": self.choose(0, 0, 1, 2, 3), "Value": value}
            resource = {"ResourceType": 2, "ResourceName": self.topic, "Configs": [config]}
            body = {"Resources": [resource], "ValidateOnly": self.choose(True, False, False)}
            await self.ask("IncrementalAlterConfigs", 1, body)
            await asyncio.sleep(0.3)
        else:
            resource = {"ResourceType": 2, "ResourceName": self.topic, "ConfigurationKeys": [key]}
            await self.ask("DescribeConfigs", 4, {"Resources": [resource], "IncludeSynonyms": True})


_EARLIEST = {"share.auto.offset.reset": "earliest"}
_PATIENT = {"share.record.lock.duration.ms": "60000", "share.session.timeout.ms": "60000"}
_ACCEPT, _RELEASE, _REJECT = 1, 2, 3


class _Shared(_Kind):
    """A share group of one member that leaves and comes back, two readers that fetch and
    acknowledge, and its offsets.

    A second member would get either partition: Kafka goes by the hashes of topics' ids. A fetch
    always waits as long as it may, so that both clusters have read the group's state. An unknown
    offset is acknowledged alone: with others, before and behind the start offset, Kafka fails.
    """

    async def start(self) -> None:
        self.topic = await self.recorder.topic(f"qh{self.number}", _PARTITIONS, self.replicas)
        self._id = await self.recorder.topic_id(self.topic)
        self.group = self.recorder.name(f"qh{self.number}")
        await _configure(self.recorder, self.group, _EARLIEST | _PATIENT)
        self.sessions = {f"{letter * 21}g": 0 for letter in "CD"}
        self.held: dict[str, list[tuple[int, int, int]]] = {one: [] for one in self.sessions}
        self.read: dict[str, set[int]] = {one: set() for one in self.sessions}
        self.epoch = 0
        await self._beat()
        await self._until_initialized()
        await self._beat()

    async def _until_initialized(self) -> None:
        """Wait until all partitions have a state, which may take a real cluster seconds."""
        asked = {"Groups": [{"GroupId": self.group, "Topics": None}]}
        to = Coordinator(self.group)
        for _ in range(100):
            answer = await self.recorder.ask_quietly("DescribeShareGroupOffsets", 1, asked, to)
            if any(len(one["Partitions"]) == _PARTITIONS for one in answer["Groups"][0]["Topics"]):
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.5)

    async def act(self) -> None:
        member = self.choose(*self.sessions)
        what = self.choose(
            *("produce", "produce", "fetch", "fetch", "fetch", "fetch", "say", "say", "say"),
            *("close", "beat", "leave", "look", "alter", "delete"),
        )
        if what == "produce":
            partition = self.random.randrange(_PARTITIONS)
            pairs = [(b"k", b"%d" % one) for one in range(self.choose(1, 1, 2, 5))]
            body = produce_body(self.topic, [(partition, batch(pairs))])
            await self.ask("Produce", 12, body, Leader(self.topic, partition))
        elif what == "fetch":
            await self._fetch(member)
        elif what == "say":
            await self._say(member)
        elif what == "close":
            body = self._body(member, -1, {}) | _limits(0, 0, 0)
            await self.ask("ShareFetch", 2, body, Leader(self.topic))
            self.sessions[member] = 0
            self.held[member].clear()
            await asyncio.sleep(0.3)
        elif what in ("beat", "leave"):
            await self._beat(leaves=what == "leave")
        elif what == "look":
            to, asked = Coordinator(self.group), {"GroupId": self.group, "Topics": None}
            await self.ask("ShareGroupDescribe", 1, {"GroupIds": [self.group]}, to)
            await self.ask("DescribeShareGroupOffsets", 1, {"Groups": [asked]}, to)
        else:
            await self._administer(what)

    async def _beat(self, leaves: bool = False) -> None:
        epoch = -1 if leaves else self.epoch
        body = {"GroupId": self.group, "MemberId": next(iter(self.sessions)), "MemberEpoch": epoch}
        body["SubscribedTopicNames"] = [self.topic] if epoch == 0 else None
        answer = await self.ask("ShareGroupHeartbeat", 1, body, Coordinator(self.group))
        self.epoch = max(answer["MemberEpoch"] or 0, 0)
        await asyncio.sleep(1.5)

    def _body(self, member: str, epoch: int, said: Mapping[int, Sequence[Message]]) -> Message:
        partitions = [
            {"PartitionIndex": partition, "AcknowledgementBatches": list(batches)}
            for partition, batches in said.items()
        ]
        topics = [{"TopicId": self._id, "Partitions": partitions}] if partitions else []
        return {
            "GroupId": self.group,
            "MemberId": member,
            "ShareSessionEpoch": epoch,
            "Topics": topics,
        }

    async def _fetch(self, member: str) -> None:
        epoch = self.sessions[member]
        said: dict[int, list[Message]] = {}
        if epoch == 0:
            said = {one: [] for one in self.choose((0,), (1,), (0, 1))}
        elif self.choose(True, False):
            said = self._acknowledgements(member)
        self.read[member] = said.keys() | (self.read[member] if epoch else set())
        # The order of two partitions is that of a hash table.
        records = self.choose(1, 2, 5, 100) if len(self.read[member]) == 1 else 100
        body = self._body(member, epoch, said) | _limits(
            records, self.choose(1, 2, 100), self.choose(0, 0, 1)
        )
        if self.kills:
            body["MaxWaitMs"] = _READ_AFTER_DEATHS_MS
        answer = await self.ask("ShareFetch", 2, body, Leader(self.topic))
        if not answer["ErrorCode"]:
            self.sessions[member] = epoch + 1
        self.held[member] += sorted(
            (partition["PartitionIndex"], piece["FirstOffset"], piece["LastOffset"])
            for topic in answer["Responses"] or ()
            for partition in topic["Partitions"]
            for piece in partition["AcquiredRecords"]
        )
        await asyncio.sleep(0.3)

    async def _say(self, member: str) -> None:
        epoch = self.sessions[member] + self.choose(0, 0, 0, 0, 0, 1)
        body = self._body(member, epoch, self._acknowledgements(member))
        answer = await self.ask("ShareAcknowledge", 2, body, Leader(self.topic))
        if not answer["ErrorCode"]:
            self.sessions[member] = epoch + 1
        await asyncio.sleep(0.3)

    def _acknowledgements(self, member: str) -> dict[int, list[Message]]:
        """Return what a member says of records that it was given, or of some that it wasn't."""
        held = self.held[member]
        if held and self.random.random() < 0.9:
            partition, first, last = held.pop(self.random.randrange(len(held)))
        else:
            partition = self.random.randrange(_PARTITIONS)
            first = last = self.random.randrange(9)
        middle = self.random.randint(first, last)
        if middle < last and self.choose(True, False):
            held.append((partition, middle + 1, last))
            last = middle
        types = [self.choose(_ACCEPT, _ACCEPT, _RELEASE, _RELEASE, _REJECT)]
        if self.choose(True, False, False):
            types = [self.choose(_ACCEPT, _RELEASE, _REJECT) for _ in range(first, last + 1)]
        said = {"FirstOffset": first, "LastOffset": last, "AcknowledgeTypes": types}
        return {partition: [said]}

    async def _administer(self, what: str) -> None:
        to = Coordinator(self.group)
        if what == "alter":
            offset = self.choose(-1, 0, 1, 3)
            one = {"PartitionIndex": self.random.randrange(_PARTITIONS), "StartOffset": offset}
            topics = [{"TopicName": self.topic, "Partitions": [one]}]
            body = {"GroupId": self.group, "Topics": topics}
            await self.ask("AlterShareGroupOffsets", 0, body, to)
        else:
            body = {"GroupId": self.group, "Topics": [{"TopicName": self.topic}]}
            await self.ask("DeleteShareGroupOffsets", 0, body, to)
        await asyncio.sleep(0.5)


def _limits(records: int, batch_size: int, mode: int) -> Message:
    return {
        "MaxWaitMs": _READ_MS,
        "MinBytes": 1 << 19,
        "MaxBytes": 1 << 20,
        "MaxRecords": records,
        "BatchSize": batch_size,
        "ShareAcquireMode": mode,
        "ForgottenTopicsData": [],
    }


class _Deaths(_Kind):
    """Brokers that are killed and come back, two in a sequence, and what is told of them.

    A request follows once living brokers lead all partitions, and all that live are in sync. A
    broker that is back leads again what it prefers to, as a real Kafka has it some time.
    """

    left = 2
    dead: int | None = None

    async def start(self) -> None:
        self.topic = await self.recorder.topic(f"qd{self.number}", 3, 3)

    async def act(self) -> None:
        if self.choose(True, True, False):
            if self.dead is not None:
                await self.end()
            elif self.left:
                self.left -= 1
                self.dead = self.choose(1, 2, 3)
                await self.recorder.kill(self.dead)
                await self.recorder.until_balanced()
        asked = {"Topics": [{"Name": self.topic}], "ResponsePartitionLimit": 10}
        await self.ask("DescribeTopicPartitions", 0, asked)
        await self.ask("DescribeCluster", 2, {"IncludeFencedBrokers": self.choose(True, False)})

    async def end(self) -> None:
        if self.dead is not None:
            dead, self.dead = self.dead, None
            await self.recorder.revive(dead)
            await self.recorder.until_balanced()


KINDS: Mapping[str, type[_Kind]] = {
    "data": _Data,
    "classic": _Classic,
    "assigned": _Assigned,
    "transactions": _Transactions,
    "configs": _Configs,
    "shared": _Shared,
}
_LATER_KINDS = {"shared"}
_SEEDS_OF_ALL_KINDS = 1_000
"""The first seed that may have a later kind: those before it were recorded without one."""

_SEEDS_OF_DEATHS = 10_000
_DEATHS_IN = 5
"""From that seed on each fifth one kills brokers: it takes a real Kafka some minutes."""


def kills_brokers(seed: int) -> bool:
    """Whether a seed's program kills brokers, so that no other may run beside it."""
    return seed >= _SEEDS_OF_DEATHS and seed % _DEATHS_IN == 0


def random_program(seed: int, requests: int = REQUESTS) -> Program:
    """Return the program of a seed."""

    async def run(recorder: Recorder) -> None:
        random = Random(seed)
        kinds = sorted(set(KINDS) - (_LATER_KINDS if seed < _SEEDS_OF_ALL_KINDS else set()))
        kills = kills_brokers(seed)
        most = MOST_KINDS - kills
        names = random.sample(kinds, random.randint(1, min(len(kinds), most)))
        types = [*(KINDS[name] for name in names), *([_Deaths] if kills else [])]
        actors = [
            kind(recorder, random, f"{seed}-{number}", kills) for number, kind in enumerate(types)
        ]
        for actor in actors:
            await actor.start()
        try:
            while len(recorder.steps) < requests:
                await random.choice(actors).act()
        finally:
            for actor in actors:
                await actor.end()

    return run
