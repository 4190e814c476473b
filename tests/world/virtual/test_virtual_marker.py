"""The fixture `world` and the mark `virtual`, in a project that uses the package."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from purgatory.virtual import WorldError
from purgatory.virtual.seeded_tests import Plan
from tests.world.virtual.pytest_run import run_pytest

_TESTS = """
import asyncio
import random
import time

import pytest


@pytest.mark.virtual(seeds=4)
async def test_each_seed(world):
    await asyncio.sleep(3_600)
    assert world.now_s == 3_600


@pytest.mark.virtual(seeds=6)
def test_one_seed_fails(world):
    async def application():
        await asyncio.sleep(10)
        assert world.seed != 3, "the bug"

    world.run(application())


async def test_without_a_mark(world):
    before = time.monotonic()
    await asyncio.sleep(60)
    assert time.monotonic() == before + 60
    assert world.seed == 0 or world.seed == 3


def test_of_something_else(tmp_path):
    assert tmp_path.exists()
"""


def _pytest(folder: Path, *words: str, text: str = _TESTS, start: str = "") -> tuple[int, str]:
    return run_pytest(folder, "--virtual-no-shrink", *words, text=text, start=start)


def test_marked_test_reports_the_command_of_a_failed_seed(
    tmp_path: Path,
) -> None:
    status, said = _pytest(tmp_path, "--durations=5")
    assert status == 1
    assert "1 failed, 3 passed" in said
    assert "\n3 passed before this one\nseed 3, 10.000000 s after the world began, digest " in said
    repeat = re.search(r"pytest (\S+) --virtual-seed 3$", said, re.M)
    assert repeat is not None
    assert repeat[1] == "test_it.py::test_one_seed_fails"
    # The report has the durations of tests in the machine's time.
    taken_s = [float(one) for one in re.findall(r"^([0-9.]+)s (?:call|setup)", said, re.M)]
    assert all(one < 600 for one in taken_s)
    status, said = _pytest(tmp_path, repeat[1], "--virtual-seed", "3")
    assert status == 1
    assert "1 failed in" in said


@pytest.mark.slow
def test_command_line_chooses_the_seeds(tmp_path: Path) -> None:
    assert "4 passed" in _pytest(tmp_path, "--virtual-seeds", "3")[1]
    assert "1 failed, 3 passed" in _pytest(tmp_path, "--virtual-seed", "3")[1]
    status, said = _pytest(tmp_path, "--virtual-seeds", "0")
    assert status == 4
    assert "--virtual-seeds: invalid" in said


_FAULTS = """
import asyncio


async def test_it(world):
    world.network.latency("1ms..3ms")
    world.network.loss(0.5)
    seen = []
    for number in range(4):
        world.at(f"{number + 1}s", seen.append, number)
    world.at("1h", seen.append, "later")
    await asyncio.sleep(10)
    assert seen == []
"""


@pytest.mark.slow
def test_failure_lists_faults_and_the_command_line_excludes_some(tmp_path: Path) -> None:
    said = _pytest(tmp_path, text=_FAULTS)[1]
    assert "assert [0, 1, 2, 3] == []" in said
    assert "faults: 4 of 5 had begun\n" in said
    assert re.search(r"^   2      3\.000000 s  list\.append\(2\)$", said, re.M)
    words = ["--virtual-without", "2,0-1", "--virtual-plain-network"]
    said = _pytest(tmp_path, *words, text=_FAULTS)[1]
    assert "assert [3] == []" in said
    assert "faults: 1 of 5 had begun, and 0-2 left out\n" in said
    repeat = "pytest test_it.py::test_it --virtual-seed 0 --virtual-without 0-2"
    assert f"{repeat} --virtual-plain-network\n" in said
    status, said = _pytest(tmp_path, "--virtual-without", "0-3", text=_FAULTS)
    assert status == 0


def test_report_shows_steps_around_the_last_fault_of_a_long_run(
    tmp_path: Path,
) -> None:
    text = """
