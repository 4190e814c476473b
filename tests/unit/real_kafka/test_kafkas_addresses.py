"""Each response of Kafka's that has the address of a broker is known to the proxy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from purgatory.proxy.addresses import KNOWN_VERSIONS, has_addresses
from tests.recorded.schemas import load_schemas

OF_NO_BROKER = {"StreamsGroupDescribe", "StreamsGroupHeartbeat"}
"""They have the addresses of clients."""

OF_CONTROLLERS = {"DescribeQuorum", "UpdateRaftVoter"}
"""They have the addresses of controllers' own listeners, which clients of brokers don't use."""

Structs = Mapping[str, Sequence[Mapping[str, Any]]]


def versions_in(text: str, newest: int) -> range:
    """The versions in a text such as "4-18" or "10+"."""
    first, _, last = text.rstrip("+").partition("-")
    return range(int(first), (newest if text.endswith("+") else int(last or first)) + 1)


def versions_with_addresses(
    fields: Sequence[Mapping[str, Any]], structs: Structs, newest: int
) -> Iterator[int]:
    """The versions of a message that have a host with its port."""
    by_name = {field["name"]: field for field in fields}
    if {"Host", "Port"} <= by_name.keys():
        yield from versions_in(by_name["Host"]["versions"], newest)
    for field in fields:
        inner = field.get("fields") or structs.get(field["type"].removeprefix("[]"), ())
        there = versions_in(field["versions"], newest)
        yield from set(versions_with_addresses(inner, structs, newest)) & set(there)


def test_proxy_knows_every_response_with_addresses() -> None:
    found = {}
    for schema in load_schemas():
        name = schema["name"].removesuffix("Response")
        if schema.get("type") != "response" or name in OF_NO_BROKER | OF_CONTROLLERS:
            continue
        valid = versions_in(schema["validVersions"], 0)
        structs = {one["name"]: one["fields"] for one in schema.get("commonStructs", ())}
        versions = versions_with_addresses(schema["fields"], structs, valid[-1])
        for version in sorted(set(versions) & set(valid)):
            found[name, version] = has_addresses(schema["apiKey"], version)
    assert {name for name, _ in found} >= {"Produce", "Fetch", "ShareFetch", "ShareAcknowledge"}
    assert [one for one, is_known in found.items() if not is_known] == []


def test_proxy_knows_each_version_of_the_newest_kafka() -> None:
    newest = {
        schema["apiKey"]: versions_in(schema["validVersions"], 0)[-1]
        for schema in load_schemas()
        if schema.get("type") == "response"
    }
    unknown = {key for key in newest if newest[key] > KNOWN_VERSIONS.get(key, (0, -1))[1]}
    assert not {key for key in unknown if key in KNOWN_VERSIONS and has_addresses(key, newest[key])}
