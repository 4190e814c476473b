"""Chaos in a world: a plan by the seed, of which parts can be left out."""

from __future__ import annotations

import pytest

from purgatory.virtual import World, WorldError
from tests.chaos.chaos_wire import repeat_command
from tests.chaos.wire_hour import run_wire


def _plan(seed: int, without: tuple[int, ...] = ()) -> tuple[list[str], list[str], str]:
    """What was planned, what happened of it, and the hash of it all."""
    with World(seed, without=without) as world:
        cluster = world.cluster(topics=["orders"])
        world.at("30s", world.network.reset)
        world.chaos(cluster, per_min=20, end="1min", longest="2s")
        world.pass_time("2min")
        happened = [event.text for event in world.last_events(10_000) if event.kind == "fault"]
        return [str(fault) for fault in world.faults], happened, world.digest


def test_a_seed_has_one_plan() -> None:
    planned, happened, digest = _plan(4)
    assert len(planned) == len(happened) == 21
    assert (planned, happened, digest) == _plan(4)
    assert planned[1:] != _plan(5)[0][1:]


def test_what_is_left_out_does_not_change_the_others() -> None:
    planned, happened, _ = _plan(4)
    planned_again, fewer, _ = _plan(4, (0, 3, 5))
    assert planned_again == planned
    assert len(fewer) == 18
    assert not set(fewer) - set(happened)


def test_a_plan_that_makes_no_sense_is_refused() -> None:
    with World() as world:
        cluster = world.cluster(brokers=1)
        with pytest.raises(WorldError, match="there is no 'earthquake'; there are kill, pause"):
            world.chaos(cluster, kinds=["earthquake"])
        with pytest.raises(WorldError, match="at least one"):
            world.chaos(cluster, kinds=[])
        with pytest.raises(WorldError, match="after the beginning"):
            world.chaos(cluster, begin="2min", end="1min")


def test_every_kind_strikes_a_cluster_of_one() -> None:
    with World(1) as world:
        cluster = world.cluster(brokers=1, topics=["orders"])
        world.chaos(cluster, per_min=100, end="1min", longest="1s")
        world.pass_time("2min")
        assert cluster.live_broker(1) is not None


@pytest.mark.parametrize(
    "minutes", [0.5, pytest.param(12.0, marks=[pytest.mark.exhaustive, pytest.mark.timeout(900)])]
)
def test_real_clients_keep_their_promises_among_faults(minutes: float) -> None:
    hour = run_wire(3, minutes)
    assert hour.wrong == []
    assert hour.faults == round(6 * (minutes - 5 / 60))
    assert hour.records > 300 * minutes


def test_the_command_that_repeats_a_world_leaves_out_what_it_did() -> None:
    assert repeat_command(7, [], disk=False) == "make chaos-wire SEED=7 HOURS=0.2"
    command = repeat_command(7, [0, 1, 2, 5], disk=True)
    assert command == "make chaos-wire SEED=7 HOURS=0.2 WITHOUT=0-2,5 DISK=1"
