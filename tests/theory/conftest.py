"""What the tests of theory share."""

from tests.cli.conftest import run_command

__all__ = ["run_command"]
