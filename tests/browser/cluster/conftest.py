"""The fixtures of `tests/wire/cluster`."""

from tests.wire.cluster.conftest import cluster, name, pytest_configure

__all__ = ["cluster", "name", "pytest_configure"]
