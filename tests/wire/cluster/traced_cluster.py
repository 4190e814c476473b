"""A viewer's model of a cluster, by the documented messages alone.

A state, and the changes that are applied to it; `whole` must equal the feed's state at the end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from aiohttp import ClientResponse

Told = dict[str, Any]


class ToldCluster:
    """Applies changes to a state."""

    def __init__(self) -> None:
        self.state: Told = {}
        self.until_us = -1
        self.states = 0
        self.said: list[str] = []
        self.completed: list[Told] = []
        self.parked: list[list[Any]] = []

    def begin(self, state: Told) -> None:
        self.states += 1
        self.state = state
        self.until_us = state["at_us"]
        self.operations = {row[0]: row for row in state["operations"]}
        self.groups = {one["name"]: one for one in state["groups"]}
        self.transactions = {one["id"]: one for one in state["transactions"]}
        self.faults = {one["number"]: one for one in state["faults"]}

    def apply(self, told: Told) -> None:
        assert told["from_us"] == self.until_us or self.until_us <= told["from_us"]
        last_us = told["from_us"]
        for change in told["changes"]:
            assert last_us <= change["at_us"] <= told["until_us"]
            last_us = change["at_us"]
            getattr(self, f"on_{change['change']}")(change)
        self.until_us = told["until_us"]

    def broker(self, number: int) -> Told:
        return next(one for one in self.state["brokers"] if one["id"] == number)

    def purgatory(self, change: Told) -> Told:
        purgatories = self.broker(change["broker"])["purgatories"]
        return next(one for one in purgatories if one["name"] == change["purgatory"])

    def partition(self, change: Told) -> Told:
        topics = {one["name"]: one for one in self.state["topics"]}
        found: Told = topics[change["topic"]]["partitions"][change["partition"]]
        return found

    def on_parked(self, change: Told) -> None:
        row = change["operation"]
        assert row[0] not in self.operations
        self.operations[row[0]] = row
        self.parked.append(row)
        self.purgatory({"broker": row[1], "purgatory": row[2]})["pending"] += 1

    def on_moved(self, change: Told) -> None:
        self.operations[change["id"]][7:] = [change["level"], change["bucket"]]

    def on_completed(self, change: Told) -> None:
        self.completed.append(change)
        purgatory = self.purgatory(change)
        if change["outcome"] != "immediate":
            purgatory["pending"] -= 1
            self.operations.pop(change["id"])
        purgatory["outcomes"][change["outcome"]] += 1

    def on_completed_many(self, change: Told) -> None:
        purgatory = self.purgatory(change)
        for outcome, number in change["outcomes"].items():
            purgatory["outcomes"][outcome] += number
        purgatory["pending"] = change["pending"]

    def on_clock(self, change: Told) -> None:
        wheel = self.broker(change["broker"])["wheel"]
        wheel |= {"clock_ms": change["clock_ms"], "levels": change["levels"]}

    def on_broker(self, change: Told) -> None:
        broker = self.broker(change["broker"])
        broker |= {"alive": change["alive"], "connections": change["connections"]}

    def on_partition(self, change: Told) -> None:
        topics = {one["name"]: one for one in self.state["topics"]}
        if change["topic"] not in topics:
            topic = {"name": change["topic"], "internal": change["internal"], "partitions": []}
            self.state["topics"].append(topic)
        else:
            topic = topics[change["topic"]]
        if change["partition"] == len(topic["partitions"]):
            topic["partitions"].append(
                {"partition": change["partition"], "high_watermark": None, "log_end_offsets": {}}
            )
        role = {name: change[name] for name in ("leader", "leader_epoch", "isr", "replicas")}
        self.partition(change).update(role)

    def on_high_watermark(self, change: Told) -> None:
        self.partition(change)["high_watermark"] = change["offset"]

    def on_log_end(self, change: Told) -> None:
        self.partition(change)["log_end_offsets"][str(change["broker"])] = change["offset"]

    def on_group(self, change: Told) -> None:
        group = {name: value for name, value in change.items() if name not in ("at_us", "change")}
        self.groups[group["name"]] = group
        if group["state"] == "Gone":
            del self.groups[group["name"]]

    def on_transaction(self, change: Told) -> None:
        one = {name: value for name, value in change.items() if name not in ("at_us", "change")}
        self.transactions[one["id"]] = one
        if one["state"] == "ended":
            del self.transactions[one["id"]]

    def on_fault(self, change: Told) -> None:
        fault = {name: value for name, value in change.items() if name not in ("at_us", "change")}
        self.faults[fault["number"]] = fault

    def on_log(self, change: Told) -> None:
        self.said.append(change["text"])

    def whole(self) -> Told:
        """All reported parts, as a state has them; operations as a set of rows without numbers."""
        return comparable(
            {
                **self.state,
                "operations": list(self.operations.values()),
                "groups": list(self.groups.values()),
                "transactions": list(self.transactions.values()),
                "faults": list(self.faults.values()),
            }
        )


def comparable(state: Told) -> Told:
    """A state without the parts that differ between two reports of it: numbers, order, the time."""

    def by(name: str, ones: list[Told]) -> list[Told]:
        return sorted(ones, key=lambda one: one[name])

    return {
        "brokers": by("id", state["brokers"]),
        "operations": sorted((row[1:] for row in state["operations"]), key=json.dumps),
        "topics": by("name", state["topics"]),
        "groups": by("name", state["groups"]),
        "transactions": by("id", state["transactions"]),
        "faults": by("number", state["faults"]),
    }


async def events(response: ClientResponse) -> AsyncIterator[tuple[str, Told]]:
    """Yield the events of a stream."""
    buffer = b""
    async for chunk in response.content.iter_any():
        buffer += chunk
        while b"\n\n" in buffer:
            event, buffer = buffer.split(b"\n\n", 1)
            if event.startswith(b":"):
                continue
            name, data = event.split(b"\n", 1)
            yield name.removeprefix(b"event: ").decode(), json.loads(data.removeprefix(b"data: "))


async def follow(response: ClientResponse, told: ToldCluster) -> None:
    """Apply changes until the stream ends."""
    async for name, data in events(response):
        told.begin(data) if name == "state" else told.apply(data)


async def until(condition: Callable[[], object], timeout_s: float = 30) -> None:
    """Wait until ``condition`` holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)
