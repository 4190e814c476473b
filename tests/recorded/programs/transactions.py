"""Transactions by the old protocol and by KIP-890, their timeouts, markers and offsets."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.recorded.batches import batch
from tests.recorded.bodies import (
    add_partitions_body,
    commit_body,
    end_body,
    fetch_body,
    init_body,
    list_offsets_body,
    offset_fetch_body,
    produce_body,
    transactional_batch,
    txn_commit_body,
)
from tests.recorded.codec import Message, versions_of
from tests.recorded.recorder import (
    TRANSACTION,
    Answer,
    Coordinator,
    Leader,
    NoAnswerError,
    Other,
    Place,
    Recorder,
)

_TIMED_OUT_S = 18.0
"""Coordinators look for timed-out transactions every ten seconds."""


class _Transaction:
    """A producer with a transactional id, and the topic that it writes to."""

    def __init__(self, recorder: Recorder, start: str, topic: str) -> None:
        self.recorder = recorder
        self.name = recorder.name(start)
        self.topic = topic
        self.to = Coordinator(self.name, TRANSACTION)
        self.producer = -1, -1

    async def begin(self, name: str = "", version: int = 5, **more: Any) -> None:
        """Get a producer id, or the next epoch of it."""
        answer = await self.recorder.settled(
            "InitProducerId", version, name, init_body(self.name, **more), self.to
        )
        self.producer = answer["ProducerId"], answer["ProducerEpoch"]

    async def ask(
        self, api: str, version: int, name: str, body: Message, of: str | None = None
    ) -> Answer:
        """Ask its coordinator, or that of another id."""
        to = Coordinator(of, TRANSACTION) if of else self.to
        return await self.recorder.ask(api, version, name, body, to)

    async def ended(self) -> None:
        """Wait until its markers are written."""
        await self.recorder.ended(self.name)

    async def add(
        self,
        name: str,
        *partitions: int,
        to: str | None = None,
        producer: tuple[int, int] | None = None,
        of: str | None = None,
    ) -> None:
        body = add_partitions_body(
            self.name if of is None else of,
            self.producer if producer is None else producer,
            self.topic if to is None else to,
            *partitions,
        )
        await self.ask("AddPartitionsToTxn", 3, name, body, of)

    async def produce(
        self,
        name: str,
        sequence: int,
        partition: int = 0,
        *,
        version: int = 12,
        records: int = 1,
        producer: tuple[int, int] | None = None,
        of: str | None = "",
    ) -> None:
        producer = self.producer if producer is None else producer
        data = transactional_batch(producer, sequence, records)
        body = produce_body(
            self.topic, [(partition, data)], transactional_id=self.name if of == "" else of
        )
        leader = Leader(self.topic, partition)
        await self.recorder.ask("Produce", version, name, body, leader)

    async def end(
        self,
        name: str,
        commits: bool = True,
        version: int = 5,
        producer: tuple[int, int] | None = None,
        of: str | None = None,
    ) -> Answer:
        """End it; with version 5 the answer has the next epoch, which it takes."""
        given = self.producer if producer is None else producer
        body = end_body(self.name if of is None else of, given, commits)
        answer = await self.ask("EndTxn", version, name, body, of)
        if version >= 5 and answer["ErrorCode"] == 0 and producer is None:
            self.producer = answer["ProducerId"], answer["ProducerEpoch"]
        return answer

    async def describe(self, name: str) -> None:
        await self.ask("DescribeTransactions", 0, name, {"TransactionalIds": [self.name]})

    async def read(self, name: str, *partitions: int) -> None:
        """Fetch with both isolations."""
        for partition in partitions or (0,):
            for level in (0, 1):
                body = fetch_body(self.topic, [(partition, 0)], isolation=level)
                shown = f"{name}, partition {partition}, isolation {level}"
                await self.recorder.ask("Fetch", 12, shown, body, Leader(self.topic, partition))

    async def ends(self, name: str) -> None:
        for level in (0, 1):
            body = list_offsets_body(self.topic, [(0, -1)], level)
            shown = f"{name}, isolation {level}"
            await self.recorder.ask("ListOffsets", 8, shown, body, Leader(self.topic))

    async def producers(self, name: str) -> None:
        body = {"Topics": [{"Name": self.topic, "PartitionIndexes": [0]}]}
        await self.recorder.ask("DescribeProducers", 0, name, body, Leader(self.topic))


async def init(recorder: Recorder) -> None:
    for version in versions_of("InitProducerId", last=5):
        name = recorder.name(f"ti{version}")
        to = Coordinator(name, TRANSACTION)

        def body(*arguments: Any, at: int = version, **more: Any) -> Message:
            fields = init_body(*arguments, **more)
            if at < 3:
                del fields["ProducerId"], fields["ProducerEpoch"]
            return fields

        async def ask(what: str, fields: Message, at: int = version, place: Place = to) -> Answer:
            return await recorder.ask("InitProducerId", at, what, fields, place)

        await recorder.broker(to)
        await recorder.settled("InitProducerId", version, "no id", body(None), None)
        await ask("empty id", body(""))
        for timeout_ms in (0, -1, 2_000_000_000):
            await ask(f"timeout {timeout_ms}", body(name, timeout_ms))
        await ask("no id, timeout 0", body(None, 0))
        await ask("first", body(name))
        answer = await ask("second", body(name))
        await ask("not to the coordinator", body(name), place=Other(to))
        if version >= 3:
            given, epoch = answer["ProducerId"] or 0, answer["ProducerEpoch"] or 0
            for what, of, producer in (
                ("known epoch", name, (given, epoch)),
                ("known epoch again", name, (given, epoch)),
                ("epoch before", name, (given, epoch - 1)),
                ("epoch ahead", name, (given, epoch + 5)),
                ("unknown producer", name, (given + 1_000, epoch)),
                ("producer of an unknown id", name + "zz", (given, 0)),
                ("producer without an id", None, (given, epoch)),
                ("no epoch", name, (given, -1)),
                ("no producer", name, (-1, 3)),
            ):
                place = Coordinator(of, TRANSACTION) if of else to
                await ask(what, body(of, producer=producer), place=place)
        described = {"TransactionalIds": [name]}
        await recorder.ask("DescribeTransactions", 0, f"init v{version}", described, to)


async def old_protocol(recorder: Recorder) -> None:
    """AddPartitionsToTxn v3, Produce v11, EndTxn v4."""
    one = _Transaction(recorder, "x1", await recorder.topic("tv1", partitions=3))
    await one.begin(version=4)
    given, epoch = one.producer
    await one.end("commit of nothing", version=4)
    await one.end("abort of nothing", False, version=4)
    for name, partitions, more in (
        ("no partition", (), {}),
        ("unknown topic", (0,), {"to": one.topic + "x"}),
        ("unknown partition", (9,), {}),
        ("unknown partition beside one", (0, 9), {}),
        ("epoch ahead", (0,), {"producer": (given, epoch + 1)}),
        ("epoch before", (0,), {"producer": (given, epoch - 1)}),
        ("unknown producer", (0,), {"producer": (given + 999, epoch)}),
        ("unknown id", (0,), {"of": one.name + "zz"}),
        ("empty id", (0,), {"of": ""}),
    ):
        await one.add(name, *partitions, **more)
    await one.produce("not added", 0, version=9)
    await one.produce("not added", 0, version=11)
    await one.add("two", 0, 1)
    await one.add("again", 0)
    await one.describe("ongoing")
    await one.produce("two records", 0, version=11, records=2)
    await one.produce("right", 0, 1, version=11)
    await one.produce("two records again", 0, version=11, records=2)
    await one.produce("gap", 9, version=11)
    await one.produce("another transactional id", 2, version=11, of="other")
    await one.produce("no transactional id", 2, version=11, of=None)
    plain = batch(producer=(given, epoch, 2))
    body = produce_body(one.topic, [(0, plain)], transactional_id=one.name)
    await recorder.ask("Produce", 11, "plain batch", body, Leader(one.topic))
    await one.read("open")
    await one.ends("open")
    await one.producers("open")
    await one.end("unknown producer", version=4, producer=(given + 99, epoch))
    await one.end("epoch ahead", version=4, producer=(given, epoch + 1))
    await one.end("epoch before", version=4, producer=(given, epoch - 1))
    await one.end("unknown id", version=4, of=one.name + "zz")
    await one.end("commit", version=4)
    await one.ended()
    await one.end("commit again", version=4)
    await one.end("abort after a commit", False, version=4)
    await one.describe("committed")
    await one.read("committed")
    await one.ends("committed")
    await one.producers("committed")
    await _second_and_third(one)


async def _second_and_third(one: _Transaction) -> None:
    """Continue with one that is aborted, and one that is fenced off."""
    await one.produce("after the end", 2, version=9)
    await one.add("second", 0, 2)
    await one.produce("second", 2, version=11)
    await one.produce("second", 0, 2, version=11)
    await one.end("abort", False, version=4)
    await one.ended()
    await one.end("abort again", False, version=4)
    await one.end("commit after an abort", version=4)
    await one.read("aborted", 0, 2)
    for timestamp in (-1, -2, -3, 0):
        body = list_offsets_body(one.topic, [(0, timestamp)], 1)
        name = f"aborted, {timestamp}"
        await one.recorder.ask("ListOffsets", 8, name, body, Leader(one.topic))
    await one.add("third", 0)
    await one.produce("third", 3, version=11)
    before = one.producer
    await one.begin("fences the open one", version=4)
    await one.ended()
    await one.describe("fenced")
    await one.produce("fenced", 4, version=11, producer=before)
    await one.add("fenced", 0, producer=before)
    await one.end("fenced", version=4, producer=before)
    await one.read("fenced")
    await one.add("new epoch", 0)
    await one.produce("new epoch", 0, version=11)
    await one.produce("new epoch, gap", 5, version=11)
    await one.end("new epoch", version=4)
    for only in (True, False):
        topics = [{"Name": one.topic, "Partitions": [0]}]
        asked = {"TransactionalId": one.name, "ProducerId": one.producer[0]}
        asked |= {"ProducerEpoch": one.producer[1], "VerifyOnly": only, "Topics": topics}
        name = f"verified alone: {only}"
        await one.ask("AddPartitionsToTxn", 5, name, {"Transactions": [asked]})


async def next_protocol(recorder: Recorder) -> None:
    """KIP-890: Produce v12 adds partitions, EndTxn v5 raises the epoch."""
    one = _Transaction(recorder, "x2", await recorder.topic("tv2", partitions=3))
    await one.begin()
    first = given, epoch = one.producer
    await one.produce("unknown id", 0, of=one.name + "zz")
    await one.produce("epoch ahead", 0, producer=(given, epoch + 3))
    await one.produce("unknown producer", 0, producer=(given + 999, epoch))
    await one.produce("begins with 5", 5, 1)
    await one.produce("first", 0)
    plain = [(0, batch(producer=(given, epoch, 1)))]
    await recorder.ask("Produce", 12, "plain", produce_body(one.topic, plain), Leader(one.topic))
    await one.produce("without an id", 1, of=None)
    await one.describe("ongoing")
    await one.produce("second", 1)
    await one.produce("second again", 1)
    await one.produce("another partition", 0, 1)
    await one.end("commit")
    await one.ended()
    await one.describe("committed")
    await one.end("commit again", producer=first)
    await one.end("abort with the old epoch", False, producer=first)
    await one.produce("old epoch", 2, producer=first)
    await one.end("commit of nothing")
    await one.end("abort of nothing", False)
    await one.produce("sequence 2", 2)
    await one.produce("sequence 0", 0)
    before = one.producer
    await one.end("abort", False)
    await one.ended()
    await one.end("abort again", False, producer=before)
    await one.read("aborted")
    await one.producers("aborted")


async def mixed_protocols(recorder: Recorder) -> None:
    """Old requests in a transaction of KIP-890, and a producer that is fenced off."""
    one = _Transaction(recorder, "xm", await recorder.topic("tmx", partitions=3))
    await one.begin()
    await one.produce("open", 0)
    await one.add("old request", 2)
    await one.end("old request", version=4)
    await one.ended()
    await one.describe("after the old end")
    await one.produce("after the old end", 1)
    await one.end("after the old end")
    await one.begin("anew")
    await one.produce("open again", 0)
    before = one.producer
    await one.begin("fences")
    await one.ended()
    await one.produce("fenced", 1, producer=before)
    await one.end("fenced", producer=before)
    await one.describe("fenced")
    await one.read("fenced")
    await one.produce("known epoch in an open one", 0)
    known = init_body(one.name, producer=one.producer)
    for number in range(3):
        await one.ask("InitProducerId", 5, f"known epoch, {number}", known)
        await one.ended()


async def offsets(recorder: Recorder) -> None:
    """Offsets of a transaction by KIP-890, beside plain ones."""
    topic, group = await recorder.topic("to2"), recorder.name("to2g")
    one, to = _Transaction(recorder, "xo2", topic), Coordinator(group)
    await one.begin()

    async def commit(name: str, offset: int = 5, **more: Any) -> None:
        producer = more.pop("producer", one.producer)
        of, in_group = more.pop("of", one.name), more.pop("in_group", group)
        body = txn_commit_body(of, producer, in_group, more.pop("to", topic), offset, **more)
        await recorder.ask("TxnOffsetCommit", 5, name, body, Coordinator(in_group))

    async def fetch(name: str) -> None:
        for stable in (False, True):
            body = offset_fetch_body(group, topic, [0], stable=stable)
            await recorder.ask("OffsetFetch", 9, f"{name}, stable: {stable}", body, to)

    given, epoch = one.producer
    await commit("epoch ahead", producer=(given, epoch + 1))
    await commit("unknown id", of=one.name + "zz")
    await commit("unknown member", member="zz", generation=3)
    await commit("first")
    await one.describe("with offsets")
    await commit("unknown partition", partition=9)
    await commit("unknown topic", to=topic + "x")
    await commit("no group", in_group="")
    await fetch("pending")
    await recorder.ask("DescribeGroups", 5, "pending", {"Groups": [group]}, to)
    deletion = {"Name": topic, "Partitions": [{"PartitionIndex": 0}]}
    body = {"GroupId": group, "Topics": [deletion]}
    await recorder.ask("OffsetDelete", 0, "pending", body, to)
    await one.end("commit")
    await one.ended()
    await fetch("committed")
    await commit("after the end", producer=(given, epoch))
    await commit("second", 9)
    body = commit_body(group, topic, [(0, 7, "")])
    await recorder.ask("OffsetCommit", 9, "plain, while others are pending", body, to)
    await fetch("plain, while others are pending")
    await one.end("abort", False)
    await one.ended()
    await fetch("aborted")
    await commit("third", 3)
    await recorder.ask("OffsetCommit", 9, "plain, before the end", body, to)
    await one.end("commit of the third")
    await one.ended()
    await fetch("older, but ended later")


async def pending_group(recorder: Recorder) -> None:
    """A group of nothing but pending offsets, which is deleted before they are committed."""
    topic, group = await recorder.topic("pg"), recorder.name("pgg")
    one, to = _Transaction(recorder, "pgx", topic), Coordinator(group)
    await one.begin()
    body = txn_commit_body(one.name, one.producer, group, topic, 5)
    await recorder.ask("TxnOffsetCommit", 5, "", body, to)
    for version in (5, 6):
        await recorder.ask("DescribeGroups", version, "pending", {"Groups": [group]}, to)
    await recorder.ask("DeleteGroups", 2, "pending", {"GroupsNames": [group]}, to)
    await one.end("commit")
    await one.ended()
    body = offset_fetch_body(group, topic, [0], stable=True)
    await recorder.ask("OffsetFetch", 9, "deleted, then committed", body, to)


async def ended_again(recorder: Recorder) -> None:
    """Ends that are tried again, by either protocol, after an end by either."""
    topic = await recorder.topic("tea")
    for first in (4, 5):
        for again in (4, 5):
            one = _Transaction(recorder, f"ea{first}{again}", topic)
            await one.begin()
            await one.begin("next epoch")
            given, epoch = one.producer
            await one.add("", 0)
            await one.produce("", 0, version=11)
            await one.end(f"first, again by v{again}", version=first, producer=one.producer)
            await one.ended()
            for ahead in (-1, 0, 1, 2):
                for commits in (True, False):
                    name = f"after v{first}, epoch {ahead:+}, {commits}"
                    at = given, epoch + ahead
                    await one.end(name, commits, version=again, producer=at)
                    await one.ended()
            await one.describe(f"after v{first} and v{again}")


async def old_offsets(recorder: Recorder) -> None:
    """AddOffsetsToTxn and TxnOffsetCommit v3."""
    topic, group = await recorder.topic("tov"), recorder.name("xog")
    one, to = _Transaction(recorder, "xo", topic), Coordinator(group)
    await one.begin(version=4)
    given, epoch = one.producer

    async def add(name: str, version: int = 3, **more: Any) -> None:
        body = {"TransactionalId": one.name, "ProducerId": given, "ProducerEpoch": epoch}
        of = more.get("TransactionalId")
        await one.ask("AddOffsetsToTxn", version, name, {**body, "GroupId": group, **more}, of)

    async def commit(name: str, version: int = 3, offset: int = 5, **more: Any) -> None:
        producer = more.pop("producer", one.producer)
        body = txn_commit_body(one.name, producer, group, topic, offset, version=version, **more)
        await recorder.ask("TxnOffsetCommit", version, name, body, to)

    for version in (3, 4):
        await commit("not added", version)
    await add("unknown producer", ProducerId=given + 9)
    await add("epoch ahead", ProducerEpoch=epoch + 1)
    await add("unknown id", TransactionalId=one.name + "zz")
    await add("no group", GroupId="")
    for version in versions_of("AddOffsetsToTxn"):
        await add("right", version)
    for version in range(5):
        await commit("right", version, version)
    await commit("generation of no member", member="zz", generation=2)
    await commit("epoch ahead", producer=(given, epoch + 1))
    await commit("epoch before", producer=(given, epoch - 1))
    body = offset_fetch_body(group, topic, [0], version=7, stable=True)
    await recorder.ask("OffsetFetch", 7, "pending", body, to)
    await one.end("commit", version=4)
    await one.ended()
    await recorder.ask("OffsetFetch", 7, "committed", body, to)
    await commit("after the end")
    await commit("after the end", 4)


async def timeout(recorder: Recorder) -> None:
    """Old transactions that their coordinator aborted."""
    one = _Transaction(recorder, "xt", await recorder.topic("tto"))
    await one.begin(version=4, timeout_ms=1_500)
    await one.add("", 0)
    await one.produce("", 0, version=11)
    await asyncio.sleep(_TIMED_OUT_S)
    await one.describe("timed out")
    await one.read("timed out")
    for version in (4, 5):
        await one.end("timed out", version=version, producer=one.producer)
    await one.produce("timed out", 1, version=11)
    await one.add("timed out", 0)
    known = init_body(one.name, producer=one.producer)
    await one.ask("InitProducerId", 4, "known epoch", known)
    await one.ask("InitProducerId", 4, "anew", init_body(one.name))
    await one.producers("timed out")


async def timeout_of_next(recorder: Recorder) -> None:
    """Transactions of KIP-890 that their coordinator aborted, and what producers may still do."""
    topic = await recorder.topic("tt2", partitions=3)
    names = ("abort", "commit", "produce", "init")
    opened = {name: _Transaction(recorder, f"xt-{name}", topic) for name in names}
    for name, one in opened.items():
        await one.begin(name, timeout_ms=1_500)
        await one.produce(name, 0)
    await asyncio.sleep(_TIMED_OUT_S)
    for name, one in opened.items():
        await one.describe(f"timed out, before {name}")
    known = {name: one.producer for name, one in opened.items()}
    one, (given, epoch) = opened["abort"], known["abort"]
    await one.end("aborts", False, producer=(given, epoch))
    await one.end("aborts with the new epoch", False, producer=(given, epoch + 1))
    await opened["commit"].end("commits", producer=known["commit"])
    one = opened["produce"]
    await one.produce("timed out", 1)
    await one.produce("timed out, another partition", 0, 1)
    await one.end("aborts after it produced", False, producer=known["produce"])
    one = opened["init"]
    await one.ask("InitProducerId", 5, "known epoch", init_body(one.name, producer=one.producer))
    await one.ask("InitProducerId", 5, "anew", init_body(one.name))
    for name, one in opened.items():
        await one.describe(f"after {name}")


async def lists(recorder: Recorder) -> None:
    topic = await recorder.topic("tls")
    one = _Transaction(recorder, "xl", topic)
    await one.begin(version=4)
    for of in (one.name, one.name + "zz"):
        await one.ask("DescribeTransactions", 0, f"{of}", {"TransactionalIds": [of]}, of)
    await _list(one, "empty")
    await one.add("", 0)
    body = {"TransactionalIds": [one.name]}
    elsewhere = Other(one.to)
    await recorder.ask("DescribeTransactions", 0, "not to the coordinator", body, elsewhere)
    await _list(one, "ongoing")
    await one.end("", version=4)
    await one.ended()
    await _list(one, "ended")


async def _list(one: _Transaction, when: str) -> None:
    """Record the transaction alone: a cluster has other programs' transactions, too."""
    given = one.producer[0]
    for version in versions_of("ListTransactions"):
        cases: dict[str, Message] = {
            "all": {},
            **{f"states {states}": {"StateFilters": states} for states in (["Ongoing"], ["zz"])},
            "its producer": {"ProducerIdFilters": [given]},
            "another producer": {"ProducerIdFilters": [given + 9_999]},
        }
        if version >= 1:
            cases |= {f"of {ms} ms": {"DurationFilter": ms} for ms in (100_000, 0)}
        if version >= 2:
            patterns = ("xl.*", "([", "q")
            cases |= {f"like {one}": {"TransactionalIdPattern": one} for one in patterns}
        for name, body in cases.items():
            shown = f"ListTransactions v{version} {name}, {when}"
            try:
                answer = await one.recorder.ask_quietly("ListTransactions", version, body, one.to)
            except NoAnswerError as error:
                one.recorder.note(shown, str(error))
                continue
            states = [
                state
                for state in answer["TransactionStates"]
                if state["TransactionalId"] == one.name
            ]
            one.recorder.note(shown, {**answer, "TransactionStates": states})


