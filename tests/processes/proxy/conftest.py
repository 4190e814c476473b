"""The fixtures of `tests/wire/proxy`."""

from tests.wire.proxy.conftest import cluster, proxy, proxy_of_module, pytest_configure, topic

__all__ = ["cluster", "proxy", "proxy_of_module", "pytest_configure", "topic"]
