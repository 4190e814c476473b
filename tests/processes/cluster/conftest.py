"""The fixtures of `tests/wire/cluster`."""

from tests.wire.cluster.conftest import client, cluster, name, pytest_configure

__all__ = ["client", "cluster", "name", "pytest_configure"]
