"""Fixtures that the tests of the simulation share with those of the command line."""

from __future__ import annotations

from tests.processes.cli.conftest import run_command

__all__ = ["run_command"]
