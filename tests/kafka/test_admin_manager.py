"""Topics that come and go: when who asked for it is answered, and what of each topic."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from purgatory import DelayedOperationPurgatory
from purgatory.kafka import ErrorCode
from purgatory.kafka.admin_manager import TopicChanges
from timer import InlineExecutor, ManualClock, SystemTimer

_NONE, _LATE = ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT
_EXISTS = ErrorCode.INVALID_REQUEST


class _World:
    """The purgatory of a broker, and which topics all know of."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timer = SystemTimer("t", clock=self.clock, executor=InlineExecutor())
        self.purgatory = DelayedOperationPurgatory("Topic", timer=self.timer, reaper_enabled=False)
        self.changes = TopicChanges(self.purgatory)
        self.known: set[str] = set()
        self.answers: list[Mapping[str, ErrorCode]] = []

    def wait(self, timeout_ms: int = 1_000, **results: ErrorCode) -> None:
        self.changes.wait(
            results, lambda topic: topic in self.known, timeout_ms, self.answers.append
        )

    def learn(self, topic: str) -> None:
        self.known.add(topic)
        self.changes.check(topic)

    def pass_ms(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.timer.advance_clock(0)


@pytest.fixture
def world() -> _World:
    return _World()


def test_what_is_in_force_already_is_answered_at_once(world: _World) -> None:
    world.known = {"a"}
    world.wait(a=_NONE, b=_EXISTS)
    assert world.answers == [{"a": _NONE, "b": _EXISTS}]


def test_what_was_refused_is_not_waited_for(world: _World) -> None:
    world.wait(a=_EXISTS)
    assert world.answers == [{"a": _EXISTS}]


def test_it_is_answered_when_the_last_topic_is_known(world: _World) -> None:
    world.wait(a=_NONE, b=_NONE, c=_EXISTS)
    world.learn("b")
    assert world.answers == []
    world.learn("a")
    assert world.answers == [{"a": _NONE, "b": _NONE, "c": _EXISTS}]
    assert world.purgatory.num_delayed == world.purgatory.watched == 0


def test_when_the_time_is_up_each_topic_has_its_own_answer(world: _World) -> None:
    world.wait(a=_NONE, b=_NONE, c=_EXISTS)
    world.learn("b")
    world.pass_ms(1_000)
    assert world.answers == [{"a": _LATE, "b": _NONE, "c": _EXISTS}]
    world.learn("a")
    assert len(world.answers) == 1


def test_without_a_time_to_wait_what_is_not_known_is_late(world: _World) -> None:
    world.known = {"a"}
    world.wait(0, a=_NONE, b=_NONE)
    world.pass_ms(1)
    assert world.answers == [{"a": _NONE, "b": _LATE}]


def test_all_who_wait_can_be_looked_at_together(world: _World) -> None:
    world.wait(a=_NONE)
    world.wait(b=_NONE)
    world.known = {"a", "b"}
    world.changes.check_all()
    # By which topic a check begins depends on how their names are hashed.
    assert sorted(world.answers, key=str) == [{"a": _NONE}, {"b": _NONE}]


def test_a_wait_that_fails_is_told_so(world: _World) -> None:
    def is_in_force(topic: str) -> bool:
        if world.known:
            raise OSError("it can't be told")
        return False

    world.changes.wait({"a": _NONE, "b": _EXISTS}, is_in_force, 1_000, world.answers.append)
    world.learn("a")
    assert world.answers == [{"a": ErrorCode.UNKNOWN_SERVER_ERROR, "b": _EXISTS}]