import asyncio

async def test_it(world):
    world.at("2s", print, "late")
    world.at("1s", print, "early")
    ends = []  # an unreferenced writer closes its connection since Python 3.13
    server = await asyncio.start_server(lambda *two: ends.append(two), "127.0.0.1", 9000)
    reader, writer = await asyncio.open_connection("127.0.0.1", 9000)
    for number in range(100):
        writer.write(b"x")
        await asyncio.sleep(0.1)
    assert 0
"""
    said = _pytest(tmp_path, text=text)[1]
    around = said.partition("around the last fault:\n")[2].partition("last events:\n")[0]
    lines = around.splitlines()
    assert len(lines) == 21
    assert lines[10] == "      2.000000 s  fault     print('late')"
    assert said.index("   1      1.000000 s  print('early')") < said.index("   0      2.0")


def test_unknown_faults_are_reported(tmp_path: Path) -> None:
    status, said = _pytest(tmp_path, "--virtual-without", "0-2,x")
    assert status == 4
    assert "--virtual-without: 'x': the numbers of faults are given as 3,7 or 0-2,7" in said


def test_unknown_schedule_is_reported(tmp_path: Path) -> None:
    status, said = _pytest(tmp_path, "--virtual-schedule", "lifo")
    assert status == 4
    assert "--virtual-schedule: the schedule 'lifo' is none of fifo, mixed, random" in said


@pytest.mark.slow
def test_repeat_command_is_relative_to_the_start_folder(tmp_path: Path) -> None:
    said = _pytest(tmp_path, text=_FAULTS)[1]
    assert "pytest test_it.py::test_it" in said
    (tmp_path / "inner").mkdir()
    said = _pytest(tmp_path, "--rootdir", "..", "..", text=_FAULTS, start="inner")[1]
    assert "pytest ../test_it.py::test_it --virtual-seed 0" in said


@pytest.mark.slow
def test_invalid_mark_is_reported(tmp_path: Path) -> None:
    for mark, fixture, advice in (
        ("virtual(seeds=0)", "world", "test_it: seeds=0: a whole number, 1 or more"),
        ("virtual(5)", "world", "the mark takes arguments by name: virtual(seeds=50)"),
        ("virtual", "tmp_path", "takes the fixture `world`"),
    ):
        text = f"import pytest\n\n@pytest.mark.{mark}\ndef test_it({fixture}): pass\n"
        status, said = _pytest(tmp_path, text=text)
        assert status in (2, 4)
        assert advice in said


_OPTIONS = dict.fromkeys(("seeds", "seed", "schedule", "without", "plain_network"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("marked", "advice"),
    [
        ({"runs": 5}, "exhaustive, on_unhandled, max_steps, and no 'runs'"),
        ({"seed": 3}, "no 'seed': a single seed is run by pytest --virtual-seed 3"),
        ({"seeds": "5"}, "seeds='5': a whole number, 1 or more"),
        ({"seeds": True}, "seeds=True: a whole number, 1 or more"),
        ({"exhaustive": -1}, "exhaustive=-1: a whole number, 0 or more"),
        ({"seeds": 5, "schedules": 5}, "give seeds or schedules, not both"),
        ({"schedule": 5}, "a schedule is a text such as 'random', not 5"),
        ({"schedule": "lifo"}, "the schedule 'lifo' is none of fifo, mixed, random, sticky,"),
        ({"exhaustive": 1, "schedule": "pct"}, "exhaustive=2 takes each schedule in turn"),
    ],
)
def test_invalid_arguments_of_the_mark_are_reported(marked: dict[str, Any], advice: str) -> None:
    with pytest.raises((TypeError, ValueError, WorldError), match=re.escape(advice)):
        Plan(marked, _OPTIONS)


def test_plan_combines_the_mark_and_the_command_line() -> None:
    def runs(marked: dict[str, Any] | None, **options: Any) -> list[tuple[int, str]]:
        plan = Plan(marked, {**_OPTIONS, "without": (), "plain_network": False, **options})
        return [(run.seed, run.schedule) for run in plan.runs("test_it")]

    assert runs(None) == [(0, "fifo")]
    assert runs(None, seeds=5) == [(0, "fifo")], "a test without a mark has one run"
    assert runs(None, seed=7, schedule="3:1") == [(7, "3:1")]
    assert len(runs({})) == 20
    assert runs({"seeds": 2}) == [(0, "fifo"), (1, "fifo")]
    assert runs({"schedules": 2}) == [(0, "fifo"), (1, "mixed")]
    assert runs({"seeds": 2, "schedule": "pct:2"}) == [(0, "pct:2"), (1, "pct:2")]
    assert runs({"schedules": 9}, seed=4) == [(4, "mixed")]
    assert runs({"exhaustive": 0}, seed=4) == [(4, "fifo")]
    assert runs({"exhaustive": 2}, seeds=1, schedule="3:1") == [(0, "3:1")]


@pytest.mark.parametrize(
    ("marked", "named"),
    [(None, ""), ({"seeds": 2}, ""), ({"schedules": 2}, "fifo"), ({"schedule": "pct"}, "fifo")],
)
def test_repeat_command_names_fifo_over_a_marked_schedule(
    marked: dict[str, Any] | None, named: str
) -> None:
    plan = Plan(marked, {**_OPTIONS, "without": (), "plain_network": False})
    run = replace(next(plan.runs("test_it")), schedule="fifo")  # as in shrinking
    assert run.command.partition(" --virtual-schedule ")[2] == named


_FIXTURES = """
import asyncio

