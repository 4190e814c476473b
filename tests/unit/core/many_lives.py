"""Makes and drops one of everything that is native, many times: a leak grows with each round.

python -m tests.unit.core.many_lives 100
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Hashable
from contextlib import suppress

from tests.unit.core.probe import LONG_MS, Probe, Setting
from timer import InlineExecutor, ManualClock, SystemTimer, TimerTask


class UsersTask(TimerTask):
    """A task that owns things."""

    owned: object = None

    def run(self) -> None:
        raise LookupError(self.owned)


def raises() -> None:
    """Fail, as a user's callback may."""
    raise LookupError


def live_as_operations() -> None:
    """Submit operations of each kind, and have each end in each way."""
    setting = Setting()
    purgatory = setting.purgatory
    keys: list[Hashable] = [("key", number) for number in range(6)]
    operations = [Probe(number % 3 * 10) for number in range(24)]
    for number, operation in enumerate(operations):
        large = {keys[0]: 2**62, keys[5]: 1_000_003} if number % 3 == 0 else None
        purgatory.try_complete_else_watch(operation, keys[: number % 6 + 1], large)
        operation.call_when_completed(operation.on_complete)
    operations[0].cancel()
    operations[1].force_complete()
    operations[2].ready = True
    purgatory.check_and_complete(keys[0])
    purgatory.advance(keys[5], 2**62)
    purgatory.forget(keys[5])
    operations[4].hooks["try_complete"] = raises
    operations[5].hooks["on_complete"] = raises
    purgatory.check_and_complete(keys[0])
    purgatory.complete_for_key(keys[3])
    purgatory.fail_for_key(keys[2], LookupError("told"))
    purgatory.cancel_for_key(keys[1])
    setting.pass_time(1_000)
    with suppress(TypeError):
        purgatory.try_complete_else_watch(Probe(LONG_MS), [keys])  # type: ignore[list-item]


def live_as_refused() -> None:
    """Pass values of wrong types, everywhere."""
    setting = Setting()
    purgatory = setting.purgatory
    wrong: list[object] = [None, 1, "text", [], object(), Probe.__new__(Probe)]
    calls = [
        purgatory.try_complete_else_watch,
        purgatory.check_and_complete,
        purgatory.advance,
        purgatory.forget,
        setting.timer.add,
        setting.timer.call_later,
    ]
    for call in calls:
        for one in wrong:
            for rest in ([], [one], [[one]], [[1], {1: one}], [1, one]):
                with suppress(Exception):
                    call(one, *rest)  # type: ignore[operator]


def live_as_a_cycle() -> None:
    """Leave a whole purgatory to the collector, with its operations and owners."""
    setting = Setting()
    operation = Probe(hooks={"on_complete": setting.assert_empty})
    setting.submit(operation, operation, (operation, 1))
    operation.call_when_completed(setting.assert_empty)
    task = UsersTask(50)
    task.owned = (task, setting)
    setting.timer.add(task)


def live_as_tasks() -> None:
    """Add tasks of all distances, and cancel, expire or leave them."""
    clock = ManualClock()
    timer = SystemTimer("lives", clock=clock, executor=InlineExecutor())
    tasks: list[TimerTask] = [UsersTask(delay_ms) for delay_ms in (0, 1, 30, 500, 9_000, 10**9)]
    for task in tasks:
        timer.add(task)
    tasks += [timer.call_later(7 * number, repr, number) for number in range(40)]
    for task in tasks[::3]:
        task.cancel()
    for _ in range(20):
        clock.advance(40)
        while timer.advance_clock(0):
            pass
    timer.snapshot()
    timer.close()


LIVES = (live_as_operations, live_as_refused, live_as_a_cycle, live_as_tasks)


def main(rounds: int) -> None:
    """Live through all of them, so many times."""
    logging.disable(logging.CRITICAL)
    for _ in range(rounds):
        for live in LIVES:
            live()
        gc.collect()


if __name__ == "__main__":
    main(int(sys.argv[1]))
