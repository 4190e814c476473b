"""The fixture `world` and the mark `virtual`, as a project that has the package sees them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

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


def _pytest(folder: Path, *words: str, text: str = _TESTS) -> tuple[int, str]:
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_a_marked_test_runs_once_for_each_seed_and_a_failure_says_how_to_repeat_it(
    tmp_path: Path,
) -> None:
    status, said = _pytest(tmp_path, "--durations=5")
    assert status == 1
    assert "1 failed, 11 passed" in said
    assert "seed 3, 10.000000 s after the world began, digest " in said
    repeat = re.search(r"pytest '(\S+)' --virtual-seed 3$", said, re.M)
    assert repeat is not None
    assert repeat[1] == "test_it.py::test_one_seed_fails[seed3]"
    # How long tests took is told in the machine's time.
    taken_s = [float(one) for one in re.findall(r"^([0-9.]+)s (?:call|setup)", said, re.M)]
    assert all(one < 600 for one in taken_s)
    status, said = _pytest(tmp_path, repeat[1], "--virtual-seed", "3")
    assert status == 1
    assert "1 failed in" in said


def test_the_command_line_says_which_seeds(tmp_path: Path) -> None:
    assert "8 passed" in _pytest(tmp_path, "--virtual-seeds", "3")[1]
    assert "1 failed, 3 passed" in _pytest(tmp_path, "--virtual-seed", "3")[1]
    status, said = _pytest(tmp_path, "--virtual-seeds", "0")
    assert status == 4
    assert "--virtual-seeds: invalid" in said


def test_a_mark_that_makes_no_sense_is_told(tmp_path: Path) -> None:
    for mark, fixture, advice in (
        ("virtual(seeds=0)", "world", "runs at least once: seeds=0"),
        ("virtual(5)", "world", "the mark is virtual(seeds=50)"),
        ("virtual", "tmp_path", "takes the fixture `world`"),
    ):
        text = f"import pytest\n\n@pytest.mark.{mark}\ndef test_it({fixture}): pass\n"
        status, said = _pytest(tmp_path, text=text)
        assert status in (2, 4)
        assert advice in said
