"""The one line that a failed query is reported with."""

from __future__ import annotations

import pytest

from purgatory.source.errors import QueryFailure, query_failure, topic_recreated

OF_PYTHON = """[STREAM_FAILED] Query [id = 1] terminated with: Traceback (most recent call last):
  File "clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the worker:
Traceback (most recent call last):
  File "worker.py", line 3, in task
ModuleNotFoundError: No module named 'purgatory.source'
 SQLSTATE: 39000
Logical Plan:
~WriteToMicroBatchDataSourceV1"""
OF_OURS = """[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback:
purgatory.source.errors.BrokerAwayError: 127.0.0.1:9: no answer within 2000 ms
ValueError: something that followed from it"""


@pytest.mark.parametrize(
    ("text", "reason", "is_transient"),
    [
        (OF_PYTHON, "ModuleNotFoundError: No module named 'purgatory.source'", True),
        (OF_OURS, "127.0.0.1:9: no answer within 2000 ms", True),
        ("purgatory.source.errors.OptionError: no topic", "no topic", False),
        ("Job aborted.\nLost executor 1", "Job aborted.", True),
        ("", "RuntimeError", True),
    ],
)
def test_failure_line_is_the_most_specific_one(text: str, reason: str, is_transient: bool) -> None:
    assert query_failure(RuntimeError(text), "Begin anew") == QueryFailure(reason, is_transient)


def test_data_loss_error_names_the_remedy() -> None:
    lost = topic_recreated("orders")
    told = query_failure(RuntimeError(f"purgatory.source.errors.DataLossError: {lost}"), "Do it.")
    assert told.reason.startswith("topic orders was deleted and made anew while it was read: ")
    assert told.reason.endswith("those that were read. Do it.")
    assert not told.is_transient
