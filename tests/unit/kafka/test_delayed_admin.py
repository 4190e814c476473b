"""Created and deleted topics: when a request is answered, and each topic's error."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from purgatory import DelayedOperationPurgatory
from purgatory.kafka import ErrorCode
from purgatory.kafka.delayed_admin import TopicChanges
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


def test_request_for_the_current_state_completes_at_once(world: _World) -> None:
    world.known = {"a"}
    world.wait(a=_NONE, b=_EXISTS)
    assert world.answers == [{"a": _NONE, "b": _EXISTS}]


def test_refused_topic_is_not_waited_for(world: _World) -> None:
    world.wait(a=_EXISTS)
    assert world.answers == [{"a": _EXISTS}]


def test_request_completes_when_the_last_topic_is_known(world: _World) -> None:
    world.wait(a=_NONE, b=_NONE, c=_EXISTS)
    world.learn("b")
    assert world.answers == []
    world.learn("a")
    assert world.answers == [{"a": _NONE, "b": _NONE, "c": _EXISTS}]
    assert world.purgatory.num_delayed == world.purgatory.watched == 0


def test_timeout_returns_each_topics_state(world: _World) -> None:
    world.wait(a=_NONE, b=_NONE, c=_EXISTS)
    world.learn("b")
    world.pass_ms(1_000)
    assert world.answers == [{"a": _LATE, "b": _NONE, "c": _EXISTS}]
    world.learn("a")
    assert len(world.answers) == 1


def test_unknown_topic_times_out_at_once_without_a_timeout(world: _World) -> None:
    world.known = {"a"}
    world.wait(0, a=_NONE, b=_NONE)
    world.pass_ms(1)
    assert world.answers == [{"a": _NONE, "b": _LATE}]


def test_check_all_completes_every_request_in_force(world: _World) -> None:
    world.wait(a=_NONE)
    world.wait(b=_NONE)
    world.known = {"a", "b"}
    world.changes.check_all()
    # By which topic a check begins depends on how their names are hashed.
    assert sorted(world.answers, key=str) == [{"a": _NONE}, {"b": _NONE}]


def test_failed_wait_responds_with_unknown_server_error(world: _World) -> None:
    def is_in_force(topic: str) -> bool:
        if world.known:
            raise OSError("it can't be told")
        return False

    world.changes.wait({"a": _NONE, "b": _EXISTS}, is_in_force, 1_000, world.answers.append)
    world.learn("a")
    assert world.answers == [{"a": ErrorCode.UNKNOWN_SERVER_ERROR, "b": _EXISTS}]
