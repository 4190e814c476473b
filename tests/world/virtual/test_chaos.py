"""Chaos in a world: the seed draws a plan, from which faults can be excluded."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

from purgatory.cluster import Faults
from purgatory.cluster.fault_injection import FaultMethod, FaultMethods
from purgatory.virtual import World, WorldError
from purgatory.virtual.cluster_chaos import ClusterKinds
from tests.chaos.chaos_wire import repeat_command
from tests.chaos.wire_hour import run_wire


def _plan(seed: int, without: tuple[int, ...] = ()) -> tuple[list[str], list[str], str]:
    """The plan, the faults that took place, and the digest of the run."""
    with World(seed, without=without) as world:
        cluster = world.cluster(topics=["orders"])
        world.at("30s", world.network.reset)
        world.chaos(cluster, per_min=20, end="1min", longest="2s")
        world.pass_time("2min")
        happened = [event.text for event in world.last_events(10_000) if event.kind == "fault"]
        return [str(fault) for fault in world.faults], happened, world.digest


def test_seed_determines_the_plan_of_chaos() -> None:
    planned, happened, digest = _plan(4)
    assert len(planned) == len(happened) == 21
    assert (planned, happened, digest) == _plan(4)
    assert planned[1:] != _plan(5)[0][1:]


def test_omitted_faults_do_not_change_the_others() -> None:
    planned, happened, _ = _plan(4)
    planned_again, fewer, _ = _plan(4, (0, 3, 5))
    assert planned_again == planned
    assert len(fewer) == 18
    assert not set(fewer) - set(happened)


def test_invalid_plan_is_refused() -> None:
    with World() as world:
        cluster = world.cluster(brokers=1)
        with pytest.raises(WorldError, match="there is no 'earthquake'; there are kill, pause"):
            world.chaos(cluster, kinds=["earthquake"])
        with pytest.raises(WorldError, match="at least one"):
            world.chaos(cluster, kinds=[])
        with pytest.raises(WorldError, match="after the beginning"):
            world.chaos(cluster, begin="2min", end="1min")


@pytest.mark.parametrize("brokers", [1, 3])
def test_each_kind_of_fault_applies_to_one_broker_and_to_several(brokers: int) -> None:
    with World(1) as world:
        cluster = world.cluster(brokers=brokers, topics=["orders"], disk=True)
        kinds = ClusterKinds(random.Random(0), cluster, world.network)
        for kind in (*kinds.default_kinds, *kinds.opt_in_kinds):
            world.chaos(cluster, per_min=10, end="1min", longest="1s", kinds=[kind])
        world.pass_time("2min")
        texts = {fault.text.split()[0] for fault in world.faults}
        assert len(world.faults) == 10 * len({*kinds.default_kinds, *kinds.opt_in_kinds})
        assert len(texts) > 15
        assert all(cluster.live_broker(one) is not None for one in cluster.brokers)
        assert not world.network.is_lost()


def test_every_fault_of_a_cluster_is_a_kind_of_chaos() -> None:
    faults = {name for name, value in vars(FaultMethods).items() if isinstance(value, FaultMethod)}
    faults |= {name for name, value in vars(Faults).items() if isinstance(value, FaultMethod)}
    with World(1) as world:
        plain = world.cluster(topics=["orders"])
        kinds = ClusterKinds(random.Random(0), plain, world.network)
        assert faults == {*kinds.default_kinds, *kinds.opt_in_kinds} & faults


def test_faults_that_break_guarantees_are_drawn_only_if_named() -> None:
    with World(1) as world:
        cluster = world.cluster(topics=["orders"])
        usual = world.chaos(cluster, per_min=100, end="10min")
        assert not [one for one in usual if "jump clock" in one.text or "epochs" in one.text]
        [named] = world.chaos(cluster, per_min=1, end="1min", kinds=["jump_clock"])
        assert "jump clock" in named.text


def test_temporary_losses_end_and_the_highest_applies() -> None:
    with World(1) as world:
        network = world.network
        with network.lose(1.0), network.lose(0.0):
            assert network.is_lost()
        assert not network.is_lost()
        network.loss(1.0)
        ended = network.lose(0.0)
        assert network.is_lost()
        ended.end()
        ended.end()
        with pytest.raises(ValueError, match=r"from 0 to 1, not 1\.5"):
            network.lose(1.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "minutes", [0.5, pytest.param(12.0, marks=[pytest.mark.exhaustive, pytest.mark.timeout(900)])]
)
def test_real_clients_keep_guarantees_under_faults(minutes: float) -> None:
    hour = run_wire(3, minutes)
    assert hour.wrong == []
    assert hour.faults == round(6 * (minutes - 5 / 60))
    assert hour.records > 300 * minutes


def test_repeat_command_excludes_the_same_faults() -> None:
    assert repeat_command(7, [], disk=None) == "make chaos-wire SEED=7 HOURS=0.2"
    command = repeat_command(7, [0, 1, 2, 5], disk=True)
    assert command == "make chaos-wire SEED=7 HOURS=0.2 WITHOUT=0-2,5 DISK=1"


@pytest.mark.parametrize("rate", ["6/min", "0.1/s", "360 / h", 6])
def test_rate_accepts_units_of_time(rate: str | float) -> None:
    with World(1) as world:
        world.cluster(topics=["orders"])
        given = world.chaos(rate=rate, kinds=["kill"])
    with World(1) as world:
        counted = world.chaos(world.cluster(topics=["orders"]), per_min=6, kinds=["kill"])
    assert len(given) == 60
    assert list(map(str, given)) == list(map(str, counted))


@pytest.mark.parametrize("rate", ["6", "6/day", "-1/s", -1, math.nan, math.inf])
def test_invalid_rate_is_refused(rate: str | float) -> None:
    with World() as world, pytest.raises(ValueError, match="rate: "):
        world.chaos(rate=rate)


def test_chaos_without_a_cluster_is_refused() -> None:
    with World() as world, pytest.raises(WorldError, match=r"world\.chaos\(\) is about a cluster"):
        world.chaos()


def _count_on_hosts(seed: int, forced: bool, without: tuple[int, ...] = ()) -> tuple[int, World]:
    """The number of acknowledged increments that two hosts lose, under faults of theirs."""
    lost = 0
    with World(seed, without=without) as world:
        acknowledged = {"left": 0, "right": 0}

        def server(name: str) -> Callable[[], Coroutine[Any, Any, None]]:
            async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                with suppress(ConnectionError):
                    while await reader.readline():
                        disk = hosts[name].disk
                        disk.write_bytes("count", b"+", append=True)
                        if forced:
                            disk.sync("count")
                        writer.write(b"ok\n")
                writer.close()

            async def run() -> None:
                await (await asyncio.start_server(handle, port=80)).serve_forever()

            return run

        hosts = {name: world.host(name, server(name)) for name in acknowledged}
        world.chaos(per_min=10, end="5min", longest="20s")

        async def client(name: str) -> None:
            while world.now_s < 400:
                with suppress(OSError, asyncio.TimeoutError):
                    async with asyncio.timeout(5):
                        reader, writer = await asyncio.open_connection(name, 80)
                        try:
                            writer.write(b"+\n")
                            if await reader.readline() == b"ok\n":
                                acknowledged[name] += 1
                        finally:
                            writer.close()
                await asyncio.sleep(1)

        async def main() -> None:
            await asyncio.gather(*map(client, hosts))

        world.run(main())
        for name, host in hosts.items():
            assert host.state == "running"
            host.crash()
            lost += max(0, acknowledged[name] - len(host.disk.read_bytes("count")))
        assert min(acknowledged.values()) > 100
    return lost, world


def test_hosts_without_a_cluster_have_faults_of_their_own() -> None:
    lost, world = _count_on_hosts(1, forced=True)
    assert lost == 0
    texts = " ".join(fault.text for fault in world.faults)
    assert len(world.faults) == 50
    assert all(word in texts for word in ("crash of left", "pause of right", "partition of left"))
    assert "clock" not in texts
    assert _count_on_hosts(1, forced=True)[1].digest == world.digest


def test_unsynced_data_of_a_host_is_lost_in_crashes() -> None:
    assert any(_count_on_hosts(seed, forced=False)[0] for seed in range(3))


def test_host_clock_jumps_only_if_named() -> None:
    seen: list[float] = []

    async def run() -> None:
        while True:
            seen.append(time.time())
            await asyncio.sleep(1)

    with World(2) as world:
        with pytest.raises(WorldError, match=r"chaos\(\) is about a cluster"):
            world.chaos()
        world.host("billing", run)
        world.chaos(per_min=2, end="1min", kinds=["jump_host_clock"], longest="10s")
        with pytest.raises(WorldError, match="no 'kill'; there are crash_host, pause_host"):
            world.chaos(kinds=["kill"])
        world.pass_time("2min")
    assert len([1 for before, after in pairwise(seen) if abs(after - before) > 2]) == 4


def test_chaos_draws_faults_of_the_cluster_and_of_hosts() -> None:
    async def run() -> None:
        await asyncio.sleep(3_600)

    with World(3) as world:
        world.cluster(topics=["orders"])
        world.host("billing", run)
        world.chaos(per_min=60, end="2min", longest="2s")
        texts = " ".join(fault.text for fault in world.faults)
        world.pass_time("3min")
        assert world.loop.network.faults == []
    assert "crash of billing" in texts
    assert "kill" in texts
