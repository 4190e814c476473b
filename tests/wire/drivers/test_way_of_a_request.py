"""The way of a request in docs/design.md is the one that requests take, in both drivers."""

from __future__ import annotations

import asyncio
import re
import sys
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import purgatory
from purgatory.cluster import Cluster, ClusterConfig, TopicSpec
from purgatory.kafka.log.log import Log
from purgatory.simulation import Simulation, apply_overrides, load_scenario
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import record_batch

_FOLDER = str(Path(purgatory.__file__).parent)
_DOCUMENT = Path(__file__).parents[3] / "docs" / "design.md"
Way = tuple[str, ...]


def _written() -> dict[str, Way]:
    """The ways in the document, by their headings."""
    text = _DOCUMENT.read_text(encoding="utf-8")
    section = text[text.index("## The way of a request") : text.index("## Decisions")]
    found = re.findall(r"^(A [^\n]*), in the (\w+):\n\n((?:    [^\n]+\n)+)", section, re.M)
    return {f"{what}, {where}": tuple(names.split()) for what, where, names in found}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> set[Way]:
    """The ways to the log that calls take, outermost first."""
    ways: set[Way] = set()

    def watched(name: str) -> None:
        original = getattr(Log, name)

        def call(*arguments: Any, **named: Any) -> Any:
            names = [f"Log.{name}"]
            frame: FrameType | None = sys._getframe(1)
            while frame is not None:
                if frame.f_code.co_filename.startswith(_FOLDER):
                    names.append(frame.f_code.co_qualname)
                frame = frame.f_back
            ways.add(tuple(reversed(names)))
            return original(*arguments, **named)

        monkeypatch.setattr(Log, name, call)

    watched("append")
    watched("read")
    return ways


async def _produce_and_fetch() -> None:
    config = ClusterConfig(brokers=2, topics=[TopicSpec("t")])
    async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
        produced = {"index": 0, "records": record_batch([b"x"])}
        await client.ask(
            0,
            9,
            {
                "acks": -1,
                "timeout": timedelta(seconds=5),
                "topic_data": [{"name": "t", "partition_data": [produced]}],
            },
        )
        fetched = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000_000}
        await client.ask(
            1,
            11,
            {
                "max_wait": timedelta(seconds=5),
                "min_bytes": 1,
                "max_bytes": 1_000_000,
                "session_epoch": -1,
                "topics": [{"topic": "t", "partitions": [fetched]}],
            },
        )


def test_the_document_has_the_ways_of_both_drivers() -> None:
    assert sorted(_written()) == [
        f"{what}, {where}"
        for what in (
            "A consumer's fetch",
            "A follower's copy of what it fetched",
            "A follower's fetch that waited for a produce",
            "A produce",
        )
        for where in ("cluster", "simulation")
    ]


def test_requests_take_the_ways_in_the_document(taken: set[Way]) -> None:
    asyncio.run(_produce_and_fetch())
    in_cluster = set(taken)
    taken.clear()
    Simulation(apply_overrides(load_scenario("steady"), duration_ms=500)).run()
    ends = {"cluster": in_cluster, "simulation": set(taken)}
    for name, way in _written().items():
        where = name.rpartition(", ")[2]
        found = [one for one in ends[where] if one[-len(way) :] == way]
        assert found, f"{name}: no call took {way}; there were {sorted(ends[where])}"
