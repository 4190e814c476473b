"""Completions that cause completions: as long as one likes, without recursion."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.core.locks import LockLike
from purgatory.core.trampoline import MAX_DEPTH
from tests.unit.core.probe import LONG_MS, Probe, Setting

LENGTH = 10_000


class Link(DelayedOperation):
    """Completes the next one from its ``on_complete``."""

    __slots__ = ("chain", "number", "ready")

    def __init__(self, chain: Chain, number: int, lock: LockLike | None = None) -> None:
        super().__init__(LONG_MS, lock)
        self.chain = chain
        self.number = number
        self.ready = False

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        self.chain.completed(self.number)


class Chain:
    """Operations in a row, over one purgatory or two by turns."""

    def __init__(self, way: str, purgatories: list[DelayedOperationPurgatory], length: int) -> None:
        self.way = way
        self.purgatories = purgatories
        self.order: list[int] = []
        self.deepest = 0
        lock = threading.RLock() if way == "check, with a user's lock" else None
        self.links = [Link(self, number, lock) for number in range(length)]
        for number, link in enumerate(self.links):
            self.purgatory_of(number).try_complete_else_watch(link, [number])

    def purgatory_of(self, number: int) -> DelayedOperationPurgatory:
        return self.purgatories[number % len(self.purgatories)]

    def completed(self, number: int) -> None:
        self.order.append(number)
        if number % 97 == 0:  # walking the stack takes its time
            self.deepest = max(self.deepest, _depth_of_this_frame())
        if number + 1 < len(self.links):
            self.complete(number + 1)

    def complete(self, number: int) -> None:
        link = self.links[number]
        link.ready = True
        if self.way == "force":
            assert link.force_complete()
        else:
            self.purgatory_of(number).check_and_complete(number)


def _depth_of_this_frame() -> int:
    frame, depth = sys._getframe(), 0
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


@pytest.mark.parametrize("ways", ["check", "force", "check, with a user's lock"])
@pytest.mark.parametrize("purgatories", [1, 2])
def test_long_chain_completes_without_recursion(ways: str, purgatories: int) -> None:
    settings = [Setting(timer_enabled=False) for _ in range(purgatories)]
    chain = Chain(ways, [setting.purgatory for setting in settings], LENGTH)
    here = _depth_of_this_frame()
    chain.complete(0)
    assert chain.order == list(range(LENGTH))
    assert 0 < chain.deepest - here < 20 * MAX_DEPTH  # so many frames a link at most
    for setting in settings:
        setting.assert_empty()


def test_short_chain_runs_recursively_and_counts() -> None:
    setting = Setting()
    counts: list[int] = []
    second = setting.submit(Probe(), "second")

    def complete_second() -> None:
        second.ready = True
        counts.append(setting.purgatory.check_and_complete("second"))
        counts.append(len(second.finished))

    setting.submit(first := Probe(hooks={"on_complete": complete_second}), "first")
    first.ready = True
    assert setting.purgatory.check_and_complete("first") == 1
    assert counts == [1, 1]


def test_immediate_completion_deep_in_a_chain_is_counted() -> None:
    purgatory = Setting(timer_enabled=False).purgatory

    def submit_next(left: int) -> None:
        if left:
            hooks: dict[str, Callable[[], object]] = {"on_complete": lambda: submit_next(left - 1)}
            purgatory.try_complete_else_watch(Probe(ready=True, hooks=hooks), ["a"])

    submit_next(100)
    assert {name: count for name, count in purgatory.counters.outcomes.items() if count} == {
        "immediate": 100
    }


def test_an_exception_in_one_link_stops_no_other_link() -> None:
    setting = Setting(timer_enabled=False)
    chain = Chain("force", [setting.purgatory], 100)
    whole = chain.completed

    def faulty(number: int) -> None:
        whole(number)
        raise LookupError(number)

    chain.completed = faulty  # type: ignore[method-assign]
    chain.complete(0)
    assert chain.order == list(range(100))
    assert setting.purgatory.counters.outcomes["failed"] == 100
    setting.assert_empty()


def test_interrupt_deep_in_a_chain_is_raised_at_its_end() -> None:
    setting = Setting(timer_enabled=False)
    chain = Chain("force", [setting.purgatory], 100)
    whole = chain.completed

    def interrupted(number: int) -> None:
        whole(number)
        if number == 50:
            raise KeyboardInterrupt

    chain.completed = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        chain.complete(0)
    assert chain.order == list(range(100))
    setting.assert_empty()
    setting.submit(after := Probe(ready=True), "after")
    assert after.finished == ["on_complete"]  # the thread starts a new chain
