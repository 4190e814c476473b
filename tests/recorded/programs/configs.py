"""Settings of topics, brokers, groups and clients' metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.recorded.codec import Message, versions_of
from tests.recorded.recorder import NoAnswerError, Recorder

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
"""The types of resources."""

SET, DELETE, APPEND, SUBTRACT = range(4)

_TOPIC_VALUES: Sequence[tuple[str, Sequence[str | None]]] = (
    ("retention.ms", ("abc", "-2", "", None, " 5 ", "5.0", "9223372036854775808", "1e3")),
    ("nope", ("1",)),
    ("Retention.ms", ("1",)),
    ("cleanup.policy", ("x", "", "compact,delete", "delete,delete", "none")),
    ("min.insync.replicas", ("0", "9")),
    ("segment.bytes", ("10", "1048576")),
    ("internal.segment.bytes", ("100",)),
    ("max.message.bytes", ("-1", "0")),
    ("compression.type", ("lzo", "zstd")),
    ("compression.zstd.level", ("99",)),
    ("compression.gzip.level", ("0",)),
    ("compression.lz4.level", ("18",)),
    ("message.timestamp.type", ("x", "LogAppendTime")),
    ("unclean.leader.election.enable", ("maybe", "TRUE")),
    ("min.cleanable.dirty.ratio", ("1.5", "0.1")),
    ("message.format.version", ("2.8",)),
    ("message.downconversion.enable", ("true",)),
    ("message.timestamp.difference.max.ms", ("5",)),
    ("message.timestamp.before.max.ms", ("-1",)),
    ("message.timestamp.after.max.ms", ("1",)),
    ("remote.storage.enable", ("true",)),
    ("remote.log.delete.on.disable", ("true",)),
    ("remote.copy.disable", ("true",)),
    ("local.retention.ms", ("5",)),
    ("local.retention.bytes", ("-2",)),
    ("leader.replication.throttled.replicas", ("0:1", "x", "*")),
    ("flush.ms", ("-1",)),
    ("flush.messages", ("0",)),
    ("delete.retention.ms", ("-1",)),
    ("file.delete.delay.ms", ("1",)),
    ("index.interval.bytes", ("1",)),
    ("segment.index.bytes", ("1", "4")),
    ("segment.ms", ("0", "1")),
    ("segment.jitter.ms", ("1",)),
    ("preallocate", ("true",)),
    ("min.compaction.lag.ms", ("10",)),
    ("max.compaction.lag.ms", ("0",)),
    ("retention.bytes", ("-2",)),
    ("errors.deadletterqueue.topic.name", ("x",)),
)


async def topic_settings(recorder: Recorder) -> None:
    topic = await recorder.topic("cfg")

    async def describe(name: str, version: int, *resources: Message, **more: Any) -> None:
        body = {"Resources": list(resources), **more}
        await recorder.ask("DescribeConfigs", version, name, body)

    def resource(kind: int, name: str, keys: Sequence[str] | None = None) -> Message:
        return {"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": keys}

    for version in versions_of("DescribeConfigs"):
        await describe("topic", version, resource(TOPIC, topic), IncludeSynonyms=True)
    some = resource(TOPIC, topic, ["retention.ms", "nope"])
    await describe("documented", 4, some, IncludeSynonyms=True, IncludeDocumentation=True)
    await describe("no keys", 4, resource(TOPIC, topic, []))
    for kind, name in (
        *((TOPIC, topic + "x"), (TOPIC, "bad name!"), (TOPIC, ""), (0, "x"), (99, "x")),
        *((BROKER, "99"), (BROKER, "abc"), (GROUP, "g"), (GROUP, "")),
        *((METRICS, "m"), (METRICS, ""), (LOGGER, "99"), (LOGGER, "")),
    ):
        await describe(f"type {kind} name {name!r}", 4, resource(kind, name))
    await describe("same topic twice", 4, *[resource(TOPIC, topic, ["retention.ms"])] * 2)


async def broker_settings(recorder: Recorder) -> None:
    async def describe(name: str, version: int, kind: int, of: str, **more: Any) -> None:
        resource = {"ResourceType": kind, "ResourceName": of, "ConfigurationKeys": None}
        body = {"Resources": [{**resource, **more}], "IncludeSynonyms": True}
        await recorder.ask("DescribeConfigs", version, name, body, to=1)

    for version in (1, 4):
        await describe("broker", version, BROKER, "1")
    await describe("brokers' defaults", 4, BROKER, "")
    one = ["log.retention.ms"]
    await describe("another broker", 4, BROKER, "2", ConfigurationKeys=one)


async def created_settings(recorder: Recorder) -> None:
    async def validate(name: str, *settings: tuple[str, str | None]) -> None:
        topic = {
            "Name": recorder.name("cc"),
            "NumPartitions": 1,
            "ReplicationFactor": 1,
            "Configs": [{"Name": key, "Value": value} for key, value in settings],
        }
        body = {"Topics": [topic], "timeoutMs": 10_000, "validateOnly": True}
        await recorder.ask("CreateTopics", 7, name, body)

    for key, values in _TOPIC_VALUES:
        for value in values:
            await validate(f"{key}={value}", (key, value))
    await validate("lags", ("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "5"))
    await validate("a setting twice", ("retention.ms", "5"), ("retention.ms", "6"))
    await validate("local above total", ("local.retention.ms", "10"), ("retention.ms", "5"))


def _altered(kind: int, name: str, *changes: tuple[str, int, str | None]) -> Message:
    configs = [
        {"Name": key, "ConfigOperation": operation, "Value": value}
        for key, operation, value in changes
    ]
    return {"ResourceType": kind, "ResourceName": name, "Configs": configs}


def _alterations(topic: str) -> Sequence[Message]:
    key, policy = "retention.ms", "cleanup.policy"
    of_topic = [
        *((key, SET, "5000"), (key, DELETE, None), (key, DELETE, "7"), (key, APPEND, "7")),
        *((policy, APPEND, "compact"), (policy, APPEND, "compact")),
        *((policy, SUBTRACT, "delete"), (policy, SUBTRACT, "delete")),
        *((policy, SUBTRACT, "compact"), ("nope", SET, "1"), ("nope", DELETE, None)),
        *((key, 7, "1"), (key, SET, None), (key, SET, "x")),
    ]
    of_broker = [
        *(("log.retention.ms", SET, "600000"), ("log.retention.ms", DELETE, None)),
        *(("num.io.threads", SET, "9"), ("num.io.threads", SET, "100")),
        *(("log.dirs", SET, "/x"), ("listeners", SET, "PLAINTEXT://:1")),
        *(("unknown.setting", SET, "v"), ("min.insync.replicas", SET, "2")),
        *(("max.connections", SET, "x"), ("default.replication.factor", SET, "2")),
        *(("auto.create.topics.enable", SET, "false"), ("node.id", SET, "2")),
        ("group.initial.rebalance.delay.ms", SET, "5"),
    ]
    of_brokers = [
        *(("num.io.threads", SET, "9"), ("num.io.threads", SET, "0")),
        *(("num.io.threads", DELETE, None), ("listeners", SET, "PLAINTEXT://:1")),
        *(("min.insync.replicas", SET, "2"), ("min.insync.replicas", DELETE, None)),
        *(("log.cleaner.threads", SET, "2"), ("log.cleaner.threads", DELETE, None)),
        ("ssl.keystore.password", SET, "s"),
    ]
    of_group = [
        *(("consumer.session.timeout.ms", SET, "50000"), ("consumer.session.timeout.ms", SET, "1")),
        *(("consumer.heartbeat.interval.ms", SET, value) for value in ("6000", "60000")),
        *(
            ("share.auto.offset.reset", SET, value)
            for value in ("earliest", "by_duration:PT1H", "none")
        ),
        ("share.isolation.level", SET, "read_committed"),
        *(("share.record.lock.duration.ms", SET, value) for value in ("20000", "1")),
        *(("streams.num.standby.replicas", SET, "1"), ("streams.session.timeout.ms", SET, "50000")),
        *(
            ("share.delivery.count.limit", SET, "3"),
            ("share.partition.max.record.locks", SET, "300"),
        ),
        *(("share.renew.acknowledge.enable", SET, "true"), ("nope", SET, "1")),
        ("consumer.session.timeout.ms", DELETE, None),
    ]
    of_metrics = [("interval.ms", SET, "1000"), ("metrics", SET, "a.b"), ("nope", SET, "a.b")]
    return [
        *(_altered(TOPIC, topic, change) for change in of_topic),
        _altered(TOPIC, topic, (key, SET, "1"), (key, SET, "2")),
        _altered(TOPIC, topic),
        *(_altered(TOPIC, name, (key, SET, "1")) for name in (topic + "x", "", "bad!")),
        *(_altered(kind, "x", ("a", SET, "1")) for kind in (0, 77)),
        *(_altered(BROKER, "1", change) for change in of_broker),
        *(_altered(BROKER, "", change) for change in of_brokers),
        *(_altered(BROKER, name, ("num.io.threads", SET, "9")) for name in ("99", "abc")),
        *(_altered(GROUP, "g1", change) for change in of_group),
        _altered(GROUP, "", ("consumer.session.timeout.ms", SET, "50000")),
        *(_altered(METRICS, "m1", change) for change in of_metrics),
        *(_altered(LOGGER, "1", ("kafka.x", SET, value)) for value in ("DEBUG", "BAD")),
    ]


def _named(resource: Message) -> str:
    configs = [tuple(config.values()) for config in resource["Configs"]]
    return f"type {resource['ResourceType']} {resource['ResourceName']!r} {configs}"


async def altered_settings(recorder: Recorder) -> None:
    """Leaves `min.insync.replicas` behind, which a real Kafka with ELR doesn't let go of."""
    topic = await recorder.topic("ac")
    for only in (True, False):
        for resource in _alterations(topic):
            body = {"Resources": [resource], "ValidateOnly": only}
            name = f"{'validated: ' if only else ''}{_named(resource)}"
            await recorder.ask("IncrementalAlterConfigs", 1, name, body, to=1)
    for kind, of in ((TOPIC, topic), (GROUP, "g1"), (METRICS, "m1"), (BROKER, "")):
        resource = {"ResourceType": kind, "ResourceName": of, "ConfigurationKeys": None}
        body = {"Resources": [resource], "IncludeSynonyms": True}
        await recorder.ask("DescribeConfigs", 4, f"afterwards, type {kind}", body)
    one = _altered(TOPIC, topic, ("retention.ms", SET, "1"))
    await recorder.ask("IncrementalAlterConfigs", 1, "a topic twice", {"Resources": [one, one]})
    await recorder.ask("IncrementalAlterConfigs", 0, "a topic", {"Resources": [one]})


