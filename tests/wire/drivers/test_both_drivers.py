"""The simulation and the cluster decide the same, whatever faults are injected.

Their shared code (the controller, replicas, followers' fetching, faults) is tested in
tests/unit/kafka. Here the same body plays each story through both, which shows differences between
the drivers.
Stories about connections and messages are played through a proxy before the cluster, too. Stories
with transactions, which the simulation doesn't have, are played through the cluster alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from purgatory.cluster import replica_fetcher
from purgatory.kafka.faults import KINDS
from tests.wire.drivers.cluster_driver import PAST_PROXY, ClusterDriver, ProxyDriver
from tests.wire.drivers.decisions import Decisions, Rules
from tests.wire.drivers.driver import Driver
from tests.wire.drivers.random_stories import random_story
from tests.wire.drivers.simulated_driver import SimulatedDriver
from tests.wire.drivers.steps import Begin, Story
from tests.wire.drivers.stories import STORIES


@pytest.fixture(autouse=True)
def _impatient_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let followers learn of a high watermark in milliseconds, not in half a second."""
    monkeypatch.setattr(replica_fetcher, "_MAX_WAIT_MS", 10)


def _play(
    story: Story, folder: Path | None = None, sockets: type[ClusterDriver] = ClusterDriver
) -> Decisions:
    """Play a story through both, compare them after each step, and return the last decisions."""
    with ExitStack() as stack:
        simulated: Driver | None = None
        if not story.has_transactions:
            simulated = stack.enter_context(SimulatedDriver(story))
        in_cluster: Driver = stack.enter_context(sockets(story, folder))
        rules = Rules(story.loses)
        for steps in story.scheduler:
            for step in steps:
                if simulated is not None:
                    simulated.take(step)
                in_cluster.take(step)
            expected = None if simulated is None else simulated.settle()
            decided = in_cluster.settle(expected)
            if expected is not None:
                assert decided.lines == expected.lines, f"after {steps}"
                assert decided == expected, f"after {steps}"
            rules.check(decided)
    return decided


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_both_drivers_decide_the_same(story: Story) -> None:
    assert _play(story).lines == story.end_lines


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(story, id=story.name, marks=[] if story.on_disk else pytest.mark.exhaustive)
        for story in STORIES
    ],
)
def test_both_drivers_decide_the_same_with_logs_on_disk(story: Story, tmp_path: Path) -> None:
    assert _play(story, tmp_path / "data").lines == story.end_lines


def _kinds(story: Story) -> list[str]:
    """The kinds of faults that begin in a story."""
    return [
        step.fault.kind for steps in story.scheduler for step in steps if isinstance(step, Begin)
    ]


def _past_proxy(story: Story) -> Iterator[pytest.MarkDecorator]:
    """Skip a story none of whose faults is the same at a proxy, and say why."""
    kinds = _kinds(story)
    reasons = {f"{kind}: {PAST_PROXY[kind]}" for kind in kinds if kind in PAST_PROXY}
    if kinds and all(kind in PAST_PROXY for kind in kinds):
        yield pytest.mark.skip("; ".join(sorted(reasons)))


@pytest.mark.parametrize(
    "story",
    [pytest.param(story, id=story.name, marks=[*_past_proxy(story)]) for story in STORIES],
)
def test_both_drivers_decide_the_same_with_faults_in_a_proxy(story: Story) -> None:
    assert _play(story, sockets=ProxyDriver).lines == story.end_lines


def test_each_fault_is_in_a_story() -> None:
    begun = {kind for story in STORIES for kind in _kinds(story)}
    assert begun == {kind for kind, fault in KINDS.items() if fault.is_simulated}


def test_stories_have_distinct_names() -> None:
    assert len({story.name for story in STORIES}) == len(STORIES) >= 30


@pytest.mark.parametrize(
    "seeds", [range(3), pytest.param(range(3, 150), marks=pytest.mark.exhaustive)]
)
def test_both_drivers_decide_the_same_in_random_stories(seeds: range) -> None:
    for seed in seeds:
        try:
            decided = _play(random_story(seed))
            assert all("; all in sync with " in str(one) for one in decided.partitions), decided
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
