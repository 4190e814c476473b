"""What all tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A shared or throttled machine must not fail a test by being slow: pytest's own limit is enough.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def _unconfigured_logs() -> None:
    """Begin as a program that configured nothing; commands that ran before did."""
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one session of a process, which knows the format of topics."""
    from purgatory.pipeline.session import spark_session
    from purgatory.source import register

    with spark_session("local[2]", small=True) as session:
        register(session)
        yield session