async def replaced_settings(recorder: Recorder) -> None:
    topic = await recorder.topic("rc")
    cases: Sequence[tuple[int, str, Sequence[tuple[str, str | None]]]] = (
        (TOPIC, topic, [("retention.ms", "77")]),
        (TOPIC, topic, [("segment.ms", "777777")]),
        (TOPIC, topic, []),
        (TOPIC, topic, [("nope", "1")]),
        (TOPIC, topic, [("retention.ms", None)]),
        (TOPIC, topic, [("retention.ms", "a")]),
        (TOPIC, topic, [("retention.ms", "1"), ("retention.ms", "2")]),
        (TOPIC, topic + "x", [("retention.ms", "1")]),
        (BROKER, "", [("num.io.threads", "7")]),
        (BROKER, "", []),
    )
    for kind, of, settings in cases:
        configs = [{"Name": key, "Value": value} for key, value in settings]
        resource = {"ResourceType": kind, "ResourceName": of, "Configs": configs}
        for version in versions_of("AlterConfigs"):
            name = f"type {kind} {of!r} {settings}"
            await recorder.ask("AlterConfigs", version, name, {"Resources": [resource]})
        keys = ["retention.ms", "segment.ms"]
        asked = {"ResourceType": TOPIC, "ResourceName": topic, "ConfigurationKeys": keys}
        body = {"Resources": [asked], "IncludeSynonyms": True}
        await recorder.ask("DescribeConfigs", 4, "then", body)


async def listed_resources(recorder: Recorder) -> None:
    body = {"Resources": [_altered(GROUP, "lg", ("share.auto.offset.reset", SET, "earliest"))]}
    await recorder.ask("IncrementalAlterConfigs", 1, "group", body)
    body = {"Resources": [_altered(METRICS, "lm", ("interval.ms", SET, "1000"))]}
    await recorder.ask("IncrementalAlterConfigs", 1, "metrics", body)
    await asyncio.sleep(1)
    for version in versions_of("ListConfigResources"):
        for kinds in ((), (GROUP, METRICS), (99,), (BROKER, LOGGER)) if version else ((),):
            asked = {"ResourceTypes": list(kinds)} if kinds else {}
            name = f"ListConfigResources v{version} of types {kinds}"
            try:
                answer = await recorder.ask_quietly("ListConfigResources", version, asked)
            except NoAnswerError as error:
                recorder.note(name, str(error))
                continue
            found = answer["ConfigResources"]
            own = [one for one in found if one["ResourceName"] in ("lg", "lm", "1", "2")]
            recorder.note(name, {**answer, "ConfigResources": own})
