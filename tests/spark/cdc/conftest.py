"""The fixtures of `tests/databases/cdc`."""

from tests.databases.cdc.conftest import engine, mariadb, postgres, target, url

__all__ = ["engine", "mariadb", "postgres", "target", "url"]
