"""The protocol of a wait that spans processes, checked by Spin in every order of its steps."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.databases.shared.servers import program
from tests.proofs.spin.model import missing_tools

MODEL = Path(__file__).with_name("relay.pml")


def errors_of(folder: Path, *macros: str) -> tuple[int, int]:
    """Check the model with these macros; return the errors and the states that were stored."""
    defined = [f"-D{macro}" for macro in macros]
    for command in (
        ["spin", *defined, "-a", str(MODEL)],
        ["gcc", "-O1", "-w", "-DNFAIR=3", "-o", "pan", "pan.c"],
    ):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    ran = subprocess.run(
        ["./pan", "-a", "-f", "-m100000"], cwd=folder, check=True, capture_output=True, text=True
    )
    assert "max search depth too small" not in ran.stdout
    errors = re.search(r"errors: (\d+)", ran.stdout)
    states = re.search(r"(\d+) states, stored", ran.stdout)
    assert errors is not None
    assert states is not None, ran.stdout
    return int(errors[1]), int(states[1])


@pytest.fixture(autouse=True)
def _tools() -> None:
    for name in ("spin", "gcc"):
        program(name, name)
    assert not missing_tools()


# The larger state spaces change with the model alone.
@pytest.mark.slow
@pytest.mark.parametrize(
    "macros",
    [
        (),
        pytest.param(("LOSSY", "RESYNC"), marks=pytest.mark.exhaustive),
        pytest.param(("RESYNC",), marks=pytest.mark.exhaustive),
    ],
    ids=" ".join,
)
def test_each_wait_ends_and_no_value_is_made_up(macros: tuple[str, ...], tmp_path: Path) -> None:
    errors, states = errors_of(tmp_path, *macros)
    assert errors == 0
    assert states > 1_000


@pytest.mark.parametrize(
    "macros",
    [("LOSSY",), ("BREAK_READ_FIRST",), ("BREAK_CLEARED_LATE",), ("BREAK_LIVE_FIRST",)],
    ids=" ".join,
)
def test_without_one_of_its_rules_spin_finds_an_error(
    macros: tuple[str, ...], tmp_path: Path
) -> None:
    errors, _ = errors_of(tmp_path, *macros)
    assert errors > 0
