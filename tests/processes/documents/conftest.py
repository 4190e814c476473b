"""The documents show what commands print, so their tests run commands."""

from __future__ import annotations

from tests.processes.cli.conftest import run_command

__all__ = ["run_command"]
