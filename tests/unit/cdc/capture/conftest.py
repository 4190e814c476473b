"""The fixtures of `tests/databases/cdc/capture`."""

from tests.databases.cdc.capture.conftest import capturing, cluster

__all__ = ["capturing", "cluster"]
