"""Faults injected everywhere: all other operations complete, and the counters add up."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from purgatory import DelayedOperationPurgatory, Outcome
from purgatory.core.outcome import STAGES
from purgatory.core.recent_errors import Logger
from tests.unit.core.probe import Logs, Probe
from timer import ManualClock, SystemTimer

OPERATIONS = 400


class Fault(Exception):
    pass


class FaultyExecutor:
    """A pool that refuses every third task, in a way that depends on the dice."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.pool = ThreadPoolExecutor(4)
        self.refused = 0

    def submit(self, function: Callable[..., Any], /, *args: Any) -> Future[Any]:
        if self.dice.random() < 0.3:
            self.refused += 1
            raise self.dice.choice([RuntimeError, Fault, ValueError])("no more tasks")
        return self.pool.submit(function, *args)


def raise_fault() -> None:
    raise Fault


@pytest.mark.parametrize("seed", range(5))
def test_faults_in_callbacks_leave_no_operation_pending(seed: int, logs: Logs) -> None:
    dice = random.Random(seed)
    clock, executor = ManualClock(), FaultyExecutor(dice)
    timer = SystemTimer("faulty", clock=clock, executor=executor)
    purgatory = DelayedOperationPurgatory("Faulty", timer=timer, reaper_enabled=False)
    probes = []
    for number in range(OPERATIONS):
        faulty = dice.sample(STAGES, dice.randint(0, 2))
        probe = Probe(
            delay_ms=dice.randint(1, 100),
            ready=dice.random() < 0.05,
            hooks=dict.fromkeys(faulty, raise_fault),
        )
        probes.append(probe)
        purgatory.try_complete_else_watch(probe, [number % 7, number % 5])
    for probe in dice.sample(probes, 100):
        probe.ready = True
    purgatory.check_and_complete(3)
    for _ in range(10):
        clock.advance(10)
        timer.advance_clock(0)
    executor.pool.shutdown()
    assert executor.refused
    assert Outcome.PENDING not in {probe.wait(60) for probe in probes}
    assert (purgatory.watched, purgatory.num_delayed, timer.size) == (0, 0, 0)
    assert sum(purgatory.counters.outcomes.values()) == OPERATIONS
    for probe in probes:
        assert len(set(probe.finished)) == len(probe.finished)
        raised = any(stage in probe.hooks for stage in probe.finished if stage != "on_failure")
        assert probe.outcome is not Outcome.COMPLETED or not raised
        if probe.outcome is Outcome.FAILED:
            assert probe.finished[-1] == "on_failure"
    errors = purgatory.counters.callback_errors
    assert sum(entry["event"] == "callback_failed" for entry in logs) == sum(errors.values())
    purgatory._check()
    timer.close()


def test_64_threads_complete_everything_exactly_once() -> None:
    completed: list[str] = []  # append is atomic
    with DelayedOperationPurgatory(
        "Busy", on_completed=lambda _, counted_as, __: completed.append(counted_as)
    ) as purgatory:
        finished = [0] * 64

        def client(number: int) -> None:
            dice = random.Random(number)
            for _ in range(60):
                probe = Probe(delay_ms=dice.randint(1, 30))
                purgatory.try_complete_else_watch(probe, dice.sample(range(20), 3))
                luck = dice.random()
                if luck < 0.4:
                    probe.ready = True
                    purgatory.check_and_complete(probe._op_keys[0])
                elif luck < 0.6:
                    probe.cancel()
                elif luck < 0.7:
                    purgatory.cancel_for_key(dice.randrange(20))
                assert probe.wait(60) is not Outcome.PENDING
                finished[number] += 1

        threads = [threading.Thread(target=client, args=(number,)) for number in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        assert finished == [60] * 64
        assert (purgatory.watched, purgatory.num_delayed) == (0, 0)
        outcomes = purgatory.counters.outcomes
        purgatory._check()
    assert len(completed) == sum(outcomes.values()) == 64 * 60
    assert outcomes["failed"] == outcomes["rejected"] == 0


@pytest.mark.parametrize("level", ["info", "warning", "error"])
def test_a_named_logger_writes_events_at_their_level(level: str, logs: Logs) -> None:
    getattr(Logger("purgatory.elsewhere"), level)("happened", broker=1)
    assert logs == [{"event": "happened", "broker": 1, "log_level": level}]
