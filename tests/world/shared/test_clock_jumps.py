"""A wall clock that jumps changes no duration of a relay, nor of a fault."""

from __future__ import annotations

import asyncio
import time
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from purgatory.cluster import fault_injection, traced_brokers
from purgatory.cluster.fault_injection import ConnectionFaults
from purgatory.cluster.traced_brokers import ElapsedClock
from purgatory.kafka.faults import Fault, Pause, active_faults
from purgatory.shared import relay as relay_module
from purgatory.shared.shared_purgatory import SharedPurgatory
from purgatory.trace.observer import FaultState
from purgatory.virtual import World
from tests.unit.core.probe import core_logs
from tests.world.shared.misbehaving_relay import Hub, MisbehavingRelay


@pytest.mark.parametrize("jump_s", [-3_600.0, 3_600.0])
def test_deaf_seconds_are_those_that_passed(jump_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    jumped_s = 0.0
    clocks = SimpleNamespace(time=lambda: time.time() + jumped_s, monotonic=time.monotonic)
    monkeypatch.setattr(relay_module, "time", clocks)

    async def main() -> None:
        nonlocal jumped_s
        hub = Hub(Random(0))
        relay = MisbehavingRelay(hub, "relay")
        observed: list[float] = []
        relay.observers["test"] = lambda event, amount: (
            observed.append(amount) if event == "deaf_s" else None
        )
        async with SharedPurgatory("Fetch", relay, lambda keys: {}, 3_600):
            began_s, before_s = time.monotonic(), relay.counts.deaf_s
            hub.is_down = True
            hub.cut_all()
            await asyncio.sleep(1)
            jumped_s = jump_s
            now_s = time.monotonic() - began_s + before_s
            assert relay.counts.deaf_s == pytest.approx(now_s, abs=0.1)
            hub.is_down = False
            await asyncio.sleep(10)
            assert relay.state.name == "live"
            assert 1 < relay.counts.deaf_s < 10
            assert sum(observed) == pytest.approx(relay.counts.deaf_s)

    with core_logs() as logs, World(0) as world:
        world.run(main())
    lives = [entry["after_s"] for entry in logs if entry["event"] == "relay_live"]
    assert len(lives) == 2
    assert all(0 <= after_s < 10 for after_s in lives)


class Faults(ConnectionFaults):
    """Faults of no cluster."""

    def _check(self, fault: Fault) -> None:
        """Any will do."""

    async def revive(self, broker: int) -> None:
        """Nothing is to be done."""


@pytest.mark.parametrize("jump_s", [-3_600.0, 3_600.0])
def test_fault_in_a_trace_lasts_as_long_as_it_did(
    jump_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumped_s = 0.0
    clocks = SimpleNamespace(
        time=lambda: time.time() + jumped_s,
        monotonic=time.monotonic,
        monotonic_ns=time.monotonic_ns,
    )
    for module in (fault_injection, active_faults, traced_brokers):
        monkeypatch.setattr(module, "time", clocks)

    async def main() -> None:
        nonlocal jumped_s
        clock = ElapsedClock()
        target: Any = None
        faults = Faults(target)
        fault = await faults.begin(Pause(0))
        await asyncio.sleep(10)
        jumped_s = jump_s
        await asyncio.sleep(10)
        fault.end()
        state = FaultState.of(fault, clock.us_of_s)
        assert state.until_us == pytest.approx(20_000_000, abs=1_000)
        assert state.since_us == pytest.approx(0, abs=1_000)
        shown = fault.as_dict()
        assert shown["ended_s"] == pytest.approx(clocks.time(), abs=0.001)
        assert shown["ended_s"] - shown["began_s"] == pytest.approx(20)

    with World(0) as world:
        world.run(main())
