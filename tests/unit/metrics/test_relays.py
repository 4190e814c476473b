"""The metrics of relays in a scrape."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from purgatory import metrics
from purgatory.shared import SharedPurgatory, UnixRelay


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"purgatory_relay_{name}", labels)


def test_each_registry_has_a_relays_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # for a short path
    first, second = CollectorRegistry(), CollectorRegistry()

    async def main() -> None:
        here, there = UnixRelay("s"), UnixRelay("s")
        for registry in (first, second, first):
            metrics.register_relay(here, registry)
        async with (
            SharedPurgatory("Fetch", here, lambda _: {}, 60) as one,
            SharedPurgatory("Fetch", there, lambda _: {}, 60) as other,
        ):
            while {here.state.name, there.state.name} != {"live"}:
                await asyncio.sleep(0.01)
            for registry in (first, second):
                assert value(registry, "deaf", relay="UnixRelay") == 0
            waiting = asyncio.create_task(one.wait_for_threshold("k", 1, 30))
            await asyncio.sleep(0)
            await one.advance("l", 1)
            await other.advance("k", 1)
            assert await waiting == 1
        for registry in (first, second):
            counts = {
                direction: value(registry, "messages_total", relay="UnixRelay", direction=direction)
                for direction in ("sent", "received", "lost")
            }
            assert counts == {"sent": 1, "received": 1, "lost": 0}
            assert value(registry, "deaf", relay="UnixRelay") == 0  # closed, not deaf
            deaf_s = value(registry, "deaf_seconds_total", relay="UnixRelay")
            assert deaf_s is not None
            assert deaf_s > 0

    asyncio.run(main())


def test_two_relays_need_two_labels() -> None:
    registry = CollectorRegistry()
    relay, other = UnixRelay("a"), UnixRelay("b")
    metrics.register_relay(relay, registry)
    metrics.register_relay(other, registry)  # the first one is closed
    relay._set_state("deaf", None)
    metrics.register_relay(relay, registry, label="mine")
    with pytest.raises(ValueError, match="labelled 'mine' already: pass another label="):
        metrics.register_relay(other, registry, label="mine")
    with pytest.raises(TypeError, match="a label must be a str"):
        metrics.register_relay(other, registry, label=1)  # type: ignore[arg-type]
    del relay
    gc.collect()
    metrics.register_relay(other, registry, label="mine")
