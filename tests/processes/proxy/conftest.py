"""The fixtures of `tests/wire/proxy`, and running commands."""

from tests.processes.cli.conftest import run_command
from tests.wire.proxy.conftest import cluster, proxy, proxy_of_module, pytest_configure, topic

__all__ = ["cluster", "proxy", "proxy_of_module", "pytest_configure", "run_command", "topic"]
