"""The audit as a chain of statements, and the small tables that it reads besides the trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from purgatory.pipeline.jobs.audit.anomalies import (
    ANOMALIES,
    EQUAL_RECORDS,
    FETCHED_AGAIN,
    GROUNDS,
    NO_EFFECTS,
    NO_READS,
    NO_SENDS,
    NONE_ACKNOWLEDGED,
    NONE_STORED,
    OF_ABSENCE,
    UNREAD,
    UNREAD_COPIES,
    check_limits,
)
from purgatory.pipeline.jobs.audit.client_settings import (
    SETTINGS,
    Configuration,
    expected_by_anomaly,
    settings_rows,
)
from purgatory.pipeline.jobs.chain import Statement, read_chain

ABORT_ERRORS = ("TRANSACTION_ABORTED", "TRANSACTION_ABORTABLE")
"""Errors of a send whose record is in the log, where only a transaction hides it."""

MOST_EVENTS = 100
"""The most rows of a witness, the earliest of them."""

_FILES = (
    "settings",
    "transactions",
    "records",
    "read_pieces",
    "polls",
    "offsets",
    "writers",
    "inputs",
    "sequences",
    "keys",
    "record_anomalies",
    "partial_transactions",
    "verdicts",
    "witnesses",
    "judged",
)


def audit_chain(witnesses: int, split: int, split_us: int) -> list[Statement]:
    """The statements from the tables of a trace to `audit` and `witnesses`.

    They read the tables of the trace's schema, and those of `audit_settings`.

    Args:
        witnesses: how many cases of each run and anomaly come with their rows.
        split: the most sequence numbers of one range; a range is one task.
        split_us: how much time one range of a key's effects holds, in microseconds.

    Raises:
        ValueError: a number below 1 (`witnesses`: below 0).
    """
    check_limits(witnesses, split, split_us)
    return read_chain(
        *(f"audit/{name}.sql" for name in _FILES),
        witnesses=witnesses,
        most_events=MOST_EVENTS,
        split=split,
        split_us=split_us,
        abort_errors=ABORT_ERRORS,
        no_sends=NO_SENDS,
        none_stored=NONE_STORED,
        none_acknowledged=NONE_ACKNOWLEDGED,
        no_reads=NO_READS,
        unread=UNREAD,
        unread_copies=UNREAD_COPIES,
        equal_records=EQUAL_RECORDS,
        fetched_again=FETCHED_AGAIN,
        no_effects=NO_EFFECTS,
    )


AUDIT_SETTINGS: Mapping[str, Mapping[str, str]] = {
    **SETTINGS,
    "anomalies": {
        "anomaly": "string",
        "expected": "string",
        "absent": "boolean",
        "needs_sends": "boolean",
        "needs_stored": "boolean",
        "needs_acknowledged": "boolean",
        "needs_reads": "boolean",
    },
    "lacking": {"run_id": "string", "anomaly": "string", "lacks": "string"},
}
"""The columns of the small tables.

`anomalies` has a row for each: the expectation that it violates, whether it is found because
something is not in the trace, and what it takes to look for it. `lacking` has the anomalies that
can't be looked for in a run, and which column would show them.
"""


def audit_settings(
    configuration: Configuration,
    expect: Sequence[str],
    lacking: Sequence[tuple[str, str, str]] = (),
) -> Mapping[str, list[tuple[object, ...]]]:
    """The rows of `AUDIT_SETTINGS`; a `run_id` of None stands for all runs.

    Raises:
        ValueError: as `settings_rows` and `expected_by_anomaly` have it.
    """
    expected = expected_by_anomaly(expect)
    needs = (NO_SENDS, NONE_STORED, NONE_ACKNOWLEDGED, NO_READS)
    return {
        **settings_rows(configuration),
        "lacking": list(lacking),
        "anomalies": [
            (
                anomaly,
                expected.get(anomaly),
                anomaly in OF_ABSENCE,
                *(anomaly in GROUNDS[need] for need in needs),
            )
            for anomaly in ANOMALIES
        ],
    }