async def markers(recorder: Recorder) -> None:
    """Markers that an administrator writes."""
    one = _Transaction(recorder, "xmk", await recorder.topic("tmk"))
    await one.begin(version=4)
    given, epoch = one.producer

    async def write(
        name: str,
        producer: tuple[int, int],
        commits: bool = False,
        coordinator: int = 0,
        partition: int = 0,
        to: str = one.topic,
        version: int = 1,
    ) -> None:
        marker = {
            "ProducerId": producer[0],
            "ProducerEpoch": producer[1],
            "TransactionResult": commits,
            "CoordinatorEpoch": coordinator,
            "Topics": [{"Name": to, "PartitionIndexes": [partition]}],
        }
        body = {"Markers": [marker]}
        await recorder.ask("WriteTxnMarkers", version, name, body, Leader(one.topic))

    await write("unknown producer", (123_456, 0), True)
    await write("unknown topic", one.producer, True, to=one.topic + "x")
    await write("unknown partition", one.producer, True, partition=9)
    await one.add("", 0)
    await one.produce("", 0, version=11)
    await write("abort of an administrator", one.producer, coordinator=-1)
    await write("again", one.producer)
    await write("epoch before", (given, epoch - 1))
    await write("older coordinator", one.producer, True, coordinator=-5)
    await write("newer version", one.producer, True, version=2)
    await one.read("marked")
    await one.producers("marked")
    await recorder.ask("WriteTxnMarkers", 1, "none", {"Markers": []}, Leader(one.topic))
    await one.end("by the coordinator", version=4)
    await one.ended()
    await one.read("ended")
