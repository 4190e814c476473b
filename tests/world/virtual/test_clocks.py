"""Clocks and random numbers of the application: the world's, and afterwards the system's."""

from __future__ import annotations

import datetime
import os
import random
import secrets
import threading
import time
import uuid
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic, time_ns

import pytest

from purgatory.virtual import World
from purgatory.virtual.world import START


def _told(now: object = time.time) -> tuple[float, ...]:
    assert callable(now)
    return (now(), time.time(), time_ns() / 1e9, datetime.datetime.now().timestamp())


def test_references_to_time_functions_are_patched() -> None:
    with World() as world:
        world.pass_time("10s")
        assert _told() == pytest.approx([START.timestamp() + 10] * 4)
        assert datetime.datetime.now(datetime.UTC) == START + datetime.timedelta(seconds=10)
        assert datetime.datetime.now(tz=datetime.UTC) == START + datetime.timedelta(seconds=10)
        assert datetime.date.fromtimestamp(time.time()) == datetime.date.today()
        assert time.gmtime()[:6] == (2026, 1, 1, 0, 0, 10)
        assert time.strftime("%Y", time.gmtime()) == "2026" == time.strftime("%Y")
    assert min(_told()) > START.timestamp() + 86_400


def test_monotonic_clocks_advance_only_with_the_world() -> None:
    before_s = monotonic()
    with World() as world:
        first_s, first_ns = monotonic(), time.perf_counter_ns()
        for _ in range(1_000):
            monotonic()
        assert monotonic() == first_s
        world.pass_time("1h")
        assert monotonic() - first_s == pytest.approx(3_600)
        assert time.perf_counter_ns() - first_ns == 3_600 * 10**9
        time.sleep(5)
        assert world.now_s == 3_605
    assert 0 <= monotonic() - before_s < 600


def _drawn() -> list[object]:
    return [
        random.random(),
        random.Random().random(),
        random.SystemRandom().random(),
        os.urandom(8),
        secrets.token_hex(4),
        uuid.uuid4(),
        uuid.uuid1(),
    ]


def test_seed_determines_random_numbers() -> None:
    drawn = []
    for seed in (1, 1, 2):
        with World(seed):
            drawn.append(_drawn())
    assert drawn[0] == drawn[1]
    assert not set(map(str, drawn[0])) & set(map(str, drawn[2]))


@pytest.mark.parametrize(
    "draw",
    [
        random.random,
        lambda: random.getrandbits(8),
        lambda: random.uniform(0, 1),
        lambda: random.shuffle([1, 2, 3]),
        lambda: random.seed(5),
    ],
    ids=["random", "getrandbits", "uniform", "shuffle", "seed"],
)
def test_random_draws_of_other_threads_do_not_affect_a_world(draw: Callable[[], object]) -> None:
    requests: SimpleQueue[bool] = SimpleQueue()
    answers: SimpleQueue[object] = SimpleQueue()

    def serve() -> None:
        while requests.get():
            answers.put(draw())

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        drawn = []
        for disturbed in (False, True):
            with World(1):
                if disturbed:
                    requests.put(True)
                    answers.get(timeout=60)
                drawn.append([random.choice(range(1_000)) for _ in range(5)] + _drawn())
    finally:
        requests.put(False)
        thread.join()
    assert drawn[0] == drawn[1]


def test_random_functions_raise_for_invalid_arguments() -> None:
    with World(1), pytest.raises(TypeError):
        random.getrandbits("8")  # type: ignore[arg-type]


def test_random_state_continues_after_a_world() -> None:
    random.seed(5)
    expected = [random.random() for _ in range(3)]
    random.seed(5)
    seen = [random.random()]
    with World(9):
        random.random()
        random.seed(7)
    seen += [random.random(), random.random()]
    assert seen == expected
    assert os.urandom(8) != os.urandom(8)
    assert random.Random().random() != random.Random().random()


def test_other_threads_get_the_machines_clocks() -> None:
    asked, answered = threading.Event(), threading.Event()
    seen: list[float] = []

    def look() -> None:
        asked.wait(60)
        seen.extend((time.time(), monotonic()))
        answered.set()

    thread = threading.Thread(target=look)
    thread.start()
    machine_s = time.time()
    with World():
        asked.set()
        answered.wait(60)
        worlds_s = monotonic()
    thread.join()
    assert seen[0] == pytest.approx(machine_s, abs=600)
    assert seen[1] != worlds_s


def test_interrupted_world_leaves_nothing_behind() -> None:
    with pytest.raises(ZeroDivisionError), World():
        _ = 1 // 0
    assert min(_told()) > START.timestamp() + 86_400


def test_clock_gettime_returns_the_worlds_time() -> None:
    with World() as world:
        world.pass_time("1h")
        assert time.clock_gettime(time.CLOCK_MONOTONIC) == time.monotonic() == 86_400 + 3_600
        assert time.clock_gettime_ns(time.CLOCK_REALTIME) == time.time_ns()
    assert abs(time.clock_gettime(time.CLOCK_MONOTONIC) - time.monotonic()) < 60
    with pytest.raises(OSError, match="Invalid argument"):
        time.clock_gettime(1_000_000)


def test_repr_of_a_world_has_seed_and_time() -> None:
    with World(7) as world:
        world.pass_time("1s")
        assert repr(world) == "<World of seed 7 at 1.000000 s>"
