"""Shrinking of failures in worlds, as users of pytest see it."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path

import pytest

from tests.world.virtual.pytest_run import run_pytest

pytestmark = pytest.mark.timeout(900)

_BUG = """
import asyncio
import pytest


@pytest.mark.virtual(seeds=4)
async def test_it(world):
    seen = set()
    for number in range(4):
        world.at(f"{number + 1}s", seen.add, number)
    world.at("1h", seen.add, "later")
    await asyncio.sleep(10)
    assert world.seed < 2 or not {1, 3} <= seen
"""
_HEADING = "virtual world, shrunk"


def _shrunk(said: str) -> str:
    """The report's section of the shrunk failure."""
    assert said.count(f"- {_HEADING} -") == 1
    return re.split(r"\n(?:____|====)", said.partition(_HEADING)[2].partition("\n")[2])[0]


def test_command_repeats_the_smallest_failure(tmp_path: Path) -> None:
    status, said = run_pytest(tmp_path, text=_BUG)
    assert status == 1
    assert "1 failed" in said
    assert "2 passed before this one" in said
    for once in ("last events:", "faults: 4 of 5", "(Where the program iterates"):
        assert said.count(once) == 1, once
    shrunk = _shrunk(said)
    assert shrunk.startswith("it fails with 2 of 5 faults, too (")
    assert "\n   1      2.000000 s  set.add(1)\n   3      4.000000 s  set.add(3)\nlast ev" in shrunk
    [repeat] = re.findall(r"^repeat it: pytest (.*)$", shrunk, re.M)
    assert repeat == "test_it.py::test_it --virtual-seed 2 --virtual-without 0,2,4"
    status, said = run_pytest(tmp_path, "--virtual-no-shrink", *shlex.split(repeat), text=_BUG)
    assert status == 1
    assert "assert (2 < 2 or not {1, 3} <= {1, 3})" in said
    assert _HEADING not in said
    digests = [re.findall(r"digest (\w+)", text)[-1] for text in (shrunk, said)]
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_workers_shrink_their_failures(tmp_path: Path) -> None:
    ini = "[pytest]\naddopts = -n 2 -x --junit-xml=report.xml\n"
    status, said = run_pytest(tmp_path, text=_BUG, ini=ini)
    assert status != 0
    assert _shrunk(said).startswith("it fails with 2 of 5 faults")
    assert 'failures="1"' in (tmp_path / "report.xml").read_text()


def test_fixtures_are_new_for_each_shrinking_run(tmp_path: Path) -> None:
    text = """
import logging
import pytest

made = []

@pytest.fixture
def each(world):
    made.append(world.seed)
    print("set up", world.seed)
    yield world.seed
    made.append(-1)

@pytest.fixture(scope="module")
def once():
    made.append("once")

class TestIt:
    seen = None

    @pytest.mark.virtual(seeds=4)
    def test_it(self, world, once, each):
        assert each == world.seed
        assert self.seen is None
        self.seen = world.seed
        print("tested", world.seed)
        logging.warning("logged %s", world.seed)
        world.at("1s", print, "fault")
        world.pass_time("2s")
        assert world.seed < 2

def test_after():
    assert made[:6] == ["once", 0, -1, 1, -1, 2]
    assert made.count("once") == 1
    assert made.count(-1) == len(made) // 2
"""
    _, said = run_pytest(tmp_path, text=text)
    assert "1 failed, 1 passed" in said
    assert _shrunk(said).startswith("it fails with none of 1 faults, too (2 attempts)")
    for printed in ("set up 2", "tested 2", "logged 2"):
        assert said.count(printed) == 1
    assert not re.search(r"^(set up|tested|.*logged) [013]", said, re.M)


def test_fixture_failure_in_a_later_run_is_reported(tmp_path: Path) -> None:
    text = """
import pytest

@pytest.fixture
def each(world):
    assert world.seed < 2, "no such seed"

@pytest.mark.virtual(seeds=4)
async def test_it(world, each):
    pass

@pytest.fixture
def ended(world):
    yield
    assert world.seed < 1, "bad end"

@pytest.mark.virtual(seeds=4)
async def test_other(world, ended):
    pass
"""
    _, said = run_pytest(tmp_path, text=text)
    assert "2 failed" in said
    assert "no such seed" in said
    assert "bad end" in said
    assert "test_it --virtual-seed 2" in said
    assert "test_other --virtual-seed 1" in said


