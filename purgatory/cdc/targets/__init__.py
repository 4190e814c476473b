"""The databases that changes are applied to."""

from __future__ import annotations

from purgatory.cdc.errors import TargetError
from purgatory.cdc.targets.target import Table, Target

__all__ = ["Table", "Target", "open_target"]

_URL_FORMS = "sqlite:///PATH or postgresql://USER@HOST:PORT/DATABASE"


def open_target(url: str) -> Target:
    """Connect to a target.

    Args:
        url: `sqlite:///relative/path`, `sqlite:////absolute/path`, or what libpq takes after
            `postgresql://` or `postgres://`.

    Raises:
        TargetError: the kind of database is unknown, or it can't be reached or opened.
    """
    if url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        from purgatory.cdc.targets.sqlite import SqliteTarget

        return SqliteTarget(url.removeprefix("sqlite:///"))
    if url.startswith(("postgresql://", "postgres://")):
        from purgatory.cdc.targets.postgres import PostgresTarget

        return PostgresTarget(url)
    kind = url.partition(":")[0]
    raise TargetError(f"{kind}:... is no target: use {_URL_FORMS}")
