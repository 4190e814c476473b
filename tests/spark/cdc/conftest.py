"""The databases of `tests/databases/cdc`, for its tests by Spark."""

from tests.databases.cdc.conftest import mariadb, postgres, target, url

__all__ = ["mariadb", "postgres", "target", "url"]
