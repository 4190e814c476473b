"""Running commands, for the tests of the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from purgatory.cli.main import main


class Ran(NamedTuple):
    """A command's exit status and what it printed."""

    status: int
    out: str
    err: str


RunCommand = Callable[..., Ran]


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> RunCommand:
    """Return a function that runs ``purgatory`` with its arguments in this process."""
    # A user's or CI's wish for colours would hide what the program itself decides.
    for name in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str) -> Ran:
        status = main(arguments)
        out, err = capsys.readouterr()
        return Ran(status, out, err)

    return run