@pytest.mark.slow
def test_failure_that_does_not_repeat_is_reported(tmp_path: Path) -> None:
    text = """
from pathlib import Path

def test_it(world):
    beside = Path("beside")
    if not beside.exists():
        beside.touch()
        raise ValueError
"""
    _, said = run_pytest(tmp_path, text=text)
    shrunk = _shrunk(said)
    assert shrunk.startswith("not reproduced: repeated in the same process, the test passed.")
    (tmp_path / "beside").unlink()
    _, said = run_pytest(tmp_path, text=text + "    raise KeyError\n")
    assert "another failure came: KeyError, and not ValueError" in _shrunk(said)


@pytest.mark.slow
def test_shrinking_reports_exhausted_attempts(tmp_path: Path) -> None:
    status, said = run_pytest(tmp_path, "--virtual-shrink-attempts", "1", text=_BUG)
    assert status == 1
    expected = (
        "no smaller failure was found (1 attempt, and no more: --virtual-shrink-attempts 5 loo"
    )
    assert _shrunk(said).startswith(expected)
    for wrong in ("0", "-1", "x"):
        status, said = run_pytest(tmp_path, f"--virtual-shrink-attempts={wrong}", text=_BUG)
        assert status == 4
        assert "--virtual-shrink-attempts: invalid" in said


@pytest.mark.slow
def test_attempt_that_waits_forever_is_ended(tmp_path: Path) -> None:
    text = """
import asyncio

async def test_it(world):
    ended = asyncio.Event()
    world.at("1s", ended.set)
    while not ended.is_set():
        await asyncio.sleep(0.001)
    assert 0
"""
    _, said = run_pytest(tmp_path, text=text)
    assert _shrunk(said).startswith("no smaller failure was found (2 attempts)")


@pytest.mark.slow
@pytest.mark.parametrize(
    "at_limit", ["world.pass_time('2h')", "with raises(TimeoutError): world.pass_time('2h')"]
)
def test_timeout_of_an_attempt_does_not_count_as_the_failure(tmp_path: Path, at_limit: str) -> None:
    text = f"""
import asyncio
from pytest import raises

def test_it(world):
    broken = []
    world.at("1s", broken.append, 1)

    async def wait():
        await asyncio.sleep(2)
        while broken:
            await asyncio.sleep(0.1)

    world.run(wait(), timeout="5s")  # is not done in time with the fault alone
    {at_limit}
    world.pass_time("2h")
"""
    _, said = run_pytest(tmp_path, text=text)
    assert _shrunk(said).startswith("no smaller failure was found (2 attempts)")


def test_ctrl_c_reports_the_smallest_failure_so_far(tmp_path: Path) -> None:
    # The first attempt that excludes more than the fault that never began is interrupted.
    before = "    await asyncio"
    stop = f"import os; os.kill(os.getpid(), {int(signal.SIGINT)})"
    text = _BUG.replace(before, f"    if len(world.without) > 1:\n        {stop}\n{before}")
    status, said = run_pytest(tmp_path, text=text + "\n\ndef test_later():\n    pass\n")
    assert status == 2
    shrunk = _shrunk(said)
    assert shrunk.startswith("it fails with 4 of 5 faults, too (3 attempts, then it was interrup")
    assert "--virtual-without 4\n" in shrunk
    assert "1 failed" in said
    assert "interrupted while a failure was shrunk" in said


def test_unexpectedly_passing_test_is_reported_clearly(tmp_path: Path) -> None:
    text = """
import pytest

@pytest.mark.xfail(strict=True)
def test_it(world):
    world.pass_time("1h")
"""
    _, said = run_pytest(tmp_path, text=text)
    assert "XPASS(strict)" in said
    assert "nothing happened\n" in said
    assert _HEADING not in said


@pytest.mark.slow
def test_failures_are_shrunk_only_with_the_option(tmp_path: Path) -> None:
    for word in ("--virtual-no-shrink", "--tb=no"):
        _, said = run_pytest(tmp_path, word, text=_BUG)
        assert "1 failed" in said
        assert _HEADING not in said
    _, said = run_pytest(tmp_path, text="def test_it(tmp_path):\n    assert 0\n")
    assert "1 failed" in said
    assert _HEADING not in said
