"""Active faults by themselves: which messages they concern, how they add up, how they end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults import (
    CutLink,
    DelayResponses,
    DuplicateResponses,
    Fault,
    JumpClock,
    Kill,
    LoseResponses,
    Pause,
    RefuseProduces,
    SlowFollower,
    SlowResponses,
    StallFollower,
    TruncateResponses,
    parse_fault,
)
from purgatory.kafka.faults.active_faults import (
    NORMAL_RESPONSE,
    ActiveFault,
    ActiveFaults,
    ResponseOutcome,
)


class _Faults(ActiveFaults):
    """Faults whose time is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []
        super().__init__(lambda: self.now_s, self._later, Random(7))

    def _later(self, seconds: float, function: Callable[[], None]) -> None:
        self.due.append((self.now_s + seconds, function))

    def begin(self, fault: Fault) -> ActiveFault:
        return self._begin_fault(fault)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for due_s, function in list(self.due):
            if due_s <= self.now_s:
                function()


def test_a_fault_concerns_messages_of_one_client_and_api() -> None:
    faults = _Faults()
    faults.begin(LoseResponses(broker=1, api="fetch", client_id="mine"))
    assert faults.response_outcome(1, "fetch", "mine") == ResponseOutcome(lost=True, cut=True)
    for asked in (
        (2, "fetch", "mine"),
        (1, "produce", "mine"),
        (1, "fetch", "else"),
        (1, "fetch", None),
    ):
        assert faults.response_outcome(*asked) is NORMAL_RESPONSE
    assert faults.active[0].uses == 1


def test_fault_without_a_broker_concerns_all() -> None:
    faults = _Faults()
    faults.begin(LoseResponses(cut=False))
    faults.begin(RefuseProduces())
    assert all(faults.response_outcome(one, "produce", "x").lost for one in range(3))
    assert all(faults.refuses_produce(one) for one in range(3))


def test_fault_is_injected_into_a_share_of_the_messages() -> None:
    faults = _Faults()
    faults.begin(LoseResponses(share=0.25))
    fates = Counter(faults.response_outcome(1, "produce", "x").lost for _ in range(4_000))
    assert 850 < fates[True] < 1_150
    assert faults.active[0].uses == fates[True]


def test_skip_selects_the_nth_message() -> None:
    faults = _Faults()
    faults.begin(LoseResponses(api="produce", skip=2, count=1))
    assert not faults.response_outcome(1, "fetch", "x").lost  # it does not concern this one
    fates = [faults.response_outcome(1, "produce", "x").lost for _ in range(5)]
    assert fates == [False, False, True, False, False]
    with pytest.raises(ClusterError, match="skip=-1: a whole number from 0 on"):
        LoseResponses(skip=-1)


def test_faults_of_a_response_add_up_until_a_loss() -> None:
    faults = _Faults()
    faults.begin(DelayResponses(by_ms=5))
    faults.begin(DelayResponses(by_ms=7, count=1))
    faults.begin(DuplicateResponses())
    assert faults.response_outcome(1, "fetch", None) == ResponseOutcome(delay_ms=12, copies=2)
    assert faults.response_outcome(1, "fetch", None) == ResponseOutcome(delay_ms=5, copies=2)
    faults.begin(LoseResponses(cut=False))
    assert faults.response_outcome(1, "fetch", None) == ResponseOutcome(5, 2, lost=True)


def test_fault_ends_once_by_its_time_or_count() -> None:
    faults = _Faults()
    timed, counted = faults.begin(Pause(1, for_s=2)), faults.begin(RefuseProduces(1, count=2))
    faults.pass_time(1.9)
    assert faults.is_paused(1)
    faults.pass_time(0.1)
    assert timed.ended_s == 2.0
    assert faults.active == [counted] and not faults.is_paused(1)
    assert [faults.refuses_produce(1) for _ in range(3)] == [True, True, False]
    timed.end()
    assert timed.ended_s == 2.0 and faults.active == []
    assert [begun.number for begun in faults.recent] == [1, 2]


def test_seed_selects_the_same_messages() -> None:
    def fates(seed: int) -> list[ResponseOutcome]:
        faults = _Faults()
        faults.begin(LoseResponses(share=0.5, seed=seed))
        faults.begin(DelayResponses(by_ms=10, distribution="exponential", seed=seed))
        return [faults.response_outcome(1, "fetch", None) for _ in range(50)]

    assert fates(3) == fates(3) != fates(4)


def test_response_is_truncated_and_slow_at_once() -> None:
    faults = _Faults()
    truncated = TruncateResponses(keep_bytes=6)
    faults.begin(SlowResponses(bytes_per_s=900)), faults.begin(SlowResponses(bytes_per_s=100))
    faults.begin(truncated), faults.begin(TruncateResponses())
    fate = faults.response_outcome(1, "fetch", None)
    assert fate == ResponseOutcome(truncated=truncated, bytes_per_s=100)


def test_jumps_of_a_clock_add_up() -> None:
    faults = _Faults()
    forth, back = faults.begin(JumpClock(1, 5_000)), faults.begin(JumpClock(1, -7_000))
    assert [faults.clock_jump_ms(broker) for broker in (1, 2)] == [-2_000, 0]
    back.end()
    forth.end()
    assert faults.clock_jump_ms(1) == 0


def test_a_kill_ends_the_pauses_of_its_broker() -> None:
    faults = _Faults()
    mine, other = faults.begin(Pause(1)), faults.begin(Pause(2))
    kill = faults.begin(Kill(1))
    assert (mine.active, other.active, kill.active) == (False, True, True)


def test_fault_blocks_fetches_over_its_links() -> None:
    faults = _Faults()
    links = [(a, b) for a in range(3) for b in range(3) if a != b]
    for fault, held in (
        (StallFollower(1), {(1, 0), (1, 2)}),
        (Pause(1), {(1, 0), (1, 2), (0, 1), (2, 1)}),
        (CutLink(0, 2), {(0, 2), (2, 0)}),
    ):
        with faults.begin(fault):
            assert {link for link in links if faults.blocks_fetch(*link)} == held
    faults.begin(SlowFollower(1, 5)), faults.begin(SlowFollower(1, 2.5))
    assert (faults.follower_lag_ms(1), faults.follower_lag_ms(2)) == (7.5, 0)


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("client_id", 5, "client.id"),
        ("share", float("nan"), "above 0"),
        ("share", 0, "above 0"),
        ("count", True, "whole number"),
    ],
)
def test_invalid_argument_is_reported(name: str, value: object, right: str) -> None:
    with pytest.raises(ClusterError, match=f"^{name}=.*{right}"):
        parse_fault({"kind": "lose_responses", name: value})
