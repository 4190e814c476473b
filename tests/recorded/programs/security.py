"""Access control lists, credentials and quotas."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.recorded.batches import batch
from tests.recorded.codec import Message, versions_of
from tests.recorded.recorder import Leader, Recorder

TOPIC, GROUP, CLUSTER, TOKEN, USER = 2, 3, 4, 6, 7
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
READ, WRITE = 3, 4
DENY, ALLOW = 2, 3


async def access_control(recorder: Recorder) -> None:
    name, user = recorder.name("acl"), f"User:u{recorder.run}"

    def entry(**more: Any) -> Message:
        return {
            "ResourceType": TOPIC,
            "ResourceName": name,
            "ResourcePatternType": LITERAL,
            "Principal": user,
            "Host": "*",
            "Operation": READ,
            "PermissionType": ALLOW,
            **more,
        }

    cases = {
        "right": [entry()],
        "again": [entry()],
        "prefixed": [entry(ResourcePatternType=PREFIXED, Operation=WRITE)],
        "denied": [entry(ResourceType=GROUP, PermissionType=DENY)],
        "cluster of a name": [entry(ResourceType=CLUSTER, ResourceName="zz", Operation=7)],
        **{f"principal {one!r}": [entry(Principal=one)] for one in ("", "zz")},
        **{f"resource type {one}": [entry(ResourceType=one)] for one in (ANY, 99)},
        **{f"operation {one}": [entry(Operation=one)] for one in (1, 9, 99)},
        "any permission": [entry(PermissionType=ANY)],
        **{f"pattern {one}": [entry(ResourcePatternType=one)] for one in (ANY, MATCH)},
        "no name": [entry(ResourceName="")],
        "host of two words": [entry(Host="zz zz")],
        "user": [entry(ResourceType=USER, ResourceName=user, Operation=13)],
        "token": [entry(ResourceType=TOKEN, ResourceName="t", Operation=8)],
        "none": [],
    }
    for what, creations in cases.items():
        await recorder.ask("CreateAcls", 3, what, {"Creations": creations})

    def filtered(**more: Any) -> Message:
        return {
            "ResourceTypeFilter": ANY,
            "ResourceNameFilter": None,
            "PatternTypeFilter": ANY,
            "PrincipalFilter": user,
            "HostFilter": None,
            "Operation": ANY,
            "PermissionType": ANY,
            **more,
        }

    filters = {
        "all": filtered(),
        "topics": filtered(ResourceTypeFilter=TOPIC),
        "a topic": filtered(ResourceTypeFilter=TOPIC, ResourceNameFilter=name),
        "that match": filtered(ResourceNameFilter=name + "zz", PatternTypeFilter=MATCH),
        "prefixed": filtered(PatternTypeFilter=PREFIXED),
        "reading": filtered(Operation=READ),
        "denied": filtered(PermissionType=DENY),
        "resource type 99": filtered(ResourceTypeFilter=99),
        "all operations": filtered(Operation=2),
        "of nobody": filtered(PrincipalFilter="User:zz"),
    }
    for version in versions_of("DescribeAcls"):
        for what, body in filters.items():
            await recorder.ask("DescribeAcls", version, what, body)
    writing = filtered(Operation=WRITE)
    for what, body in {"writing": writing, "again": writing, "all": filtered()}.items():
        await recorder.ask("DeleteAcls", 3, what, {"Filters": [body]})
    await recorder.ask("DeleteAcls", 3, "none", {"Filters": []})


async def credentials(recorder: Recorder) -> None:
    user = f"u{recorder.run}"

    async def alter(
        name: str,
        *added: tuple[str, int, int, bytes, bytes],
        deleted: Sequence[tuple[str, int]] = (),
    ) -> None:
        keys = ("Name", "Mechanism", "Iterations", "Salt", "SaltedPassword")
        body = {
            "Deletions": [{"Name": one, "Mechanism": kind} for one, kind in deleted],
            "Upsertions": [dict(zip(keys, one, strict=True)) for one in added],
        }
        await recorder.ask("AlterUserScramCredentials", 0, name, body)

    async def describe(name: str, *users: str) -> None:
        await asyncio.sleep(0.3)
        body = {"Users": [{"Name": one} for one in users]}
        await recorder.ask("DescribeUserScramCredentials", 0, name, body)

    short, long = b"p" * 32, b"p" * 64
    one = (user, 1, 4096, b"salt", short)
    await describe("unknown", user)
    await alter("right", one)
    await describe("one", user)
    for iterations in (10, 99_999):
        await alter(f"{iterations} iterations", (user, 1, iterations, b"salt", short))
    await alter("no name", ("", 1, 4096, b"salt", short))
    for mechanism in (9, 0):
        await alter(f"mechanism {mechanism}", (user, mechanism, 4096, b"salt", short))
    await alter("SHA-512", (user, 2, 8192, b"s", long))
    await alter("no salt", (user + "e", 2, 8192, b"", long))
    await describe("two", user)
    await describe("same user twice", user, user)
    await describe("no name", "")
    await alter("deleted and added", one, deleted=[(user, 1)])
    await alter("same twice", one, one)
    for name, of, mechanism in (
        ("deleted", user, 1),
        ("deleted again", user, 1),
        ("unknown user", user + "q", 1),
        ("unknown mechanism", user, 9),
    ):
        await alter(name, deleted=[(of, mechanism)])
    await alter("none")


async def quotas(recorder: Recorder) -> None:
    client = f"c{recorder.run}"

    async def alter(name: str, key: str, value: float, removes: bool = False, **more: Any) -> None:
        entity = more.pop("entity", [("client-id", client)])
        named = [{"EntityType": kind, "EntityName": one} for kind, one in entity]
        entry = {"Entity": named, "Ops": [{"Key": key, "Value": value, "Remove": removes}]}
        body = {"Entries": [entry], "ValidateOnly": False, **more}
        await recorder.ask("AlterClientQuotas", 1, name, body)

    async def describe(name: str, *components: tuple[str, int, str | None], strict: bool) -> None:
        asked = [
            {"EntityType": kind, "MatchType": match, "Match": one}
            for kind, match, one in components
        ]
        await asyncio.sleep(0.3)
        body = {"Components": asked, "Strict": strict}
        await recorder.ask("DescribeClientQuotas", 1, name, body)

    rate = "producer_byte_rate"
    await alter("validated", rate, 1e6, ValidateOnly=True)
    await describe("none", ("client-id", 0, client), strict=False)
    await alter("right", rate, 1e6)
    await alter("of a user and client", rate, 2e6, entity=[("user", client), ("client-id", client)])
    await alter("percentage", "request_percentage", 50.0)
    await alter("unknown key", "zz", 1.0)
    await alter("rate 0", rate, 0.0)
    await alter("rate -1", rate, -1.0)
    await alter("fraction", rate, 1.5)
    await alter("unknown entity", rate, 1.0, entity=[("zz", client)])
    await alter("no entity", rate, 1.0, entity=[])
    await alter("entity twice", rate, 1.0, entity=[("user", client), ("user", "b")])
    await alter("empty name", rate, 1.0, entity=[("user", "")])
    await describe("client", ("client-id", 0, client), strict=False)
    await describe("client alone", ("client-id", 0, client), strict=True)
    await describe("unknown entity", ("zz", 0, client), strict=False)
    await describe("match 9", ("client-id", 9, client), strict=False)
    await describe("entity twice", *[("client-id", 0, client)] * 2, strict=False)
    await alter("removed", rate, 0.0, removes=True)
    await alter("removed again", rate, 0.0, removes=True)
    await describe("after one was removed", ("client-id", 0, client), strict=True)


async def throttled_clients(recorder: Recorder) -> None:
    creator, sender = f"t{recorder.run}", f"s{recorder.run}"
    loop = asyncio.get_running_loop()
    for client, key, value in (
        (creator, "controller_mutation_rate", 2.0),
        (sender, "producer_byte_rate", 1_000.0),
        (sender, "consumer_byte_rate", 2_000.0),
    ):
        entity = [{"EntityType": "client-id", "EntityName": client}]
        entry = {"Entity": entity, "Ops": [{"Key": key, "Value": value, "Remove": False}]}
        body = {"Entries": [entry], "ValidateOnly": False}
        await recorder.ask("AlterClientQuotas", 1, key, body)
    await asyncio.sleep(0.5)

    async def create(version: int, number: int, partitions: int) -> None:
        topic = {"Name": recorder.name(f"throttled{number}"), "NumPartitions": partitions}
        topic |= {"ReplicationFactor": 1, "Assignments": [], "Configs": []}
        body = {"Topics": [topic], "timeoutMs": 20_000, "validateOnly": False}
        name = f"{partitions} partitions"
        await recorder.ask("CreateTopics", version, name, body, client_id=creator)
        asked_s = loop.time()
        await recorder.ask_quietly("Metadata", 9, {"Topics": []}, client_id=creator)
        recorder.note("next request", "waits" if loop.time() - asked_s > 0.5 else "at once")

    await create(7, 1, 24)  # of 22 tokens
    await create(7, 2, 4)
    await create(5, 3, 6)
    await create(7, 4, 1)
    topic = await recorder.topic("throttled")
    sent = {"Index": 0, "Records": batch([(b"k", bytes(15_000))])}
    data = [{"Name": topic, "PartitionData": [sent]}]
    body = {"TransactionalId": None, "Acks": 1, "TimeoutMs": 5_000, "TopicData": data}
    await recorder.ask("Produce", 9, "beyond the rate", body, Leader(topic), sender)
    part = {"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 1 << 20}
    fetch: Message = {"MaxWaitMs": 500, "MinBytes": 1, "MaxBytes": 1 << 20, "SessionEpoch": -1}
    fetch = {**fetch, "Topics": [{"Topic": topic, "Partitions": [part]}]}
    for name in ("within the rate", "beyond the rate", "after the wait"):
        asked_s = loop.time()
        await recorder.ask("Fetch", 11, name, fetch, Leader(topic), sender)
        recorder.note("answer", "waits" if loop.time() - asked_s > 0.8 else "at once")
