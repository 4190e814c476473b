"""More topics by Spark, by night: bad records, errors and broker restarts.

By day the engine without Java does all of it, and Spark applies beside restarts in
`test_whole_chain`.
"""

from __future__ import annotations

import pytest

from tests.databases.cdc.apply.test_apply_topics import (
    kafka,
    test_bad_records_are_quarantined_and_the_stream_continues,
    test_restarted_brokers_lose_and_duplicate_no_change,
    test_stream_error_is_one_line,
    topic,
)
from tests.spark.cdc.apply.test_apply_topics_in_spark import engine, url

__all__ = [
    "engine",
    "kafka",
    "test_bad_records_are_quarantined_and_the_stream_continues",
    "test_restarted_brokers_lose_and_duplicate_no_change",
    "test_stream_error_is_one_line",
    "topic",
    "url",
]
pytestmark = [pytest.mark.spark, pytest.mark.exhaustive]
