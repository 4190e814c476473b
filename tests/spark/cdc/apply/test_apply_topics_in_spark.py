"""Topics of a real cluster by Spark: with each topic it does what the engine without Java does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.databases.cdc.apply.test_apply_topics import (
    kafka,
    test_all_partitions_are_applied_together_by_transaction,
    test_bad_records_are_quarantined_and_the_stream_continues,
    test_next_run_of_a_topic_resumes_at_the_targets_offset,
    test_restarted_brokers_lose_and_duplicate_no_change,
    test_stream_error_is_one_line,
    topic,
)

__all__ = [
    "kafka",
    "test_all_partitions_are_applied_together_by_transaction",
    "test_bad_records_are_quarantined_and_the_stream_continues",
    "test_next_run_of_a_topic_resumes_at_the_targets_offset",
    "test_restarted_brokers_lose_and_duplicate_no_change",
    "test_stream_error_is_one_line",
    "topic",
]
pytestmark = pytest.mark.spark


@pytest.fixture
def url(tmp_path: Path) -> str:
    """SQLite alone: whether a target takes the changes does not depend on the engine."""
    return f"sqlite:///{tmp_path / 'target.db'}"
