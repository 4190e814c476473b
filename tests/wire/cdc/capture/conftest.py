"""The fixtures of `tests/databases/cdc/capture`."""

from tests.databases.cdc.capture.conftest import cluster

__all__ = ["cluster"]