import pytest


@pytest.fixture
async def began(world):
    await asyncio.sleep(5)
    return world.now_s


@pytest.fixture
async def connection(world):
    await asyncio.sleep(5)
    yield asyncio.get_running_loop()
    await asyncio.sleep(5)
    print("closed at", world.now_s)


class TestIt:
    @pytest.fixture
    async def own(self, began):
        await asyncio.sleep(1)
        return self, began

    @pytest.mark.virtual(seeds=2)
    async def test_it(self, world, own, connection):
        assert own == (self, 5)
        assert connection is asyncio.get_running_loop() is world.loop


@pytest.fixture
def broken(world):
    yield
    raise ValueError("at the end")


async def test_of_a_broken_fixture(world, broken):
    pass


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.anyio
async def test_that_anyio_would_run(world, connection):
    await asyncio.sleep(100)
    assert world.now_s == 105


@pytest.mark.fake_asyncio
async def test_that_pytest_asyncio_would_run(world):
    await asyncio.sleep(100)
    assert world.now_s == 100


async def test_of_pytest_asyncio():
    pass
"""

_FAKE_ASYNCIO = """
import pytest


class Coroutine(pytest.Function):
    def setup(self):
        raise RuntimeError("pytest-asyncio sets it up")


def pytest_configure(config):
    config.addinivalue_line("markers", "fake_asyncio")


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector, name, obj):
    made = yield
    for item in made if isinstance(made, list) else ():
        if "asyncio" in name:
            item.__class__ = Coroutine
    return made
"""


def test_fixtures_run_in_the_world_without_other_plugins(tmp_path: Path) -> None:
    (tmp_path / "pytest_asyncio_fake.py").write_text(_FAKE_ASYNCIO)
    words = ("-p", "pytest_asyncio_fake", "-s", "-W", "error")
    status, said = _pytest(tmp_path, *words, text=_FIXTURES)
    assert status == 1
    assert "4 passed, 2 errors" in said
    assert said.count("closed at 16.0") == 2
    assert "pytest-asyncio sets it up" in said
    # A failed fixture reports its world, too.
    assert "pytest test_it.py::test_of_a_broken_fixture --virtual-seed 0" in said


_SHARED = """
import asyncio
import os

import pytest

