"""The native parts and those in pure Python: which ones run, and that they look the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.unit.timer.described_alike import assert_described_alike
from timer import NATIVE, SystemTimer, TimerTask
from timer.histogram import Histogram, _PureHistogram
from timer.system_timer import _PureTimer
from timer.timer_task import _PureTask

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.own_process
PAIRS = [(TimerTask, _PureTask), (SystemTimer, _PureTimer), (Histogram, _PureHistogram)]


def native_in(**environment: str) -> str:
    """The value of ``timer.NATIVE`` in a process with this environment."""
    told = subprocess.run(
        [sys.executable, "-c", "import timer; print(timer.NATIVE)"],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return told.stdout.strip()


def test_the_environment_forces_pure_python() -> None:
    assert native_in(PURGATORY_PURE="1") == "False"


def test_the_native_parts_run_where_they_can_be_built() -> None:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    missing = shutil.which("cc") is None or not header.exists()
    if missing and not os.environ.get("CI"):
        pytest.skip("no C compiler, or no Python.h, to build them with")
    assert native_in(PURGATORY_PURE="") == "True"


@pytest.mark.skipif(not NATIVE, reason="the native parts are not in use")
@pytest.mark.parametrize(("public", "pure"), PAIRS, ids=lambda one: one.__name__)
def test_native_classes_have_the_docstrings_of_the_pure_ones(public: type, pure: type) -> None:
    assert_described_alike(public, pure)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("compiler", "native"), [("cc", "True"), ("false", "False")])
def test_a_wheel_is_built_with_and_without_a_compiler_and_runs(
    tmp_path: Path, compiler: str, native: str
) -> None:
    """The wheel is installed where no compiler is: nothing is built there."""
    python = tmp_path / "venv" / "bin" / "python"
    wheels = tmp_path / "wheels"
    quiet = ("--quiet", "--disable-pip-version-check")
    source = tmp_path / "source"
    shutil.copytree(
        ROOT,
        source,
        ignore=shutil.ignore_patterns(".venv", ".git", "build", "*.so", "*.c", "__pycache__"),
    )
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    subprocess.run(
        [python, "-m", "pip", "wheel", *quiet, "--no-deps", "--wheel-dir", wheels, source],
        env={**os.environ, "CC": compiler},
        check=True,
    )
    [wheel] = wheels.iterdir()
    built = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith((".so", ".pyd"))]
    sources = [
        path for package in ("timer", "purgatory") for path in (ROOT / package).rglob("*.pyx")
    ]
    assert len(built) == (len(sources) if native == "True" else 0)
    subprocess.run([python, "-m", "pip", "install", *quiet, wheel], check=True)
    program = (
        "import timer; t = timer.SystemTimer('t', executor=timer.InlineExecutor());"
        "t.call_later(1, print, timer.NATIVE); t.advance_clock(1_000)"
    )
    told = subprocess.run(
        [python, "-c", program],
        env={"PATH": str(python.parent)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == native


@pytest.mark.exhaustive
def test_a_source_distribution_has_all_that_a_clone_has(tmp_path: Path) -> None:
    """With the docs, the tests, and what the native parts are built from."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("this is no clone")
    tracked = {name for name in listed.stdout.split("\0") if (ROOT / name).is_file()}
    source, built = tmp_path / "source", tmp_path / "built"
    # A copy of these alone: what a build left behind would tell setuptools of more.
    for name in tracked:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    subprocess.run(
        [sys.executable, "-m", "build", "--sdist", "--outdir", built, source],
        check=True,
        capture_output=True,
    )
    [archive] = built.iterdir()
    with tarfile.open(archive) as files:
        packed = {name.partition("/")[2] for name in files.getnames()}
    assert {"timer/native/timer.pyx", "docs/timer.md"} <= tracked
    assert tracked - packed == set()
