"""Failures in worlds that are made smaller, as somebody sees it who runs pytest."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path

import pytest

from tests.virtual.pytest_run import run_pytest

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
_TIME = ("--virtual-shrink-s", "500")
"""As long as a machine takes that does much else; a search that is done ends before."""
_HEADING = "virtual world, shrunk"


def _shrunk(said: str) -> str:
    """The section of what was shrunk."""
    assert said.count(f"- {_HEADING} -") == 1
    return re.split(r"\n(?:____|====)", said.partition(_HEADING)[2].partition("\n")[2])[0]


def test_a_failure_is_shrunk_and_the_command_repeats_what_is_left(tmp_path: Path) -> None:
    status, said = run_pytest(tmp_path, *_TIME, text=_BUG)
    assert status == 1
    assert "2 failed, 2 passed" in said
    assert "shrinking test_it.py::test_it[seed2], for at most 500 s" in said
    assert "shrinking test_it.py::test_it[seed3]" not in said, "the first of each test"
    shrunk = _shrunk(said)
    assert shrunk.startswith("it fails with 2 of 5 faults, on a plain network, too (")
    assert "\n   1      2.000000 s  set.add(1)\n   3      4.000000 s  set.add(3)\nlast ev" in shrunk
    [repeat] = re.findall(r"^repeat it: PYTHONHASHSEED=0 pytest (.*)$", shrunk, re.M)
    seed = "--virtual-seed 2 --virtual-without 0,2,4 --virtual-plain-network"
    assert repeat == f"'test_it.py::test_it[seed2]' {seed}"
    status, said = run_pytest(tmp_path, "--virtual-no-shrink", *shlex.split(repeat), text=_BUG)
    assert status == 1
    assert "assert (2 < 2 or not {1, 3} <= {1, 3})" in said
    assert _HEADING not in said
    digests = [re.findall(r"digest (\w+)", text)[-1] for text in (shrunk, said)]
    assert digests[0] == digests[1]


def test_workers_have_their_failures_shrunk_for_them(tmp_path: Path) -> None:
    ini = "[pytest]\naddopts = -n 2 -x --junit-xml=report.xml\n"
    run = 'open("runs", "a").write("x")'
    text = _BUG.replace("seeds=4", "seeds=3").replace(
        "    seen = set()", f"    {run}\n    seen = set()"
    )
    status, said = run_pytest(tmp_path, *_TIME, text=text, ini=ini)
    assert status != 0
    assert _shrunk(said).startswith("it fails with 2 of 5 faults")
    [attempts] = re.findall(r"\((\d+) attempts\)", said)
    runs = len((tmp_path / "runs").read_text())
    assert runs <= int(attempts) + 3, "neither workers nor attempts look for smaller failures"
    assert 'failures="1"' in (tmp_path / "report.xml").read_text(), "attempts write no report"


def test_a_failure_that_does_not_come_again_is_told(tmp_path: Path) -> None:
    text = """
from pathlib import Path

def test_it(world):
    beside = Path("beside")
    if not beside.exists():
        beside.touch()
        raise ValueError
"""
    _, said = run_pytest(tmp_path, *_TIME, text=text)
    shrunk = _shrunk(said)
    assert shrunk.startswith("not reproduced: repeated in a process of its own, the test passed.")
    assert "the order of sets (set PYTHONHASHSEED" in shrunk
    assert "1 passed" in shrunk
    (tmp_path / "beside").unlink()
    _, said = run_pytest(tmp_path, *_TIME, text=text + "    raise KeyError\n")
    assert "another failure came: KeyError, and not ValueError" in _shrunk(said)


def test_when_time_is_up_it_says_so(tmp_path: Path) -> None:
    status, said = run_pytest(tmp_path, "--virtual-shrink-s", "0.001", text=_BUG)
    assert status == 1
    expected = r"not made smaller \((0 attempts|1 attempt), then the time was up: "
    assert re.match(expected + r"--virtual-shrink-s 0\.005 looks ", _shrunk(said))
    for wrong in ("0", "-1", "nan", "inf", "x"):
        status, said = run_pytest(tmp_path, f"--virtual-shrink-s={wrong}", text=_BUG)
        assert status == 4
        assert "--virtual-shrink-s: invalid" in said


def test_ctrl_c_gives_what_was_found_so_far(tmp_path: Path) -> None:
    # With more left out than what never began, an attempt stops whoever looks for less.
    stop = f"import os; os.kill(os.getppid(), {int(signal.SIGINT)})"
    before = "    await asyncio"
    text = _BUG.replace(before, f"    if len(world.without) > 1:\n        {stop}\n{before}")
    status, said = run_pytest(tmp_path, *_TIME, text=text)
    assert status == 1, "that of the failed tests"
    shrunk = _shrunk(said)
    assert shrunk.startswith("it fails with 4 of 5 faults, too (3 attempts, then it was interrup")
    assert shrunk.endswith("--virtual-without 4")
    assert "2 failed, 2 passed" in said


def test_who_ended_the_tests_waits_for_nothing(tmp_path: Path) -> None:
    text = _BUG + "\n\ndef test_later():\n    raise KeyboardInterrupt\n"
    status, said = run_pytest(tmp_path, *_TIME, text=text)
    assert status == 2
    assert "test_it.py:" in said
    assert "shrinking" not in said


def test_a_test_that_should_have_failed_is_no_riddle(tmp_path: Path) -> None:
    text = """
import pytest

@pytest.mark.xfail(strict=True)
def test_it(world):
    world.pass_time("1h")
"""
    _, said = run_pytest(tmp_path, *_TIME, text=text)
    assert "XPASS(strict)" in said
    assert "nothing happened\n" in said
    assert _shrunk(said).startswith("it fails on a plain network, too (2 attempts)")


def test_what_the_ini_file_leaves_out_is_repeated_as_well(tmp_path: Path) -> None:
    ini = "[pytest]\naddopts = -m 'not long'\nmarkers = long: takes long\n"
    text = """
import pytest

@pytest.mark.long
def test_it(world):
    assert 0
"""
    _, said = run_pytest(tmp_path, *_TIME, "-m", "long", text=text, ini=ini)
    assert _shrunk(said).startswith("it fails on a plain network, too")


def test_nothing_is_shrunk_unasked(tmp_path: Path) -> None:
    _, said = run_pytest(tmp_path, "--virtual-no-shrink", text=_BUG)
    assert "2 failed" in said
    assert "shrinking" not in said
    assert _HEADING not in said
    _, said = run_pytest(tmp_path, *_TIME, "--tb=no", text=_BUG)
    assert "shrinking" not in said, "nobody would see it"
    _, said = run_pytest(tmp_path, *_TIME, text="def test_it(tmp_path):\n    assert 0\n")
    assert "1 failed" in said
    assert "shrinking" not in said
