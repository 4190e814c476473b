"""The Makefile: its choice of a Python, by the output of `make -n`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.documents.documents import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def python_of_version(path: Path, version: str) -> Path:
    """Write a program that answers as a Python of this version does where make asks for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return path


def would_do(target: str, folder: Path, *settings: str) -> str:
    """The commands of make in an environment of Python 3.11 that is ready for all."""
    venv = folder / "venv"
    python_of_version(venv / "bin/python", "3.11")
    for name in (".ready", ".ready-demo"):
        (venv / name).touch()
    # As from a shell: make tells what it was called with to the make below it.
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    command = ["make", "--dry-run", target, f"VENV={venv}", *settings]
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return ran.stdout


@pytest.mark.parametrize("target", ["setup", "demo", "docs"])
def test_named_python_replaces_the_default(target: str, tmp_path: Path) -> None:
    other = python_of_version(tmp_path / "other", "3.12")
    assert f"{other} -m venv --clear" in would_do(target, tmp_path, f"PYTHON={other}")


@pytest.mark.parametrize("target", ["setup", "demo", "docs"])
def test_ready_environment_is_not_rebuilt(target: str, tmp_path: Path) -> None:
    same = python_of_version(tmp_path / "same", "3.11")
    for settings in ([], [f"PYTHON={same}"]):
        assert "-m venv" not in would_do(target, tmp_path, *settings)


@pytest.mark.parametrize(
    ("pip_config", "uv_status", "installers"),
    [
        ("global.cert='/certs.pem'", 0, ["pip", "uv"]),
        ("global.extra-index-url='file:///wheels'", 1, ["pip", "uv", "pip"]),
        ("global.index-url='https://index.example/simple'", 0, ["pip"]),
        (":env:.index-url='https://index.example/simple'", 0, ["pip"]),
        (":env:.no-index='1'", 0, ["pip"]),
    ],
    ids=["uv", "uv fails", "own index", "own index in the environment", "no index"],
)
def test_uv_installs_unless_pip_has_its_own_index(
    pip_config: str, uv_status: int, installers: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f"""#!/bin/sh
        case "$*" in
            "-m pip config list") echo "{pip_config}" ;;
            *version_info*) echo 3.11 ;;
            *" install "*) echo "$@" >> {log}; case "$*" in "-m uv"*) exit {uv_status} ;; esac ;;
        esac
        """
    )
    python.chmod(0o755)
    command = ["make", "setup", f"VENV={tmp_path / 'venv'}", f"PYTHON={python}"]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = log.read_text().splitlines()
    assert [line.split()[1] for line in lines] == installers
    assert all("--constraint constraints.txt" in line for line in lines)
    assert "--editable .[dev" in lines[-1]


def test_each_target_is_listed_in_a_column() -> None:
    ran = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [line for line in ran.stdout.splitlines() if line.startswith("  make ")]
    assert len(lines) > 15
    assert all(line[20] == " " and line[21] != " " for line in lines)


def test_make_test_runs_all_but_the_exhaustive_tests(tmp_path: Path) -> None:
    command = would_do("test", tmp_path).splitlines()[-1]
    assert "-m 'not exhaustive'" in command
    assert "tests/" not in command


def test_quick_tests_are_those_without_servers(tmp_path: Path) -> None:
    assert would_do("quick", tmp_path).rstrip().endswith("tests/unit tests/proofs")


def test_bytecode_is_kept_whatever_the_environment_says(tmp_path: Path) -> None:
    (tmp_path / "venv/bin").mkdir(parents=True)
    python = python_of_version(tmp_path / "venv/bin/python", "3.11")
    python.write_text('#!/bin/sh\ncase "$*" in *pytest*) env ;; *) echo 3.11 ;; esac\n')
    for name in (".ready", ".ready-demo"):
        (tmp_path / "venv" / name).touch()
    command = ["make", "test", f"VENV={tmp_path / 'venv'}"]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert "PYTHONDONTWRITEBYTECODE" not in ran.stdout
    assert "UV_COMPILE_BYTECODE=1" in ran.stdout