PROCESS = os.getpid()


@pytest.mark.virtual(seeds=100)
async def test_fails_with_some(world):
    await asyncio.sleep(5)
    assert world.seed not in (31, 32, 7, 60), "the bug"


@pytest.mark.virtual(seeds=30)
async def test_passes(world, tmp_path):
    (tmp_path / "file").write_text("")
    print(f"seed {world.seed} in {'this' if os.getpid() == PROCESS else 'another'} process")
    with open("runs", "a") as runs:
        runs.write(f"{world.seed} {os.getpid()}\\n")


@pytest.mark.virtual(exhaustive=1)
async def test_in_all_orders(world):
    await asyncio.gather(asyncio.sleep(1), asyncio.sleep(1))
    assert os.getpid() == PROCESS
"""


@pytest.mark.slow
def test_report_does_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    reports = []
    for jobs in ("1", "2", "5"):
        status, said = run_pytest(tmp_path, "--virtual-jobs", jobs, text=_SHARED)
        assert status == 1
        assert "1 failed, 2 passed" in said
        assert "seed" not in said.partition("virtual world")[0].partition("FAILURES")[0]
        section = said.partition("- virtual world -")[2].partition("short test summary")[0]
        assert "7 passed before this one" in section
        assert "--virtual-seed 7" in section
        reports.append(section)
        runs = [line.split() for line in (tmp_path / "runs").read_text().splitlines()]
        (tmp_path / "runs").unlink()
        assert sorted(int(seed) for seed, _ in runs) == list(range(30))
        assert len({process for _, process in runs}) == (1 if jobs == "1" else int(jobs) + 1)
    assert len(set(reports)) == 1


_DIES = """
import os

import pytest

PROCESS = os.getpid()


@pytest.mark.virtual(seeds=30)
async def test_dies(world):
    if world.seed == 17 and os.getpid() != PROCESS:
        os._exit(3)


@pytest.mark.virtual(seeds=30)
async def test_passes_here_alone(world):
    assert os.getpid() == PROCESS, "another process"
"""


def test_failure_in_another_process_alone_is_reported(tmp_path: Path) -> None:
    status, said = run_pytest(tmp_path, "--virtual-jobs", "2", text=_DIES)
    assert status == 1
    assert "2 failed" in said
    assert (
        "seed 17: passed here, but failed in a process of its own: it ended with status 3" in said
    )
    assert "seed 1: passed here, but failed" in said
    assert "AssertionError: another process" in said


_PYTEST_FIXTURES = """
import asyncio
import logging
import warnings

import pytest


@pytest.fixture
def opened(request):
    done = []
    request.addfinalizer(lambda: done.append(1))
    yield done
    assert not done


@pytest.mark.virtual(seeds=3)
async def test_all(
    world, opened, tmp_path, tmpdir, capsys, caplog, monkeypatch, recwarn, record_property, subtests
):
    assert not opened and not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(asyncio, "of_a_test", 1, raising=False)
    print(world.seed)
    logging.warning("seed %d", world.seed)
    warnings.warn(UserWarning("one"))
    await asyncio.sleep(1)
    assert capsys.readouterr().out == f"{world.seed}\\n"
    assert caplog.messages == [f"seed {world.seed}"]
    assert len(recwarn) == 1


class TestOfAClass:
    @pytest.mark.virtual(seeds=3)
    @pytest.mark.parametrize("number", [1, 2])
    async def test_it(self, world, number, tmp_path):
        self.seen = getattr(self, "seen", 0) + 1
        assert self.seen == 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_fixtures_of_pytest_are_new_for_each_run(tmp_path: Path, jobs: str) -> None:
    text = _PYTEST_FIXTURES
    if not hasattr(pytest, "Subtests"):
        text = text.replace(", subtests", "")
    status, said = run_pytest(tmp_path, "--virtual-jobs", jobs, text=text)
    assert status == 0, said
    assert "3 passed" in said
