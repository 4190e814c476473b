"""The fixtures of `tests/processes/cli`."""

from tests.processes.cli.conftest import run_command

__all__ = ["run_command"]
